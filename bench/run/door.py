"""The one port of a run of several machines: a door that asks for the run's token.

The machines talk through a store of torch's, and it does what anybody says. So it listens on
machine 0's loopback alone. On the address that was named a door listens: who proves to know the
token is put through to the store, and proves it in turn. What passes is neither encrypted nor
signed: the network between the machines has to be private.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from torch.distributed import TCPStore  # type: ignore[attr-defined]

#: A link without traffic is looked at this often; after so many looks without an answer it is gone.
LOOK_S, LOOKS = 30, 3
#: How long a visitor may think about each message of the handshake.
_HANDSHAKE_S = 10
#: How long connecting may take.
CONNECT_S = 60.0
_LOOPBACK = "127.0.0.1"
#: Each side asks, and each answers; who opens the connection answers first.
_ENTER, _ADMIT = (answer_challenge, deliver_challenge), (deliver_challenge, answer_challenge)
#: What a handshake with somebody else ends with.
_STRANGE = (OSError, EOFError, AuthenticationError, AssertionError)


class NotAdmittedError(Exception):
    """Who listens there does not know the token, or is no door."""


def loopback_store() -> TCPStore:
    """A new store that this machine alone can reach."""
    listening = socket.create_server((_LOOPBACK, 0))
    port = listening.getsockname()[1]
    # Without a socket of ours it would listen on every interface, whatever address it is told.
    return TCPStore(
        _LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )


def store_at(port: int, patience_s: float = CONNECT_S) -> TCPStore:
    """The store behind a port of this machine, as a client; calls take ``patience_s`` at most.

    Raises:
        torch.distributed.DistError: nobody is there.
    """
    patience = timedelta(seconds=patience_s)
    return TCPStore(_LOOPBACK, port, is_master=False, timeout=patience, wait_for_workers=False)


class Passage:
    """Has each connection to ``listening`` put through to another one, which ``onwards`` opens."""

    def __init__(
        self, listening: socket.socket, onwards: Callable[[socket.socket], socket.socket]
    ) -> None:
        self._listening, self._onwards = listening, onwards
        self.port: int = listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more; who is in stays."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends the wait for the next one
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                visitor, _ = self._listening.accept()
                threading.Thread(target=self._let_through, args=(visitor,), daemon=True).start()

    def _let_through(self, visitor: socket.socket) -> None:
        strange = suppress(*_STRANGE, NotAdmittedError)
        with strange, closing(visitor), closing(self._onwards(visitor)) as onwards:
            for end in (visitor, onwards):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=_carry, args=(onwards, visitor), daemon=True)
            back.start()
            _carry(visitor, onwards)
            back.join()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    """Pass on what arrives until one end is closed; then both are."""
    with suppress(OSError):
        while arrived := source.recv(1 << 16):
            sink.sendall(arrived)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def open_door(listening: socket.socket, token: bytes, store_port: int) -> Passage:
    """On machine 0: put who knows the token through to the store on this machine."""

    def onwards(visitor: socket.socket) -> socket.socket:
        _prove(visitor, token, _ADMIT)
        return socket.create_connection((_LOOPBACK, store_port), CONNECT_S)

    return Passage(listening, onwards)


def way_to(address: str, port: int, token: bytes) -> Passage:
    """On another machine: a port on its loopback that leads through the door of machine 0."""
    return Passage(
        socket.create_server((_LOOPBACK, 0)), lambda _visitor: enter(address, port, token)
    )


def enter(address: str, port: int, token: bytes) -> socket.socket:
    """A connection through the door.

    Raises:
        NotAdmittedError: see there.
        OSError: nobody listens there.
    """
    connection = socket.create_connection((address, port), CONNECT_S)
    try:
        _prove(connection, token, _ENTER)
    except _STRANGE as error:
        connection.close()
        raise NotAdmittedError(str(error) or type(error).__name__) from error
    return connection


def _prove(
    connection: socket.socket,
    token: bytes,
    steps: tuple[Callable[[Connection, bytes], None], ...],
) -> None:
    """Python's own handshake (:mod:`multiprocessing.connection`), with an end to its patience."""
    connection.settimeout(None)  # the handshake reads from the descriptor, which would not wait
    _patience(connection, _HANDSHAKE_S)
    with Connection(os.dup(connection.fileno())) as line:
        for step in steps:
            step(line, token)
    _patience(connection, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, LOOK_S),
        (socket.TCP_KEEPINTVL, LOOK_S),
        (socket.TCP_KEEPCNT, LOOKS),
        (socket.TCP_USER_TIMEOUT, 1000 * LOOK_S * (LOOKS + 1)),  # of what was sent, ms
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _patience(connection: socket.socket, seconds: int) -> None:
    """How long a read waits; 0: for ever."""
    limit = struct.pack("ll", seconds, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
