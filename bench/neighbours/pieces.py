"""Pieces of host memory and of a file, between which activations move past the page cache."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

BLOCK = 4096  #: Direct writes are of whole blocks, from memory that begins at a page.


class LostActivationsError(RuntimeError):
    """A saved tensor could not be stored or brought back: the case cannot continue."""


class Pool:
    """Pieces of a power of two of blocks (buffers, or places in a file), reused once given back;
    ``make(begin, size)`` makes one of ``size`` bytes, after pieces of ``begin`` bytes in all."""

    def __init__(self, make: Callable[[int, int], Any]) -> None:
        self._make, self._lock, self.made_bytes = make, threading.Lock(), 0
        self._free: dict[int, list[Any]] = defaultdict(list)

    def take(self, nbytes: int) -> Any:
        """Return a free piece of at least ``nbytes``, or make one."""
        size = piece_bytes(nbytes)
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            self.made_bytes += size
            return self._make(self.made_bytes - size, size)

    def give(self, nbytes: int, piece: Any) -> None:
        with self._lock:
            self._free[piece_bytes(nbytes)].append(piece)


def piece_bytes(nbytes: int) -> int:
    return max(BLOCK, 1 << (nbytes - 1).bit_length())


def host_piece(_begin: int, size: int, *, pinned: bool) -> Tensor:
    """Make a buffer, uint8 ``[size]``, that begins at a page."""
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


def unnamed_file(folder: Path) -> FileIO:
    """Open a file past the page cache; the system frees it however the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix="activations-", dir=folder) as file:
        try:
            return FileIO(os.open(file.name, os.O_RDWR | os.O_DIRECT), "r+b")
        except OSError as error:
            text = f"{folder} takes no direct writes (O_DIRECT), so its disk cannot be measured"
            raise LostActivationsError(f"{text}: {error.strerror}") from None


def move(call: Callable[..., int], file: FileIO, piece: Tensor, nbytes: int, place: int) -> None:
    """Move whole blocks of a buffer to or from the file, in as many calls as it takes."""
    wanted, moved = -(-nbytes // BLOCK) * BLOCK, 0
    while moved < wanted:
        count = call(file.fileno(), [piece.numpy().data[moved:wanted]], place + moved)
        if count <= 0:
            raise OSError(0, f"{moved} of {wanted} B were moved and no more")
        moved += count
