"""Scores of rows: by hand, and against a dense matrix."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.strategies import scores
from gatherbench.strategies.knowledge import Adjacency, Knowledge
from gatherbench.strategies.scores import out_degree, placed, reverse_pagerank, times_asked

#: Node 0 aggregates from 1 and 2, node 1 from 2; node 3 has no edge at all.
HAND_MADE = Adjacency(np.array([0, 2, 3, 3, 3]), np.array([1, 2, 2]))


def graph_of(num_nodes: int, edges: list[tuple[int, int]], dtype: Any = np.int64) -> Adjacency:
    """The CSC arrays of edges (node, in-neighbour)."""
    ordered = np.array(sorted(edges), np.int64).reshape(-1, 2)
    begins = np.searchsorted(ordered[:, 0], np.arange(num_nodes + 1))
    return Adjacency(begins, ordered[:, 1].astype(dtype))


def test_the_hand_made_graph():
    """With damping 1/2 every number is a sum of powers of two, so these are exact."""
    assert out_degree(HAND_MADE).tolist() == [0, 1, 2, 0]
    once = reverse_pagerank(HAND_MADE, damping=0.5, iterations=1)
    assert once.tolist() == [1 / 8, 1 / 8 + 1 / 16, 1 / 8 + 1 / 16 + 1 / 8, 1 / 8]
    # No way is longer than two edges: 0 gives 1/8 to 1 and 2 alike, 1 gives all of 5/32 to 2.
    all_the_way = reverse_pagerank(HAND_MADE, damping=0.5)
    assert all_the_way.tolist() == [1 / 8, 5 / 32, 1 / 8 + 1 / 32 + 5 / 64, 1 / 8]
    weighted = reverse_pagerank(HAND_MADE, restart=np.array([0]), damping=0.5)
    assert weighted.tolist() == [1 / 2, 1 / 8, 1 / 8 + 1 / 16, 0]


GRAPHS = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=25),
        st.none() | st.lists(st.integers(0, n - 1), min_size=1),
    )
)


@given(graph=GRAPHS, dtype=st.sampled_from([np.int32, np.int64]), iterations=st.integers(0, 5))
@settings(deadline=None)
def test_any_graph_against_a_dense_matrix(graph, dtype, iterations):
    num_nodes, edges, nodes = graph
    made = graph_of(num_nodes, edges, dtype)
    restart = None if nodes is None else np.array(nodes)
    asks = np.zeros((num_nodes, num_nodes))
    for node, neighbour in edges:
        asks[neighbour, node] += 1
    assert (out_degree(made) == asks.sum(1)).all()
    start = np.isin(np.arange(num_nodes), range(num_nodes) if nodes is None else nodes) * 1.0
    start /= start.sum()
    rank = start
    for _ in range(iterations):
        rank = 0.15 * start + 0.85 * asks @ (rank / asks.sum(0).clip(1))
    np.testing.assert_allclose(
        reverse_pagerank(made, restart, iterations=iterations), rank, rtol=1e-12
    )


def test_times_asked_counts_minibatches_not_ids():
    minibatches = (torch.tensor([1, 3, 3]), torch.tensor([3]).int(), torch.empty(0).long())
    assert times_asked(iter(minibatches), 5).tolist() == [0, 1, 0, 2, 0]


@pytest.mark.parametrize(("count", "kept"), [(1, [3]), (2, [2, 3]), (3, [1, 2, 3])])
def test_a_use_counts_more_than_any_degree(count, kept):
    """Row 3 was used once and is nobody's neighbour; row 2, the most common one, was not used."""
    known = Knowledge(graph=HAND_MADE, earlier=lambda _: iter([torch.tensor([3])]))
    assert placed("presampled", count, 4, known).ids.tolist() == kept


@given(degrees=st.lists(st.integers(0, 2), min_size=1), share=st.floats(0, 1))
def test_of_rows_of_equal_score_the_lower_are_kept(degrees, share):
    ends = np.repeat(np.arange(len(degrees)), degrees)
    graph = Adjacency(np.r_[np.zeros(len(degrees), np.int64), len(ends)], ends)
    count = int(share * len(degrees))
    order = sorted(range(len(degrees)), key=lambda node: (-degrees[node], node))
    kept = placed("degree", count, len(degrees), Knowledge(graph=graph)).ids
    assert kept.dtype == np.int64
    assert kept.tolist() == sorted(order[:count])


@pytest.mark.parametrize(
    "broken",
    [([0, 2, 3, 3, 3], [3, 4, 4]), ([0, 2, 3, 3, 3], [-1, 0, 0]), ([0, 2, 1, 3, 4], [1, 2, 2])],
)
def test_a_broken_graph_is_named(broken):
    with pytest.raises(ValueError, match="the graph is broken"):
        out_degree(Adjacency(*map(np.array, broken)))


def test_paths_that_know_the_same_share_their_scores(monkeypatch):
    """On 1.5 G edges they take seconds: two paths of one process ask for them once."""
    asked = []

    def degree(graph: Adjacency) -> Any:
        asked.append(len(graph.indices))
        return np.diff(graph.indptr)

    monkeypatch.setattr(scores, "out_degree", degree)
    graph = Adjacency(np.array([0, 2, 3]), np.array([0, 1, 1]))
    known = Knowledge(graph=graph, training_ids=np.array([1]))
    for needs in ({"graph"}, {"graph"}, {"graph", "training_ids"}):
        of = known.limited_to(frozenset(needs))
        assert (of.training_ids is not None) == ("training_ids" in needs)
        assert placed("degree", 1, 2, of).ids.tolist() == [0]
    assert asked == [3, 3]
