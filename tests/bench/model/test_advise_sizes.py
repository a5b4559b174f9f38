"""Computed minibatches: like those sampled from graphs of the same law, and never impossible."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatherbench.bench.model.advise.question import Question, graph_of, graph_sizes
from gatherbench.bench.model.advise.sizes import LAWS, MinibatchSizes, expected_sizes, powerlaw
from gatherbench.bench.regress.rmat_graph import rmat_graph
from gatherbench.bench.sampling.epoch import epoch_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler

Graph = tuple[NDArray[np.int64], NDArray[np.int32]]


def csc(sources: NDArray[np.int64], targets: NDArray[np.int64], nodes: int) -> Graph:
    indptr = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=nodes), out=indptr[1:])
    return indptr, sources[np.argsort(targets, kind="stable")].astype(np.int32)


def uniform_graph(nodes: int, edges: int) -> Graph:
    draw = np.random.default_rng(0)
    return csc(draw.integers(0, nodes, edges), draw.integers(0, nodes, edges), nodes)


def barabasi_albert(nodes: int, edges: int) -> Graph:
    """Each new node is joined to others, drawn in proportion to their degree so far."""
    each = edges // nodes // 2
    draw = np.random.default_rng(0)
    ends = np.empty(2 * each * nodes, np.int64)  # of all edges so far: nodes by their degree
    ends[:each] = np.arange(each)
    size = each
    pairs = []
    for node in range(each, nodes):
        chosen: set[int] = set()
        while len(chosen) < each:
            chosen.add(int(ends[int(draw.random() * size)]))
        others = np.fromiter(chosen, np.int64)
        pairs.append(np.stack((np.full(each, node), others)))
        ends[size : size + each], ends[size + each : size + 2 * each] = node, others
        size += 2 * each
    one, other = np.concatenate(pairs, axis=1)
    return csc(np.concatenate((one, other)), np.concatenate((other, one)), nodes)


GRAPHS = {"rmat": rmat_graph, "uniform": uniform_graph, "powerlaw": barabasi_albert}


@pytest.mark.parametrize(
    ("law", "nodes", "edges", "fanouts", "batch", "connected"),
    [
        ("uniform", 200_000, 4_000_000, (25, 10), 1000, False),
        ("uniform", 20_000, 40_000, (10, 5, 5), 200, True),
        ("uniform", 300_000, 450_000, (25, 10), 1000, False),
        ("powerlaw", 20_000, 320_000, (25, 10), 1000, False),
        ("powerlaw", 50_000, 200_000, (10, 5, 5), 200, False),
        ("rmat", 60_000, 1_500_000, (25, 10), 500, True),
        ("rmat", 40_000, 200_000, (10, 5, 5), 500, True),
        ("rmat", 40_000, 200_000, (10, 5, 5), 500, False),
        ("rmat", 20_000, 2_000_000, (15, 10), 500, True),
    ],
)
def test_computed_minibatches_are_those_of_a_sampled_graph(
    law, nodes, edges, fanouts, batch, connected
):
    indptr, indices = GRAPHS[law](nodes, edges)
    sampler = NeighborSampler(indptr, indices, fanouts)
    among = np.flatnonzero(np.diff(indptr)) if connected else np.arange(nodes)
    drawn = [sampler.sample(part, i) for i, part in enumerate(epoch_seeds(among, batch, 0, 0, 8))]
    able = int(np.count_nonzero(np.diff(indptr)))
    # As many training nodes as have neighbours, less what expected counts may be off; or all nodes.
    sizes = expected_sizes(
        law, nodes, len(indices), fanouts, batch, 0.95 * able if connected else nodes
    )
    sampled = np.mean([b.num_nodes for b in drawn], axis=0)
    assert sizes.num_nodes == pytest.approx(sampled, rel=0.05)
    edges_drawn = np.mean([[e.shape[1] for e in b.edges] for b in drawn], axis=0)
    assert sizes.num_edges == pytest.approx(edges_drawn, rel=0.06)


def of_graph(nodes: int, edges: int, batch: int = 1000, train: int = 0) -> list[MinibatchSizes]:
    graph = graph_of(nodes, edges, 4, train_nodes=train)
    return list(graph_sizes(Question(graph, batch_size=batch)))


def test_small_graphs_by_hand():
    for sizes in of_graph(10, 3):  # one minibatch of all ten: every edge, and nobody new
        assert sizes.num_nodes == pytest.approx((10, 10, 10))
        assert sizes.num_edges == pytest.approx((3, 3))
    for sizes in of_graph(10, 3, batch=2):  # a fifth of the nodes has a fifth of the edges
        assert sizes.num_nodes[0] == pytest.approx(2)
        assert sizes.num_edges[0] == pytest.approx(0.6)
        assert 2 < sizes.rows < 3
    # Seeds that are all of those with neighbours draw every edge; whom they reach has none.
    sizes = expected_sizes("uniform", 10, 3, (5, 5), 2.59, 2.59)
    assert sizes.num_edges == pytest.approx((3, 3), rel=0.01)
    assert max(sizes.num_edges) <= 3
    for sizes in of_graph(2_000_000, 3_000_000):  # a mean degree of 1.5
        assert sizes.num_nodes[0] == pytest.approx(1000)
        assert 900 < sizes.num_edges[0] <= 1500
    for sizes in of_graph(5000, 50_000, train=1500):  # 1000 and 500 seeds
        assert sizes.num_nodes[0] == pytest.approx(750)


def test_a_power_law_has_the_degrees_of_preferential_attachment():
    """8 new edges a node: (8/k)² of the nodes have k or more, and no degree exceeds the others."""
    law = powerlaw(1_000_000, 16_000_000)
    assert float(law.degree.min()) == pytest.approx(8, rel=0.02)
    for k in (16, 80, 800):
        share = float(law.nodes[law.degree >= k].sum()) / 1e6
        assert share == pytest.approx((8 / k) ** 2, rel=0.1)
    dense = powerlaw(100, 5000)
    assert float(dense.degree.max()) <= 99
    assert float(dense.nodes @ dense.degree) == pytest.approx(5000)


@settings(max_examples=60, deadline=None)
@given(
    law=st.sampled_from(sorted(LAWS)),
    nodes=st.one_of(st.integers(2, 50), st.integers(1000, 10**8)),
    degree=st.floats(0.1, 30),
    fanouts=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    batch=st.integers(1, 5000),
    connected=st.booleans(),
)
def test_minibatches_stay_within_their_graph(law, nodes, degree, fanouts, batch, connected):
    most = nodes * (nodes - 1) if law != "rmat" else nodes * nodes // 4
    edges = max(1, min(most, int(nodes * degree)))
    seeds = min(batch, nodes)
    sizes = expected_sizes(law, nodes, edges, fanouts, seeds, seeds if connected else nodes)
    slack = 1 + 1e-6
    assert sizes.num_nodes[0] == pytest.approx(seeds)
    assert all(few <= more * slack for few, more in pairwise(sizes.num_nodes))
    assert sizes.rows <= nodes * slack
    if not connected:
        assert sizes.num_edges[0] <= seeds * edges / nodes * slack
    for known, drawn, more, fanout in zip(
        sizes.num_nodes, sizes.num_edges, sizes.num_nodes[1:], fanouts, strict=False
    ):
        assert 0 <= drawn <= min(known * fanout, edges) * slack
        assert more - known <= drawn * slack
    (ids,) = sizes.ids
    assert ids.unique().numel() == ids.numel()
    assert 0 <= int(ids.min()) <= int(ids.max()) < nodes
