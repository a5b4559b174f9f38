"""OGB's graphs and Reddit from tiny folders in their authors' layout, with no network."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import tracemalloc
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from torch_geometric.datasets import Reddit

from gatherbench.datasets import download, files, npz_stream
from gatherbench.datasets.dataset import DatasetError, GraphDataset
from gatherbench.datasets.ogb_source import OgbSource
from gatherbench.datasets.reddit_source import RedditSource
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import open_dataset
from gatherbench.datasets.synthetic import named_shapes

EDGES = np.array([[0, 1, 2, 2, 4, 0], [1, 0, 3, 3, 4, 2]])  # both ways, twice, and a self-loop
SPLIT = {"train": [0, 3], "valid": [1], "test": [4, 2]}
SOURCES = {
    **{name: OgbSource(name) for name in ("ogbn-arxiv", "ogbn-products", "ogbn-papers100M")},
    "reddit": RedditSource(),
}


@pytest.fixture(autouse=True)
def _no_network_and_little_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for is what the files hold, not what the published graph would take."""

    def refuse(_self: socket.socket, address: object) -> None:
        raise AssertionError(f"something reached out to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    free = type("Usage", (), {"free": 256 << 20})
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: free)


def write_csv(path: Path, rows: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, rows, fmt="%d" if rows.dtype.kind == "i" else "%.6f", delimiter=",")


def features(width: int) -> np.ndarray:
    return np.arange(5 * width, dtype=np.float32).reshape(5, width) / 8 + 0.125


def ogb_folder(root: Path, name: str) -> Path:
    """The layout of ogbn-arxiv and ogbn-products as their archives unpack."""
    folder = root / name.replace("-", "_")
    raw, width = folder / "raw", 128 if name == "ogbn-arxiv" else 100
    write_csv(raw / "edge.csv.gz", EDGES.T)
    write_csv(raw / "node-feat.csv.gz", features(width))
    write_csv(raw / "node-label.csv.gz", np.array([[3], [1], [0], [2], [1]]))
    write_csv(raw / "num-node-list.csv.gz", np.array([[5]]))
    write_csv(raw / "num-edge-list.csv.gz", np.array([[EDGES.shape[1]]]))
    write_splits(folder, "time" if name == "ogbn-arxiv" else "sales_ranking")
    return folder


def write_splits(folder: Path, kind: str) -> None:
    for part, ids in SPLIT.items():
        write_csv(folder / "split" / kind / f"{part}.csv.gz", np.array(ids)[:, None])
    (folder / "processed").mkdir()
    (folder / "RELEASE_v1.txt").touch()


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
    labels = np.array([[3], [np.nan], [0], [171], [1]], np.float32)
    np.savez_compressed(raw / "node-label.npz", node_label=labels)
    write_splits(folder, "time")
    return folder


def reddit_folder(root: Path, **changes: object) -> Path:
    """``raw/reddit_data.npz`` and ``raw/reddit_graph.npz`` with an edge both ways, twice."""
    raw = root / "reddit" / "raw"
    raw.mkdir(parents=True)
    data = {
        "feature": np.arange(4 * 602, dtype=np.float64).reshape(4, 602) / 16,
        "label": np.array([0, 2, 1, 2]),
        "node_ids": np.arange(4),
        "node_types": np.array([1, 3, 2, 1]),
    }
    np.savez(raw / "reddit_data.npz", **(data | changes))
    row, column = np.array([0, 1, 0, 1, 2, 3]), np.array([1, 0, 1, 0, 3, 2])
    graph = scipy.sparse.coo_matrix((np.ones(6, np.int64), (row, column)), shape=(4, 4))
    scipy.sparse.save_npz(raw / "reddit_graph.npz", graph)
    return raw


def columns_of(data: GraphDataset) -> list[list[int]]:
    ends = zip(data.indptr[:-1], data.indptr[1:], strict=True)
    return [data.indices[begin:end].tolist() for begin, end in ends]


def prepared(tmp_path: Path, name: str) -> GraphDataset:
    SOURCES[name].prepare(tmp_path / name, 1.0, silent)
    return open_dataset(tmp_path / name, check="full")


