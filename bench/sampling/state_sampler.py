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
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling import kernels
from gatherbench.bench.sampling.checks import check_graph
from gatherbench.bench.sampling.device_sampler import DeviceSampler, Drawing, Place
from gatherbench.bench.sampling.epoch import StateSeeds
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.snapshot import SnapshotSampler
from gatherbench.bench.sampling.trace import Sampler
from gatherbench.strategies.partition_orders import Partitions

Graph = tuple[NDArray[np.int64], NDArray[Any]]


def sampler_of(
    workload: Workload,
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    device: torch.device | None = None,
    *,
    in_place: Place | None = None,
) -> Sampler:
    """What draws the workload's minibatches, on the CPU or on a GPU; see :class:`StateSampler`.

    Sampling that remembers is the CPU's.
    """
    if workload.remembers:
        return SnapshotSampler(workload.lists, indptr, indices, workload.fanouts)
    if (parts := workload.parted) is not None:
        fanouts = workload.fanouts
        return StateSampler(parts, indptr, indices, fanouts, device, in_place=in_place)
    if device is not None:
        return DeviceSampler(indptr, indices, workload.fanouts, device, in_place=in_place)
    return NeighborSampler(indptr, indices, workload.fanouts)


class StateSampler:
    """Draws each minibatch from the nodes that a buffer holds in one of its states.

    The graph of the present state and of one more are kept: up to ``2 c / p`` of the edges, and
    twice 8 bytes for each node. Errors are those of the sampler that draws.

    Args:
        partitions: of the graph's nodes, which are the rows of the table.
        indptr, indices, fanouts, threads: as for :class:`NeighborSampler`.
        device, in_place: where to draw, as :class:`DeviceSampler`; ``None``: on the CPU.

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
        *,
        in_place: Place | None = None,
    ) -> None:
        self.num_nodes = check_graph(indptr, indices)
        self._fanouts, self._device, self._threads = fanouts, device, threads
        self._in_place = in_place
        self._graph = _state_graphs(partitions, indptr, indices)
        self._state = -1
        self._sampler: NeighborSampler | DeviceSampler | None = None

    def clone(self, threads: int) -> Self:
        """One more sampler of this graph, for another thread; both share the states' graphs."""
        other = copy.copy(self)
        other._state, other._threads = -1, threads
        return other

    def sample(self, seeds: StateSeeds, seed: int) -> MiniBatch:
        """Draw the minibatch of ``seeds``; see :meth:`NeighborSampler.sample`.

        A state is entered when its first minibatch is drawn: going back and forth is slow.
        """
        return self._entered(seeds.state).sample(seeds.nodes, seed)

    def begin(self, seeds: StateSeeds, seed: int) -> Drawing:
        """See :meth:`DeviceSampler.begin`: of a sampler that draws on a GPU."""
        sampler = self._entered(seeds.state)
        assert isinstance(sampler, DeviceSampler)
        return sampler.begin(seeds.nodes, seed)

    def _entered(self, state: int) -> NeighborSampler | DeviceSampler:
        if state != self._state or self._sampler is None:
            graph = self._graph(state)
            self._sampler = (
                NeighborSampler(*graph, self._fanouts, self._threads)
                if self._device is None
                else DeviceSampler(*graph, self._fanouts, self._device, in_place=self._in_place)
            )
            self._state = state
        return self._sampler


def _state_graphs(
    partitions: Partitions, indptr: NDArray[np.int64], indices: NDArray[Any]
) -> Callable[[int], Graph]:
    """Gives the graph of a state: the lists of all nodes, with nothing in those outside the buffer.

    The two that were asked for last are kept; one thread at a time makes one.
    """
    indptr, indices = np.asarray(indptr), np.asarray(indices)  # maps are no arrays to numba
    nodes, states, lock = len(indptr) - 1, partitions.states(), threading.Lock()
    bounds = partitions.bounds(nodes)

    @lru_cache(2)
    def made(state: int) -> Graph:
        within = np.zeros(nodes, bool)
        for part in states[state]:
            within[bounds[part] : bounds[part + 1]] = True
        offsets = np.empty(nodes + 1, np.int64)
        kept = np.empty(int(np.diff(indptr)[within].sum()), indices.dtype)
        bad = int(kernels.keep_within(indptr, indices, within, offsets, kept))
        if bad != kernels.OK:
            raise IndexError(
                f"indices[{bad}] = {indices[bad]} is outside the graph's nodes 0..{nodes - 1}; the"
                " graph is broken, make it again"
            )
        return offsets, kept[: offsets[-1]]

    def graph(state: int) -> Graph:
        with lock:
            return made(state)

    return graph
