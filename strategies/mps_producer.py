"""The producer process: gathers what another process asks for, until that one is gone.

python -m gatherbench.strategies.mps_producer SOCKET
"""

from __future__ import annotations

import importlib
import signal
import sys
from multiprocessing.connection import Connection

import torch

from gatherbench.strategies.mps_channel import MAX_IDS, Side, Start, map_bytes


def serve(connection: Connection) -> None:
    """Do what ``connection`` asks, see ``mps_channel.py``; returns when its other end is closed."""
    try:
        start: Start = connection.recv()
        rows, width = start.shape
        size = rows * width * start.dtype.itemsize
        table = map_bytes(start.table, max(1, size))[:size].view(start.dtype).view(rows, width)
        room = map_bytes(start.ids, start.places * MAX_IDS * 8).view(start.places, -1)
        module, name = start.side.split(":")
        side: Side = getattr(importlib.import_module(module), name)(table, **start.arguments)
    except EOFError:
        return
    except Exception as error:
        connection.send(("failed", f"{type(error).__name__}: {error}"))
        raise
    try:
        connection.send(("ready", side.steps, side.greeting()))
        while True:
            kind, *rest = connection.recv()
            if kind == "meet":
                side.meet(*rest)
            elif kind == "buffer":
                side.attach(*rest)
            else:
                place, count, item = rest
                kind_of_id = torch.int32 if item == 4 else torch.int64
                side.gather(place, room[place, : count * item].view(kind_of_id))
                connection.send(("queued", place))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the other side is done with us
    except Exception as error:
        connection.send(("failed", f"{type(error).__name__}: {error}"))
        raise
    finally:
        side.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other process's to answer
    torch.set_num_threads(1)
    serve(Connection(int(sys.argv[1])))
