"""Start, talk to and end a process that gathers for this one.

The producer inherits a socket and two anonymous files (memfd), the feature table and room for ids:
both processes map the same pages, and the kernel frees them with the last of the two. When the
socket closes, either side knows that the other is gone. A side (``mps.CudaProducerSide``) handles
what the two share on a device; this module does not use CUDA.

    to the producer                        back
    Start                                  ("ready", steps)
    ("buffer", place, buffer)
    ("fetch", place, count, bytes)         ("queued", place)
    anything that fails                    ("failed", words)
"""

from __future__ import annotations

import importlib
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from gatherbench.outside import words_of
from gatherbench.strategies.shared_table import map_table

#: The most ids of one fetch. The room for them is a file with holes: the used part takes memory.
MAX_IDS = 1 << 26
_ANSWER_S = 300.0
_END_S = 60.0  # a large registration takes seconds to undo


class ProducerError(RuntimeError):
    """The producer process failed or is gone; the message says which, with its last output."""


@dataclass(frozen=True, slots=True)
class Start:
    """The producer's task."""

    side: str  #: ``module:class``
    table: int  #: The descriptors of the two files.
    ids: int
    shape: tuple[int, int]
    dtype: torch.dtype
    places: int  #: Fetches that may be in flight.
    arguments: dict[str, Any]  #: Of the side.


class Producer:
    """The training process's handle of the producer, which raises :class:`ProducerError` if that
    does not start, is gone or fails."""

    def __init__(self, start: Start, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as undo:
            self._connection = undo.enter_context(Connection(ours.detach()))
            self._log = undo.enter_context(tempfile.TemporaryFile())
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(), start.table, start.ids),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
            undo.pop_all()  # from here on close() cleans up
        try:
            self.send(start)
            (self.steps,) = self._answer("ready")
        except BaseException:
            self.close()
            raise

    def send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError as gone:
            raise self._gone() from gone

    def queued(self) -> int:
        """Wait until the oldest unanswered fetch is queued, and return its place."""
        (place,) = self._answer("queued")
        return int(place)

    def _answer(self, expected: str) -> tuple[Any, ...]:
        try:
            if not self._connection.poll(_ANSWER_S):
                raise ProducerError(f"the producer process has not answered for {_ANSWER_S:g} s")
            kind, *rest = self._connection.recv()
        except (EOFError, OSError) as gone:
            raise self._gone() from gone
        if kind != expected:
            raise ProducerError(f"the producer process failed: {rest[0]}")
        return tuple(rest)

    def _gone(self) -> ProducerError:
        status = f"exit status {self._end()}"
        self._log.seek(0)
        printed = self._log.read().decode(errors="replace").strip().splitlines()
        last = printed[-1].strip() if printed else "it printed nothing"
        return ProducerError(f"the producer process is gone ({status}); last words: {last}")

    def _end(self) -> int:
        try:
            return self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self) -> None:
        """End the process: it stops when its socket closes, and is killed if it does not stop."""
        self._connection.close()
        self._end()
        self._log.close()


def serve(connection: Connection) -> None:
    """Run as the producer: answer the messages on ``connection`` until its other end closes."""
    side: Any = None
    try:
        start: Start = connection.recv()
        table = map_table(start.table, start.shape, start.dtype)
        room = map_table(start.ids, (start.places, MAX_IDS * 8), torch.uint8)
        module, name = start.side.split(":")
        side = getattr(importlib.import_module(module), name)(table, **start.arguments)
        connection.send(("ready", side.steps))
        while True:
            kind, *rest = connection.recv()
            if kind == "buffer":
                side.attach(*rest)
            else:
                place, count, item = rest
                id_dtype = torch.int32 if item == 4 else torch.int64
                side.gather(place, room[place, : count * item].view(id_dtype))
                connection.send(("queued", place))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the other side has closed the connection
    except Exception as error:
        connection.send(("failed", words_of(error)))
        raise
    finally:
        if side is not None:
            side.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process handles Ctrl-C
    torch.set_num_threads(1)
    serve(Connection(int(sys.argv[1])))
