"""Describe a feature table in a file, and find the maps of files in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Bytes that one thread reads at a time.
_PIECE_BYTES = 16 << 20
#: Bins of the disk reads' latencies: up to 2^20 µs, about a second (``Fetcher.latencies``).
LATENCY_BINS = 81


class Map(NamedTuple):
    """A line of ``/proc/self/maps``; the kernel names a file's device equally in all of them,
    while ``stat`` may differ."""

    start: int
    end: int
    permissions: str  # "s" at the end: shared, so that it shows writes to the file
    offset: int  # of ``start`` in the file
    file: tuple[str, str]  # device and inode


def maps() -> Iterator[Map]:
    """Yield the mappings of this process."""
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        span, permissions, offset, *file = line.split(maxsplit=5)[:5]
        start, end = (int(x, 16) for x in span.split("-"))
        yield Map(start, end, permissions, int(offset, 16), (file[0], file[1]))


def map_at(address: int) -> Map | None:
    """Return the mapping of this process that holds ``address``."""
    return next((one for one in maps() if one.start <= address < one.end), None)


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
            ValueError: not two-dimensional, or not the whole rows in their order; or the file of
                that name does not hold these rows: they are private to the process (mode ``c``), or
                the file was replaced or cut short.
        """
        if not isinstance(features, np.memmap) or features.filename is None:
            kind = type(features).__name__
            copied = " that lies in memory, as astype and arithmetic make it" * (kind == "memmap")
            raise TypeError(
                f"features: expected a numpy.memmap of a file, got {kind}{copied}: write it to a "
                "file, and give numpy.load(path, mmap_mode='r')"
            )
        if features.ndim != 2 or not features.flags.c_contiguous:
            raise ValueError(f"features: expected rows [N, D] as they lie, got {features.shape}")
        path, row_bytes = Path(features.filename), features.shape[1] * features.itemsize
        if features.size == 0:
            return cls(path, features.offset, features.shape[0], row_bytes)
        here = map_at(features.ctypes.data)
        if here is None or not here.permissions.endswith("s"):
            raise ValueError(
                f"features: a map of {path} in mode 'c' keeps changes in memory, and the file is "
                "what is read: write the changes to a file, and open it with mmap_mode='r'"
            )
        offset = here.offset + features.ctypes.data - here.start
        file = cls(path, offset, features.shape[0], row_bytes)
        try:
            whole = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise ValueError(f"features: the file of the map cannot be opened: {error}") from error
        there = map_at(whole.ctypes.data)
        if there is None or there.file != here.file or whole.size < file.end:
            raise ValueError(
                f"features: {path} is another file than the one that is mapped, or was cut short: "
                "load it again"
            )
        return file

    @property
    def end(self) -> int:
        """The byte after the last row."""
        return self.offset + self.num_rows * self.row_bytes


def read_rows(file: TableFile, out: NDArray[np.uint8]) -> None:
    """Read all rows into ``out`` (of the same size in bytes), with a thread on each core.

    Pages of a map would count as this process's memory, in addition to ``out``.

    Raises:
        OSError: the file cannot be read, or ends before its last row.
    """
    begin, size = file.offset, file.num_rows * file.row_bytes
    descriptor = os.open(file.path, os.O_RDONLY)

    def read(at: int) -> None:
        end = min(size, at + _PIECE_BYTES)
        while at < end:
            count = os.preadv(descriptor, [out[at:end].data], begin + at)
            if not count:
                raise OSError(f"{file.path} ends {size - at} B before the table does")
            at += count

    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as readers:
            list(readers.map(read, range(0, size, _PIECE_BYTES)))
    finally:
        os.close(descriptor)
