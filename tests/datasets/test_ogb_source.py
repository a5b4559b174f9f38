"""OGB's graphs from tiny folders in OGB's own layout, read by OGB's own code, with no network."""

import gzip
import hashlib
import io
import subprocess
import sys
import tracemalloc
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatherbench.datasets import arrays, files
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.ogb_source import MagSource, OgbSource, import_nodeproppred
from gatherbench.datasets.registry import get_source
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import open_dataset

from .edges import edges_of, kinds_of

if find_spec("ogb") is None:  # to import it would ask the network, in a thread that may fail a test
    pytest.skip("ogb is not installed", allow_module_level=True)

EDGES = np.array([[0, 1, 2, 2, 4, 0], [1, 0, 3, 3, 4, 2]])  # both ways, twice, and a self-loop
SPLIT = {"train": [0, 3], "valid": [1], "test": [4, 2]}


@pytest.fixture(autouse=True)
def _little_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for is what the files hold, not what the published graph would take."""
    free = type("Usage", (), {"free": 256 << 20})
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: free)


def write_csv(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


def write_splits(folder: Path, kind: str) -> None:
    for part, ids in SPLIT.items():
        write_csv(folder / "split" / kind / f"{part}.csv.gz", np.array(ids)[:, None])


def features(width: int) -> np.ndarray:
    return np.arange(5 * width, dtype=np.float32).reshape(5, width) / 8 + 0.125


def csv_folder(root: Path, name: str, kind: str, width: int) -> Path:
    """The layout of ogbn-arxiv and ogbn-products as their archives unpack."""
    folder = root / name.replace("-", "_")
    raw = folder / "raw"
    write_csv(raw / "edge.csv.gz", EDGES.T)
    write_csv(raw / "node-feat.csv.gz", features(width))
    write_csv(raw / "node-label.csv.gz", np.array([[3], [1], [0], [2], [1]]))
    write_csv(raw / "num-node-list.csv.gz", np.array([[5]]))
    write_csv(raw / "num-edge-list.csv.gz", np.array([[EDGES.shape[1]]]))
    write_csv(raw / "node_year.csv.gz", np.array([[2010]] * 5))
    write_splits(folder, kind)
    (folder / "processed").mkdir()
    (folder / "RELEASE_v1.txt").touch()
    return folder


def papers_folder(root: Path, edges: np.ndarray = EDGES, dtype: type = np.float32) -> Path:
    """The layout of ogbn-papers100M: arrays in ``.npz``, labels as floats with NaN."""
    folder = root / "ogbn_papers100M"
    raw = folder / "raw"
    raw.mkdir(parents=True)
    np.savez_compressed(
        raw / "data.npz",
        edge_index=edges,
        num_nodes_list=np.array([5]),
        num_edges_list=np.array([edges.shape[1]]),
        node_feat=features(128).astype(dtype),
        node_year=np.full((5, 1), 2010),
    )
    np.savez_compressed(
        raw / "node-label.npz", node_label=np.array([[3], [np.nan], [0], [171], [1]], np.float32)
    )
    write_splits(folder, "time")
    (folder / "RELEASE_v1.txt").touch()
    return folder


def columns_of(folder: Path) -> list[list[int]]:
    data = open_dataset(folder)
    return [
        data.indices[data.indptr[v] : data.indptr[v + 1]].tolist()
        for v in range(data.spec.num_nodes)
    ]


def prepared(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    OgbSource(name).prepare(folder, 1.0, silent)
    return folder


@pytest.mark.parametrize(
    ("name", "kind", "width", "classes"),
    [("ogbn-arxiv", "time", 128, 40), ("ogbn-products", "sales_ranking", 100, 47)],
)
def test_edges_go_both_ways_and_repetitions_are_merged(tmp_path, capfd, name, kind, width, classes):
    csv_folder(tmp_path / "raw", name, kind, width)
    folder = prepared(tmp_path, name)
    data = open_dataset(folder)
    assert columns_of(folder) == [[1, 2], [0], [0, 3], [2], [4]]
    assert np.array_equal(data.features, features(width))
    assert data.labels.tolist() == [3, 1, 0, 2, 1]
    assert data.train_ids.tolist() == SPLIT["train"]
    assert data.val_ids.tolist() == SPLIT["valid"]
    assert data.test_ids.tolist() == SPLIT["test"]
    assert data.spec.num_classes == classes
    assert data.spec.num_edges == 7
    assert capfd.readouterr() == ("", "")


def test_the_copy_that_ogb_saves_is_neither_read_nor_written(tmp_path):
    processed = csv_folder(tmp_path / "raw", "ogbn-arxiv", "time", 128) / "processed"
    prepared(tmp_path, "ogbn-arxiv")
    assert list(processed.iterdir()) == []
    (processed / "data_processed").write_bytes(b"torn")
    assert columns_of(prepared(tmp_path, "ogbn-arxiv"))[0] == [1, 2]


def test_a_damaged_file_is_named(tmp_path):
    raw = csv_folder(tmp_path / "raw", "ogbn-arxiv", "time", 128)
    path = raw / "raw" / "node-feat.csv.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DatasetError, match="ogb cannot read it"):
        prepared(tmp_path, "ogbn-arxiv")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_papers_is_read_as_it_is_directed(tmp_path, order, dtype):
    papers_folder(tmp_path / "raw", np.asarray(EDGES, order=order), dtype)
    folder = prepared(tmp_path, "ogbn-papers100M")
    data = open_dataset(folder)
    assert columns_of(folder) == [[1], [0], [0], [2], [4]]
    assert np.array_equal(data.features, features(128).astype(dtype).astype(np.float32))
    assert data.features.dtype == np.float32
    assert data.labels.tolist() == [3, -1, 0, 171, 1]
    assert data.test_ids.tolist() == SPLIT["test"]
    assert not (tmp_path / "raw" / "ogbn_papers100M" / "processed").exists()


def test_papers_mapped_and_loaded_by_ogb_agree(tmp_path):
    raw = papers_folder(tmp_path / "raw")
    (raw / "processed").mkdir()  # as in the archive; the loader saves to there
    loaded = import_nodeproppred().NodePropPredDataset("ogbn-papers100M", root=str(raw.parent))
    graph, labels = loaded[0]
    data = open_dataset(prepared(tmp_path, "ogbn-papers100M"))
    assert np.array_equal(graph["node_feat"], data.features)
    assert np.array_equal(arrays.class_numbers(labels, "labels"), data.labels)
    assert set(edges_of(data)) == set(zip(*graph["edge_index"].tolist(), strict=True))


def test_a_cut_archive_of_papers_is_named_and_leaves_nothing(tmp_path):
    data = papers_folder(tmp_path / "raw") / "raw" / "data.npz"
    data.write_bytes(data.read_bytes()[:-200])
    with pytest.raises(DatasetError, match=r"data\.npz.*fetch or save it again"):
        prepared(tmp_path, "ogbn-papers100M")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_papers_never_lies_on_the_disk_twice(tmp_path, monkeypatch):
    """Only its edges and labels are unpacked there."""
    papers_folder(tmp_path / "raw")
    seen, really = [], arrays.unpacked
    monkeypatch.setattr(arrays, "unpacked", lambda *of: seen.append(of[2]) or really(*of))
    monkeypatch.setattr(arrays, "_PIECE", 1)  # a row at a time
    table = open_dataset(prepared(tmp_path, "ogbn-papers100M")).features
    assert seen == ["node_label", "edge_index"]
    with np.load(tmp_path / "raw/ogbn_papers100M/raw/data.npz") as data:
        np.testing.assert_array_equal(table, data["node_feat"].astype(np.float32))


def test_papers_never_holds_the_table(tmp_path):
    raw = papers_folder(tmp_path / "raw")
    table = np.ones((160_000, 128), np.float32)
    np.savez(raw / "raw" / "data.npz", edge_index=EDGES, node_feat=table)
    np.savez(raw / "raw" / "node-label.npz", node_label=np.zeros((160_000, 1)))
    prepared(tmp_path, "ogbn-papers100M")  # imports what it needs
    tracemalloc.start()
    prepared(tmp_path, "ogbn-papers100M")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < table.nbytes / 3


def test_an_edge_to_a_node_that_is_not_there_is_named(tmp_path):
    papers_folder(tmp_path / "raw", np.array([[0, 1], [1, 5]]))
    with pytest.raises(DatasetError, match="names node 5, but there are 5 nodes"):
        prepared(tmp_path, "ogbn-papers100M")


@pytest.mark.parametrize("missing", ["RELEASE_v1.txt", "raw/edge.csv.gz", "raw/node-feat.csv.gz"])
def test_an_unfinished_download_is_refused_before_ogb_asks(tmp_path, missing):
    folder = csv_folder(tmp_path / "raw", "ogbn-arxiv", "time", 128)
    (folder / missing).unlink()
    with pytest.raises(DatasetError, match=f"{missing}: missing"):
        prepared(tmp_path, "ogbn-arxiv")


def test_without_network_the_error_says_where_the_files_go(tmp_path, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", fails)
    with pytest.raises(DatasetError) as caught:
        prepared(tmp_path, "ogbn-products")
    assert str(tmp_path / "raw" / "ogbn_products") in str(caught.value)
    assert "products.zip" in str(caught.value)
    assert list((tmp_path / "raw").iterdir()) == []


def test_an_archive_is_fetched_and_read(tmp_path, monkeypatch):
    csv_folder(tmp_path / "made", "ogbn-arxiv", "time", 128).rename(tmp_path / "made" / "arxiv")
    path = tmp_path / "arxiv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted((tmp_path / "made").rglob("*")):
            archive.write(file, file.relative_to(tmp_path / "made"))
    body, asked = path.read_bytes(), []

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        asked.append(url)
        answer = io.BytesIO(body)
        answer.url, answer.headers = url, {"Content-Length": str(path.stat().st_size)}
        return answer

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    with pytest.raises(DatasetError, match=r"arxiv\.zip cannot be fetched \(its SHA-256 is"):
        prepared(tmp_path, "ogbn-arxiv")
    known = {**OgbSource("ogbn-arxiv").known, "sha256": hashlib.sha256(body).hexdigest()}
    monkeypatch.setattr(OgbSource, "known", known)
    body = body[: len(body) // 2]
    with pytest.raises(DatasetError, match="the connection ended after"):
        prepared(tmp_path, "ogbn-arxiv")
    assert list((tmp_path / "raw").iterdir()) == []
    body = path.read_bytes()
    assert columns_of(prepared(tmp_path, "ogbn-arxiv"))[0] == [1, 2]
    assert asked == ["https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"] * 3
    assert [folder.name for folder in (tmp_path / "raw").iterdir()] == ["ogbn_arxiv"]


def test_without_ogb_the_error_names_the_extra(tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == "ogb"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ogb", None)
    with pytest.raises(DatasetError, match=r"pip install '.*\[ogb\]'"):
        prepared(tmp_path, "ogbn-arxiv")


def test_importing_ogb_here_never_asks_for_a_newer_version():
    """In a fresh process, where ``ogb/version.py`` runs; the stand-in would be called by it.

    The part of it that reads datasets is an empty module, or it would load torch.
    """
    code = """
