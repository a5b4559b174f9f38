"""Times a disk: random reads by how many are in flight, and long reads, past the page cache.

The file that is read is written for it and has no name, so it is gone with the process, however
that ends. Every block of it differs, so wrong rows are noticed, and nothing in it can be
compressed. A virtual disk may still have a cache of its host behind it, which nobody sees from
here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from gatherbench.bench.meters.disk_counters import DiskMeter
from gatherbench.bench.probe.cases import DISK_READ_BYTES, GIB, MIB
from gatherbench.bench.probe.stand import CLOCK, Observation, ProbeError
from gatherbench.bench.read.points import Point
from gatherbench.kernels.disk_read import RowReader
from gatherbench.kernels.table_file import TableFile

#: The file, of the room that there is at most this share, and at least so much.
FILE_BYTES, SHARE_OF_ROOM, LEAST_BYTES = GIB, 0.25, 256 * MIB
#: Reads of a batch for each that is in flight: filling and draining the queue then count little.
_BATCH = 8
#: Batches are read until this is spent.
_SECONDS = 0.05
_CHUNK = 16 * MIB


def file_bytes(folder: Path) -> int:
    """How large the file is to be.

    Raises:
        ProbeError: no such folder, or too little room in it.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ProbeError(f"{folder}: {error.strerror}; name a folder of the disk") from error
    size = min(FILE_BYTES, int(free * SHARE_OF_ROOM)) // MIB * MIB
    if size < LEAST_BYTES:
        raise ProbeError(
            f"{folder}: {free / GIB:.2f} GiB are free, and timing its disk needs"
            f" {LEAST_BYTES / SHARE_OF_ROOM / GIB:g} GiB: name a folder of another disk"
        )
    return size


class DiskStand(ExitStack):
    """Times reads of a file in ``folder``, whose room is given back when the stand is closed.

    ``say`` is told how large the file is before it is written.

    Raises:
        ProbeError: too little room, no direct reads there, or what is read comes from no disk.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda text: None) -> None:
        super().__init__()
        size = file_bytes(folder)
        say(f"writes {size / GIB:g} GiB into {folder} to time its disk, and gives them back")
        self._readers: dict[Point, RowReader] = {}
        self._generator = np.random.default_rng(0)
        try:
            file = self.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115
            self._path = Path(f"/proc/self/fd/{file.fileno()}")
            self._size = size
            self._write(file)
            self._comes_from_a_disk(folder)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise ProbeError(f"{folder}: {error.strerror or error}") from error
            raise

    def _write(self, file: BinaryIO) -> None:
        chunk = self._generator.integers(0, 1 << 62, _CHUNK // 8).reshape(-1, DISK_READ_BYTES // 8)
        for start in range(0, self._size // DISK_READ_BYTES, len(chunk)):
            part = chunk[: self._size // DISK_READ_BYTES - start]
            part[:, 0] = np.arange(start, start + len(part))
            file.write(part.data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _comes_from_a_disk(self, folder: Path) -> None:
        meter = DiskMeter(folder)
        meter.start()
        seen = self.measure(Point("disk_random", DISK_READ_BYTES, threads=8))
        counted, asked = meter.stop()[0].value, seen.amount * DISK_READ_BYTES
        if counted is not None and counted < asked / 2:
            raise ProbeError(
                f"{folder}: the kernel counts {counted:.0f} bytes read from disks while {asked:.0f}"
                " were read: this is memory (tmpfs), or the network; name a folder of a disk"
            )

    def measure(self, point: Point) -> Observation:
        """One observation; ``threads`` of the point are the reads in flight.

        Raises:
            ProbeError: the disk delivered wrong blocks.
        """
        reader = self._reader(point)
        rows, count = reader.file.num_rows, min(_BATCH * point.threads, reader.file.num_rows)
        out = np.empty((count, point.row_bytes), np.uint8)
        seconds, batches = 0.0, 0
        while seconds < _SECONDS:
            ids = self._ids(point, rows, count)
            begin = time.perf_counter()
            reader.read(ids, out)
            seconds += time.perf_counter() - begin
            batches += 1
            first = ids * (point.row_bytes // DISK_READ_BYTES)
            if not np.array_equal(out[:, :8].copy().view(np.int64)[:, 0], first):
                raise ProbeError(f"the disk delivered wrong blocks: {point}")
        read = batches * count * (point.row_bytes if point.case == "disk_sequential" else 1)
        return Observation(read, seconds, f"{CLOCK}, {reader.engine}")

    def _ids(self, point: Point, rows: int, count: int) -> NDArray[np.int64]:
        if point.case == "disk_random":
            return self._generator.integers(0, rows, count)
        begin = int(self._generator.integers(0, rows - count + 1))
        return np.arange(begin, begin + count)

    def _reader(self, point: Point) -> RowReader:
        if point not in self._readers:
            file = TableFile(self._path, 0, self._size // point.row_bytes, point.row_bytes)
            self._readers[point] = reader = RowReader(file, depth=point.threads, merge=False)
            self.callback(reader.close)
        return self._readers[point]
