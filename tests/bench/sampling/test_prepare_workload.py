"""A workload's minibatches belong to the graph that is there now, whatever it is called."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.epoch import batch_seed, workload_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.prepare import identity, prepare, rank_trace
from gatherbench.bench.sampling.trace import Trace
from gatherbench.datasets.import_options import Import
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.store import open_dataset

WORKLOAD = Workload("mine", fanouts=(2,), batch_size=4)
#: A ring, and the same ring the other way round: graphs of one size and one description.
RING = np.stack([np.arange(10), (np.arange(10) + 1) % 10])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path / "data"))
    return tmp_path


def imported(root: Path, edges: np.ndarray, dim: int = 2) -> tuple[Path, Path]:
    np.save(root / "edges.npy", edges)
    import_graph(Import(root / "edges.npy", "mine", dim=dim, force=True))
    return prepare(WORKLOAD)


def inputs(trace: Path) -> list[list[int]]:
    return [batch.input_ids.tolist() for batch in Trace.open(trace)]


def test_a_graph_imported_anew_meets_no_old_minibatches(root):
    dataset, trace = imported(root, RING)
    first, seen = inputs(trace), identity(dataset, trace)
    assert prepare(WORKLOAD) == (dataset, trace), "nothing has changed"
    other = trace.with_name("other-f2-b2-12345678-12345678")
    other.mkdir()
    old, (dataset, trace) = trace, imported(root, RING[::-1])
    assert inputs(trace) != first
    assert not old.exists(), "nobody will ever ask for them again"
    assert other.exists(), "another graph's"
    assert identity(dataset, trace) != seen
    dataset, trace = imported(root, RING)
    assert inputs(trace) == first
    assert identity(dataset, trace) == seen, "the same graph, imported once more"
    assert identity(*imported(root, RING, dim=3)) != seen


def test_other_features_of_one_shape_are_other_data(root):
    np.save(root / "edges.npy", RING)
    found = set()
    for value in (0.0, 1.0):
        np.save(root / "x.npy", np.full((10, 2), value, np.float32))
        import_graph(Import(root / "edges.npy", "mine", features=root / "x.npy", force=True))
        found.add(identity(*prepare(WORKLOAD)))
    assert len(found) == 2


def test_a_copied_data_folder_needs_no_new_minibatches(root, monkeypatch):
    _, trace = imported(root, RING)
    copy = shutil.copytree(root / "data", root / "copy", copy_function=shutil.copyfile)
    monkeypatch.setenv("GATHERBENCH_DATA", str(copy))
    assert prepare(WORKLOAD)[1].name == trace.name
    assert len(list((copy / "traces").iterdir())) == 1


def test_each_rank_has_minibatches_of_its_own_and_a_missing_one_is_drawn_anew(root):
    imported(root, RING)
    two = replace(WORKLOAD, gpus=2)
    dataset, trace = prepare(two)
    files = {path: path.read_bytes() for path in trace.rglob("*") if path.is_file()}
    assert sorted(path.name for path in trace.iterdir()) == ["rank0", "rank1"]
    seen = identity(dataset, trace)
    graph = open_dataset(dataset)
    sampler = NeighborSampler(graph.indptr, graph.indices, two.fanouts)
    for rank in range(2):
        seeds = workload_seeds(two, sampler, graph.train_ids, 0, rank)
        drawn = [sampler.sample(s, batch_seed(0, 0, i, rank, 2)) for i, s in enumerate(seeds)]
        mine = inputs(rank_trace(trace, rank))
        assert mine == [batch.input_ids.tolist() for batch in drawn]
    shutil.rmtree(rank_trace(trace, 1))
    assert identity(dataset, trace) != seen, "every rank's minibatches are part of it"
    kept = rank_trace(trace, 0).stat().st_ino
    assert prepare(two) == (dataset, trace)
    assert {path: path.read_bytes() for path in trace.rglob("*") if path.is_file()} == files
    assert rank_trace(trace, 0).stat().st_ino == kept, "what is there is not drawn again"
    assert identity(dataset, trace) == seen
