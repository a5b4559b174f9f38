"""Reddit from a tiny folder in the layout that PyG downloads, read by PyG's own code."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from gatherbench.datasets.layout import DatasetError
from gatherbench.datasets.reddit_source import RedditSource
from gatherbench.datasets.store import open_dataset
from gatherbench.datasets.synthetic import named_shapes

sparse = pytest.importorskip("scipy.sparse")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: socket.socket, address: object) -> None:
        raise AssertionError(f"something reached out to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def ignore(_what: str, _fraction: float) -> None:
    pass


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
    graph = sparse.coo_matrix((np.ones(6, np.int64), (row, column)), shape=(4, 4))
    sparse.save_npz(raw / "reddit_graph.npz", graph)
    return raw


def test_reddit_is_read_by_pyg_and_converted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reddit_folder(tmp_path / "raw")
    folder = tmp_path / "reddit"
    RedditSource().prepare(folder, 1.0, ignore)
    data = open_dataset(folder, check="full")
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


def test_a_second_time_it_reads_what_pyg_saved(tmp_path: Path) -> None:
    raw = reddit_folder(tmp_path / "raw")
    RedditSource().prepare(tmp_path / "first", 1.0, ignore)
    (raw / "reddit_graph.npz").write_bytes(b"")
    RedditSource().prepare(tmp_path / "second", 1.0, ignore)
    first, second = open_dataset(tmp_path / "first"), open_dataset(tmp_path / "second")
    assert np.array_equal(first.indices, second.indices)
    assert np.array_equal(first.features, second.features)


def test_half_a_download_is_named(tmp_path: Path) -> None:
    (reddit_folder(tmp_path / "raw") / "reddit_graph.npz").unlink()
    with pytest.raises(DatasetError, match=r"reddit_graph\.npz: missing"):
        RedditSource().prepare(tmp_path / "reddit", 1.0, ignore)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (reddit_folder(tmp_path / "raw") / "reddit_data.npz").write_bytes(b"PK torn")
    with pytest.raises(DatasetError, match=r"PyG cannot read it.*remove"):
        RedditSource().prepare(tmp_path / "reddit", 1.0, ignore)


def test_without_network_the_error_says_where_the_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_args: object, **_kwargs: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    with pytest.raises(DatasetError) as caught:
        RedditSource().prepare(tmp_path / "reddit", 1.0, ignore)
    assert str(tmp_path / "raw" / "reddit" / "raw") in str(caught.value)
    assert "reddit.zip" in str(caught.value)


def test_without_scipy_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(DatasetError, match="pip install scipy"):
        RedditSource().prepare(tmp_path / "reddit", 1.0, ignore)


def test_the_sizes_are_those_of_the_generated_twin() -> None:
    spec = RedditSource().estimate(1.0)
    twin = next(shape for shape in named_shapes() if shape.name == "reddit-like")
    assert (spec.num_nodes, spec.num_edges) == (twin.nodes, twin.edges)
    assert (spec.feature_dim, spec.num_classes) == (twin.feature_dim, twin.num_classes)
