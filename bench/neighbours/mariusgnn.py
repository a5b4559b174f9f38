"""Minibatches that see only the partitions that a buffer holds, in one of its states.

MariusGNN's sampler; ``strategies/partition_buffer.py`` is its data path, and
``strategies/partition_orders.py`` defines the states. For each state the edges among its nodes are
copied to a graph of their own, from which a plain sampler draws. This pass over the edges of the
nodes in the buffer counts as sampling; MariusGNN pays it, too.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.plan.doors import OwnSampler
from gatherbench.bench.sampling.kernels import Ids, Ints
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.sampler import Sampler, check_graph
from gatherbench.bench.sampling.splitmix import derive, stream
from gatherbench.strategies.partition_orders import Partitions

_STATES = 3  #: A stream of random numbers other than an epoch's other draws.
_ONE = np.uint64(1)


@dataclass(frozen=True)
class Buffered(OwnSampler):
    """Draws each minibatch from the ``held`` of ``parts`` partitions that a buffer holds."""

    parts: int = 16
    held: int = 4
    order: str = "beta"  #: That of the states, a name of ``partition_orders.ORDERS``.

    def __post_init__(self) -> None:
        self.partitions(0)

    def partitions(self, seed: int) -> Partitions:
        """Return the partitions; the seed decides what is random in their order."""
        return Partitions(self.parts, self.held, self.order, seed)

    def open(self, indptr: Ids, indices: Ints, fanouts: Sequence[int], seed: int) -> StateSampler:
        return StateSampler(self.partitions(seed), indptr, indices, fanouts)


class StateSeeds(NamedTuple):
    nodes: Tensor  #: Seed nodes of a minibatch, int64 ``[S]``.
    state: int  #: The index of its state among all states.


class StateSampler(Sampler):
    """Draws each minibatch from the nodes that a buffer holds in one of its states.

    A state's graph is made when its first minibatch is drawn, so going back and forth is slow. The
    present state's and one more are kept: up to ``2 c / p`` of the edges, and twice 8 bytes for
    each node. Arguments (``partitions`` are those of the nodes) and errors are those of
    :class:`NeighborSampler`; fewer nodes than partitions are a ``ValueError``.
    """

    def __init__(
        self, partitions: Partitions, indptr: Ids, indices: Ints, fanouts: Sequence[int]
    ) -> None:
        self.num_nodes = check_graph(indptr, indices)
        self.partitions: Partitions = partitions
        self._fanouts = fanouts
        self._threads: int | None = None
        # As plain arrays: numba rejects memory maps.
        self._graph: tuple[Ids, Any] = np.asarray(indptr), np.asarray(indices)
        self._states, self._bounds = partitions.states(), partitions.bounds(self.num_nodes)
        self._lock = threading.Lock()  # a thread at a time makes a graph; clones share them
        self._state_graph = lru_cache(2)(self._make_state_graph)
        self._now: tuple[int, NeighborSampler] | None = None

    def clone(self, threads: int) -> Self:
        other = copy.copy(self)
        other._now, other._threads = None, threads
        return other

    def tasks(
        self, steps: Sequence[Tensor], seed: int, epoch: int, rank: int
    ) -> Sequence[StateSeeds]:
        """Return the seed nodes of each minibatch of an epoch that goes from state to state.

        Each node is trained in one of the states that hold its partition: drawn anew in each
        epoch, all equally likely. The last minibatch of each state is shorter; a state without seed
        nodes has none.
        """
        ids = torch.cat(list(steps))
        part = self.partitions.of(ids.numpy(), self.num_nodes)
        away = np.ones((self.partitions.count, len(self._states)), bool)
        away[np.transpose(self._states), range(len(self._states))] = False
        often = (~away).sum(axis=1, dtype=np.uint64)
        draws = stream(derive(seed, epoch, _STATES), len(ids)) % often[part]
        # The states that hold a partition, in their order, stand before the others.
        drawn = np.argsort(away, axis=1, kind="stable")[part, draws.astype(np.int64)]
        by_state = ids[torch.from_numpy(np.argsort(drawn, kind="stable"))]
        shares = torch.split(by_state, np.bincount(drawn).tolist())
        return [
            StateSeeds(batch, state)
            for state, share in enumerate(shares)
            if share.numel()
            for batch in torch.split(share, steps[0].numel())
        ]

    def sample(self, seeds: StateSeeds, seed: int) -> MiniBatch:
        """Draw the minibatch of ``seeds``; see :meth:`NeighborSampler.sample`."""
        if self._now is None or seeds.state != self._now[0]:
            with self._lock:
                graph = self._state_graph(seeds.state)
            sampler = NeighborSampler(*graph, self._fanouts, self._threads)
            self._now = seeds.state, sampler
        return self._now[1].sample(seeds.nodes, seed)

    def _make_state_graph(self, state: int) -> tuple[Ids, Ints]:
        """Return all nodes' lists, empty outside the buffer."""
        (indptr, indices), within = self._graph, np.zeros(self.num_nodes, bool)
        for part in self._states[state]:
            within[self._bounds[part] : self._bounds[part + 1]] = True
        kept = np.empty(int(np.diff(indptr)[within].sum()), indices.dtype)
        offsets = _keep_within(indptr, indices, within, kept)
        return offsets, kept[: offsets[-1]]


@njit(nogil=True, cache=True)
def _keep_within(indptr: Ids, indices: Ints, within: NDArray[np.bool_], kept: Ints) -> Ids:
    """Copy the lists to ``kept``, only with edges between two nodes ``within`` (bool ``[N]``);
    return where each begins and ends, int64 ``[N + 1]``. A source outside the graph stays, for the
    sampler that draws it to refuse."""
    nodes, n, offsets = np.uint64(len(within)), np.uint64(0), np.zeros_like(indptr)
    for v in range(nodes):
        if within[v]:
            for e in range(np.uint64(indptr[v]), np.uint64(indptr[v + _ONE])):
                source = np.uint64(indices[e])
                if source >= nodes or within[source]:
                    kept[n] = indices[e]
                    n += _ONE
        offsets[v + _ONE] = n
    return offsets
