"""Kinds of a minibatch's edges, looked up: those of the graph, whoever drew it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.typed import EdgeKinds
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.import_options import Import
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.store import open_dataset


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    """Of 60 nodes; the kind of an edge ``u -> v`` is ``(u + 2 v) % 5``."""
    root: Path = tmp_path_factory.mktemp("typed")
    ends = np.random.default_rng(0).integers(0, 60, (2, 400))
    np.savez(root / "g.npz", edge_index=ends, edge_type=(ends[0] + 2 * ends[1]) % 5)
    return open_dataset(
        import_graph(Import(root / "g.npz", "g", relations="edge_type", dim=4), root)
    )


def test_every_edge_has_the_kind_that_the_graph_says(graph):
    sampler = NeighborSampler(graph.indptr, graph.indices, (4, 3))
    batch = sampler.sample(torch.arange(7), 3)
    typed = EdgeKinds(graph).typed(batch)
    assert typed.input_ids is batch.input_ids
    assert typed.edges is batch.edges
    assert sum(map(len, typed.kinds)) > 20
    for edges, kinds in zip(typed.edges, typed.kinds, strict=True):
        source, target = batch.input_ids[edges]
        assert kinds.dtype == torch.int64
        assert torch.equal(kinds, (source + 2 * target) % 5)


def test_an_edge_that_is_not_in_the_graph_is_refused(graph):
    column = set(graph.indices[: graph.indptr[1]].tolist())
    for stranger in (min(set(range(60)) - column), max(set(range(60)) - column)):
        ids = torch.tensor([0, stranger]) if stranger else torch.tensor([0])
        edge = torch.tensor([[len(ids) - 1], [0]])
        with pytest.raises(ValueError, match=rf"edge {stranger} -> 0 .*not in the graph"):
            EdgeKinds(graph).typed(MiniBatch(ids, (edge,), (1, len(ids))))