import sys, types
from importlib.machinery import ModuleSpec
class Empty:
    def find_spec(self, name, *_):
        return ModuleSpec(name, self) if name == "ogb.nodeproppred" else None
    create_module = exec_module = lambda *_: None
sys.meta_path.insert(0, Empty())
outdated = types.ModuleType("outdated")
outdated.check_outdated = lambda *_: print("asked")
sys.modules["outdated"] = outdated
from gatherbench.datasets.ogb_source import import_nodeproppred
assert "torch" not in sys.modules and "ogb" not in sys.modules
import_nodeproppred()
assert sys.modules["outdated"] is outdated
from ogb import version
assert version.check_outdated is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("name", ["ogbn-products", "ogbn-papers100M", "reddit"])
def test_the_sizes_are_those_of_the_generated_twins(name):
    spec = get_source(name).estimate(1.0)
    twin = get_source(f"{name.removeprefix('ogbn-')}-like")
    assert (spec.num_nodes, spec.num_edges) == (twin.nodes, twin.edges)
    assert (spec.feature_dim, spec.num_classes) == (twin.feature_dim, twin.num_classes)


# --- ogbn-mag -------------------------------------------------------------------------------------

#: Three papers, two authors, a field.
COUNTS = {"author": 2, "field_of_study": 1, "paper": 3}
TRIPLETS = {
    ("author", "writes", "paper"): [[0, 0, 1], [0, 1, 2]],
    ("paper", "cites", "paper"): [[0, 1], [1, 0]],
    ("paper", "has_topic", "field_of_study"): [[2], [0]],
}
PAPER_ROWS = np.arange(384, dtype=np.float32).reshape(3, 128) / 8


