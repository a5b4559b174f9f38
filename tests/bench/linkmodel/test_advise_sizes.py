"""Computed minibatches: like those sampled from graphs of the same law, and never impossible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.linkmodel.advise.sizes import expected_sizes
from gatherbench.bench.regress.rmat_graph import rmat_graph
from gatherbench.bench.sampling.epoch import epoch_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler


@pytest.mark.parametrize(
    ("nodes", "edges", "fanouts"),
    [(60_000, 1_500_000, (25, 10)), (40_000, 200_000, (10, 5, 5)), (20_000, 2_000_000, (15, 10))],
)
def test_computed_minibatches_are_those_of_a_sampled_graph(
    nodes: int, edges: int, fanouts: tuple[int, ...]
) -> None:
    indptr, indices = rmat_graph(nodes, edges)
    sampler = NeighborSampler(indptr, indices, fanouts)
    seeds = epoch_seeds(np.flatnonzero(np.diff(indptr)), 500, 0, 0, 8)
    drawn = [sampler.sample(part, i) for i, part in enumerate(seeds)]
    sizes = expected_sizes(nodes, edges, fanouts, 500)
    sampled = np.mean([b.num_nodes for b in drawn], axis=0)
    assert sizes.num_nodes == pytest.approx(sampled, rel=0.12)
    edges_drawn = np.mean([[e.shape[1] for e in b.edges] for b in drawn], axis=0)
    assert sizes.num_edges == pytest.approx(edges_drawn, rel=0.12)


@settings(max_examples=30, deadline=None)
@given(
    nodes=st.integers(1000, 10**8),
    degree=st.integers(1, 30),
    fanouts=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    batch=st.integers(1, 5000),
)
def test_minibatches_stay_within_their_graph(
    nodes: int, degree: int, fanouts: list[int], batch: int
) -> None:
    sizes = expected_sizes(nodes, nodes * degree, fanouts, batch)
    assert 0 < sizes.num_nodes[0] <= batch * (1 + 1e-9)
    assert all(a <= b * (1 + 1e-9) for a, b in zip(sizes.num_nodes, sizes.num_nodes[1:]))  # noqa: B905
    assert sizes.rows <= nodes
    for known, edges, more, fanout in zip(
        sizes.num_nodes, sizes.num_edges, sizes.num_nodes[1:], fanouts, strict=False
    ):
        assert edges <= known * fanout * (1 + 1e-9)
        assert more - known <= edges * (1 + 1e-9)
    (ids,) = sizes.ids
    assert ids.unique().numel() == ids.numel()
    assert 0 <= int(ids.min()) <= int(ids.max()) < nodes
