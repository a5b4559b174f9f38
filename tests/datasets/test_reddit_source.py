"""Reddit from a tiny folder in the layout that PyG downloads."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from torch_geometric.datasets import Reddit

from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.reddit_source import RedditSource
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import open_dataset

from .edges import edges_of


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


def test_reddit_is_read_as_pyg_reads_it(tmp_path, capfd):
    reddit_folder(tmp_path / "raw")
    folder = tmp_path / "reddit"
    RedditSource().prepare(folder, 1.0, silent)
    data = open_dataset(folder)
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
    assert set(edges_of(data)) == set(zip(*theirs.edge_index.tolist(), strict=True))
    assert np.array_equal(data.features, theirs.x)
    assert data.labels.tolist() == theirs.y.tolist()
    for split in ("train", "val", "test"):
        mask = getattr(theirs, f"{split}_mask").numpy()
        assert getattr(data, f"{split}_ids").tolist() == np.flatnonzero(mask).tolist()


def test_half_a_download_or_a_damaged_file_is_named(tmp_path):
    raw = reddit_folder(tmp_path / "raw")
    (raw / "reddit_data.npz").write_bytes(b"PK torn")
    with pytest.raises(DatasetError, match=r"reddit_data\.npz.*cannot be read.*fetch"):
        RedditSource().prepare(tmp_path / "reddit", 1.0, silent)
    (raw / "reddit_graph.npz").unlink()
    with pytest.raises(DatasetError, match=r"reddit_graph\.npz: missing"):
        RedditSource().prepare(tmp_path / "reddit", 1.0, silent)


@pytest.mark.parametrize(
    ("array", "value"),
    [("label", [0] * 3), ("label", np.zeros(4)), ("feature", np.zeros(4)), ("node_types", 1)],
)
def test_arrays_of_other_sizes_are_named(tmp_path, array, value):
    path = reddit_folder(tmp_path / "raw") / "reddit_data.npz"
    with np.load(path) as arrays:
        content = {**arrays, array: value}
    np.savez(path, **content)
    with pytest.raises(DatasetError, match=f"array '{array}': holds"):
        RedditSource().prepare(tmp_path / "reddit", 1.0, silent)