@pytest.mark.parametrize(("name", "width"), [("ogbn-arxiv", 128), ("ogbn-products", 100)])
def test_ogbs_csv_files_are_made_undirected_and_repetitions_are_merged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, width: int
) -> None:
    ogb_folder(tmp_path / "raw", name)
    data = prepared(tmp_path, name)
    assert columns_of(data) == [[1, 2], [0], [0, 3], [2], [4]]
    assert np.array_equal(data.features, features(width))
    assert data.labels.tolist() == [3, 1, 0, 2, 1]
    splits = [ids.tolist() for ids in (data.train_ids, data.val_ids, data.test_ids)]
    assert splits == list(SPLIT.values())
    assert data.spec.num_classes == {"ogbn-arxiv": 40, "ogbn-products": 47}[name]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_papers_is_streamed_as_it_is_directed(
    tmp_path: Path, order: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz_stream, "CHUNK", 4)  # so that a chunk holds sources and targets
    papers_folder(tmp_path / "raw", np.asarray(EDGES, order=order), dtype)
    data = prepared(tmp_path, "ogbn-papers100M")
    assert columns_of(data) == [[1], [0], [0], [2], [4]]
    assert np.array_equal(data.features, features(128).astype(dtype).astype(np.float32))
    assert data.features.dtype == np.float32
    assert data.labels.tolist() == [3, -1, 0, 171, 1]
    assert data.test_ids.tolist() == SPLIT["test"]


@pytest.mark.parametrize("name", ["ogbn-products", "ogbn-papers100M"])
def test_ogbs_own_package_reads_the_same(tmp_path: Path, name: str) -> None:
    nodeproppred = pytest.importorskip("ogb.nodeproppred")
    papers = name == "ogbn-papers100M"
    raw = papers_folder(tmp_path / "raw") if papers else ogb_folder(tmp_path / "raw", name)
    data = prepared(tmp_path, name)
    assert not any((raw / "processed").iterdir()), "no copy of the graph is left"
    graph, labels = nodeproppred.NodePropPredDataset(name, root=str(raw.parent))[0]
    assert np.array_equal(graph["node_feat"], data.features)
    assert np.array_equal(np.where(np.isnan(labels), -1, labels)[:, 0], data.labels)
    ours = {(int(u), v) for v, us in enumerate(columns_of(data)) for u in us}
    assert ours == set(zip(*graph["edge_index"].tolist(), strict=True))


def test_reddit_is_read_as_pyg_reads_it(tmp_path: Path) -> None:
    reddit_folder(tmp_path / "raw")
    data = prepared(tmp_path, "reddit")
    assert columns_of(data) == [[1], [0], [3], [2]]
    assert data.spec.row_bytes == 2408
    assert [data.train_ids.tolist(), data.val_ids.tolist()] == [[0, 3], [2]]
    theirs = Reddit(str(tmp_path / "raw" / "reddit"))[0]
    own = {(int(u), v) for v, us in enumerate(columns_of(data)) for u in us}
    assert own == set(zip(*theirs.edge_index.tolist(), strict=True))
    assert np.array_equal(data.features, theirs.x)
    assert data.labels.tolist() == theirs.y.tolist() == [0, 2, 1, 2]
    for split in ("train", "val", "test"):
        mask = getattr(theirs, f"{split}_mask").numpy()
        assert getattr(data, f"{split}_ids").tolist() == np.flatnonzero(mask).tolist()


def test_papers_never_holds_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz_stream, "CHUNK", 1 << 14)
    raw = papers_folder(tmp_path / "raw")
    prepared(tmp_path, "ogbn-papers100M")  # imports what it needs
    table = np.ones((40_000, 128), np.float32)
    np.savez(raw / "raw" / "data.npz", edge_index=EDGES, node_feat=table)
    np.savez(raw / "raw" / "node-label.npz", node_label=np.zeros((40_000, 1)))
    monkeypatch.setattr("gatherbench.datasets.writer.check_values", lambda *_, **__: None)
    tracemalloc.start()
    SOURCES["ogbn-papers100M"].prepare(tmp_path / "again", 1.0, silent)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < table.nbytes / 3


@pytest.mark.parametrize(
    ("name", "file", "keep", "complaint"),
    [
        ("ogbn-arxiv", "raw/node-feat.csv.gz", -20, "cannot be read"),
        ("ogbn-arxiv", "split/time/test.csv.gz", -5, "cannot be read"),
        ("ogbn-arxiv", "RELEASE_v1.txt", None, "missing; .* unfinished"),
        ("ogbn-arxiv", "raw/edge.csv.gz", None, "missing; .* unfinished"),
        ("ogbn-arxiv", "raw/node-feat.csv.gz", None, "missing"),
        ("ogbn-papers100M", "raw/data.npz", -200, "fetch or save it again"),
        ("reddit", "reddit_graph.npz", None, "missing"),
        ("reddit", "reddit_data.npz", 7, "cannot be read.*fetch"),
    ],
)
def test_a_damaged_or_missing_file_is_named_and_leaves_nothing(
    tmp_path: Path, name: str, file: str, keep: int | None, complaint: str
) -> None:
    root = tmp_path / "raw"
    made = {"ogbn-papers100M": papers_folder, "reddit": reddit_folder}.get(name)
    path = (made(root) if made else ogb_folder(root, name)) / file
    path.unlink() if keep is None else path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatasetError, match=rf"{file}.*{complaint}"):
        prepared(tmp_path, name)
    assert [left.name for left in tmp_path.iterdir()] == ["raw"]


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
    reddit_folder(tmp_path / "raw", **{array: value})
    with pytest.raises(DatasetError, match=f"array '{array}': holds"):
        prepared(tmp_path, "reddit")


