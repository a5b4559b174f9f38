"""Importing graphs: all kinds of files give the same graph; bad ones are named to the column.

Labels, features and splits come from files or from beside the edges: whose node is whose?
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gatherbench.datasets import import_text
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.registry import prepare_dataset
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import DatasetError, open_dataset

# 0 -> 1, 0 -> 2, 3 -> 2, 2 -> 2, 4 -> 0, and one of them twice
EDGES = [(0, 1), (3, 2), (0, 2), (2, 2), (4, 0), (3, 2)]
EXPECTED = {0: [4], 1: [0], 2: [0, 2, 3], 3: [], 4: []}


def in_neighbours(data: GraphDataset) -> dict[int, list[int]]:
    return {
        v: data.indices[data.indptr[v] : data.indptr[v + 1]].tolist()
        for v in range(data.spec.num_nodes)
    }


def load(path: Path, **options: Any) -> GraphDataset:
    options.setdefault("dim", None if "features" in options else 3)
    return open_dataset(import_graph(path, "mine", root=path.parent, force=True, **options), "full")


def put(folder: Path, name: str, content: Any) -> Path:
    """A file of text or bytes (gzipped if its name says so), or of an array."""
    path = folder / name
    if isinstance(content, str | bytes):
        raw = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    elif path.suffix == ".pt":
        torch.save(torch.as_tensor(content), path)
    else:
        np.save(path, np.asarray(content))
    return path


def lines(edges: list[tuple[int, int]], separator: str = " ", base: int = 0) -> str:
    return "".join(f"{u + base}{separator}{v + base}\n" for u, v in edges)


EDGE_LISTS = {
    "plain.txt": lines(EDGES),
    "gzipped.txt.gz": lines(EDGES),
    "tabs.tsv": "Source\tTarget\n" + lines(EDGES, "\t"),
    "comma.csv": lines(EDGES, ","),
    "header.csv": "source,target\n" + lines(EDGES, ","),
    "header.csv.gz": "a,b\n" + lines(EDGES, ", "),
    "semicolons.txt": lines(EDGES, " ; "),
    "named-columns.csv": "id,to,weight,from\n" + "".join(f"7,{v},x y,{u}\n" for u, v in EDGES),
    "comments.txt": "# SNAP says\n% KONECT says\n\n  # indented\n" + lines(EDGES) + "# end\n",
    "windows.txt": lines(EDGES).replace("\n", "\r\n"),
    "no-newline-at-the-end.txt": lines(EDGES).rstrip("\n"),
    "leading-blanks.txt": "".join(f"   {u}   {v}  \n" for u, v in EDGES),
    "weights.txt": "".join(f"{u} {v} 0.5 1e9 x\n" for u, v in EDGES),
    "mark.csv": "\ufeff" + lines(EDGES, ","),
    "mark-header.csv": "\ufeffsrc,dst\n" + lines(EDGES, ","),
    "from-one.txt": lines(EDGES, base=1),
    "leading-zeros.txt": "".join(f"{u:05d} {v:05d}\n" for u, v in EDGES),
}


@pytest.mark.parametrize("name", EDGE_LISTS)
def test_edge_lists_of_every_kind(tmp_path: Path, name: str) -> None:
    assert in_neighbours(load(put(tmp_path, name, EDGE_LISTS[name]))) == EXPECTED


def test_undirected_edges_are_stored_both_ways(tmp_path: Path) -> None:
    data = load(put(tmp_path, "e.txt", lines(EDGES)), undirected=True)
    assert in_neighbours(data) == {0: [1, 2, 4], 1: [0], 2: [0, 2, 3], 3: [2], 4: [0]}
    assert "undirected, stored both ways" in data.spec.notes


def test_which_number_ids_count_from(tmp_path: Path) -> None:
    path = put(tmp_path, "e.txt", "1 2\n2 3\n")
    assert load(path).spec.num_nodes == 3
    assert load(path, one_based=False).spec.num_nodes == 4
    assert load(path, num_nodes=3).spec.num_nodes == 3  # id 3 can only be the third
    assert in_neighbours(load(path, num_nodes=5)) == {0: [], 1: [], 2: [1], 3: [2], 4: []}
    assert in_neighbours(load(path, num_nodes=5, one_based=True))[1] == [0]


def test_a_header_may_be_asserted_or_denied(tmp_path: Path) -> None:
    assert load(put(tmp_path, "e.txt", "u v\n0 1\n"), header=True).spec.num_edges == 1
    assert load(put(tmp_path, "e.csv", "0,1\n1,2\n"), header=True).spec.num_edges == 1
    with pytest.raises(DatasetError, match=r"line 1, column 1: expected a node id .* found 'u'"):
        load(put(tmp_path, "e.csv", "u,v\n0,1\n"), header=False)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("e.txt", "0 1\n1 x2\n", r"line 2, column 2: expected a node id .*, found 'x2'"),
        ("e.txt", "0 1\n# c\n\nabc 1\n", r"line 4, column 1: .* found 'abc'"),
        ("e.txt", "0 1\n1 -2\n", r"line 2, column 2: node id -2 is too small: .* is 0"),
        ("e.txt", "0 1\n17\n", r"line 2, column 2: expected 2 columns"),
        ("e.txt", "0 1\n17 \n", r"line 2, column 2: expected 2 columns"),
        ("e.txt", "0 1\n1.5 2.0\n", r"line 2, column 1: .* found '1\.5'"),
        ("e.txt", "0 1\n1e-3 2\n", r"line 2, column 1: .* found '1e-3'"),
        ("e.txt", "0 1\n1 99999999999999999999\n", r"line 2, column 2: .*too large"),
        ("e.txt", "0 1\n1 2147483647\n", r"line 2, column 2: .*2147483647 is too large"),
        ("e.txt", "0 1\n0x1 2\n", r"line 2, column 1: .* found '0x1'"),
        ("e.txt", "0 1\n1_0 2\n", r"line 2, column 1: .* found '1_0'"),
        ("e.txt", "0 1\n1\0x 2\n", r"line 2, column 1: .* found '1\\x00x'"),
        ("e.txt", "0,1\n1 2\n", r"line 2, column 1: "),
        ("e.txt", "0 1\n1,2\n", r"line 2, column 1: .* found '1,2'|line 2, column 2"),
        ("e.csv", "0,1\n,2\n", r"line 2, column 1: .* found ''"),
        ("e.csv", "0,1\n1,\n", r"line 2, column 2: .* found ''"),
        ("e.csv", "0,1\n1;2\n", r"line 2, column 1: .* found '1;2'"),
        ("e.csv", 'source,target\n"1","2"\n', r"line 2, column 1: "),
        ("e.csv", "id,source,target\n1,0\n", r"line 2, column 3: expected 3 columns"),
        ("e.csv.gz", "source,target\n1,q\n", r"line 2, column 2: .* found 'q'"),
        ("e.txt", "", "holds no edges"),
        ("e.txt", "# nothing\n\n", "holds no edges"),
        ("e.csv", "source,target\n", "holds no edges"),
        ("e.txt", "0 1\n\x00\xff\n", r"line 2, column 1: "),
    ],
)
def test_the_first_bad_record_is_named(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    path = put(tmp_path, name, text.encode("latin-1"))
    with pytest.raises(DatasetError, match=complaint) as refusal:
        load(path)
    assert str(path) in str(refusal.value)
    assert not (tmp_path / "mine").exists()


def test_ids_beyond_a_known_number_of_nodes_are_named(tmp_path: Path) -> None:
    for text, line in (("0 1\n1 3\n2 2\n", 2), ("0 1\n1 2\n7 2\n", 3)):
        with pytest.raises(DatasetError, match=rf"line {line}, column .*the largest is [23]"):
            load(put(tmp_path, "e.txt", text), num_nodes=3)
    with pytest.raises(DatasetError, match="line 1, column 1: node id 0 is too small"):
        load(put(tmp_path, "e.txt", "0 1\n"), one_based=True)


@pytest.mark.parametrize("chunk", [1, 3, 17, 1000])
def test_pieces_of_any_size_give_the_same_edges_and_the_same_line_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(import_text, "_CHUNK_BYTES", chunk)
    for name in ("comments.txt", "header.csv.gz", "windows.txt", "no-newline-at-the-end.txt"):
        assert in_neighbours(load(put(tmp_path, name, EDGE_LISTS[name]))) == EXPECTED
    text = EDGE_LISTS["comments.txt"] + "\n5 oops\n"
    line = text.count("\n")
    with pytest.raises(DatasetError, match=rf"line {line}, column 2: .*'oops'"):
        load(put(tmp_path, "e.txt", text))


CELLS = [
    "1",
    "+1",
    "-1",
    "-0",
    "1.0",
    "1.",
    "2e1",
    "1.5",
    "007",
    "x",
    "1_0",
    "99",
    "100",
    "1#",
    "#",
]
ODD = [
    "#",
    "%",
    "1e300",
    "nan",
    "inf",
    "True",
    "fALSE",
    "0x1",
    "1\0x",
    "é",
    "1;2",
    "",
    " 3 ",
    '"1"',
    "1,5",
]
RECORDS = st.lists(
    st.tuples(st.lists(st.sampled_from(CELLS + ODD), max_size=3), st.sampled_from(" ,\t")),
    max_size=3,
).map(lambda lines: "\n".join(cut.join(cells) for cells, cut in lines))


@settings(max_examples=300, deadline=None)
@given(text=RECORDS, separator=st.sampled_from([None, ","]), dense=st.booleans())
def test_pandas_reads_nothing_that_line_by_line_reading_would_not(
    text: str, separator: str | None, dense: bool
) -> None:
    """The slow way knows what a record is; the fast one may only refuse more."""
    columns = [import_text.Column(at, "node id", 0, 99) for at in (0, 1)]
    content = text.encode()
    fast = import_text.by_pandas(content, separator, columns, dense)
    if fast is not None:
        stream = import_text.TextStream(Path("-"), io.BytesIO(), io.BytesIO(), 0, silent)
        slow = stream.line_by_line(content, separator, columns, dense)
        assert fast.tolist() == slow.tolist(), text


@settings(max_examples=40, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60),
    undirected=st.booleans(),
)
def test_any_edge_list_is_its_scipy_matrix(
    tmp_path_factory: pytest.TempPathFactory, edges: list[tuple[int, int]], undirected: bool
) -> None:
    path = put(tmp_path_factory.mktemp("e"), "e.txt", lines(edges))
    data = load(path, num_nodes=31, one_based=False, undirected=undirected)
    source, target = np.array(edges).T
    matrix = np.zeros((31, 31), bool)
    matrix[source, target] = True
    if undirected:
        matrix |= matrix.T
    expected = scipy.sparse.csc_array(matrix)
    np.testing.assert_array_equal(data.indptr, expected.indptr)
    np.testing.assert_array_equal(data.indices, expected.indices)


def test_damaged_gzip_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = lines([(int(u), int(v)) for u, v in rng.integers(0, 999, (5000, 2))])
    whole = gzip.compress(text.encode())
    for content in (whole[: len(whole) // 2], whole[:-4], b"no gzip", whole[:500] + whole[600:]):
        path = tmp_path / "e.txt.gz"
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=r"e\.txt\.gz: the gzip file is cut short or dama"):
            load(path)


def test_a_binary_file_and_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"longer than .* is this a text file"):
        load(put(tmp_path, "e.txt", "0 1\n" + "1" * (40 << 20)))
    with pytest.raises(DatasetError, match=r"nowhere\.txt: no regular file"):
        load(tmp_path / "nowhere.txt")


# --- MatrixMarket ---------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
@pytest.mark.parametrize("field", ["pattern", "real", "integer", "complex"])
def test_matrix_market_as_scipy_writes_it(tmp_path: Path, field: str, suffix: str) -> None:
    source, target = np.array(sorted(set(EDGES))).T
    matrix = scipy.sparse.coo_array((np.ones(len(source)), (source, target)), shape=(5, 5))
    plain = tmp_path / "m.mtx"
    scipy.io.mmwrite(plain, matrix, field=field, comment="a comment", symmetry="general")
    path = put(tmp_path, f"m{suffix}", plain.read_bytes())
    assert in_neighbours(load(path)) == EXPECTED


def test_a_symmetric_matrix_counts_both_ways(tmp_path: Path) -> None:
    text = "%%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n2 1\n3 3\n"
    assert in_neighbours(load(put(tmp_path, "m.mtx", text))) == {0: [1], 1: [0], 2: [2]}


BANNER = "%%MatrixMarket matrix coordinate pattern general\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no MatrixMarket header"),
        ("1 2\n", "no MatrixMarket header .*Line 1"),
        ("%%MatrixMarket matrix array real general\n3 3\n", "found 'array'"),
        ("%%MatrixMarket matrix coordinate odd general\n", "no MatrixMarket header .*odd"),
        (BANNER, "no MatrixMarket header"),
        (BANNER + "3 3\n", "no MatrixMarket header"),
        (BANNER + "3 4 1\n1 1\n", "square, this one is 3 by 4"),
        (BANNER + "% c\n3 3 2\n1 1\n", "line 4: the file ends after 1 entries of 2"),
        (BANNER + "3 3 1\n1 1\n2 2\n", "after 2 entries of 1"),
        (BANNER + "3 3 1\n% c\n4 1\n", "line 4, column 1: node id 4 is too large"),
        (BANNER + "3 3 1\n1 0\n", "line 3, column 2: node id 0 is too small"),
        (BANNER + "3 3 1\n1 q\n", "line 3, column 2: .* found 'q'"),
        (BANNER + "3 3 1\n1\n", "line 3, column 2: expected 2 columns"),
        (BANNER + "0 0 0\n", "cannot be a graph"),
    ],
)
def test_bad_matrix_market_files(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DatasetError, match=complaint):
        load(put(tmp_path, "m.mtx", text))


# --- NumPy ----------------------------------------------------------------------------------------


def compressed(kind: Callable[..., Any]) -> Any:
    source, target = np.array(sorted(set(EDGES))).T
    return kind((np.ones(len(source)), (source, target)), shape=(5, 5))


def test_numpy_files(tmp_path: Path) -> None:
    for kind in (scipy.sparse.csc_array, scipy.sparse.csr_array):
        scipy.sparse.save_npz(tmp_path / "m.npz", compressed(kind))
        assert in_neighbours(load(tmp_path / "m.npz")) == EXPECTED
    for orientation, kind in (("csc", scipy.sparse.csc_array), ("csr", scipy.sparse.csr_array)):
        matrix = compressed(kind)
        np.save(tmp_path / "g.indptr.npy", matrix.indptr)
        np.save(tmp_path / "g.indices.npy", matrix.indices.astype(np.uint64))
        data = load(tmp_path / "g.indptr.npy", orientation=orientation)
        assert in_neighbours(data) == EXPECTED
        np.savez(tmp_path / "plain.npz", indptr=matrix.indptr, indices=matrix.indices)
        data = load(tmp_path / "plain.npz", orientation=orientation)
        assert in_neighbours(data) == EXPECTED


@pytest.mark.parametrize(
    ("indptr", "indices", "complaint"),
    [
        ([0, 1, 2], [0], "'indptr': entry 2 is 2, expected .* no more than the 1 of indices"),
        ([0, 0, 1], [0, 1], "ends with 1, expected the 2 of indices"),
        ([1, 1], [0], "'indptr': begins with 1, expected 0"),
        ([0, 2, 1, 3], [0, 1, 2], r"'indptr': entry 2 is 1, expected no less"),
        ([0, 1, 2], [0, 2], r"'indices': entry 1 is 2, no node"),
        ([0, 1, 2], [0, -1], r"'indices': entry 1 is -1, no node"),
        ([0.0, 1.0], [0], "'indptr': holds float64 .* whole numbers of shape"),
        ([[0, 1]], [0], r"'indptr': holds int64 \(1, 2\)"),
        ([0], [], "'indices': holds float64"),
    ],
)
def test_bad_numpy_arrays(
    tmp_path: Path, indptr: list[Any], indices: list[Any], complaint: str
) -> None:
    np.savez(tmp_path / "g.npz", indptr=np.array(indptr), indices=np.array(indices))
    with pytest.raises(DatasetError, match=complaint):
        load(tmp_path / "g.npz")


def test_numpy_files_that_are_none(tmp_path: Path) -> None:
    for name, complaint in (("g.npz", "cannot be read"), ("g.indptr.npy", "cannot be read")):
        with pytest.raises(DatasetError, match=complaint):
            load(put(tmp_path, name, b"garbage"))
    np.savez(tmp_path / "other.npz", rows=np.zeros(3))
    with pytest.raises(DatasetError, match="holds rows; expected edge_index, or indptr"):
        load(tmp_path / "other.npz")
    scipy.sparse.save_npz(tmp_path / "coo.npz", compressed(scipy.sparse.coo_array))
    with pytest.raises(DatasetError, match=r"tocsc\(\)"):
        load(tmp_path / "coo.npz")


def test_an_edge_index_of_pyg(tmp_path: Path) -> None:
    pairs = np.array(EDGES)
    for array in (pairs.T, pairs, pairs.T.astype(np.uint32), np.asfortranarray(pairs.T)):
        np.save(tmp_path / "edge_index.npy", array)
        assert in_neighbours(load(tmp_path / "edge_index.npy")) == EXPECTED
    np.save(tmp_path / "edge_index.npy", pairs.T + 1)
    assert in_neighbours(load(tmp_path / "edge_index.npy", one_based=True)) == EXPECTED
    np.save(tmp_path / "y.npy", np.zeros(5, int))
    with pytest.raises(DatasetError, match=r"node id 5 is too large: .*; .* from 1, --one-based"):
        load(tmp_path / "edge_index.npy", labels=tmp_path / "y.npy")
    np.save(tmp_path / "from_0.npy", pairs.T)
    with pytest.raises(DatasetError, match=r"from_0\.npy: edge \d+ names node 0, expected 1 to .*"):
        load(tmp_path / "from_0.npy", one_based=True)
    for bad, complaint in (
        (np.zeros(3, int), r"expected an edge_index, .* 'indptr' in its name"),
        (np.zeros((2, 3)), "holds float64"),
        (np.zeros((2, 0), int), "holds no edges"),
        (np.array([[0, 1, 2], [0, 1, -7]]), "edge 2 names node -7"),
        (np.array([[0, 2**31], [0, 1]]), "edge 1 names node 2147483648, .* number the nodes"),
    ):
        np.save(tmp_path / "bad.npy", bad)
        with pytest.raises(DatasetError, match=complaint):
            load(tmp_path / "bad.npy")
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    np.save(tmp_path / "edge_index.npy", pairs.T)
    with pytest.raises(DatasetError, match=r"edge 1 goes from 3 to 2, and .* 3 is .*--relabel"):
        load(tmp_path / "edge_index.npy", dim=None, features=tmp_path / "x.npy")


def test_ids_with_gaps_are_numbered_by_rank(tmp_path: Path) -> None:
    ids = np.array([3, 70, 71, 900, 2**31 - 2])  # of nodes 0 to 4
    edges = [(int(ids[u]), int(ids[v])) for u, v in EDGES]
    text = put(tmp_path, "gaps.csv", lines(edges, ","))
    small = put(tmp_path, "small.txt", lines([(9 * u + 4, 9 * v + 4) for u, v in EDGES]))
    np.save(tmp_path / "x.npy", np.arange(5.0).reshape(5, 1))
    np.save(tmp_path / "small.npy", np.array(EDGES).T * 9)
    features = tmp_path / "x.npy"
    with pytest.raises(DatasetError, match=r"line 1, column 2: .*are 5 nodes.* --relabel"):
        load(text, dim=None, features=features)
    for path in (small, tmp_path / "small.npy"):
        data = load(path, dim=None, features=features, relabel=True)
        assert in_neighbours(data) == EXPECTED
        assert data.features.tolist() == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert data.spec.notes[0] == "ids of the file numbered anew, in ascending order"
    np.save(tmp_path / "x.npy", np.zeros((6, 1)))
    with pytest.raises(DatasetError, match=r"how many nodes\? .*ids that occur.* says 5, .* 6"):
        load(small, dim=None, features=features, relabel=True)


# --- features, labels, names ----------------------------------------------------------------------


def test_features_and_labels_from_files(tmp_path: Path) -> None:
    path = put(tmp_path, "e.txt", lines(EDGES))
    table = np.arange(35, dtype=np.float16).reshape(5, 7)
    np.save(tmp_path / "x.npy", np.asfortranarray(table))
    put(tmp_path, "y.txt", "# classes\n0\n2\n-1\n\n1\n0\n")
    data = load(path, dim=None, features=tmp_path / "x.npy", labels=tmp_path / "y.txt")
    np.testing.assert_array_equal(data.features, table)
    assert data.features.dtype == np.float16
    assert data.labels.tolist() == [0, 2, -1, 1, 0]
    assert data.spec.num_classes == 3
    for ids in (data.train_ids, data.val_ids, data.test_ids):
        assert (data.labels[ids] >= 0).all(), "a seed node without a label cannot be trained on"
    assert len(data.train_ids) == 1
    np.save(tmp_path / "y.npy", np.array([[1], [0], [0], [0], [-1]], np.int8))
    assert load(path, labels=tmp_path / "y.npy").labels.tolist() == [1, 0, 0, 0, -1]


def test_a_csv_of_labels_may_name_its_column(tmp_path: Path) -> None:
    path = put(tmp_path, "e.txt", lines(EDGES))
    named = put(tmp_path, "y.csv", "# classes\nlabel\n0\n2\n-1\n1\n0\n")
    assert load(path, labels=named).labels.tolist() == [0, 2, -1, 1, 0]
    for text, complaint in (
        ("label\nlabel\n0\n", "line 2, .* found 'label'"),
        ("label\n0\n\n1\n0\n0\n", "line 3: is empty: write -1 for a node without a class"),
        ("0\nlabel\n", "line 2, .* found 'label'"),
        ("node,label\n0,x\n", "line 2, column 2: expected a class .* found 'x'"),
    ):
        with pytest.raises(DatasetError, match=complaint):
            load(path, labels=put(tmp_path, "y.csv", text))


def test_bad_features_and_labels(tmp_path: Path) -> None:
    path = put(tmp_path, "e.txt", lines(EDGES))
    np.save(tmp_path / "short.npy", np.zeros((4, 2)))
    np.save(tmp_path / "wide.npy", np.zeros((5, 2)))
    np.save(tmp_path / "flat.npy", np.zeros(5))
    table = np.zeros((5, 2))
    table[3, 1] = np.nan
    np.save(tmp_path / "nan.npy", table)
    put(tmp_path, "y.txt", "0\n1\nsheep\n")
    np.save(tmp_path / "y3.npy", np.zeros(3, int))
    np.save(tmp_path / "y-float.npy", np.zeros(5))
    np.save(tmp_path / "bfloat16.npy", np.zeros((5, 2), np.uint16).view("V2"))
    put(tmp_path, "x.pt", b"PK")
    np.save(tmp_path / "y-2.npy", np.array([0, 0, 0, -2, 0]))
    for options, complaint in (
        ({"features": "short.npy"}, "node id 4 is too large"),
        ({"features": "bfloat16.npy"}, "may be bfloat16: .* float16 move the same bytes"),
        ({"features": "x.pt"}, r"x\.pt: cannot be read .* torch\.save it again"),
        ({"dim": 2, "labels": "y-float.npy"}, "expected whole numbers .* -1 for a node without"),
        ({"features": "flat.npy"}, r"expected numbers of shape \[N, D\]"),
        ({"features": "nan.npy"}, r"/nan\.npy: \[3, 1\] = nan is not finite$"),
        ({"features": "nowhere.npy"}, r"nowhere\.npy: no regular file"),
        ({"features": "e.txt"}, "cannot be read"),
        ({"dim": 9, "features": "wide.npy"}, "rows of width 2, but dim says 9"),
        ({"dim": 2, "labels": "y.txt"}, "line 3, column 1: expected a class .* 'sheep'"),
        ({"dim": 2, "labels": "y-2.npy"}, r"label 3 \(from 0\) is -2"),
        ({"labels": "y3.npy", "features": "short.npy"}, "how many nodes"),
        ({"dim": 0}, "width 0"),
        ({"dim": 2, "num_classes": 0}, "expected 1 or more"),
        ({"dim": 2, "num_nodes": 0}, "expected 1 or more"),
        ({"dim": 2, "dtype": "float3"}, "expected one of float32"),
    ):
        files = {k: tmp_path / v if k in ("features", "labels") else v
                 for k, v in options.items()}  # fmt: skip
        with pytest.raises(DatasetError, match=complaint):
            load(path, **{"dim": None, **files})
        assert not (tmp_path / "mine").exists()


def test_names_that_are_taken(tmp_path: Path) -> None:
    path = put(tmp_path, "e.txt", lines(EDGES))
    with pytest.raises(DatasetError, match="name of a built-in dataset"):
        import_graph(path, "products-like", dim=2, root=tmp_path)
    folder = import_graph(path, "mine", dim=2, root=tmp_path)
    with pytest.raises(DatasetError, match="is there already"):
        import_graph(path, "mine", dim=2, root=tmp_path)
    assert prepare_dataset("mine", root=tmp_path) == folder
    with pytest.raises(DatasetError, match="import it again"):
        prepare_dataset("mine", root=tmp_path, force=True)


def test_what_is_generated_depends_on_the_seed_alone(tmp_path: Path) -> None:
    path = put(tmp_path, "e.txt", lines(EDGES))
    first, again, other = (
        {name: np.array(getattr(load(path, seed=seed), name)) for name in ("features", "labels")}
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first["features"], again["features"])
    np.testing.assert_array_equal(first["labels"], again["labels"])
    assert (first["features"] != other["features"]).all()


LINE = "1 2\n2 3\n3 4\n"  # nodes 0 to 3, counted from 1


def splits(data: GraphDataset) -> list[list[int]]:
    return [data.train_ids.tolist(), data.val_ids.tolist(), data.test_ids.tolist()]


# --- labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("y.csv", "node,label\n4,1\n1,2\n"),
        ("y.csv", "label,node\n1,4\n2,1\n"),
        ("y.csv", "paper,venue\n4,1\n1,2\n"),
        ("y.tsv", "id\tclass\n4\t1\n1\t2\n"),
        ("y.txt", "# a comment\n4 1\n1 2\n1 2\n"),
        ("y.csv", "4;1;x\n1;2;y\n3;-1;z\n"),
        ("y.csv", "node,label\n4,1.0\n1,2.0\n"),
    ],
)
def test_labels_by_node(tmp_path: Path, name: str, text: str) -> None:
    """Ids as in the graph's file, which counts from 1; nodes not named have none."""
    data = load(put(tmp_path, "e.txt", LINE), labels=put(tmp_path, name, text))
    assert data.labels.tolist() == [2, -1, -1, 1]
    assert data.spec.num_classes == 3


