"""A run recognises the graph and the minibatches that it began with, whatever they are called."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling import epoch as epoch_module
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.prepare import prepare, state_of
from gatherbench.datasets.import_options import Import
from gatherbench.datasets.importers import import_graph

WORKLOAD = Workload("mine", fanouts=(2,), batch_size=4)
#: A ring, and the same ring the other way round: graphs of one size and one description.
RING = np.stack([np.arange(10), (np.arange(10) + 1) % 10])
#: Of each node ten neighbours, of which two are drawn.
DENSE = np.indices((10, 10)).reshape(2, -1)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path / "data"))
    return tmp_path


def imported(root: Path, edges: np.ndarray, dim: int = 2) -> tuple[Path, str]:
    np.save(root / "edges.npy", edges)
    import_graph(Import(root / "edges.npy", "mine", dim=dim, force=True))
    return prepare(WORKLOAD)


def test_a_graph_has_one_identity_and_another_graph_another(root):
    folder, ring = imported(root, RING)
    assert prepare(WORKLOAD) == (folder, ring), "nothing has changed"
    assert ring.startswith(f"{state_of(folder)}-")
    turned = imported(root, RING[::-1])
    assert turned != (folder, ring)
    assert imported(root, RING) == (folder, ring), "the same graph, imported once more"
    assert imported(root, RING, dim=3)[1] != ring


def test_other_features_of_one_shape_are_other_data(root):
    np.save(root / "edges.npy", RING)
    found = set()
    for value in (0.0, 1.0):
        np.save(root / "x.npy", np.full((10, 2), value, np.float32))
        import_graph(Import(root / "edges.npy", "mine", features=root / "x.npy", force=True))
        found.add(prepare(WORKLOAD)[1])
    assert len(found) == 2


def test_every_rank_s_minibatches_are_part_of_the_identity(root, monkeypatch):
    folder, alone = imported(root, DENSE)
    two = replace(WORKLOAD, gpus=2)
    assert prepare(two)[1].partition("-")[0] == alone.partition("-")[0]
    assert prepare(two) == prepare(two) != (folder, alone)
    assert prepare(replace(WORKLOAD, model="gat", hidden=64))[1] == alone, "they are the same"
    known, plain = prepare(two), epoch_module.batch_seed
    for other in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(
                epoch_module,
                "batch_seed",
                lambda seed, epoch, i, rank, world, other=other: (
                    plain(seed, epoch, i, rank, world) + (rank == other)
                ),
            )
            assert prepare(two) != known


def test_another_sampler_is_recognised_by_its_minibatches(root, monkeypatch):
    _, known = imported(root, DENSE)
    plain = NeighborSampler.sample
    monkeypatch.setattr(NeighborSampler, "sample", lambda self, ids, key: plain(self, ids, key + 1))
    assert prepare(WORKLOAD)[1] != known
