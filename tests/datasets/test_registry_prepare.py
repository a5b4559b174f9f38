"""From a name to a folder that opens: names, folders that are there, broken or contested."""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gatherbench.datasets import registry
from gatherbench.datasets.dataset import DatasetSpec, folder_bytes
from gatherbench.datasets.registry import get_source, list_sources, prepare_dataset
from gatherbench.datasets.source import Progress
from gatherbench.datasets.store import DatasetError, describe, open_dataset
from gatherbench.datasets.writer import DatasetWriter


class CountingSource:
    """A source of one tiny fixed graph that counts how often it was asked."""

    name, summary, scalable = "counting", "a test", False

    def __init__(self) -> None:
        self.made = 0

    def estimate(self, scale: float) -> DatasetSpec:
        return DatasetSpec(self.name, scale, 4, 3, 32, "float32", 2, "a test", "none", ("a note",))

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        self.made += 1
        progress("make", 0.5)
        with DatasetWriter(folder, self.estimate(scale)) as writer:
            writer.write_columns([(np.array([0, 1, 0, 2]), np.array([0, 1, 2]))])
            writer.write_features(np.ones((4, 32), np.float32))
            writer.write_labels(np.array([0, 1, -1, 0]))
            writer.write_splits(np.array([0, 1]), np.array([3]), np.array([], int))


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> CountingSource:
    source = CountingSource()
    monkeypatch.setattr(registry, "SOURCES", (*registry.SOURCES, source))
    return source


def test_a_dataset_is_made_once_and_anew_when_forced(tmp_path, source):
    said: list[str] = []
    folder = prepare_dataset("counting", 1, tmp_path, lambda what, _: said.append(what))
    assert folder == tmp_path / "counting"
    assert said == ["make"]
    assert prepare_dataset("counting", root=tmp_path) == folder
    assert source.made == 1
    prepare_dataset("counting", root=tmp_path, force=True)
    assert source.made == 2


def test_a_broken_folder_is_refused_until_it_is_forced(tmp_path, source):
    folder = prepare_dataset("counting", root=tmp_path)
    (folder / "labels.npy").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"labels\.npy.*prepare counting --force"):
        prepare_dataset("counting", root=tmp_path)
    assert open_dataset(prepare_dataset("counting", root=tmp_path, force=True)).name == "counting"


def test_unknown_names_and_scales(tmp_path, source):
    with pytest.raises(DatasetError, match="did you mean 'products-like'"):
        get_source("product-like")
    with pytest.raises(DatasetError, match="did you mean 'sk-like'"):
        get_source("sk")
    with pytest.raises(DatasetError, match="no dataset called 'zzz'; there are "):
        prepare_dataset("zzz", root=tmp_path)
    with pytest.raises(DatasetError, match=r"no scale 0\.5"):
        prepare_dataset("counting", 0.5, tmp_path)
    with pytest.raises(DatasetError, match="scale 0"):
        prepare_dataset("products-like", 0, tmp_path)


def test_preparing_at_the_same_time_makes_it_once(tmp_path, source):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: prepare_dataset("counting", root=tmp_path), range(8)))
    assert set(folders) == {tmp_path / "counting"}
    assert source.made == 1


def test_every_source_keeps_the_contract():
    sources = list_sources()
    assert len({source.name for source in sources}) == len(sources)
    for source in sources:
        assert get_source(source.name) is source
        assert source.summary
        spec = source.estimate(1.0)
        assert spec.name == source.name
        assert min(spec.num_nodes, spec.feature_dim, spec.num_classes) > 0
        assert spec.num_edges > 0
        assert spec.source
        assert spec.licence
        assert folder_bytes(spec) > (0 if spec.hashed else spec.table_bytes)


def test_importing_the_registry_is_cheap():
    code = """
        import sys
        import gatherbench.datasets.registry
        heavy = {"torch", "numba", "ogb", "torch_geometric", "pandas", "scipy"} & set(sys.modules)
        assert not heavy, heavy
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == 0


def test_describe(tmp_path, source):
    facts = describe(prepare_dataset("counting", root=tmp_path))
    expected = {
        "name": "counting",
        "num_nodes": 4,
        "num_edges": 3,
        "degree_min": 0,
        "degree_median": 0.5,
        "degree_mean": 0.75,
        "degree_max": 2,
        "nodes_without_in_neighbours": 2,
        "row_bytes": 128,
        "row_is_multiple_of_128_bytes": True,
        "table_bytes": 512,
        "labelled_nodes": 3,
        "train_nodes": 2,
        "licence": "none",
        "notes": ["a note"],
    }
    assert {key: facts[key] for key in expected} == expected
    assert facts["disk_bytes"] > 512