def test_labels_by_node_know_nodes_that_are_in_no_edge(tmp_path: Path) -> None:
    edges, labels = (
        put(tmp_path, "e.txt", "0 70\n70 9\n"),
        put(tmp_path, "y.csv", "9,1\n90,0\n"),
    )
    assert load(edges, labels=labels).spec.num_nodes == 91
    data = load(edges, labels=labels, relabel=True)  # 0, 9, 70 and 90
    assert data.labels.tolist() == [-1, 1, -1, 0]
    assert data.indptr.tolist() == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("node,label\n4,1\n4,2\n", r"y\.csv: gives node 4 two labels"),
        ("node,label\n0,1\n", r"y\.csv: names node 0, which the graph does not have"),
        ("node,label\n1,x\n", r"y\.csv: line 2, column 2: expected a class .* 'x'"),
        ("node,label\n1,-2\n", "line 2, column 2: class -2 is too small: the smallest is -1"),
        ("node,label\n1,\n", "line 2, column 2: expected a class"),
    ],
)
def test_bad_labels_by_node(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DatasetError, match=complaint):
        load(
            put(tmp_path, "e.txt", LINE), labels=put(tmp_path, "y.csv", text), one_based=True,
            num_nodes=4,
        )  # fmt: skip


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_empty_lines_amid_labels_are_refused_and_behind_them_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    monkeypatch.setattr("gatherbench.datasets.import_text._CHUNK_BYTES", pieces)
    edges = put(tmp_path, "e.txt", LINE)
    whole = put(tmp_path, "y.csv", "label\n0\n1\n1\n0\n\n \n\n")
    assert load(edges, labels=whole).labels.tolist() == [0, 1, 1, 0]
    for text, line in (("label\n0\n1\n\n0\n", 4), ("label\n0\n \n\n1\n0\n\n", 3)):
        with pytest.raises(DatasetError, match=f"line {line}: is empty: write -1"):
            load(edges, labels=put(tmp_path, "y.csv", text))


