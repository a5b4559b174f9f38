"""Memory outside the device for storages moved off it: buffers in host memory, and a file."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: Direct writes are of whole blocks, from memory that begins at a page.
BLOCK = 4096


class LostActivationsError(RuntimeError):
    """A saved tensor could not be stored or brought back: the case cannot continue."""


class Pool:
    """Pieces of a power of two of blocks (buffers, or places in a file), reused once given back."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._free: dict[int, list[Any]] = defaultdict(list)
        self.made_bytes = 0

    def take(self, nbytes: int) -> Any:
        """Return a free piece of at least ``nbytes``, or make one."""
        size = piece_bytes(nbytes)
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            self.made_bytes += size
            return self._make(size)

    def give(self, nbytes: int, piece: Any) -> None:
        with self._lock:
            self._free[piece_bytes(nbytes)].append(piece)


def piece_bytes(nbytes: int) -> int:
    return max(BLOCK, 1 << (nbytes - 1).bit_length())


def host_piece(size: int, *, pinned: bool) -> Tensor:
    """Return a buffer, uint8 ``[size]``, that begins at a page."""
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


class PieceFile:
    """A file without a name, past the page cache; the system frees it however the process ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix="activations-", dir=folder) as file:
            try:
                self._fd = os.open(file.name, os.O_RDWR | os.O_DIRECT)
            except OSError as error:
                text = f"{folder} takes no direct writes (O_DIRECT), so its disk cannot be measured"
                raise LostActivationsError(f"{text}: {error.strerror}") from None
        self.places = Pool(lambda size: self.places.made_bytes - size)  # appends to the file
        self.close = weakref.finalize(self, os.close, self._fd)

    def write(self, piece: Tensor, nbytes: int) -> int:
        """Write the first ``nbytes`` of a buffer to the file; return their place in it."""
        place: int = self.places.take(nbytes)
        self._move(os.pwritev, piece, nbytes, place)
        return place

    def read(self, piece: Tensor, nbytes: int, place: int) -> None:
        self._move(os.preadv, piece, nbytes, place)

    def _move(self, call: Callable[..., int], piece: Tensor, nbytes: int, place: int) -> None:
        """Move ``nbytes``, by whole blocks, in as many calls as it takes; else ``OSError``."""
        wanted, moved = -(-nbytes // BLOCK) * BLOCK, 0
        while moved < wanted:
            count = call(self._fd, [piece.numpy().data[moved:wanted]], place + moved)
            if count <= 0:
                raise OSError(0, f"{moved} of {wanted} B were moved and no more")
            moved += count
