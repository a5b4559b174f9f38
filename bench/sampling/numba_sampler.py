"""Uniform neighbour sampling on the CPU: the default of plans.

PyG's own ``NeighborLoader`` needs a compiled extension that has no wheel on the package index, and
a benchmark of data movement must not wait for its sampler. So gatherbench has its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.sampling import kernels
from gatherbench.bench.sampling.kernels import Ids, Ints, Words
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.sampler import Sampler, check_fanouts, check_graph, check_seeds
from gatherbench.bench.sampling.splitmix import derive

#: Edges per thread at least: waking another thread for fewer takes longer than drawing them.
_EDGES_PER_THREAD = 4096
#: The targets of a thread: ``nodes`` to ``last`` of :func:`.draw`.
Targets = tuple[Ids, int, Ids, Ids, int, int]


class NeighborSampler(Sampler):
    """Draws the in-neighbours of seed nodes, layer by layer, uniformly without replacement.

    Every layer samples anew for all its targets (see :mod:`.minibatch`). A target with no more
    neighbours than the fan-out keeps them all. Parallel edges count separately: a neighbour that is
    listed twice is twice as likely and may be drawn twice. Self-loops are edges like any other.

    The same seed gives the same minibatch, bit for bit, on every machine and with any number of
    threads. Calls from several threads wait for one another (give each a :meth:`clone` to run in
    parallel); a fork may happen at any time.

    Memory: 4 bytes for each node of the graph (touched only where nodes are sampled), about 32
    bytes for each edge of a minibatch, and for each thread a bit for each neighbour of the largest
    hub.

    Args:
        indptr: int64 ``[N + 1]``; the in-neighbours of ``v`` are
            ``indices[indptr[v]:indptr[v + 1]]``. May be a memory map; read once here.
        indices: int32 or int64 ``[E]``. May be a memory map; only the sampled lists are read.
        fanouts: neighbours for each target, from the seeds outwards; -1 takes all.
        threads: the most to use; ``None``: torch's number at the time of the call.

    Raises:
        TypeError: an array has the wrong dtype.
        ValueError: the arrays form no graph, a fan-out is 0 or below -1, or threads is below 1.
    """

    def __init__(
        self, indptr: Ids, indices: Ints, fanouts: Sequence[int], threads: int | None = None
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads = {threads}: expected at least 1, or None")
        self.fanouts, self.threads = check_fanouts(fanouts), threads
        self.num_nodes = check_graph(indptr, indices)
        self._indptr, self._indices = _read_only(indptr), _read_only(indices)
        degree = int(kernels.max_degree(self._indptr))
        if not 0 <= degree < 2**32:
            fault = "decreases, or a node has 2^32 neighbours or more"
            raise ValueError(f"indptr: {fault}; the graph is broken")
        self._words = degree // 64 + 1  # of a thread's scratch: a bit for each neighbour
        self._begin()
        # Numba compiles the kernels, or reads them from its cache, before any timed call.
        self._draw(0, 0, 0, np.uint64(0), with_places=False)
        self._relabel(np.empty(0, np.int64), 0)

    def _begin(self) -> None:
        """Create the working memory and the threads, which no two samplers share.

        A fork calls this again: a ``DataLoader`` worker lacks the threads of its parent, and would
        wait for ever for a copied pool or a held lock.
        """
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(self.threads or os.cpu_count(), "gatherbench-sample")
        self._scratch: list[Words] = []
        self._table = np.zeros(self.num_nodes, np.int32)
        self._ids = np.zeros(1, np.int64)
        _living.add(self)

    def clone(self, threads: int) -> Self:
        """Return a sampler of the same graph for another thread; the graph is not read again."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), threads=threads)
        other._begin()
        return other

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), (self._indptr, self._indices, self.fanouts, self.threads)

    def sample(self, seeds: Tensor, seed: int) -> MiniBatch:
        """Draw the minibatch of ``seeds``.

        Args:
            seeds: distinct node ids, int64 ``[S]`` on the CPU, ``S >= 1``.
            seed: determines every draw, together with the seed nodes and the graph.

        Raises:
            TypeError: seeds are no int64 tensor.
            ValueError: seeds are empty, not one-dimensional, not on the CPU, or repeat a node.
            IndexError: a seed node, or a neighbour in the graph, is outside the graph.
        """
        return self._sample(seeds, seed, frontiers=False)[0]

    def sample_frontiers(self, seeds: Tensor, seed: int) -> tuple[MiniBatch, tuple[Tensor, ...]]:
        """Draw like :meth:`sample`, but layer ``k`` only for the nodes that layer ``k - 1`` added,
        and return for each layer the places of its edges in ``indices``, int64, too.

        These are PyG's subgraphs: each node is expanded once, so layer ``k``'s targets have the
        local numbers from ``num_nodes[k - 1]`` to ``num_nodes[k] - 1``.
        """
        return self._sample(seeds, seed, frontiers=True)

    def _sample(
        self, seeds: Tensor, seed: int, *, frontiers: bool
    ) -> tuple[MiniBatch, tuple[Tensor, ...]]:
        with self._lock:
            first, known = 0, self._enter(seeds)
            num_nodes, edges, places = [known], [], []
            for layer in range(len(self.fanouts)):
                key = np.uint64(derive(seed, layer))
                drawn, place = self._draw(first, known, layer, key, with_places=frontiers)
                first = known if frontiers else 0
                known = self._relabel(drawn[0], known)
                num_nodes.append(known)
                edges.append(torch.from_numpy(drawn))
                places.append(torch.from_numpy(place))
            input_ids = torch.from_numpy(self._ids[:known].copy())
        return MiniBatch(input_ids, tuple(edges), tuple(num_nodes)), tuple(places)

    def _enter(self, seeds: Tensor) -> int:
        array = check_seeds(seeds).numpy()
        self._reserve(0, len(array))
        places = array.copy()
        known, outside = kernels.relabel(places, self._ids, 0, self._table)
        if known < len(array):
            # Until the first one is there again, each is the next number.
            bad = int((places[: known + 1] == np.arange(known + 1)).argmin())
            if outside != known:
                fault = "stands there twice: make them unique"
                raise ValueError(f"seeds[{bad}] = {array[bad]} {fault}")
            fault = f"is outside the graph's nodes 0..{self.num_nodes - 1}"
            raise IndexError(f"seeds[{known}] = {array[known]} {fault}")
        return len(array)

    def _draw(
        self, first: int, last: int, layer: int, key: np.uint64, *, with_places: bool
    ) -> tuple[Ids, Ids]:
        """Draw edges ``[2, E]`` (global source, local target) of the nodes ``first..last - 1``."""
        nodes = self._ids[first:last]
        begins, offsets = np.empty(last - first, np.int64), np.empty(last - first + 1, np.int64)
        total = int(kernels.count(self._indptr, nodes, self.fanouts[layer], begins, offsets))
        edges = np.empty((2, total), np.int64)
        places = np.empty(total if with_places else 0, np.int64)
        threads = max(1, min(self.threads or torch.get_num_threads(), total // _EDGES_PER_THREAD))
        while len(self._scratch) < threads:
            self._scratch.append(np.zeros(self._words, np.uint64))
        # Split the edges evenly instead of the targets: one hub may have most of them.
        cuts = np.searchsorted(offsets, np.linspace(0, total, threads + 1)[1:-1])
        bounds = [0, *cuts.tolist(), last - first]

        def part(member: int) -> None:
            targets = (nodes, first, begins, offsets, bounds[member], bounds[member + 1])
            self._draw_part(layer, key, targets, edges, places, self._scratch[member])

        others = [self._pool.submit(part, member) for member in range(1, threads)]
        try:
            part(0)
        finally:
            wait(others)  # none may still be writing when this returns or raises
        for other in others:
            other.result()
        return edges, places

    def _draw_part(
        self, layer: int, key: np.uint64, targets: Targets, edges: Ids, places: Ids, used: Words
    ) -> None:
        """Draw the edges of a thread's targets (:func:`.draw`)."""
        drawn_from = (self._indptr, self._indices, *targets)
        kernels.draw(*drawn_from, key, edges[0], edges[1], places, used)

    def _relabel(self, sources: Ids, known: int) -> int:
        """Make the global ids in ``sources`` local; return the number of nodes known afterwards."""
        self._reserve(known, len(sources))
        more, bad = kernels.relabel(sources, self._ids, known, self._table)
        if bad != kernels.OK:
            fault = f"holds node {sources[bad]}, outside the graph's 0..{self.num_nodes - 1}"
            raise IndexError(f"indices: {fault}; the graph is broken, make it again")
        return int(more)

    def _reserve(self, known: int, more: int) -> None:
        if known + more > len(self._ids):
            ids = np.empty(2 * (known + more), np.int64)
            ids[:known] = self._ids[:known]
            self._ids = ids


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    # So that numba compiles once: writable arrays have another type.
    view: NDArray[Any] = np.asarray(array).view()
    view.flags.writeable = False
    return view


_living: weakref.WeakSet[NeighborSampler] = weakref.WeakSet()


def _start_afresh() -> None:
    for sampler in tuple(_living):
        sampler._begin()


os.register_at_fork(after_in_child=_start_afresh)
