"""OGB's graphs and Reddit from tiny folders in the layouts that are published, with no network."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from torch_geometric.datasets import Reddit

from gatherbench.datasets import download, files, npz_stream
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.ogb_source import OgbSource
from gatherbench.datasets.reddit_source import RedditSource
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import open_dataset
from gatherbench.datasets.synthetic import named_shapes

EDGES = np.array([[0, 1, 2, 2, 4, 0], [1, 0, 3, 3, 4, 2]])  # both ways, twice, and a self-loop
SPLIT = {"train": [0, 3], "valid": [1], "test": [4, 2]}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: socket.socket, address: object) -> None:
        raise AssertionError(f"something reached out to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(autouse=True)
def _little_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for is what the files hold, not what the published graph would take."""
    free = type("Usage", (), {"free": 256 << 20})
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: free)


def write_csv(path: Path, rows: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, rows, fmt="%d" if rows.dtype.kind == "i" else "%.6f", delimiter=",")


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
    data = open_dataset(folder, check="full")
    return [
        data.indices[data.indptr[v] : data.indptr[v + 1]].tolist()
        for v in range(data.spec.num_nodes)
    ]


def prepared(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    source = RedditSource() if name == "reddit" else OgbSource(name)
    source.prepare(folder, 1.0, silent)
    return folder


def test_arxiv_is_made_undirected_and_repetitions_are_merged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    csv_folder(tmp_path / "raw", "ogbn-arxiv", "time", 128)
    folder = prepared(tmp_path, "ogbn-arxiv")
    data = open_dataset(folder, check="full")
    assert columns_of(folder) == [[1, 2], [0], [0, 3], [2], [4]]
    assert np.array_equal(data.features, features(128))
    assert data.labels.tolist() == [3, 1, 0, 2, 1]
    assert data.train_ids.tolist() == SPLIT["train"]
    assert data.val_ids.tolist() == SPLIT["valid"]
    assert data.test_ids.tolist() == SPLIT["test"]
    assert data.spec.num_classes == 40
    assert data.spec.num_edges == 7
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_papers_is_streamed_as_it_is_directed(
    tmp_path: Path, order: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz_stream, "CHUNK", 4)  # so that a chunk holds sources and targets
    papers_folder(tmp_path / "raw", np.asarray(EDGES, order=order), dtype)
    folder = prepared(tmp_path, "ogbn-papers100M")
    data = open_dataset(folder, check="full")
    assert columns_of(folder) == [[1], [0], [0], [2], [4]]
    assert np.array_equal(data.features, features(128).astype(dtype).astype(np.float32))
    assert data.features.dtype == np.float32
    assert data.labels.tolist() == [3, -1, 0, 171, 1]
    assert data.test_ids.tolist() == SPLIT["test"]
    assert not (tmp_path / "raw" / "ogbn_papers100M" / "processed").exists()


def test_papers_never_holds_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz_stream, "CHUNK", 1 << 16)
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


def test_an_archive_is_fetched_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    known = {**download.published("ogbn-arxiv"), "sha256": hashlib.sha256(body).hexdigest()}
    monkeypatch.setattr("gatherbench.datasets.ogb_source.published", lambda _: known)
    body = body[: len(body) // 2]
    with pytest.raises(DatasetError, match="the connection ended after"):
        prepared(tmp_path, "ogbn-arxiv")
    assert list((tmp_path / "raw").iterdir()) == []
    body = path.read_bytes()
    assert columns_of(prepared(tmp_path, "ogbn-arxiv"))[0] == [1, 2]
    assert asked == ["https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"] * 3
    assert [folder.name for folder in (tmp_path / "raw").iterdir()] == ["ogbn_arxiv"]


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-products", "ogbn-papers100M"])
def test_the_files_read_here_are_what_ogbs_own_loader_makes_of_them(
    tmp_path: Path, name: str
) -> None:
    pytest.importorskip("ogb")
    from ogb.nodeproppred import NodePropPredDataset

    raw = FOLDERS[name](tmp_path / "raw")
    data = open_dataset(prepared(tmp_path, name))
    (raw / "processed").mkdir(exist_ok=True)  # as in the archive; the loader saves to there
    graph, labels = NodePropPredDataset(name, root=str(raw.parent))[0]
    source, target = graph["edge_index"].tolist()
    theirs = set(zip(source, target, strict=True))
    if name == "ogbn-arxiv":  # its own examples add the other direction
        theirs |= set(zip(target, source, strict=True))
    assert {(u, v) for v, us in enumerate(columns_of(data.folder)) for u in us} == theirs
    assert np.array_equal(graph["node_feat"], data.features)
    assert np.array_equal(np.nan_to_num(labels[:, 0], nan=-1), data.labels)


#: Makes the folder of a graph below ``raw/``; returns it.
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "ogbn-arxiv": lambda root: csv_folder(root, "ogbn-arxiv", "time", 128),
    "ogbn-products": lambda root: csv_folder(root, "ogbn-products", "sales_ranking", 100),
    "ogbn-papers100M": papers_folder,
    "reddit": lambda root: reddit_folder(root).parent,
}


