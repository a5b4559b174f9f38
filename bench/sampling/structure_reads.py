"""What a GPU reads of neighbour lists in host memory while it draws: bytes and requests, exactly.

The rule is that of rows (``kernels/requests.py``): the 32 loads of a warp are joined by sectors,
and consecutive sectors of a line are one request. What is asked for follows from
``kernels/sample.cu``: a thread an edge, in the order of the edges, reads where the target's list
begins and ends, and one neighbour; a thread a node reads these two words before. Caches between
instructions are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.knowledge import knowledge_of
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.kernels.grid import LINE_BYTES, SECTOR_BYTES
from gatherbench.strategies.scores import scores

_WARP, _OFFSET = 32, 8
Addresses = NDArray[np.int64]


@dataclass
class StructureReads:
    """What an epoch's sampling reads in host memory.

    Attributes:
        wanted_bytes: neighbours and list ends that are asked for.
        read_bytes: sectors.
        requests: by size in bytes.
        kept_bytes: neighbours that are read in GPU memory instead.
    """

    wanted_bytes: int = 0
    read_bytes: int = 0
    requests: Counter[int] = field(default_factory=Counter)
    kept_bytes: int = 0

    def add(self, warps: Addresses, addresses: Addresses, size: int) -> None:
        """A load of ``size`` B by each of these threads, given by warp and address."""
        sectors, requests = sectors_of(warps, addresses)
        self.wanted_bytes += size * len(addresses)
        self.read_bytes += SECTOR_BYTES * sectors
        self.requests.update(requests)


def sectors_of(warps: Addresses, addresses: Addresses) -> tuple[int, dict[int, int]]:
    """Sectors that warps read, and the requests by size that carry them.

    Args:
        warps, addresses: int64 ``[n]``, of each load its warp and its first byte; a load lies in
            one sector.
    """
    if not len(addresses):
        return 0, {}
    last = int(addresses.max()) // SECTOR_BYTES + 2
    keys = np.unique(warps * last + addresses // SECTOR_BYTES)
    sector, per_line = keys % last, LINE_BYTES // SECTOR_BYTES
    begins = np.ones(len(keys), bool)
    begins[1:] = (np.diff(keys) != 1) | (sector[1:] % per_line == 0)
    lengths = np.diff(np.flatnonzero(np.append(begins, True)))
    sizes, counts = np.unique(lengths * SECTOR_BYTES, return_counts=True)
    return len(keys), dict(zip(sizes.tolist(), counts.tolist(), strict=True))


def structure_reads(
    dataset: GraphDataset,
    fanouts: Iterable[int],
    draws: Iterable[tuple[Any, int]],
    hot: NDArray[np.int64] | None = None,
) -> StructureReads:
    """Of the minibatches of ``draws`` (seed nodes, seed).

    Args:
        hot: nodes whose lists lie on the GPU, and then all ends of lists; ``None``: nothing does.
    """
    indptr, found = np.asarray(dataset.indptr), StructureReads()
    size, away = dataset.indices.dtype.itemsize, np.ones(len(indptr) - 1, bool)
    away[hot if hot is not None else []] = False
    sampler = NeighborSampler(indptr, dataset.indices, tuple(fanouts))
    for seeds, seed in draws:
        batch, places = sampler.sample_places(seeds, seed)
        ids = batch.input_ids.numpy()
        for layer, place in enumerate(places):
            targets = batch.num_nodes[layer]
            of_edge = ids[batch.edges[layer][1].numpy()]
            warps = (targets + np.arange(len(place))) // _WARP
            there = away[of_edge]
            found.add(warps[there], place.numpy()[there] * size, size)
            found.kept_bytes += size * int((~there).sum())
            if hot is None:
                counted, each = ids[:targets], np.arange(targets) // _WARP
                for more in (0, 1):
                    found.add(each, (counted + more) * _OFFSET, _OFFSET)
                    found.add(warps, (of_edge + more) * _OFFSET, _OFFSET)
    return found


def hot_lists(workload: Workload, dataset: GraphDataset) -> NDArray[np.int64]:
    """The nodes whose lists spare the most reads for a byte, in that order, within the share.

    A node is sampled from about as often as its score says; each time as many of its neighbours are
    read as the largest fan-out, or all. So a hub's long list spares little for its bytes: the lists
    of the highest scores alone, 10 % of products-like's bytes, spared 1 % of the reads.
    """
    lists, nodes = workload.lists, dataset.spec.num_nodes
    degrees = np.diff(dataset.indptr)
    found = scores(lists.scores, nodes, knowledge_of(workload, dataset))
    spared = found * np.minimum(degrees, max(workload.fanouts)) / np.maximum(degrees, 1)
    order = np.argsort(-spared, kind="stable")
    return order[np.cumsum(degrees[order]) <= lists.share * len(dataset.indices)]
