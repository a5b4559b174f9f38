"""A workload's minibatches belong to the graph that is there now, whatever it is called."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.prepare import identity, prepare
from gatherbench.bench.sampling.trace import Trace
from gatherbench.datasets.importers import import_graph

WORKLOAD = Workload("mine", fanouts=(2,), batch_size=4)
#: A ring, and the same ring the other way round: graphs of one size and one description.
RING = np.stack([np.arange(10), (np.arange(10) + 1) % 10])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path / "data"))
    return tmp_path


def imported(root: Path, edges: np.ndarray, dim: int = 2) -> tuple[Path, Path]:
    np.save(root / "edges.npy", edges)
    import_graph(root / "edges.npy", "mine", dim=dim, force=True)
    return prepare(WORKLOAD)


def inputs(trace: Path) -> list[list[int]]:
    return [batch.input_ids.tolist() for batch in Trace.open(trace)]


def test_a_graph_imported_anew_meets_no_old_minibatches(root: Path) -> None:
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


def test_other_features_of_one_shape_are_other_data(root: Path) -> None:
    np.save(root / "edges.npy", RING)
    found = set()
    for value in (0.0, 1.0):
        np.save(root / "x.npy", np.full((10, 2), value, np.float32))
        import_graph(root / "edges.npy", "mine", features=root / "x.npy", force=True)
        found.add(identity(*prepare(WORKLOAD)))
    assert len(found) == 2


def test_a_copied_data_folder_needs_no_new_minibatches(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, trace = imported(root, RING)
    copy = shutil.copytree(root / "data", root / "copy", copy_function=shutil.copyfile)
    monkeypatch.setenv("GATHERBENCH_DATA", str(copy))
    assert prepare(WORKLOAD)[1].name == trace.name
    assert len(list((copy / "traces").iterdir())) == 1
