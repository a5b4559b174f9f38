"""The pages of a file that are in memory: how many there are, and how to be rid of them.

A file that was just written or read lies in the page cache, and reads of it are memory reads. Who
measures a disk drops those pages first, and looks whether they are gone: the kernel keeps pages
that somebody maps, has locked or has not written back, and says nothing (``posix_fadvise(2)``).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.host_memory import tensor_of
from gatherbench.kernels.table_file import TableFile

PAGE_BYTES = mmap.PAGESIZE
SOURCE = "mincore on a map of the file"
#: Seconds within which other processes of ours let go of their pages, and reads on the way end.
#: Where an epoch begins, also until the slowest of several ranks is there.
PATIENCE_S, EPOCH_PATIENCE_S = 5.0, 60.0
_LOOK_S = 0.02
#: ``MADV_*`` by the words of a strategy.
_ADVICE = {"normal": mmap.MADV_NORMAL, "random": mmap.MADV_RANDOM}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
_libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class PagesRemainError(RuntimeError):
    """Pages of a file stay in memory, so that nobody can measure reads of its disk."""


def pages_in_memory(path: Path) -> int:
    """How many pages of the file are in the page cache, whoever brought them there.

    Raises:
        OSError: no such file; or the kernel tells only its owner, or one who may write to it.
    """
    status = path.stat()
    if status.st_uid != os.geteuid() and not os.access(path, os.W_OK):
        # The kernel would say of every page that it is there (mincore(2), since Linux 5.2).
        raise PermissionError(errno.EPERM, "mincore tells only the file's owner", str(path))
    if not status.st_size:
        return 0
    mapped: NDArray[np.uint8] = np.memmap(path, np.uint8, "r", shape=(status.st_size,))
    flags = np.zeros(-(-mapped.size // PAGE_BYTES), np.uint8)
    if _libc.mincore(mapped.ctypes.data, mapped.size, flags.ctypes.data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return int(np.count_nonzero(flags & 1))


def drop_pages(path: Path, patience_s: float = PATIENCE_S) -> int:
    """Drop the file's pages from memory, those that this process maps among them; how many remain.

    A map stays valid: it reads the file anew. Reads beside this bring pages back.

    Args:
        patience_s: how long it is tried again while pages remain.

    Raises:
        OSError: as :func:`pages_in_memory`.
    """
    until = time.monotonic() + patience_s
    with path.open("rb") as file:
        os.fsync(file.fileno())  # what is not written back stays
        while True:
            _let_go(os.fstat(file.fileno()))
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            left = pages_in_memory(path)
            if not left or time.monotonic() >= until:
                return left
            time.sleep(_LOOK_S)


def require_cold(path: Path) -> None:
    """Drop the file's pages from memory, all of them.

    Raises:
        PagesRemainError: some stay; says what may hold them.
        OSError: as :func:`pages_in_memory`.
    """
    left = drop_pages(path, EPOCH_PATIENCE_S)
    if left:
        raise PagesRemainError(
            f"{path}: {left} pages stay in memory although they were dropped ({SOURCE}): another"
            " process maps or locks the file, or its file system lies in memory (tmpfs); end that"
            " process, or keep the file on a disk"
        )


def mapped_table(file: TableFile, dtype: torch.dtype, advice: str) -> Tensor:
    """The rows of the file as a tensor ``[N, D]`` over a map of its own, which is read-only.

    Args:
        advice: ``normal`` or ``random``: whether the kernel reads ahead of a page that is touched.
    """
    if not file.num_rows:
        return torch.empty((0, file.row_bytes // dtype.itemsize), dtype=dtype, device="cpu")
    rows: Any = np.memmap(file.path, np.uint8, "r", file.offset, (file.num_rows, file.row_bytes))
    rows._mmap.madvise(_ADVICE[advice])
    return tensor_of(rows).view(dtype)


def _let_go(status: os.stat_result) -> None:
    """Take the file's pages out of this process's page tables: maps hold them in memory.

    Only of maps that nobody writes through: what was written to a private one would be lost.
    """
    for start, size in _maps_of(status):
        # Fails of a map that was locked in memory; then the pages remain, which is seen.
        _libc.madvise(start, size, mmap.MADV_DONTNEED)


def _maps_of(status: os.stat_result) -> Iterator[tuple[int, int]]:
    """Address and size of each read-only map of the file in this process."""
    device = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        found = re.match(r"(\w+)-(\w+) (\S+) \w+ (\w+):(\w+) (\d+)", line)
        if found is None or "w" in found[3]:
            continue
        if (int(found[4], 16), int(found[5], 16), int(found[6])) == device:
            start = int(found[1], 16)
            yield start, int(found[2], 16) - start
