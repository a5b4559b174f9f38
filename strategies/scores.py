"""Choose the rows that a cache keeps for good: those with the highest scores, hence the most used.

Degree (PaGraph: Lin et al., SoCC 2020) and reverse PageRank (Data Tiering: Min et al., KDD 2022,
arXiv 2111.05894) use only the graph: they are sums over its edges in the order in which they lie,
so they have the same bits for each dtype of the ids, and take no memory per edge. Counts of use
(PreSC: GNNLab, Yang et al., EuroSys 2022) need minibatches that were sampled before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.strategies.knowledge import Adjacency, Knowledge, Need

#: The knowledge that each static policy needs.
NEEDS: dict[str, tuple[Need, ...]] = {
    "presampled": ("earlier", "graph"),
    "degree": ("graph",),
    "reverse_pagerank": ("graph",),
    "weighted_reverse_pagerank": ("graph", "training_ids"),
    "oracle": ("measured",),
}
#: Policies that nobody would train with: ``oracle`` knows the measured minibatches, and so is the
#: bound for fixed rows; ``random`` shows the gain of a cache without any knowledge.
CONTROLS = frozenset({"oracle", "random"})


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Rows that are kept for good."""

    ids: NDArray[np.int64]  #: ``[capacity]``, ascending.
    slots: NDArray[np.int32]  #: ``[N]``, -1 where a row is not kept.

    @property
    def capacity(self) -> int:
        return len(self.ids)

    @property
    def state_bytes(self) -> int:
        return self.slots.nbytes

    def step(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Look up a minibatch of checked ids ``[B]`` (int32 or int64, repeats allowed).

        Returns:
            slots: int64 ``[B]``, the slot of each position's row, or -1 if it is not held. All
                rows are read from these slots before any is filled.
            fill: int64 ``[B]``, the slot to fill afterwards with the row of this position, or
                -1. Only the first position of an id has one, and no slot occurs twice. Empty
                for kept rows.
        """
        return self.slots[ids].astype(np.int64), np.empty(0, np.int64)


def placed(policy: str, count: int, num_rows: int, knowledge: Knowledge) -> Placed:
    """Choose the ``count`` rows with the highest scores, of equal ones the lower row; a graph with
    another number of nodes than the table has rows is a ``ValueError``."""
    graph = knowledge.graph
    if graph is not None and (nodes := len(graph.indptr) - 1) != num_rows:
        raise ValueError(f"the graph has {nodes} nodes and the table {num_rows} rows")
    hot = np.empty(0, np.int64)
    if count:
        values = scores(policy, num_rows, knowledge)
        lowest = np.partition(values, -count)[-count]
        above, ties = np.flatnonzero(values > lowest), np.flatnonzero(values == lowest)
        hot = np.sort(np.concatenate([above, ties[: count - len(above)]]))
    slots = np.full(num_rows, -1, np.int32)
    slots[hot] = np.arange(len(hot), dtype=np.int32)
    return Placed(hot, slots)


@functools.lru_cache(maxsize=4)  # paths that keep more or fewer rows have the same scores
def scores(policy: str, num_rows: int, known: Knowledge) -> NDArray[Any]:
    """Return the scores of all rows by a static policy: ``[N]``; higher ones are kept."""
    if policy == "random":
        return np.random.default_rng(0).random(num_rows)
    if policy == "oracle":
        assert known.measured is not None
        return times_asked(known.measured, num_rows)
    assert known.graph is not None
    if policy.endswith("reverse_pagerank"):
        return reverse_pagerank(known.graph, known.training_ids if "weighted" in policy else None)
    degree = out_degree(known.graph)
    if policy == "degree":
        return degree
    assert known.earlier is not None
    # Rows that are used equally often, or never, are ordered by their degree.
    tie: NDArray[np.float64] = degree / (degree.max(initial=0) + 1.0)
    return tie + times_asked(known.earlier(0), num_rows)


def out_degree(graph: Adjacency) -> NDArray[np.int64]:
    """Count how often each node is an in-neighbour of a node: int64 ``[N]``."""
    return _received(graph, np.ones(len(graph.indptr) - 1, np.int64))


def reverse_pagerank(
    graph: Adjacency,
    restart: NDArray[np.int64] | None = None,
    damping: float = 0.85,
    iterations: int = 20,
) -> NDArray[np.float64]:
    """Compute PageRank against the edges, from nodes to their in-neighbours: float64 ``[N]``.

    ``R(v) = (1 - damping) * t(v) + damping * sum(R(u) / in_degree(u))`` over the edges by which a
    node ``u`` aggregates from ``v``, iterated from ``R = t``. ``t`` is ``1 / N`` for every node, or
    with ``restart`` (ids ``[T]``, at least one) one share for each of these nodes: the paper's
    weighted reverse PageRank, where they are the training nodes. A node without in-neighbours
    passes nothing on, so the sum over all nodes may be below 1.
    """
    start = np.full(len(graph.indptr) - 1, float(restart is None))
    start[() if restart is None else restart] = 1
    start /= start.sum()
    weight = damping / np.maximum(np.diff(graph.indptr), 1)
    rank = start
    for _ in range(iterations):
        rank = _received(graph, rank * weight) + (1 - damping) * start
    return rank


def times_asked(minibatches: Iterable[Tensor], num_nodes: int) -> NDArray[np.int64]:
    """Count the minibatches (input nodes ``[B]`` of each) with each node: int64 ``[num_nodes]``."""
    times = np.zeros(num_nodes, np.int64)
    for ids in minibatches:
        times[ids.numpy()] += 1
    return times


def _received(graph: Adjacency, share: NDArray[Any]) -> NDArray[Any]:
    """Sum what each node receives if each ``u`` gives ``share[u]`` along each of its in-edges."""
    indptr, indices = graph.indptr, graph.indices
    ascends = indptr[0] == 0 and indptr[-1] == len(indices) and (np.diff(indptr) >= 0).all()
    if not ascends or (len(indices) and not 0 <= indices.min() <= indices.max() < len(share)):
        raise ValueError(
            "the graph is broken: indptr does not ascend to the number of edges, or an"
            " edge names a node that is not there; make it again"
        )
    received = np.zeros_like(share)
    _send(indptr, indices, share, received)
    return received


@njit(nogil=True, cache=True)
def _send(indptr: Any, indices: Any, share: NDArray[Any], received: NDArray[Any]) -> None:
    for node in range(len(share)):
        for edge in range(indptr[node], indptr[node + 1]):
            received[indices[edge]] += share[node]
