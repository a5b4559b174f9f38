"""Scores of rows: by hand, against a dense matrix, the same for every thread count."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatherbench.strategies import scores
from gatherbench.strategies.knowledge import Adjacency, Knowledge
from gatherbench.strategies.scores import (
    hottest,
    out_degree,
    placed,
    reverse_pagerank,
    times_asked,
)

Graph = tuple[NDArray[np.int64], NDArray[Any]]
#: Node 0 aggregates from 1 and 2, node 1 from 2; node 3 has no edge at all.
HAND_MADE = np.array([0, 2, 3, 3, 3]), np.array([1, 2, 2])


def graph_of(num_nodes: int, edges: list[tuple[int, int]], dtype: Any = np.int64) -> Graph:
    """The CSC arrays of edges (node, in-neighbour)."""
    ordered = np.array(sorted(edges), np.int64).reshape(-1, 2)
    return np.searchsorted(ordered[:, 0], np.arange(num_nodes + 1)), ordered[:, 1].astype(dtype)


def skewed_graph(dtype: Any) -> Graph:
    draw = np.random.default_rng(5)
    ends = (300 * draw.random((2, 5000)) ** 3).astype(int)
    return graph_of(300, [(int(u), int(v)) for u, v in ends.T], dtype)


def test_the_hand_made_graph():
    """With damping 1/2 every number is a sum of powers of two, so these are exact."""
    assert out_degree(*HAND_MADE).tolist() == [0, 1, 2, 0]
    once = reverse_pagerank(*HAND_MADE, damping=0.5, iterations=1)
    assert once.tolist() == [1 / 8, 1 / 8 + 1 / 16, 1 / 8 + 1 / 16 + 1 / 8, 1 / 8]
    # No way is longer than two edges: 0 gives 1/8 to 1 and 2 alike, 1 gives all of 5/32 to 2.
    all_the_way = reverse_pagerank(*HAND_MADE, damping=0.5)
    assert all_the_way.tolist() == [1 / 8, 5 / 32, 1 / 8 + 1 / 32 + 5 / 64, 1 / 8]
    weighted = reverse_pagerank(*HAND_MADE, restart=np.array([0]), damping=0.5)
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
    indptr, indices = graph_of(num_nodes, edges, dtype)
    restart = None if nodes is None else torch.tensor(nodes)
    asks = np.zeros((num_nodes, num_nodes))
    for node, neighbour in edges:
        asks[neighbour, node] += 1
    assert (out_degree(indptr, indices) == asks.sum(1)).all()
    start = np.isin(np.arange(num_nodes), range(num_nodes) if nodes is None else nodes) * 1.0
    start /= start.sum()
    rank = start
    for _ in range(iterations):
        rank = 0.15 * start + 0.85 * asks @ (rank / asks.sum(0).clip(1))
    np.testing.assert_allclose(
        reverse_pagerank(indptr, indices, restart, iterations=iterations), rank, rtol=1e-12
    )


def test_neither_id_types_nor_memory_maps_change_a_bit(tmp_path):
    found = set()
    for dtype in (np.int32, np.int64):
        indptr, indices = skewed_graph(dtype)
        np.save(tmp_path / "indices.npy", indices)
        mapped = np.load(tmp_path / "indices.npy", mmap_mode="r")
        rank = reverse_pagerank(indptr, mapped, restart=np.arange(9, dtype=dtype))
        found.add((rank.tobytes(), out_degree(indptr, indices).tobytes()))
    assert len(found) == 1


def test_a_graph_without_edges():
    nothing = np.zeros(5, np.int64), np.empty(0, np.int32)
    assert out_degree(*nothing).tolist() == [0] * 4
    assert reverse_pagerank(*nothing, damping=0.5).tolist() == [1 / 8] * 4


def test_times_asked_counts_minibatches_not_ids():
    minibatches = (torch.tensor([1, 3, 3]), np.array([3], np.int32), torch.empty(0).long())
    assert times_asked(iter(minibatches), 5).tolist() == [0, 1, 0, 2, 0]


@given(
    values=st.lists(st.integers(-2, 2)) | st.lists(st.floats(allow_nan=False)),
    share=st.floats(0, 1),
)
def test_hottest_takes_the_lower_of_equal_nodes(values, share):
    count = int(share * len(values))
    order = sorted(range(len(values)), key=lambda node: (-values[node], node))
    chosen = hottest(np.array(values), count)
    assert chosen.dtype == np.int64
    assert chosen.tolist() == sorted(order[:count])


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (IndexError, "indices: names node 4, the", lambda p, i: out_degree(p, i + 2)),
        (IndexError, "indices: names node -1, the", lambda p, i: reverse_pagerank(p, i - 2)),
        (ValueError, "indptr: expected to ascend", lambda p, i: out_degree(p, i[1:])),
        (ValueError, "indptr: expected to ascend", lambda p, i: out_degree(p[[0, 2, 1, 3, 4]], i)),
        (IndexError, "restart: names node 4", lambda p, i: reverse_pagerank(p, i, np.array([4]))),
        (ValueError, "at least one", lambda p, i: reverse_pagerank(p, i, torch.tensor([]).long())),
        (IndexError, "minibatch 1: names node -1", lambda p, i: times_asked([i, i - 2], 4)),
        (ValueError, "count = 5: expected 0 to 4", lambda p, i: hottest(np.zeros(4), 5)),
        (ValueError, "some are NaN", lambda p, i: hottest(np.array([1, np.nan]), 1)),
    ],
)
def test_bad_input_is_named(error, message, call):
    with pytest.raises(error, match=message):
        call(*HAND_MADE)


def test_paths_that_know_the_same_share_their_scores(monkeypatch):
    """On 1.5 G edges they take seconds: two paths of one process ask for them once."""
    asked = []

    def degree(indptr: Any, indices: Any) -> Any:
        asked.append(len(indices))
        return np.diff(indptr)

    monkeypatch.setattr(scores, "out_degree", degree)
    graph = Adjacency(np.array([0, 2, 3]), np.array([0, 1, 1]))
    known = Knowledge(graph=graph, training_ids=np.array([1]))
    for needs in ({"graph"}, {"graph"}, {"graph", "training_ids"}):
        of = known.limited_to(frozenset(needs))
        assert (of.training_ids is not None) == ("training_ids" in needs)
        assert placed("degree", 1, 2, of).ids.tolist() == [0]
    assert asked == [3, 3]
