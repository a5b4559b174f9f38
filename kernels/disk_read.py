"""Read rows off a disk past the page cache, many at a time.

``O_DIRECT`` transfers whole blocks to aligned memory, so a row costs the blocks that it touches: a
row of 512 B costs 4096 B, and two rows of one block may share a read.

Two engines keep reads in flight: io_uring from one thread, or a thread for each read. The first
needs liburing, the system's or that of the extra ``disk``, and a kernel that allows it; containers
often forbid it. Without it the second engine runs, and :attr:`RowReader.reason` explains why.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.read_engines import MERGE_BYTES, Reads, open_engine, plan_reads
from gatherbench.kernels.table_file import LATENCY_BINS, TableFile

#: The smallest read; a disk with larger sectors is read by whole sectors.
BLOCK_BYTES = 4096
_LARGEST_BLOCK = 1 << 16


class DiskReadError(RuntimeError):
    """A table cannot be read off its disk; the message names file or row, cause and remedy."""


def open_direct(path: Path) -> int:
    """Open a file descriptor that reads past the page cache, or raise ``DiskReadError``."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        direct = "its file system has no direct reads (O_DIRECT): put it on ext4 or xfs, say"
        text = direct if error.errno == errno.EINVAL else error.strerror
        raise DiskReadError(f"cannot read the table {path}: {text}") from error


def block_bytes(path: Path) -> int:
    """Return the block size for reads of ``path``: the smallest of at least 4096 B that works.

    It is 4096 for a file that cannot be opened here: a plan for another machine assumes that.

    Raises:
        DiskReadError: no block up to 64 KiB can be read.
    """
    try:
        file = os.fdopen(open_direct(path), "rb", buffering=0)
    except DiskReadError:
        return BLOCK_BYTES
    memory, block = np.empty(2 * _LARGEST_BLOCK, np.uint8), BLOCK_BYTES
    aligned = memory[-memory.ctypes.data % _LARGEST_BLOCK :]
    with file:
        while True:
            try:
                os.preadv(file.fileno(), [aligned[:block].data], 0)
                return block
            except OSError as error:
                if error.errno != errno.EINVAL or block == _LARGEST_BLOCK:
                    text = f"cannot read the table {path} in blocks of {block} B: {error.strerror}"
                    raise DiskReadError(text) from error
            block *= 2


def reads_of(ids: NDArray[np.int64], file: TableFile, merge: bool) -> tuple[int, int]:
    """Return the bytes and requests of :meth:`RowReader.read` for rows ``ids`` (int64 ``[B]``)."""
    plan = plan_reads(ids, file, block_bytes(file.path), merge)
    return int(plan.sizes.sum()), len(plan.sizes)


