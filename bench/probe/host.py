"""Times the processor: copying, reading and gathering memory, and sampling.

Our own gather and our own sampler are timed, because they are what a measured epoch runs. The table
is many times the size of the caches.
"""

from __future__ import annotations

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.probe.cases import GIB, MIB
from gatherbench.bench.probe.stand import CLOCK, Observation, ProbeError
from gatherbench.bench.read.points import Point
from gatherbench.bench.regress.rmat_graph import rmat_graph
from gatherbench.bench.sampling.epoch import epoch_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.kernels.host_gather import HostGather, available_cores
from gatherbench.kernels.host_memory import empty_table

TABLE_BYTES = 2 * GIB
SHARE_OF_MEMORY = 0.25
#: Less than this fits the caches of large processors, and would time those.
LEAST_BYTES = 256 * MIB
#: What one observation moves: some ten milliseconds, more than most caches hold.
COPY_BYTES, GATHER_BYTES = 256 * MIB, 64 * MIB
#: More rows than this make an observation of narrow rows longer and no better.
MAX_ROWS = 1 << 20
#: The graph that is sampled has ogbn-products' mean degree and is larger than most caches.
NODES, EDGES = 1_000_000, 25_000_000
FANOUTS, BATCH_SIZE, BATCHES = (25, 10), 1000, 4


def table_bytes(available_bytes: int) -> int:
    """The size of the host's table: 2 GiB, or a quarter of the free memory where that is less.

    Raises:
        ProbeError: there is too little memory to measure more than caches.
    """
    size = min(TABLE_BYTES, int(available_bytes * SHARE_OF_MEMORY)) // MIB * MIB
    if size < LEAST_BYTES:
        raise ProbeError(
            f"{available_bytes / GIB:.1f} GiB of memory are free, and a calibration needs "
            f"{LEAST_BYTES / SHARE_OF_MEMORY / GIB:.0f} GiB: close other programs"
        )
    return size


class HostStand(ExitStack):
    """Times the processor on ``table`` (uint8 ``[size]``, host memory); closing joins threads."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self._table = table
        self._out = empty_table((min(COPY_BYTES, table.numel() // 2), 1), torch.uint8).view(-1)
        self._generator = torch.Generator().manual_seed(0)
        self._gathers: dict[int, HostGather] = {}
        self._samplers: dict[int, NeighborSampler] = {}
        self._pool = self.enter_context(ThreadPoolExecutor(available_cores(), "gatherbench-read"))
        self._drawn = 0

    def measure(self, point: Point) -> Observation:
        """One observation.

        Raises:
            ProbeError: the gather delivered wrong rows.
        """
        seen: Observation = getattr(self, f"_{point.case}")(point)
        return seen

    def _host_copy(self, point: Point) -> Observation:
        gather, piece = self._gather(point.threads), self._piece(self._out.numel())
        begin = time.perf_counter()
        gather.copy(piece, self._out)
        return Observation(self._out.numel(), time.perf_counter() - begin, CLOCK)

    def _host_read(self, point: Point) -> Observation:
        piece = self._piece(self._out.numel()).view(torch.int64).numpy()
        parts = np.array_split(piece, point.threads)
        begin = time.perf_counter()
        list(self._pool.map(fold_words, parts))
        return Observation(piece.nbytes, time.perf_counter() - begin, CLOCK)

    def _host_gather(self, point: Point) -> Observation:
        width = point.row_bytes
        rows = self._table[: self._table.numel() // width * width].view(-1, width)
        count = min(MAX_ROWS, GATHER_BYTES // width, self._out.numel() // width)
        ids = torch.randint(0, rows.shape[0], (count,), generator=self._generator)
        out = self._out[: count * width].view(count, width)
        gather = self._gather(point.threads)
        begin = time.perf_counter()
        gather.gather(rows, ids, out)
        seconds = time.perf_counter() - begin
        some = slice(None, None, max(1, count // 1000))
        if not torch.equal(out[some], rows[ids[some]]):
            raise ProbeError(f"the gather of rows of {width} B delivered wrong rows")
        return Observation(count * width, seconds, CLOCK)

    def _host_sample(self, point: Point) -> Observation:
        if point.threads not in self._samplers:
            sampler = NeighborSampler(*self._graph, FANOUTS, point.threads)
            self._samplers[point.threads] = sampler
        sampler = self._samplers[point.threads]
        seeds = np.flatnonzero(np.diff(self._graph[0]))
        self._drawn += 1
        batches = epoch_seeds(seeds, BATCH_SIZE, 0, self._drawn, BATCHES)
        begin = time.perf_counter()
        drawn = [sampler.sample(batch, self._drawn) for batch in batches]
        seconds = time.perf_counter() - begin
        edges = sum(edges.shape[1] for batch in drawn for edges in batch.edges)
        return Observation(edges, seconds, CLOCK)

    @functools.cached_property
    def _graph(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        return rmat_graph(NODES, EDGES)

    def _piece(self, size: int) -> Tensor:
        """A piece of the table, on a page, somewhere else each time."""
        places = (self._table.numel() - size) // 4096 + 1
        begin = 4096 * int(torch.randint(places, (1,), generator=self._generator))
        return self._table[begin : begin + size]

    def _gather(self, threads: int) -> HostGather:
        if threads not in self._gathers:
            self._gathers[threads] = self.enter_context(HostGather(threads))
        return self._gathers[threads]


@njit(nogil=True, cache=True)
def fold_words(words: NDArray[np.int64]) -> np.int64:
    """The exclusive or of all words: as much as a read needs to be, and fit for wide registers."""
    folded = np.int64(0)
    for word in words:
        folded ^= word
    return folded