def test_labels_that_a_model_would_be_too_wide_for(tmp_path: Path) -> None:
    """1000 classes always; beyond, ten times those that occur and a tenth of the labelled nodes."""
    path = put(tmp_path, "e.npy", np.array([np.arange(19_999), np.arange(1, 20_000)]))

    def last(labels: np.ndarray) -> int:
        return load(path, labels=put(tmp_path, "y.npy", labels)).spec.num_classes

    few = np.arange(20_000) % 7
    few[-1] = 999
    assert last(few) == 1000
    few[-1] = 1079  # 8 occur: below 1000 + 10 * 8
    assert last(few) == 1080
    for largest in (1080, 10**9, 2**62):
        few[-1] = largest
        with pytest.raises(DatasetError, match=rf"y\.npy: the largest label is {largest}, and 8 "):
            last(few)
    assert last(np.arange(20_000) % 2999) == 2999
    with pytest.raises(DatasetError, match="largest label is 3000, and 3001"):
        last(np.arange(20_000) % 3001)
    few[:] = -1
    few[:11] = 1001  # one class, 11 nodes: 1000 + 1
    with pytest.raises(DatasetError, match="largest label is 1001, and 1 different"):
        last(few)


# --- splits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [
        (("a.txt", "4\n1\n"), ("b.csv", "node\n2\n"), ("c.npy", [3])),
        (("a.pt", [4, 1]), ("b.npy", [2]), ("c.txt", "# ids\n3\n\n")),
        (("a.npy", [True, False, False, True]), ("b.pt", [0, 1, 0, 0]), ("c.txt", "0\n0\n1\n0\n")),
        (("a.npy", np.uint8([1, 0, 0, 1])), ("b.npy", [2]), ("c.npy", [3])),
    ],
)
def test_splits_by_ids_and_masks(tmp_path: Path, train: Any, val: Any, test: Any) -> None:
    files = dict(zip(("train", "val", "test"), (train, val, test), strict=True))
    given = {split: put(tmp_path, *file) for split, file in files.items()}
    data = load(put(tmp_path, "e.txt", LINE), **given)
    assert [sorted(ids) for ids in splits(data)] == [[0, 3], [1], [2]]
    assert data.spec.notes[5].startswith(f"splits from {train[0]}, {val[0]}, {test[0]}")


