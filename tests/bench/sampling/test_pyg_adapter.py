"""PyG's loaders on our sampler: the subgraphs that PyG's own sampler would give, and training."""

import pytest
import torch
from torch.nn import functional
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import NodeSamplerInput

from gatherbench.bench.sampling.pyg import PygNeighborSampler

#: Two workers on a machine with one core: torch warns, and nothing else changes.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

NODES, CLASSES = 600, 4
FORK = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def data() -> Data:
    """Communities that are easy to tell apart; most edges stay within one."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(NODES) % CLASSES
    sources = torch.randint(NODES, (8000,), generator=generator)
    inside = torch.randint(NODES // CLASSES, (8000,), generator=generator) * CLASSES + y[sources]
    outside = torch.randint(NODES, (8000,), generator=generator)
    targets = torch.where(torch.rand(8000, generator=generator) < 0.9, inside, outside)
    x = torch.randn(NODES, 12, generator=generator)
    x[:, :CLASSES] += functional.one_hot(y, CLASSES)
    edge_index = torch.stack([sources, targets])
    return Data(x=x, y=y, edge_index=edge_index, edge_attr=torch.arange(8000.0)[:, None])


def check_subgraph(batch: Data, data: Data, fanouts: tuple[int, ...]) -> None:
    """Every hop expands exactly the nodes that the hop before it added."""
    ids = batch.n_id
    assert ids.unique().numel() == ids.numel() == sum(batch.num_sampled_nodes)
    assert torch.equal(batch.x, data.x[ids])
    assert torch.equal(batch.y, data.y[ids])
    assert torch.equal(ids[batch.edge_index], data.edge_index[:, batch.e_id])
    assert torch.equal(batch.edge_attr[:, 0].long(), batch.e_id)
    assert batch.e_id.unique().numel() == batch.e_id.numel()
    assert len(batch.num_sampled_edges) == len(fanouts)
    in_degree = torch.bincount(data.edge_index[1], minlength=NODES)
    hops = batch.edge_index.split(batch.num_sampled_edges, dim=1)
    first = 0
    for hop, fanout in enumerate(fanouts):
        last = first + batch.num_sampled_nodes[hop]
        known = last + batch.num_sampled_nodes[hop + 1]
        sources, targets = hops[hop]
        expected = torch.zeros(ids.numel(), dtype=torch.int64)
        degrees = in_degree[ids[first:last]]
        expected[first:last] = degrees if fanout < 0 else degrees.clamp(max=fanout)
        assert torch.equal(torch.bincount(targets, minlength=ids.numel()), expected)
        assert not sources.numel() or int(sources.max()) < known
        first = last


@FORK
@pytest.mark.parametrize(("num_workers", "fanouts"), [(0, (-1, 4, 2)), (2, (5, 3))])
def test_an_epoch_of_subgraphs(data, num_workers, fanouts):
    loader = NodeLoader(
        data,
        PygNeighborSampler.from_data(data, fanouts),
        input_nodes=torch.arange(0, NODES, 2),
        batch_size=64,
        shuffle=True,
        num_workers=num_workers,
    )
    seen = []
    for batch in loader:
        check_subgraph(batch, data, fanouts)
        seeds = batch.n_id[: batch.batch_size]
        assert torch.equal(seeds, torch.arange(0, NODES, 2)[batch.input_id])
        assert batch.num_sampled_nodes[0] == batch.batch_size
        seen.append(seeds)
    assert sorted(torch.cat(seen).tolist()) == list(range(0, NODES, 2))


@FORK
@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_seed_repeats_an_epoch(data, num_workers):
    def epoch(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        sampler = PygNeighborSampler.from_data(data, (4, 4))
        loader = NodeLoader(data, sampler, batch_size=150, num_workers=num_workers)
        return [batch.e_id for batch in loader]

    first, again, other = epoch(0), epoch(0), epoch(1)
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))
    assert not torch.equal(first[0], first[1])


def test_layers_may_be_trimmed(data):
    sampler = PygNeighborSampler.from_data(data, (10, 5))
    batch = next(iter(NodeLoader(data, sampler, batch_size=50)))
    model = GraphSAGE(12, 32, 2, CLASSES)
    out = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    assert torch.allclose(out[:50], model(batch.x, batch.edge_index)[:50], atol=1e-5)


def test_a_graph_held_once(data):
    """An empty ``edge_index`` is enough: the sampler has the graph."""
    whole = PygNeighborSampler.from_data(data, (3,))
    bare = Data(x=data.x, edge_index=torch.empty((2, 0), dtype=torch.int64))
    batch = next(iter(NodeLoader(bare, whole, batch_size=20)))
    assert batch.edge_index.shape[1] == batch.num_sampled_edges[0] > 0
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


@pytest.mark.parametrize("neg_sampling", [None, "binary", "triplet"])
def test_links_with_negative_samples(data, neg_sampling):
    loader = LinkLoader(
        data,
        PygNeighborSampler.from_data(data, (4, 2)),
        edge_label_index=data.edge_index[:, :200],
        neg_sampling=neg_sampling,
        batch_size=40,
    )
    for i, batch in enumerate(loader):
        check_subgraph(batch, data, (4, 2))
        positive = data.edge_index[:, 40 * i : 40 * (i + 1)]
        if neg_sampling == "triplet":
            assert torch.equal(batch.n_id[batch.src_index], positive[0])
            assert torch.equal(batch.n_id[batch.dst_pos_index], positive[1])
            assert batch.dst_neg_index.numel() == 40
        else:
            assert torch.equal(batch.n_id[batch.edge_label_index[:, :40]], positive)
            assert batch.edge_label_index.shape[1] == (80 if neg_sampling else 40)


def test_what_is_refused(data):
    sampler = PygNeighborSampler.from_data(data, (3,))
    node, time = torch.tensor([1, 2]), torch.tensor([0, 0])
    with pytest.raises(ValueError, match="only homogeneous"):
        sampler.sample_from_nodes(NodeSamplerInput(None, node, None, "paper"))
    with pytest.raises(ValueError, match="times"):
        sampler.sample_from_nodes(NodeSamplerInput(None, node, time))
    with pytest.raises(ValueError, match="make them unique"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([1, 1])))
    with pytest.raises(ValueError, match=r"HeteroData: .*data\.to_homogeneous\(\)"):
        PygNeighborSampler.from_data(HeteroData(), (2,))
    with pytest.raises(ValueError, match="edge 1 goes from 0 to 3, and there are 3 nodes"):
        PygNeighborSampler.from_data(
            Data(edge_index=torch.tensor([[0, 0], [1, 3]]), num_nodes=3), (2,)
        )