@pytest.mark.parametrize(
    ("name", "file", "cut", "complaint"),
    [
        ("ogbn-arxiv", "raw/node-feat.csv.gz", 20, r"node-feat.*cannot be read.*download it anew"),
        ("ogbn-arxiv", "raw/edge.csv.gz", 20, r"edge\.csv\.gz: the gzip file is cut short"),
        ("ogbn-arxiv", "split/time/valid.csv.gz", 10, r"valid\.csv\.gz: the gzip file is cut"),
        ("ogbn-papers100M", "raw/data.npz", 200, r"data\.npz.*fetch or save it again"),
        ("reddit", "raw/reddit_data.npz", 200, r"reddit_data\.npz.*cannot be read.*fetch"),
        ("ogbn-arxiv", "RELEASE_v1.txt", None, r"RELEASE_v1\.txt: missing; .*older download"),
        ("ogbn-arxiv", "raw/edge.csv.gz", None, r"raw/edge\.csv\.gz: missing"),
        ("ogbn-arxiv", "raw/node-feat.csv.gz", None, r"raw/node-feat\.csv\.gz: missing"),
        ("reddit", "raw/reddit_graph.npz", None, r"reddit_graph\.npz: missing"),
    ],
)
def test_a_damaged_or_missing_file_is_named_and_nothing_is_left(
    tmp_path: Path, name: str, file: str, cut: int | None, complaint: str
) -> None:
    path = FOLDERS[name](tmp_path / "raw") / file
    if cut is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DatasetError, match=complaint):
        prepared(tmp_path, name)
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_an_edge_to_a_node_that_is_not_there_is_named(tmp_path: Path) -> None:
    papers_folder(tmp_path / "raw", np.array([[0, 1], [1, 5]]))
    with pytest.raises(DatasetError, match="names node 5, but there are 5 nodes"):
        prepared(tmp_path, "ogbn-papers100M")
    raw = FOLDERS["ogbn-arxiv"](tmp_path / "raw") / "raw"
    write_csv(raw / "edge.csv.gz", np.array([[0, 1], [1, 5]]))
    with pytest.raises(DatasetError, match=r"line 2, column 2: node id 5 is too large"):
        prepared(tmp_path, "ogbn-arxiv")


@pytest.mark.parametrize(
    ("name", "place", "archive"),
    [
        ("ogbn-products", "ogbn_products", "products.zip"),
        ("reddit", "reddit/raw", "reddit.zip"),
    ],
)
def test_without_network_the_error_says_where_the_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str, archive: str
) -> None:
    def unreachable(*_args: object, **_kwargs: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    with pytest.raises(DatasetError) as caught:
        prepared(tmp_path, name)
    assert str(tmp_path / "raw" / place) in str(caught.value)
    assert archive in str(caught.value)


def reddit_folder(root: Path) -> Path:
    """``raw/reddit_data.npz`` and ``raw/reddit_graph.npz`` with an edge both ways, twice."""
    raw = root / "reddit" / "raw"
    raw.mkdir(parents=True)
    np.savez(
        raw / "reddit_data.npz",
        feature=np.arange(4 * 602, dtype=np.float64).reshape(4, 602) / 16,
        label=np.array([0, 2, 1, 2]),
        node_ids=np.arange(4),
        node_types=np.array([1, 3, 2, 1]),
    )
    row, column = np.array([0, 1, 0, 1, 2, 3]), np.array([1, 0, 1, 0, 3, 2])
    graph = scipy.sparse.coo_matrix((np.ones(6, np.int64), (row, column)), shape=(4, 4))
    scipy.sparse.save_npz(raw / "reddit_graph.npz", graph)
    return raw


def test_reddit_is_read_as_pyg_reads_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reddit_folder(tmp_path / "raw")
    data = open_dataset(prepared(tmp_path, "reddit"), check="full")
    assert data.indptr.tolist() == [0, 1, 2, 3, 4]
    assert data.indices.tolist() == [1, 0, 3, 2]
    expected = np.arange(4 * 602, dtype=np.float32).reshape(4, 602) / 16
    assert np.array_equal(data.features, expected)
    assert data.labels.tolist() == [0, 2, 1, 2]
    assert data.train_ids.tolist() == [0, 3]
    assert data.val_ids.tolist() == [2]
    assert data.test_ids.tolist() == [1]
    assert data.spec.row_bytes == 2408
    assert capfd.readouterr() == ("", "")
    theirs = Reddit(str(tmp_path / "raw" / "reddit"))[0]
    own = {(int(u), v) for v in range(4) for u in data.indices[data.indptr[v] : data.indptr[v + 1]]}
    assert own == set(zip(*theirs.edge_index.tolist(), strict=True))
    assert np.array_equal(data.features, theirs.x)
    assert data.labels.tolist() == theirs.y.tolist()
    for split in ("train", "val", "test"):
        mask = getattr(theirs, f"{split}_mask").numpy()
        assert getattr(data, f"{split}_ids").tolist() == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    ("array", "value"),
    [
        ("label", np.zeros(3, int)),
        ("label", np.zeros(4)),
        ("feature", np.zeros(4)),
        ("node_types", 1),
    ],
)
def test_arrays_of_other_sizes_are_named(tmp_path: Path, array: str, value: np.ndarray) -> None:
    path = reddit_folder(tmp_path / "raw") / "reddit_data.npz"
    with np.load(path) as arrays:
        content = {**arrays, array: value}
    np.savez(path, **content)
    with pytest.raises(DatasetError, match=f"array '{array}': holds"):
        prepared(tmp_path, "reddit")


def test_the_sizes_are_those_of_the_generated_twins() -> None:
    twins = {shape.name.removesuffix("-like"): shape for shape in named_shapes()}
    for source in (OgbSource("ogbn-products"), OgbSource("ogbn-papers100M"), RedditSource()):
        spec, twin = source.estimate(1.0), twins[source.name.removeprefix("ogbn-")]
        assert (spec.num_nodes, spec.num_edges) == (twin.nodes, twin.edges)
        assert (spec.feature_dim, spec.num_classes) == (twin.feature_dim, twin.num_classes)
