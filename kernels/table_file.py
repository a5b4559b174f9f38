"""Feature tables in files: describe, map and read one, and count or drop its pages in memory.

Reads of a file that lies in the page cache are memory reads. To measure a disk, drop those pages
first and check that they are gone: the kernel silently keeps pages that are mapped, locked or not
yet written back (``posix_fadvise(2)``).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.host_memory import tensor_of

#: Bytes that one thread reads at a time.
_PIECE_BYTES = 16 << 20
#: Bins of the disk reads' latencies: up to 2^20 µs, about a second (``Fetcher.latencies``).
LATENCY_BINS = 81
#: The source of a count of pages.
MINCORE = "mincore on a map of the file"
#: Seconds to wait until other processes of the run release their pages and pending reads end; the
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


class Map(NamedTuple):
    """A line of ``/proc/self/maps``."""

    start: int
    end: int
    permissions: str  # "s" at the end: shared, so that it shows writes to the file
    offset: int  # of ``start`` in the file
    file: tuple[str, str]  # device (as the kernel names it here; ``stat`` may differ) and inode


def maps() -> Iterator[Map]:
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        span, permissions, offset, *file = line.split(maxsplit=5)[:5]
        start, end = (int(x, 16) for x in span.split("-"))
        yield Map(start, end, permissions, int(offset, 16), (file[0], file[1]))


def map_at(address: int) -> Map | None:
    """Return the mapping of this process that holds ``address``."""
    return next((mapping for mapping in maps() if mapping.start <= address < mapping.end), None)


@dataclass(frozen=True, slots=True)
class TableFile:
    """``num_rows`` consecutive rows of ``row_bytes`` bytes each, from byte ``offset`` on.

    The file must not change while a path reads it; it may end right after the last row.
    """

    path: Path
    offset: int
    num_rows: int
    row_bytes: int

    @classmethod
    def of(cls, features: np.memmap[Any, Any]) -> TableFile:
        """Return the file of a map ``[N, D]``, as ``numpy.load(..., mmap_mode="r")`` makes it.

        The map's file name proves nothing: the kernel tells from which file the rows are mapped.

        Raises:
            TypeError: ``features`` is not a map of a file.
            ValueError: not whole rows in their order; or the file of that name does not hold them:
                they are private to the process (mode ``c``), or it was replaced or cut short.
        """
        kind, load = type(features).__name__, "numpy.load(path, mmap_mode='r')"
        if not isinstance(features, np.memmap) or features.filename is None:
            text = f"got {kind} that lies in memory: write it to a file, and give {load}"
            raise TypeError(f"features: expected a numpy.memmap of a file, {text}")
        if features.ndim != 2 or not features.flags.c_contiguous:
            raise ValueError(f"features: expected rows [N, D] as they lie, got {features.shape}")
        path, row_bytes = Path(features.filename), features.shape[1] * features.itemsize
        if features.size == 0:
            return cls(path, features.offset, features.shape[0], row_bytes)
        address = features.ctypes.data
        here = map_at(address)
        if here is None or not here.permissions.endswith("s"):
            text = "keeps changes in memory, and the file is read: write them to a file"
            raise ValueError(f"features: a map of {path} in mode 'c' {text}, and give {load}")
        file = cls(path, here.offset + address - here.start, features.shape[0], row_bytes)
        try:
            whole = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise ValueError(f"features: the file of the map cannot be opened: {error}") from error
        there = map_at(whole.ctypes.data)
        if there is None or there.file != here.file or whole.size < file.end:
            text = "is another file than the one that is mapped, or was cut short: load it again"
            raise ValueError(f"features: {path} {text}")
        return file

    @property
    def end(self) -> int:
        """The byte after the last row."""
        return self.offset + self.num_rows * self.row_bytes


def read_rows(file: TableFile, out: NDArray[np.uint8]) -> None:
    """Read all rows into ``out`` (of the same size in bytes), with a thread on each core, or raise
    ``OSError``. Pages of a map would count as this process's memory, in addition to ``out``."""

    def read(at: int) -> None:
        piece = out[at : at + _PIECE_BYTES]
        with file.path.open("rb") as opened:
            opened.seek(file.offset + at)
            if opened.readinto(piece.data) < piece.size:
                raise OSError(f"{file.path} ends before its table does")

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as readers:
        list(readers.map(read, range(0, out.size, _PIECE_BYTES)))


def pages_in_memory(path: Path) -> int:
    """Count the file's pages in the page cache, whatever process brought them there; ``OSError``:
    no such file, or the kernel answers only its owner, or a user who may write to it."""
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
    """Drop the file's pages from memory, also those that this process maps (a map reads the file
    anew); return how many remain after ``patience_s`` seconds of trying again.

    It raises as :func:`pages_in_memory`.
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
    """Drop all pages of the file from memory; ``PagesRemainError`` if some stay."""
    if left := drop_pages(path, EPOCH_PATIENCE_S):
        raise PagesRemainError(
            f"{path}: {left} pages stay in memory although they were dropped ({MINCORE}): another"
            " process maps or locks the file, or its file system lies in memory (tmpfs); end that"
            " process, or keep the file on a disk"
        )


def mapped_table(file: TableFile, dtype: torch.dtype, advice: str) -> Tensor:
    """Return the rows of the file as a tensor ``[N, D]`` over a new read-only map; ``advice`` is
    ``normal`` (the kernel reads ahead of a touched page) or ``random`` (it does not)."""
    if not file.num_rows:
        return torch.empty((0, file.row_bytes // dtype.itemsize), dtype=dtype, device="cpu")
    rows: Any = np.memmap(file.path, np.uint8, "r", file.offset, (file.num_rows, file.row_bytes))
    rows._mmap.madvise(_ADVICE[advice])
    return tensor_of(rows).view(dtype)


def _let_go(path: Path) -> None:
    """Take the file's pages out of this process's page tables: maps hold them in memory. Maps that
    may be written are left alone: writes to a private one would be lost."""
    if not path.stat().st_size:
        return
    whole: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    own = map_at(whole.ctypes.data)
    for mapping in maps():
        if own is not None and mapping.file == own.file and "w" not in mapping.permissions:
            # It fails for a map that is locked in memory; the caller then sees that pages remain.
            _libc.madvise(mapping.start, mapping.end - mapping.start, mmap.MADV_DONTNEED)