def test_an_edge_to_a_node_that_is_not_there_is_named(tmp_path: Path) -> None:
    papers_folder(tmp_path / "raw", np.array([[0, 1], [1, 5]]))
    with pytest.raises(DatasetError, match="names node 5, but there are 5 nodes"):
        prepared(tmp_path, "ogbn-papers100M")


@pytest.mark.parametrize(
    ("real", "twin"),
    [
        ("ogbn-products", "products-like"),
        ("ogbn-papers100M", "papers100M-like"),
        ("reddit", "reddit-like"),
    ],
)
def test_the_sizes_are_those_of_the_generated_twins(real: str, twin: str) -> None:
    spec = SOURCES[real].estimate(1.0)
    shape = next(shape for shape in named_shapes() if shape.name == twin)
    assert (spec.num_nodes, spec.num_edges) == (shape.nodes, shape.edges)
    assert (spec.feature_dim, spec.num_classes) == (shape.feature_dim, shape.num_classes)


# --- downloads ------------------------------------------------------------------------------------


class Answers:
    """Stands for ``urlopen``: gives ``body`` or raises it, from ``url`` if that is said."""

    def __init__(self, body: bytes | Exception) -> None:
        self.body, self.length, self.url = body, len(body) if isinstance(body, bytes) else 0, ""
        self.asked: list[str] = []

    def __call__(self, url: str, timeout: float) -> io.BytesIO:
        self.asked.append(url)
        if isinstance(self.body, Exception):
            raise self.body
        answer = io.BytesIO(self.body)
        answer.url, answer.headers = self.url or url, {"Content-Length": str(self.length)}
        return answer


def archive(folder: Path) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(folder.rglob("*")):
            packed.write(file, file.relative_to(folder))
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "place", "file"),
    [("ogbn-products", "ogbn_products", "products.zip"), ("reddit", "reddit/raw", "reddit.zip")],
)
def test_without_network_the_error_says_where_the_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str, file: str
) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", Answers(OSError("Network is unreachable")))
    with pytest.raises(DatasetError, match=rf"{tmp_path}/raw/{place}: .*{file}.*unreachable"):
        prepared(tmp_path, name)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_archive_is_fetched_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over https, whole, and with its checksum; what is refused leaves nothing."""
    ogb_folder(tmp_path / "made", "ogbn-arxiv").rename(tmp_path / "made" / "arxiv")
    net = Answers(archive(tmp_path / "made"))
    body = net.body
    monkeypatch.setattr(urllib.request, "urlopen", net)
    with pytest.raises(DatasetError, match=r"arxiv\.zip cannot be fetched \(its SHA-256 is"):
        prepared(tmp_path, "ogbn-arxiv")
    known = download.published("ogbn-arxiv") | {"sha256": hashlib.sha256(body).hexdigest()}
    monkeypatch.setattr("gatherbench.datasets.ogb_source.published", lambda _: known)
    net.body = body[: len(body) // 2]
    with pytest.raises(DatasetError, match="the connection ended after"):
        prepared(tmp_path, "ogbn-arxiv")
    net.body, net.url = body, "http://example.org/arxiv.zip"
    with pytest.raises(DatasetError, match=r"leads to http://\S*, which is not https"):
        prepared(tmp_path, "ogbn-arxiv")
    known["inside"], net.url = "elsewhere", ""
    with pytest.raises(DatasetError, match=r"cannot be fetched .*elsewhere"):
        prepared(tmp_path, "ogbn-arxiv")
    assert list((tmp_path / "raw").iterdir()) == []
    known["inside"] = "arxiv"
    assert columns_of(prepared(tmp_path, "ogbn-arxiv"))[0] == [1, 2]
    assert set(net.asked) == {"https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"}
    assert [folder.name for folder in (tmp_path / "raw").iterdir()] == ["ogbn_arxiv"]


def test_an_archive_that_would_fill_the_disk_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made" / "folder").mkdir(parents=True)
    (tmp_path / "made" / "folder" / "zeros").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(urllib.request, "urlopen", Answers(archive(tmp_path / "made")))
    usage = type("Usage", (), {"free": 1 << 19})
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DatasetError, match=r"needs 1,048,576 bytes and 524,288 are free"):
        download.fetch_folder("https://x.org/g.zip", "folder", tmp_path / "raw/g", silent)
    assert list((tmp_path / "raw").iterdir()) == []


def test_what_has_no_checksum_says_so() -> None:
    for name, source in SOURCES.items():
        digest = download.published(name).get("sha256")
        assert bool(digest) != ("no checksum" in " ".join(source.estimate(1.0).notes))
        assert digest is None or len(bytes.fromhex(digest)) == 32