def test_splits_that_are_not_given_are_empty(tmp_path: Path) -> None:
    data = load(put(tmp_path, "e.txt", LINE), train=put(tmp_path, "t.txt", "2\n3\n"))
    assert splits(data) == [[1, 2], [], []]


def test_two_ids_of_two_nodes_are_no_mask(tmp_path: Path) -> None:
    edges = put(tmp_path, "e.txt", "0 1\n")
    assert splits(load(edges, train=put(tmp_path, "t.npy", [0, 1]))) == [[0, 1], [], []]
    assert splits(load(edges, train=put(tmp_path, "t.npy", [False, True]))) == [[1], [], []]


def test_splits_of_ids_with_gaps_are_numbered_with_them(tmp_path: Path) -> None:
    edges, train = (
        put(tmp_path, "e.txt", "7 90\n90 7000\n"),
        put(tmp_path, "t.npy", [7000, 7]),
    )
    assert splits(load(edges, train=train, relabel=True)) == [[2, 0], [], []]
    with pytest.raises(DatasetError, match=r"t\.npy: names node 8, which the graph does not have"):
        load(edges, train=put(tmp_path, "t.npy", [8]), relabel=True)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"val": [2]}, "no node to train on; say which with --train"),
        ({"train": np.zeros(4, bool)}, r"train\.npy: no node to train on"),
        ({"train": [1, 1]}, r"train\.npy: names a node twice"),
        ({"train": [1], "test": [2, 1]}, r"test\.npy: names a node twice, or one of another split"),
        ({"train": [5]}, r"train\.npy: names node 5, which the graph does not have"),
        ({"train": [0]}, r"train\.npy: names node 0, which the graph does not have"),
        (
            {"train": [True, False]},
            r"holds bool \(2,\), expected .* or a mask of shape \[4\]",
        ),
        ({"train": [[1], [2]]}, r"holds int64 \(2, 1\), expected node ids"),
        ({"train": [1.0]}, "holds float64"),
        ({"train": [3]}, r"train\.npy: node 2 \(from 0\) has no label"),
    ],
)
def test_bad_splits(tmp_path: Path, files: dict[str, Any], complaint: str) -> None:
    given = {split: put(tmp_path, f"{split}.npy", ids) for split, ids in files.items()}
    labels = put(tmp_path, "y.txt", "0\n1\n-1\n0\n")
    with pytest.raises(DatasetError, match=complaint):
        load(put(tmp_path, "e.txt", LINE), labels=labels, **given)
    assert not (tmp_path / "mine").exists()


