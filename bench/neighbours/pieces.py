"""Memory outside the device for storages moved off it: buffers in host memory, and a file.

Both are allocated in pieces of a power of two, and reused from step to step. The file is
written and read past the page cache.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

#: Direct writes are of whole blocks, from memory that begins at a page.
_BLOCK = 4096


class LostActivationsError(RuntimeError):
    """A saved tensor could not be stored or brought back: the case cannot continue."""


class Pool(Generic[T]):
    """Pieces of a power of two; a new one is made if none is free."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._free: dict[int, list[T]] = defaultdict(list)
        self.made_bytes = 0

    def take(self, nbytes: int) -> T:
        size = piece_bytes(nbytes)
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            self.made_bytes += size
            return self._make(size)

    def give(self, nbytes: int, piece: T) -> None:
        with self._lock:
            self._free[piece_bytes(nbytes)].append(piece)


def piece_bytes(nbytes: int) -> int:
    """Return the bytes of the buffer, or file part, for so many: a power of two of blocks."""
    return max(_BLOCK, 1 << (nbytes - 1).bit_length())


class PieceFile:
    """A file without a name, whose space the system frees however the process ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix="activations-", dir=folder)
        os.close(handle)
        try:
            self._fd = os.open(name, os.O_RDWR | os.O_DIRECT)
        except OSError as error:
            text = f"{folder} takes no direct writes (O_DIRECT), so its disk cannot be measured"
            raise LostActivationsError(f"{text}: {error.strerror}") from None
        finally:
            Path(name).unlink()
        self._end = 0
        self._places = Pool(self._append)
        self.close = weakref.finalize(self, os.close, self._fd)

    def _append(self, size: int) -> int:
        self._end += size
        return self._end - size

    def write(self, piece: Tensor, nbytes: int) -> int:
        """Write the first ``nbytes`` of a buffer to the file; return their place in it."""
        place = self._places.take(nbytes)
        try:
            _whole(os.pwritev, self._fd, piece, nbytes, place)
        except OSError:
            self._places.give(nbytes, place)
            raise
        return place

    def read(self, piece: Tensor, nbytes: int, place: int) -> None:
        _whole(os.preadv, self._fd, piece, nbytes, place)

    def free(self, nbytes: int, place: int) -> None:
        self._places.give(nbytes, place)


def _whole(call: Callable[..., int], fd: int, piece: Tensor, nbytes: int, place: int) -> None:
    """Move ``nbytes``, by whole blocks, in as many calls as it takes.

    Raises:
        OSError: the system refuses, or moves no further byte.
    """
    wanted, moved = -(-nbytes // _BLOCK) * _BLOCK, 0
    view = piece.numpy().data
    while moved < wanted:
        now = call(fd, [view[moved:wanted]], place + moved)
        if now <= 0:
            raise OSError(0, f"{moved} of {wanted} B were moved and no more")
        moved += now


def host_piece(size: int, *, pinned: bool) -> Tensor:
    """Return a buffer, uint8 ``[size]``, that begins at a page."""
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
