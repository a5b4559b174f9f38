"""A feature table in a file: where its rows begin, and how long they are."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Read by one thread at a time.
_PIECE_BYTES = 16 << 20
#: Of how long reads of the disk took: up to 2^20 µs, about a second (``Fetcher.latencies``).
LATENCY_BINS = 81


@dataclass(frozen=True, slots=True)
class TableFile:
    """``num_rows`` rows of ``row_bytes`` bytes, one behind the other from byte ``offset`` on.

    The file stays as it is while a path reads it; it may end right behind the last row.
    """

    path: Path
    offset: int
    num_rows: int
    row_bytes: int

    @classmethod
    def of(cls, features: np.memmap[Any, Any]) -> TableFile:
        """The file behind a map ``[N, D]``, as ``numpy.load(..., mmap_mode="r")`` gives it.

        Raises:
            TypeError: no map of a file.
            ValueError: not two-dimensional, or not the whole rows in their order.
        """
        if not isinstance(features, np.memmap) or features.filename is None:
            raise TypeError(
                f"features: expected a numpy.memmap of a file, got {type(features).__name__}"
            )
        if features.ndim != 2 or not features.flags.c_contiguous:
            raise ValueError(f"features: expected rows [N, D] as they lie, got {features.shape}")
        row_bytes = features.shape[1] * features.itemsize
        # ``offset`` is that of the whole map, also of a part of it.
        mapping = features._mmap  # type: ignore[attr-defined]
        first = features.offset - features.offset % mmap.ALLOCATIONGRANULARITY
        into = features.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
        return cls(Path(features.filename), first + into, features.shape[0], row_bytes)

    @property
    def end(self) -> int:
        """The byte behind the last row."""
        return self.offset + self.num_rows * self.row_bytes


def read_rows(file: TableFile, out: NDArray[np.uint8]) -> None:
    """All rows into ``out`` (as many bytes), by a read on each core.

    Pages of a map would count as this process's own beside the memory that they are copied to.

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