# --- what lies beside the edges -------------------------------------------------------------------

GRAPH = {
    "edge_index": torch.tensor([[0, 1, 2], [1, 2, 0]]),
    "x": torch.arange(8.0).reshape(4, 2),
    "y": torch.tensor([[1], [0], [2], [-1]]),
    "train_mask": torch.tensor([True, False, False, False]),
    "test_mask": torch.tensor([False, True, True, False]),
}


def graph_file(folder: Path, kind: str, **changes: torch.Tensor) -> Path:
    content = GRAPH | changes
    path = folder / f"graph.{kind.partition(' ')[0]}"
    if kind == "pt":
        torch.save(Data(**content), path)
    elif kind == "pt dict":
        torch.save(content, path)
    elif kind == "pt processed":
        torch.save((Data(**content).to_dict(), None, Data), path)
    else:
        save = np.savez_compressed if "packed" in kind else np.savez
        order = np.asfortranarray if "fortran" in kind else np.asarray
        save(path, **{name: order(array.numpy()) for name, array in content.items()})
    return path


KINDS = ("pt", "pt dict", "pt processed", "npz", "npz packed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 1 << 22])
def test_a_data_of_pyg_brings_what_it_has(
    tmp_path: Path, kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("npz_stream", "import_edges"):
        monkeypatch.setattr(f"gatherbench.datasets.{module}.CHUNK", chunk)
    data = load(graph_file(tmp_path, kind), dim=None)
    assert data.indptr.tolist() == [0, 1, 2, 3, 3]
    assert data.indices.tolist() == [2, 0, 1]
    assert data.features.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert data.features.dtype == np.float32
    assert data.labels.tolist() == [1, 0, 2, -1]
    assert splits(data) == [[0], [], [1, 2]]
    assert not any("INVENTED" in note for note in data.spec.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_files_take_the_place_of_what_data_has(tmp_path: Path, kind: str) -> None:
    path = graph_file(tmp_path, kind, y=torch.zeros(1), x=torch.zeros(9, 9, 9))
    data = load(
        path,
        features=put(tmp_path, "x.pt", np.ones((4, 3), np.float16)),
        labels=put(tmp_path, "y.pt", [3, 2, 1, 0]),
        val=put(tmp_path, "val.txt", "3\n"),
        train=put(tmp_path, "train.txt", "2\n"),
    )
    assert data.features.tolist() == [[1, 1, 1]] * 4
    assert data.labels.tolist() == [3, 2, 1, 0]
    assert splits(data) == [[2], [3], []]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"edge_index": torch.tensor([[0, 1], [1, 4]])}, "edge 1 goes from 1 to 4, and node id 4"),
        ({"edge_index": torch.tensor([[0, -1], [1, 2]])}, "edge_index.*: edge 1 names node -1"),
        ({"edge_index": torch.zeros(2, 0, dtype=torch.long)}, "holds no edges"),
        ({"edge_index": torch.zeros(2, 3)}, "edge_index.* float"),
        ({"x": torch.zeros(3, 2)}, "how many nodes.*, x says 3, .*, y says 4"),
        ({"x": torch.zeros(4)}, ", .*x'?: holds float32"),
        ({"y": torch.zeros(4)}, ", .*y'?: holds float32 .*expected whole numbers"),
        ({"y": torch.tensor([0, 1, 2, -9])}, r", .*y'?: label 3 \(from 0\) is -9"),
        ({"train_mask": torch.zeros(4, 2, dtype=torch.bool)}, "train_mask'?: holds bool .4, 2.,"),
        ({"train_mask": torch.ones(3, dtype=torch.bool)}, "train_mask'?: holds bool .3,.,"),
    ],
)
def test_a_bad_data_is_explained_by_what_is_bad(
    tmp_path: Path, kind: str, changes: dict[str, torch.Tensor], complaint: str
) -> None:
    path = graph_file(tmp_path, kind, **changes)
    with pytest.raises(DatasetError, match=complaint) as refusal:
        load(path, dim=None)
    assert str(path) in str(refusal.value)
    assert "indptr" not in str(refusal.value)