class RowReader:
    """Reads rows of a table off its disk; :meth:`read` may be called by one thread at a time.

    Args:
        engine: ``io_uring`` or ``threads``; afterwards, as an attribute, the one in use, and
            ``reason`` says why it differs from this (empty if it does not).
        depth: the most reads in flight.
        merge: rows whose blocks overlap or touch share a read, of up to 32 KiB (or one row, if
            that is longer). Without it each row is a separate read, repeats too.

    Raises:
        DiskReadError: no such file, one that ends before its last row, or no direct reads.
    """

    def __init__(
        self, file: TableFile, engine: str = "io_uring", depth: int = 128, merge: bool = True
    ) -> None:
        self.file, self._merge, self._pid = file, merge, os.getpid()
        self._latencies = np.zeros(LATENCY_BINS, np.int64)
        self._bytes = self._requests = 0
        self._closed = False
        with ExitStack() as opened:
            self._fd = open_direct(file.path)
            opened.callback(os.close, self._fd)
            self._check_size()
            self._block = block = block_bytes(file.path)
            widest = (file.row_bytes + block - 2) // block * block + block
            self._slot_bytes = max(MERGE_BYTES if merge else 0, widest)
            # Direct reads need memory that is aligned to the file's blocks.
            room = empty_table((1, depth * self._slot_bytes + block), torch.uint8).numpy()[0]
            self._slots = room[-room.ctypes.data % block :]
            self._engine, self.reason = open_engine(engine, depth)
            opened.callback(self._engine.close)
            self.engine = self._engine.name
            none = np.empty(0, np.int64)
            self._read_rows(none, np.empty((0, file.row_bytes), np.uint8), none)  # compiles
            self._opened = opened.pop_all()

    def read(
        self,
        ids: NDArray[np.int64],
        out: NDArray[np.uint8],
        places: NDArray[np.int64] | None = None,
    ) -> None:
        """Write row ``ids[i]`` of the file to row ``places[i]`` of ``out`` (default: row ``i``).

        Ids are int64 ``[B]``, ``out`` is uint8 ``[M, row_bytes]``, contiguous and writable, and
        places are int64 ``[B]``, distinct.

        Raises:
            ValueError, IndexError: wrong dtype, shape or layout, or an id or a place lies outside;
                nothing is read.
            DiskReadError: the disk failed, or the file has become shorter; rows of ``out`` may have
                been written.
            RuntimeError: the reader is closed.
        """
        if self._closed or self._pid != os.getpid():
            raise RuntimeError("RowReader is closed, or was opened by the parent process")
        shaped = out.dtype == np.uint8 and out.shape[1:] == (self.file.row_bytes,)
        if not (shaped and out.flags.c_contiguous and out.flags.writeable):
            wanted = f"contiguous, writable uint8 [M, {self.file.row_bytes}]"
            raise ValueError(f"out: expected {wanted}, got {out.dtype} {out.shape}")
        if places is None:
            places = np.arange(len(ids))
        if places.shape != ids.shape:
            raise ValueError(f"places: expected shape {ids.shape} as the ids, got {places.shape}")
        _check("ids", ids, self.file.num_rows, "the table")
        _check("places", places, len(out), "the output")
        if len(ids):
            self._read_rows(ids, out, places)

    def _read_rows(
        self, ids: NDArray[np.int64], out: NDArray[np.uint8], places: NDArray[np.int64]
    ) -> None:
        plan, row_bytes = plan_reads(ids, self.file, self._block, self._merge), self.file.row_bytes
        target = places[plan.order], row_bytes, out
        memory = self._slots, self._slot_bytes, self._latencies
        reads = Reads(self._fd, plan, *target, *memory, failed=np.zeros(4, np.int64))
        self._bytes += int(plan.sizes.sum())
        self._requests += len(plan.sizes)
        try:
            self._engine.run(reads)
        except OSError as error:
            raise DiskReadError(f"cannot read the table {self.file.path}: {error}") from error
        failures, k, number, count = (int(x) for x in reads.failed)
        if not failures:
            return
        rows = plan.rows[plan.starts[k] : plan.starts[k + 1]]
        missing = rows[rows + row_bytes > plan.begins[k] + max(count, 0)]
        place = f"row {(int(missing[0]) - self.file.offset) // row_bytes} of the table"
        cause = f"{os.strerror(number)} (errno {number}); dmesg may tell more of the disk"
        if not number:
            self._check_size(f"{place}: ")
            cause = f"the disk gave {count} of {plan.sizes[k]} bytes, and no error"
        raise DiskReadError(f"{place} {self.file.path}: {cause}")

    def _check_size(self, place: str = "") -> None:
        if (size := os.fstat(self._fd).st_size) < self.file.end:
            raise DiskReadError(
                f"{place}{self.file.path} has {size} bytes and its table needs {self.file.end}:"
                " it was cut short; write it anew"
            )

    def counts(self) -> dict[str, int]:
        """Return the bytes and reads requested from the disk since the reader was opened."""
        return {"disk_read": self._bytes, "disk_requests": self._requests}

    def latencies(self) -> NDArray[np.int64]:
        """Return latencies from submission of a read to its noticed end: ``Fetcher.latencies``."""
        return self._latencies.copy()

    def close(self) -> None:
        """Join the threads and close the file. Safe to call twice."""
        self._closed = True
        self._opened.close()


def _check(name: str, values: NDArray[np.int64], count: int, whose: str) -> None:
    if values.ndim != 1 or values.dtype != np.int64:
        raise ValueError(f"{name}: expected int64 [B], got {values.dtype} {values.shape}")
    if values.size and (values.min() < 0 or values.max() >= count):
        at = int(np.flatnonzero((values < 0) | (values >= count))[0])
        raise IndexError(f"{name}[{at}] = {values[at]}: {whose} has rows 0..{count - 1}")
