"""Choose the rows that a cache keeps for good: those with the highest scores, hence the most used.

Degree (PaGraph: Lin et al., SoCC 2020) and reverse PageRank (Data Tiering: Min et al., KDD 2022,
arXiv 2111.05894) use only the graph. Counts of use (PreSC: GNNLab, Yang et al., EuroSys 2022) need
minibatches that were sampled before. Random scores are the control: the gain of a cache without
any knowledge.

A graph of ``N`` nodes is in compressed sparse columns: ``indptr``, int64 ``[N + 1]``, and
``indices``, int32 or int64 ``[E]``. ``indices[indptr[v]:indptr[v + 1]]`` are the in-neighbours of
``v``, whose rows are needed when ``v`` is sampled. Both may be memory-mapped.

Both scores of the graph are sums over its edges, in the order in which the edges lie. One order
gives the same bits for each dtype of the ids, and takes no memory per edge.
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

from gatherbench.strategies.knowledge import Knowledge, Need

Ids = Tensor | NDArray[np.int32] | NDArray[np.int64]

#: Epochs that ``presampled`` draws to count uses: the K of GNNLab's PreSC#K.
SAMPLED_EPOCHS = 1
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
    """Rows kept for good: their ``ids`` (``[capacity]``, ascending), and the slot of each row.

    ``slots`` is int32 ``[N]``, -1 where a row is not kept.
    """

    ids: NDArray[np.int64]
    slots: NDArray[np.int32]

    @property
    def capacity(self) -> int:
        """The number of slots for kept rows."""
        return len(self.ids)

    @property
    def state_bytes(self) -> int:
        """The memory of the bookkeeping itself, in bytes."""
        return self.slots.nbytes

    def step(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Look up a minibatch of ids ``[B]`` (int32 or int64, repeats allowed) as a cache does.

        The caller has checked the ids, as ``Fetcher.submit`` does.

        Returns:
            slots: int64 ``[B]``, the slot of each position's row, or -1 if it is not held. All
                rows are read from these slots before any is filled.
            fill: int64 ``[B]``, the slot to fill afterwards with the row of this position, or -1.
                Only the first position of an id has one, and no slot occurs twice. Empty where
                rows are kept for good, as here.
        """
        return self.slots[ids].astype(np.int64), np.empty(0, np.int64)


def placed(policy: str, count: int, num_rows: int, knowledge: Knowledge) -> Placed:
    """Choose the ``count`` rows with the highest scores.

    Raises:
        ValueError: the graph has another number of nodes than the table has rows.
    """
    graph = knowledge.graph
    if graph is not None and len(graph.indptr) != num_rows + 1:
        nodes = len(graph.indptr) - 1
        raise ValueError(f"the graph has {nodes} nodes and the table {num_rows} rows")
    hot = np.empty(0, np.int64)
    if count:
        hot = hottest(scores(policy, num_rows, knowledge), count)
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
    indptr, indices = known.graph.indptr, known.graph.indices
    if policy == "presampled":
        assert known.earlier is not None
        drawn = (ids for epoch in range(SAMPLED_EPOCHS) for ids in known.earlier(epoch))
        # Rows that are used equally often, or never, are ordered by their degree.
        times, degree = times_asked(drawn, num_rows), out_degree(indptr, indices)
        found: NDArray[np.float64] = times + degree / (degree.max(initial=0) + 1.0)
        return found
    if policy == "degree":
        return out_degree(indptr, indices)
    restart = known.training_ids if policy == "weighted_reverse_pagerank" else None
    return reverse_pagerank(indptr, indices, restart)


def out_degree(indptr: NDArray[np.int64], indices: NDArray[Any]) -> NDArray[np.int64]:
    """Count how often each node is an in-neighbour of a node: int64 ``[N]``.

    Raises:
        ValueError, IndexError: the arrays are not a graph.
    """
    _check_graph(indptr, indices)
    return _received(indptr, indices, np.ones(len(indptr) - 1, np.int64))