def test_how_many_nodes_a_data_says(tmp_path: Path) -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    torch.save(Data(edge_index=edges, num_nodes=9), tmp_path / "d.pt")
    assert load(tmp_path / "d.pt").spec.num_nodes == 9
    torch.save(edges, tmp_path / "d.pt")
    assert load(tmp_path / "d.pt").spec.num_nodes == 2
    assert load(tmp_path / "d.pt", num_nodes=5).spec.num_nodes == 5


def test_tensors_that_numpy_cannot_take(tmp_path: Path) -> None:
    torch.save(torch.zeros(2, 2, dtype=torch.bfloat16), tmp_path / "x.pt")
    edges = put(tmp_path, "e.txt", "0 1\n")
    with pytest.raises(DatasetError, match=r"x\.pt, the tensor: .*tensor\.half\(\)"):
        load(edges, features=tmp_path / "x.pt")
    torch.save(torch.eye(2).to_sparse(), tmp_path / "x.pt")
    with pytest.raises(DatasetError, match=r"x\.pt, the tensor: NumPy cannot take it"):
        load(edges, features=tmp_path / "x.pt")
    torch.save({"a": torch.zeros(2), "b": 1.5}, tmp_path / "x.pt")
    with pytest.raises(DatasetError, match=r"x\.pt: expected one tensor, found a"):
        load(edges, features=tmp_path / "x.pt")
    with pytest.raises(DatasetError, match=r"x\.pt: has no edge_index; it has a"):
        load(tmp_path / "x.pt")
