"""Minibatches that see only the partitions that a buffer holds, in one of its states.

``strategies/partition_orders.py`` says which these are. For each state the edges among its nodes
are copied to a graph of their own, and a plain sampler draws from that. So a sampler without
partitions does nothing that it did not do before, and a GPU draws the same minibatches. The price
is a pass over the edges of the nodes in the buffer, for each state of an epoch, which counts as
sampling; MariusGNN pays such a one, too.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling import kernels
from gatherbench.bench.sampling.checks import check_graph
from gatherbench.bench.sampling.epoch import StateSeeds
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.torch_sampler import DeviceSampler
from gatherbench.bench.sampling.trace import Sampler
from gatherbench.strategies.partition_orders import Partitions


class CpuSampler(Sampler, Protocol):
    """What draws on the CPU."""

    def clone(self, threads: int) -> Sampler:
        """One more, for another thread."""
        ...


Graph = tuple[NDArray[np.int64], NDArray[Any]]


def sampler_of(workload: Workload, indptr: NDArray[np.int64], indices: NDArray[Any]) -> CpuSampler:
    """What draws the workload's minibatches on the CPU."""
    if (parts := workload.parted) is None:
        return NeighborSampler(indptr, indices, workload.fanouts)
    return StateSampler(parts, indptr, indices, workload.fanouts)


def device_sampler_of(
    workload: Workload, indptr: NDArray[np.int64], indices: NDArray[Any], device: torch.device
) -> Sampler:
    """What draws the workload's minibatches on ``device``."""
    if (parts := workload.parted) is None:
        return DeviceSampler(indptr, indices, workload.fanouts, device)
    return StateSampler(parts, indptr, indices, workload.fanouts, device)


class StateSampler:
    """Draws each minibatch from the nodes that a buffer holds in one of its states.

    The graph of the present state and of one more are kept: up to ``2 c / p`` of the edges, and
    twice 8 bytes for each node. Errors are those of the sampler that draws.

    Args:
        partitions: of the graph's nodes, which are the rows of the table.
        indptr, indices, fanouts, threads: as for :class:`NeighborSampler`.
        device: where to draw, as :class:`DeviceSampler`; ``None``: on the CPU.

    Raises:
        TypeError, ValueError: no graph; or one with fewer nodes than partitions.
    """

    def __init__(
        self,
        partitions: Partitions,
        indptr: NDArray[np.int64],
        indices: NDArray[Any],
        fanouts: Sequence[int],
        device: torch.device | None = None,
        threads: int | None = None,
    ) -> None:
        self.num_nodes = check_graph(indptr, indices)
        partitions.bounds(self.num_nodes)
        self._fanouts, self._device, self._threads = fanouts, device, threads
        self._graphs = _StateGraphs(partitions, indptr, indices)
        self._state = -1
        self._sampler: Sampler | None = None

    def clone(self, threads: int) -> Self:
        """One more sampler of this graph, for another thread; both share the states' graphs."""
        other = copy.copy(self)
        other._state, other._threads = -1, threads
        return other

    def sample(self, seeds: StateSeeds, seed: int) -> MiniBatch:
        """Draw the minibatch of ``seeds``; see :meth:`NeighborSampler.sample`.

        A state is entered when its first minibatch is drawn: going back and forth is slow.
        """
        if seeds.state != self._state or self._sampler is None:
            self._sampler = self._sampler_of(*self._graphs.graph(seeds.state))
            self._state = seeds.state
        return self._sampler.sample(seeds.nodes, seed)

    def _sampler_of(self, indptr: NDArray[np.int64], indices: NDArray[Any]) -> Sampler:
        if self._device is not None:
            return DeviceSampler(indptr, indices, self._fanouts, self._device)
        return NeighborSampler(indptr, indices, self._fanouts, self._threads)


class _StateGraphs:
    """The graphs of the two states that were asked for last; made by one thread at a time."""

    def __init__(self, partitions: Partitions, indptr: Any, indices: Any) -> None:
        self._partitions, self._states = partitions, partitions.states()
        self._indptr, self._indices = np.asarray(indptr), np.asarray(indices)  # maps are no arrays
        self._lock = threading.Lock()
        self._kept = lru_cache(2)(self._made)

    def graph(self, state: int) -> Graph:
        """The lists of all nodes, with nothing in those that are not in the buffer."""
        with self._lock:
            return self._kept(state)

    def _made(self, state: int) -> Graph:
        nodes = len(self._indptr) - 1
        within = np.zeros(nodes, bool)
        bounds = self._partitions.bounds(nodes)
        for part in self._states[state]:
            within[bounds[part] : bounds[part + 1]] = True
        graph, offsets = (self._indptr, self._indices, within), np.empty(nodes + 1, np.int64)
        if (bad := int(kernels.count_within(*graph, offsets))) != kernels.OK:
            raise IndexError(
                f"indices[{bad}] = {self._indices[bad]} is outside the graph's nodes"
                f" 0..{nodes - 1}; the graph is broken, make it again"
            )
        kept = np.empty(offsets[-1], self._indices.dtype)
        kernels.keep_within(*graph, kept)
        return offsets, kept