def reverse_pagerank(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    restart: Ids | None = None,
    damping: float = 0.85,
    iterations: int = 20,
) -> NDArray[np.float64]:
    """Compute PageRank against the edges, from nodes to their in-neighbours: float64 ``[N]``.

    ``R(v) = (1 - damping) * t(v) + damping * sum(R(u) / in_degree(u))`` over the edges by which a
    node ``u`` aggregates from ``v``, iterated from ``R = t``. ``t`` is ``1 / N`` for every node, or
    with ``restart`` one share for each of these nodes and 0 for the others: the paper's weighted
    reverse PageRank, where they are the training nodes. A node without in-neighbours passes nothing
    on, so the sum over all nodes may be below 1.

    Args:
        restart: node ids ``[T]``, at least one.

    Raises:
        ValueError, IndexError: the arrays are not a graph, or ``restart`` is empty or outside it.
    """
    _check_graph(indptr, indices)
    num_nodes = len(indptr) - 1
    start = np.full(num_nodes, float(restart is None))
    if restart is not None:
        start[_checked("restart", restart, num_nodes)] = 1
        if not start.any():
            raise ValueError("restart: expected at least one node, or None for all")
    start /= start.sum()
    weight = damping / np.maximum(np.diff(indptr), 1)
    rank = start
    for _ in range(iterations):
        rank = _received(indptr, indices, rank * weight) + (1 - damping) * start
    return rank


def times_asked(minibatches: Iterable[Ids], num_nodes: int) -> NDArray[np.int64]:
    """Count the minibatches in which each node is an input node: int64 ``[num_nodes]``.

    Args:
        minibatches: the input nodes of each, ``[B]`` on the CPU. A repeated id in a minibatch
            counts once. Use another seed than that of the minibatches that are measured.

    Raises:
        IndexError: a minibatch names a node outside ``0 .. num_nodes - 1``.
    """
    times = np.zeros(num_nodes, np.int64)
    for number, ids in enumerate(minibatches):
        times[_checked(f"minibatch {number}", ids, num_nodes)] += 1
    return times


def hottest(scores: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the ``count`` nodes with the highest scores ``[N]``, ascending: int64 ``[count]``.

    Of equal scores the lower node wins. The time is proportional to ``N``.

    Raises:
        ValueError: ``count`` is outside ``0 .. N``, or a score is not a number.
    """
    if not 0 <= count <= len(scores):
        raise ValueError(f"count = {count}: expected 0 to {len(scores)}, the number of scores")
    if np.isnan(scores).any():
        raise ValueError("scores: some are NaN, which is neither high nor low")
    if count == 0:
        return np.empty(0, np.int64)
    lowest = np.partition(scores, -count)[-count]
    chosen = scores > lowest
    ties = np.flatnonzero(scores == lowest)
    chosen[ties[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


@njit(nogil=True, cache=True)
def _received(indptr: Any, indices: Any, share: NDArray[Any]) -> NDArray[Any]:
    """Sum what each node receives if each ``u`` gives ``share[u]`` along each of its in-edges."""
    received = np.zeros_like(share)
    for node in range(len(share)):
        for edge in range(indptr[node], indptr[node + 1]):
            received[indices[edge]] += share[node]
    return received


def _check_graph(indptr: NDArray[np.int64], indices: NDArray[Any]) -> None:
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise ValueError(
            f"indptr: expected to ascend from 0 to the {len(indices)} edges of indices; "
            "the graph is broken, make it again"
        )
    _checked("indices", indices, len(indptr) - 1)


def _checked(what: str, nodes: Ids, num_nodes: int) -> NDArray[Any]:
    ids: NDArray[Any] = np.asarray(nodes)
    for extreme in (ids.min(), ids.max()) if ids.size else ():
        if not 0 <= extreme < num_nodes:
            raise IndexError(f"{what}: names node {extreme}, the graph has 0..{num_nodes - 1}")
    return ids
