"""PyG's loaders with fetched features: the batches PyG itself would give, and who fetches when."""

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader

import gatherbench
from gatherbench.bench.sampling.pyg import PygNeighborSampler
from gatherbench.strategies.pyg_features import FeatureLoader

#: Two workers on a machine with one core: torch warns, and nothing else changes.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

NODES = 300
FORK = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
X = torch.randn(NODES, 9, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NODES, (2, 2500), generator=generator)
    return Data(y=torch.arange(NODES) % 5, edge_index=edge_index, num_nodes=NODES)


def node_loader(data: Data, **more: object) -> NodeLoader:
    sampler = PygNeighborSampler.from_data(data, (4, 3))
    return NodeLoader(data, sampler, batch_size=40, **more)


class Journal:
    """Stands for features with so much lookahead and writes down what is asked of it."""

    device = torch.device("cpu")

    def __init__(self, lookahead: int) -> None:
        self.lookahead, self.lines = lookahead, list[str]()
        self._seen: list[Tensor] = []  # kept: the id() of a freed tensor may come again

    def __len__(self) -> int:
        return NODES

    def _number(self, ids: Tensor) -> int:
        for number, seen in enumerate(self._seen):
            if seen is ids:
                return number
        self._seen.append(ids)
        return len(self._seen) - 1

    def prefetch(self, ids: Tensor) -> None:
        self.lines.append(f"prefetch {self._number(ids)}")

    def __getitem__(self, ids: Tensor) -> Tensor:
        self.lines.append(f"get {self._number(ids)}")
        return X[ids]


@FORK
@pytest.mark.parametrize(("strategy", "num_workers"), [("cpu_gather", 0), ("async_zero_copy", 2)])
def test_an_epoch_has_the_batches_of_pyg(data, strategy, num_workers):
    torch.manual_seed(0)
    whole = data.clone()
    whole.x = X
    expected = list(node_loader(whole, num_workers=num_workers))
    torch.manual_seed(0)
    with gatherbench.unified(X, strategy, "cpu") as features:
        loader = FeatureLoader(node_loader(data, num_workers=num_workers), features)
        assert len(loader) == len(expected) == 8
        batches = list(loader)  # kept: later fetches must not write into them
    assert len(batches) == 8
    for batch, same in zip(batches, expected, strict=True):
        assert set(batch.keys()) == set(same.keys())
        for key in ("x", "y", "n_id", "edge_index", "e_id"):
            assert torch.equal(batch[key], same[key])
        assert batch.batch_size == same.batch_size


@pytest.mark.parametrize(
    ("lookahead", "order"),
    [
        (0, "prefetch 0, get 0, train, prefetch 1, get 1, train, prefetch 2, get 2, train"),
        (1, "prefetch 0, prefetch 1, get 0, train, prefetch 2, get 1, train, get 2, train"),
        (2, "prefetch 0, prefetch 1, prefetch 2, get 0, train, get 1, train, get 2, train"),
        (5, "prefetch 0, prefetch 1, prefetch 2, get 0, train, get 1, train, get 2, train"),
    ],
)
def test_the_next_batch_is_on_its_way_while_this_one_trains(data, lookahead, order):
    journal = Journal(lookahead)
    loader = node_loader(data, input_nodes=torch.arange(120))
    for _ in FeatureLoader(loader, journal):  # type: ignore[arg-type]
        journal.lines.append("train")
    assert ", ".join(journal.lines) == order


def test_an_epoch_that_is_left_early_spoils_nothing(data):
    with gatherbench.unified(X, "async_zero_copy", "cpu") as features:
        loader = FeatureLoader(node_loader(data), features)
        for _ in range(3):
            batch = next(iter(loader))
            assert torch.equal(batch.x, X[batch.n_id])
        assert len(list(loader)) == 8


def test_what_has_no_place_for_rows_or_none_of_ours(data):
    with pytest.raises(TypeError, match=r"what gatherbench\.unified\(x\) gives, got a Tensor"):
        FeatureLoader(node_loader(data), X)  # type: ignore[arg-type]
    whole = data.clone()
    whole.x = X
    with gatherbench.unified(X, "cpu_gather", "cpu") as features:
        with pytest.raises(ValueError, match="leave x out"):
            next(iter(FeatureLoader(node_loader(whole), features)))
        with pytest.raises(TypeError, match="homogeneous"):
            next(iter(FeatureLoader([HeteroData()], features)))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="n_id"):
            next(iter(FeatureLoader([data], features)))  # type: ignore[arg-type]
