"""IGB, IGBH and Reddit from tiny folders in their layout; the right graph by hand."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from torch_geometric.datasets import Reddit

from gatherbench.datasets import igb_source
from gatherbench.datasets.dataset import DatasetError, GraphDataset
from gatherbench.datasets.igb_source import IgbSource
from gatherbench.datasets.reddit_source import RedditSource
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import open_dataset

from .edges import edges_of, kinds_of

COUNTS = {"paper": 5, "author": 3, "institute": 1, "fos": 2}
EDGES = {
    "paper__cites__paper": [[0, 1], [2, 1], [1, 0]],
    "paper__written_by__author": [[0, 2], [4, 0]],
    "author__affiliated_to__institute": [[1, 0]],
    "paper__topic__fos": [[3, 1]],
}
ROWS = {
    one: np.full((count, 1024), 1 + at, np.float32)
    + np.arange(count, dtype=np.float32)[:, None] / 8
    for at, (one, count) in enumerate(COUNTS.items())
}
LABELS = [3, 18, 0, 7, 1]


def layout(root: Path, family: str, size: str, *, bare: bool) -> Path:
    """``bare``: tables of papers and authors, and labels, are float32 without a header."""
    place = root / "raw" / family / size / "processed"
    for name, pairs in EDGES.items():
        (place / name).mkdir(parents=True)
        np.save(place / name / "edge_index.npy", np.array(pairs))
    for one, table in ROWS.items():
        (place / one).mkdir()
        if bare and one in ("paper", "author"):
            table.tofile(place / one / "node_feat.npy")
        else:
            np.save(place / one / "node_feat.npy", table)
    if bare:
        np.array([*LABELS[:4], np.nan], np.float32).tofile(place / "paper" / "node_label_19.npy")
    else:
        np.save(place / "paper" / "node_label_19.npy", np.array(LABELS))
    return place


def prepared(root: Path, name: str) -> GraphDataset:
    IgbSource(name).prepare(root / name, 1.0, silent)
    return open_dataset(root / name)


@pytest.mark.parametrize("bare", [False, True])
def test_every_type_is_in_one_table_and_every_kind_goes_both_ways(tmp_path, bare):
    layout(tmp_path, "igbh", "large", bare=bare)
    data = prepared(tmp_path, "igbh-large")
    # Papers are 0 to 4, authors 5 to 7, fields 8 and 9, the institute is 10.
    assert data.spec.node_types == (("paper", 5), ("author", 3), ("fos", 2), ("institute", 1))
    assert kinds_of(data) == {
        "cites": [(0, 1), (1, 0), (2, 1)],  # 1 -> 0 is there by itself: the first of two kinds
        "inverse cites": [(1, 2)],
        "written_by": [(0, 7), (4, 5)], "inverse written_by": [(5, 4), (7, 0)],
        "affiliated_to": [(6, 10)], "inverse affiliated_to": [(10, 6)],
        "topic": [(3, 9)], "inverse topic": [(9, 3)],
    }  # fmt: skip
    table = np.concatenate([ROWS[one] for one in ("paper", "author", "fos", "institute")])
    np.testing.assert_array_equal(data.features, table)
    assert data.labels.tolist() == [3, 18, 0, 7, -1 if bare else 1, *[-1] * 6]
    parts = [data.train_ids, data.val_ids, data.test_ids]
    whole = [[0, 1, 2], [3], [4]]
    assert [part.tolist() for part in parts] == ([[0, 1], [2], [3]] if bare else whole)


def test_igb_is_papers_and_citations_as_published(tmp_path):
    layout(tmp_path, "igb", "tiny", bare=False)
    data = prepared(tmp_path, "igb-tiny")
    assert (data.spec.num_nodes, data.spec.relations) == (5, ())
    assert data.indptr.tolist() == [0, 1, 3, 3, 3, 3]
    assert data.indices.tolist() == [1, 0, 2]
    np.testing.assert_array_equal(data.features, ROWS["paper"])


def test_of_the_full_size_the_first_papers_alone_have_labels(tmp_path, monkeypatch):
    layout(tmp_path, "igb", "full", bare=True)
    monkeypatch.setattr(igb_source, "LABELLED", 2)
    assert prepared(tmp_path, "igb-full").labels.tolist() == [3, 18, -1, -1, -1]


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("author/node_feat.npy", b"x" * 4097, "neither a .npy nor bare float32"),
        ("author/node_feat.npy", np.ones((3, 7), np.float32), r"of shape \[any, 1024\]"),
        ("author/node_feat.npy", None, "author/node_feat.npy: .*No such file"),
        ("paper/node_label_19.npy", np.zeros(4, np.float32), r"holds float32 .4,., .* \[5\]"),
        ("paper/node_label_19.npy", np.full(5, 0.5, np.float32), "label 0 .* is 0.5"),
        ("paper__topic__fos/edge_index.npy", np.array([[0, 2]]), "names node 2, .* type has 2"),
        ("paper__topic__fos/edge_index.npy", np.array([[-1, 0]]), "names node -1"),
        ("paper__topic__fos/edge_index.npy", np.array([[0, 1, 1]]), r"of shape \[any, 2\]"),
    ],
)
def test_a_bad_file_is_named(tmp_path, file, content, complaint):
    path = layout(tmp_path, "igbh", "tiny", bare=False) / file
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(DatasetError, match=complaint) as refusal:
        prepared(tmp_path, "igbh-tiny")
    assert str(path) in str(refusal.value)
    assert not (tmp_path / "igbh-tiny").exists()


def test_a_folder_that_is_not_there_says_where_to_put_it(tmp_path):
    with pytest.raises(DatasetError, match=r"raw/igbh/small/processed: .*IGB-Datasets"):
        prepared(tmp_path, "igbh-small")


# ---- Reddit --------------------------------------------------------------------------------------


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
