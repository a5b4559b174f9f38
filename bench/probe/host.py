"""Cases of the processor and disk: copies, reads and gathers of memory, sampling, file reads.

They time gatherbench's own gather, sampler and reader, because a measured epoch runs these.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from gatherbench.bench.meters.disk_counters import DiskMeter
from gatherbench.bench.probe.case import MINUTE, PROFILE, Scope, case
from gatherbench.bench.probe.rig import (
    CLOCK,
    GIB,
    MIB,
    Observation,
    RefusedError,
    Rig,
    WrongRowsError,
)
from gatherbench.bench.read.points import Point
from gatherbench.bench.regress.rmat_graph import rmat_graph
from gatherbench.bench.sampling.epoch import epoch_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.kernels.disk_read import RowReader
from gatherbench.kernels.host_gather import HostGather
from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.table_file import TableFile

#: Bytes that one observation moves: they take some ten ms, and exceed most caches.
COPY_BYTES, GATHER_BYTES = 256 * MIB, 64 * MIB
#: The most rows of an observation: more only prolong it.
MAX_ROWS = 1 << 20
#: Bytes of a gathered row, within a minute and for a profile (up to 1024 floats).
ROW_BYTES = (64, 512)
PROFILE_ROW_BYTES = (32, 64, 128, 256, 512, 1024, 602 * 4, 4096)
#: Bytes of a usual row: 128 floats.
USUAL_ROW_BYTES = 512
#: The sampled graph has ogbn-products' mean degree and exceeds most caches.
NODES, EDGES = 1_000_000, 25_000_000
FANOUTS, BATCH_SIZE, BATCHES = (25, 10), 1000, 4


def thread_counts(cores: int) -> list[int]:
    """Return 1, 2, 4, … and ``cores`` itself."""
    return sorted({*(1 << k for k in range(cores.bit_length()) if 1 << k <= cores), cores})


def _by_threads(name: str, rig: Rig, scope: Scope) -> list[Point]:
    counts = [rig.cores] if scope == MINUTE else thread_counts(rig.cores)
    return [Point(name, 0, rig.table.numel(), count) for count in counts]


@case("B", "bytes copied by the processor: each is read and written", (), MINUTE, _by_threads)
def host_copy(rig: Rig, point: Point) -> Observation:
    out = rig.once(_out)
    piece, gather = rig.piece(rig.table, out.numel()), rig.once(HostGather, point.threads)
    return rig.clocked(out.numel(), lambda: gather.copy(piece, out))


@case("B", "bytes read by the processor", (), MINUTE, _by_threads)
def host_read(rig: Rig, point: Point) -> Observation:
    piece = rig.piece(rig.table, COPY_BYTES).view(torch.int64).numpy()
    parts = np.array_split(piece, point.threads)
    pool = rig.once(ThreadPoolExecutor, rig.cores, "gatherbench-read")
    return rig.clocked(piece.nbytes, lambda: list(pool.map(fold_words, parts)))


@njit(nogil=True, cache=True)
def fold_words(words: NDArray[np.int64]) -> np.int64:
    """Return the exclusive or of all words: the least work that reads them, and it vectorizes."""
    folded = np.int64(0)
    for word in words:
        folded ^= word
    return folded


def _gathers(name: str, rig: Rig, scope: Scope) -> list[Point]:
    """Return points over every table size; a profile adds widths on the largest."""
    points = [Point(name, w, s, rig.cores) for s, w in product(rig.spans, ROW_BYTES)]
    if scope > MINUTE:
        points += [Point(name, w, rig.spans[-1], rig.cores) for w in PROFILE_ROW_BYTES]
    return list(dict.fromkeys(points))


@case("B", "bytes of rows gathered by the processor into memory", (), MINUTE, _gathers)
def host_gather(rig: Rig, point: Point) -> Observation:
    width = point.row_bytes
    rows = rig.table[: point.span_bytes // width * width].view(-1, width)
    out = rig.once(_out)
    count = min(MAX_ROWS, GATHER_BYTES // width, out.numel() // width)
    ids = torch.randint(0, len(rows), (count,), generator=rig.random)
    out = out[: count * width].view(count, width)
    gather = rig.once(HostGather, point.threads)
    observation = rig.clocked(count * width, lambda: gather.gather(rows, ids, out))
    sample = slice(None, None, max(1, count // 1000))
    if not torch.equal(out[sample], rows[ids[sample]]):
        raise WrongRowsError(f"wrong rows of {width} B from the processor's gather")
    return observation


def _samplers(name: str, rig: Rig, scope: Scope) -> list[Point]:
    return [Point(name, threads=count) for count in thread_counts(rig.cores)]


@case("1", "edges of minibatches sampled by the processor", (), PROFILE, _samplers)
def host_sample(rig: Rig, point: Point) -> Observation:
    graph = rig.once(rmat_graph, NODES, EDGES)
    sampler = rig.once(_sampler, rig, point.threads)
    seeds = np.flatnonzero(np.diff(graph[0]))
    drawn = int(torch.randint(1 << 30, (1,), generator=rig.random))
    batches = epoch_seeds(seeds, BATCH_SIZE, 0, drawn, BATCHES)
    begin = time.perf_counter()
    minibatches = [sampler.sample(batch, drawn) for batch in batches]
    seconds = time.perf_counter() - begin
    return Observation(sum(e.shape[1] for b in minibatches for e in b.edges), seconds, CLOCK)


def _out() -> torch.Tensor:
    return empty_table((COPY_BYTES, 1), torch.uint8).view(-1)


def _sampler(rig: Rig, threads: int) -> NeighborSampler:
    return NeighborSampler(*rig.once(rmat_graph, NODES, EDGES), FANOUTS, threads)


# ---- the disk ----------------------------------------------------------------------------------

#: Bytes of a random read, and of a long one; the numbers of reads in flight.
READ_BYTES, LONG_READ_BYTES = 4096, MIB
DEPTHS, LONG_DEPTH = (1, 8, 32, 128), 8
#: The file's largest size, its largest share of the free space, and its smallest size.
FILE_BYTES, SHARE_OF_ROOM, LEAST_BYTES = GIB, 0.25, 256 * MIB
#: Reads of a batch per read in flight, and the least time of an observation in seconds.
_BATCH, _SECONDS = 8, 0.05
_CHUNK = 16 * MIB


class DiskFile:
    """A nameless file in ``folder``: it disappears when the process ends, even after a crash.

    Its blocks all differ, so a wrong block is noticed and compression gains nothing. A virtual disk
    may have a cache on its host, which cannot be detected from here.

    Raises:
        RefusedError: too little room, no direct reads, or reads that memory or a network serves.
    """

    def __init__(self, rig: Rig) -> None:
        if rig.folder is None:
            raise RefusedError("not_applicable: no disk is timed (--disk none)")
        self._random, folder = np.random.default_rng(0), rig.folder
        try:
            self.size = file_bytes(folder)
            rig.say(f"writes {self.size / GIB:g} GiB into {folder}, and removes them at the end")
            file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            rig.callback(file.close)
            self._path = Path(f"/proc/self/fd/{file.fileno()}")
            self._write(file)
            meter = DiskMeter(folder)
            meter.begin()
            blocks = self.measure(rig, Point("disk_random", READ_BYTES, threads=8)).amount
            counted = meter.end()["disk_read_process"]
        except OSError as error:
            raise RefusedError(f"unsupported: {folder}: {error.strerror or error}") from error
        if isinstance(counted, float) and counted < blocks * READ_BYTES / 2:
            raise RefusedError(
                f"unsupported: {folder}: {blocks * READ_BYTES:.0f} bytes were read,"
                f" {counted:.0f} of them from a disk: this is memory, or the network; name a folder"
                " of a disk with --disk"
            )

    def _write(self, file: BinaryIO) -> None:
        chunk = self._random.integers(0, 1 << 62, _CHUNK // 8).reshape(-1, READ_BYTES // 8)
        for start in range(0, self.size // READ_BYTES, len(chunk)):
            part = chunk[: self.size // READ_BYTES - start]
            part[:, 0] = np.arange(start, start + len(part))
            file.write(part.data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def reader(self, row_bytes: int, depth: int) -> RowReader:
        """Return a reader of rows past the page cache with ``depth`` reads in flight."""
        file = TableFile(self._path, 0, self.size // row_bytes, row_bytes)
        return RowReader(file, depth=depth, merge=False)

    def measure(self, rig: Rig, point: Point) -> Observation:
        """Time batches of reads until ``_SECONDS`` have passed."""
        reader = rig.once(self.reader, point.row_bytes, point.threads)
        rows = reader.file.num_rows
        count = min(_BATCH * point.threads, rows)
        out = np.empty((count, point.row_bytes), np.uint8)
        seconds, batches = 0.0, 0
        while seconds < _SECONDS:
            ids = self._random.integers(0, rows, count)
            if point.case == "disk_sequential":
                ids = np.arange(count) + int(self._random.integers(0, rows - count + 1))
            begin = time.perf_counter()
            reader.read(ids, out)
            seconds += time.perf_counter() - begin
            batches += 1
            first = ids * (point.row_bytes // READ_BYTES)
            if not np.array_equal(out[:, :8].copy().view(np.int64)[:, 0], first):
                raise WrongRowsError(f"wrong blocks of {point.row_bytes} B from the disk")
        return Observation(batches * count, seconds, f"{CLOCK}, {reader.engine}")


def file_bytes(folder: Path) -> int:
    """Return the size of the file, bytes.

    Raises:
        OSError: no such folder.
        RefusedError: the folder has too little free space.
    """
    free = shutil.disk_usage(folder).free
    size = min(FILE_BYTES, int(free * SHARE_OF_ROOM)) // MIB * MIB
    if size < LEAST_BYTES:
        raise RefusedError(
            f"no_memory: {folder}: {free / GIB:.2f} GiB are free, and timing its disk needs"
            f" {LEAST_BYTES / SHARE_OF_ROOM / GIB:g} GiB: name a folder of another with --disk"
        )
    return size


def _random(name: str, rig: Rig, scope: Scope) -> list[Point]:
    return [Point(name, READ_BYTES, threads=depth) for depth in DEPTHS]


def _long(name: str, rig: Rig, scope: Scope) -> list[Point]:
    return [Point(name, LONG_READ_BYTES, threads=LONG_DEPTH)]


@case("1", "blocks of a file read in random order", (), MINUTE, _random)
def disk_random(rig: Rig, point: Point) -> Observation:
    return rig.once(DiskFile, rig).measure(rig, point)


@case("B", "bytes of a file, read sequentially", (), MINUTE, _long)
def disk_sequential(rig: Rig, point: Point) -> Observation:
    read = rig.once(DiskFile, rig).measure(rig, point)
    return read._replace(amount=read.amount * point.row_bytes)
