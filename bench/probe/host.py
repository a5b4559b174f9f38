"""Cases of the processor: copies and gathers of memory, and sampling.

They time gatherbench's own gather and sampler, because a measured epoch runs these.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from gatherbench.bench.probe.case import MINUTE, PROFILE, Scope, case
from gatherbench.bench.probe.points import Point
from gatherbench.bench.probe.rig import MIB, Observation, Rig, WrongRowsError
from gatherbench.bench.sampling.epoch import epoch_seeds
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.draw import rmat_graph
from gatherbench.kernels.host_gather import HostGather
from gatherbench.kernels.host_memory import empty_table

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


def _copies(name: str, rig: Rig, scope: Scope) -> list[Point]:
    return [Point(name, 0, rig.table.numel(), rig.cores)]


@case("B", "bytes copied by the processor: each is read and written", (), MINUTE, _copies)
def host_copy(rig: Rig, point: Point) -> Observation:
    out, gather = rig.once(_out), rig.once(HostGather, point.threads)
    piece = rig.piece(rig.table, out.numel())
    return rig.clocked(out.numel(), lambda: gather.copy(piece, out))


def _gathers(name: str, rig: Rig, scope: Scope) -> list[Point]:
    """Return points over every table size; a profile adds widths on the largest."""
    points = [Point(name, w, s, rig.cores) for s, w in product(rig.spans, ROW_BYTES)]
    if scope > MINUTE:
        points += [Point(name, w, rig.spans[-1], rig.cores) for w in PROFILE_ROW_BYTES]
    return list(dict.fromkeys(points))


@case("B", "bytes of rows gathered by the processor into memory", (), MINUTE, _gathers)
def host_gather(rig: Rig, point: Point) -> Observation:
    width, gather, out = point.row_bytes, rig.once(HostGather, point.threads), rig.once(_out)
    rows = rig.table[: point.span_bytes // width * width].view(-1, width)
    count = min(MAX_ROWS, GATHER_BYTES // width, out.numel() // width)
    ids = torch.randint(0, len(rows), (count,), generator=rig.random)
    out = out[: count * width].view(count, width)
    observation = rig.clocked(count * width, lambda: gather.gather(rows, ids, out))
    sample = slice(None, None, max(1, count // 1000))
    if not torch.equal(out[sample], rows[ids[sample]]):
        raise WrongRowsError(f"wrong rows of {width} B from the processor's gather")
    return observation


def _out() -> torch.Tensor:
    return empty_table((COPY_BYTES, 1), torch.uint8).view(-1)


def _samplers(name: str, rig: Rig, scope: Scope) -> list[Point]:
    return [Point(name, threads=rig.cores)]


@case("1", "edges of minibatches sampled by the processor", (), PROFILE, _samplers)
def host_sample(rig: Rig, point: Point) -> Observation:
    sampler, seeds = rig.once(_sampler, point.threads)
    drawn = int(torch.randint(1 << 30, (1,), generator=rig.random))
    batches = epoch_seeds(seeds, BATCH_SIZE, 0, drawn)[:BATCHES]
    sampled: list[MiniBatch] = []

    def sample() -> None:
        sampled.extend(sampler.sample(batch, drawn) for batch in batches)

    observation = rig.clocked(0, sample, wait=False)
    return observation._replace(amount=sum(e.shape[1] for batch in sampled for e in batch.edges))


def _sampler(threads: int) -> tuple[NeighborSampler, NDArray[np.int64]]:
    """Return a sampler and the nodes with neighbours."""
    graph = rmat_graph(NODES, EDGES)
    return NeighborSampler(*graph, FANOUTS, threads), np.flatnonzero(np.diff(graph[0]))