def test_types_follow_one_another_and_edges_go_both_ways(tmp_path):
    raw = tmp_path / "raw" / "ogbn_mag" / "raw"
    write_csv(raw / "num-node-dict.csv.gz", [[*COUNTS], [*COUNTS.values()]])
    write_csv(raw / "triplet-type-list.csv.gz", [*TRIPLETS])
    for triplet, edges in TRIPLETS.items():
        place = raw / "relations" / "___".join(triplet)
        write_csv(place / "edge.csv.gz", np.array(edges).T)
        write_csv(place / "num-edge-list.csv.gz", [[len(edges[0])]])
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", PAPER_ROWS)
    has = [[*COUNTS], [False, False, True]]
    write_csv(raw / "nodetype-has-label.csv.gz", has)
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", [[4], [348], [0]])
    split = raw.parent / "split" / "time"
    write_csv(split / "nodetype-has-split.csv.gz", has)
    for part, ids in {"train": [[0]], "valid": [[1]], "test": [[2]]}.items():
        write_csv(split / "paper" / f"{part}.csv.gz", ids)
    (raw.parent / "RELEASE_v2.txt").touch()
    folder = tmp_path / "ogbn-mag"
    MagSource("ogbn-mag").prepare(folder, 1.0, silent)
    data = open_dataset(folder)
    # Papers have the labels, so they come first: 0 to 2; authors 3 and 4; the field 5.
    assert data.spec.node_types == (("paper", 3), ("author", 2), ("field_of_study", 1))
    assert data.labels.tolist() == [4, 348, 0, -1, -1, -1]
    assert data.train_ids.tolist() == [0]
    assert (data.val_ids.tolist(), data.test_ids.tolist()) == ([1], [2])
    assert kinds_of(data) == {
        "writes": [(3, 0), (3, 1), (4, 2)], "inverse writes": [(0, 3), (1, 3), (2, 4)],
        "cites": [(0, 1), (1, 0)],  # also inverses: the first of both kinds
        "has_topic": [(2, 5)], "inverse has_topic": [(5, 2)],
    }  # fmt: skip
    assert np.array_equal(data.features[:3], PAPER_ROWS)
    assert np.array_equal(data.features[3], (PAPER_ROWS[0] + PAPER_ROWS[1]) / 2)
    assert np.array_equal(data.features[4], PAPER_ROWS[2])
    assert np.array_equal(data.features[5], PAPER_ROWS[2])
