"""Count and drop the pages of a file that are in memory.

A file that was just written or read lies in the page cache, and reads of it are memory reads. To
measure a disk, drop those pages first and check that they are gone: the kernel silently keeps pages
that are mapped, locked or not yet written back (``posix_fadvise(2)``).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.host_memory import tensor_of
from gatherbench.kernels.table_file import TableFile, map_at, maps

SOURCE = "mincore on a map of the file"
#: Seconds to wait until other processes of the run release their pages and pending reads end. The
#: second value, at the begin of an epoch, also covers the wait for the slowest rank.
PATIENCE_S, EPOCH_PATIENCE_S = 5.0, 60.0
_LOOK_S = 0.02
#: ``MADV_*`` by the values of a strategy's parameter.
_ADVICE = {"normal": mmap.MADV_NORMAL, "random": mmap.MADV_RANDOM}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
_libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class PagesRemainError(RuntimeError):
    """Pages of a file stay in memory, so that reads of its disk cannot be measured."""


def pages_in_memory(path: Path) -> int:
    """Count the pages of the file in the page cache, whatever process brought them there.

    Raises:
        OSError: no such file; or the kernel answers only its owner, or a user who may write to it.
    """
    status = path.stat()
    if status.st_uid != os.geteuid() and not os.access(path, os.W_OK):
        # Else the kernel would report every page as present (mincore(2), since Linux 5.2).
        raise PermissionError(errno.EPERM, "mincore tells only the file's owner", str(path))
    if not status.st_size:
        return 0
    mapped: NDArray[np.uint8] = np.memmap(path, np.uint8, "r", shape=(status.st_size,))
    flags = np.zeros(-(-mapped.size // mmap.PAGESIZE), np.uint8)
    if _libc.mincore(mapped.ctypes.data, mapped.size, flags.ctypes.data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return int(np.count_nonzero(flags & 1))


def drop_pages(path: Path, patience_s: float = PATIENCE_S) -> int:
    """Drop the file's pages from memory, also those that this process maps; return how many remain.

    A map stays valid: it reads the file anew. Concurrent reads bring pages back.

    Args:
        patience_s: the seconds to retry while pages remain.

    Raises:
        OSError: as :func:`pages_in_memory`.
    """
    until = time.monotonic() + patience_s
    with path.open("rb") as file:
        os.fsync(file.fileno())  # pages that are not written back stay
        while True:
            _let_go(path)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            left = pages_in_memory(path)
            if not left or time.monotonic() >= until:
                return left
            time.sleep(_LOOK_S)


def require_cold(path: Path) -> None:
    """Drop all pages of the file from memory.

    Raises:
        PagesRemainError: some stay; the error names what may hold them.
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
    """Return the rows of the file as a tensor ``[N, D]`` over a new read-only map.

    Args:
        advice: ``normal`` (the kernel reads ahead of a touched page) or ``random`` (it does not).
    """
    if not file.num_rows:
        return torch.empty((0, file.row_bytes // dtype.itemsize), dtype=dtype, device="cpu")
    rows: Any = np.memmap(file.path, np.uint8, "r", file.offset, (file.num_rows, file.row_bytes))
    rows._mmap.madvise(_ADVICE[advice])
    return tensor_of(rows).view(dtype)


def _let_go(path: Path) -> None:
    """Take the file's pages out of this process's page tables: maps hold them in memory.

    This affects only read-only maps: writes to a private map would be lost.
    """
    if not path.stat().st_size:
        return
    whole: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    own = map_at(whole.ctypes.data)
    for one in maps():
        if own is not None and one.file == own.file and "w" not in one.permissions:
            # It fails for a map that is locked in memory; the caller then sees that pages remain.
            _libc.madvise(one.start, one.end - one.start, mmap.MADV_DONTNEED)
