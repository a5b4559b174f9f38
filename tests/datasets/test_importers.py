"""Importing graphs: all kinds of files give the same graph; bad ones are named to the column.

Labels, features and splits come from files or from beside the edges: whose node is whose?
"""

import gzip
import re
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
from gatherbench.datasets.asked import Import
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.registry import prepare_dataset
from gatherbench.datasets.store import DatasetError, open_dataset

# 0 -> 1, 0 -> 2, 3 -> 2, 2 -> 2, 4 -> 0, and one of them twice
EDGES = [(0, 1), (3, 2), (0, 2), (2, 2), (4, 0), (3, 2)]
EXPECTED = {0: [4], 1: [0], 2: [0, 2, 3], 3: [], 4: []}
PAIRS = np.array(EDGES).T


def in_neighbours(data: GraphDataset) -> dict[int, list[int]]:
    ends = zip(data.indptr[:-1], data.indptr[1:], strict=True)
    return {v: data.indices[begin:end].tolist() for v, (begin, end) in enumerate(ends)}


def splits(data: GraphDataset) -> list[list[int]]:
    return [data.train_ids.tolist(), data.val_ids.tolist(), data.test_ids.tolist()]


def load(path: Path, nodes: int = 0, **options: Any) -> GraphDataset:
    """Import and open; ``nodes``: labels say that there are as many."""
    if nodes:
        options["labels"] = put(path.parent, "zeros.npy", np.zeros(nodes, int))
    options.setdefault("header", False)
    asked = Import(path, "mine", force=True, **options)
    return open_dataset(import_graph(asked, path.parent), "full")


def refused(complaint: str, path: Path, **options: Any) -> None:
    """It is, in these words, which name the file; and nothing is left of it."""
    with pytest.raises(DatasetError, match=complaint):
        load(path, **options)
    assert not (path.parent / "mine").exists()


def put(folder: Path, name: str, content: Any) -> Path:
    """A file of text or bytes (gzipped if its name says so), or of an array or several."""
    path = folder / name
    if isinstance(content, str | bytes):
        raw = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    elif path.suffix == ".pt":
        torch.save(content if isinstance(content, dict) else torch.as_tensor(content), path)
    elif path.suffix == ".npz":
        np.savez(path, **content)
    else:
        np.save(path, np.asanyarray(content))
    return path


def lines(edges: Any = EDGES, separator: str = " ", base: int = 0) -> str:
    return "".join(f"{u + base}{separator}{v + base}\n" for u, v in edges)


# --- text -----------------------------------------------------------------------------------------

EDGE_LISTS = {
    "plain.txt": lines(),
    "gzipped.txt.gz": lines(),
    "tabs.tsv": "Source\tTarget\n" + lines(separator="\t"),
    "comma.csv": lines(separator=","),
    "header.csv.gz": "from_id, To Node\n" + lines(separator=", "),
    "semicolons.txt": lines(separator=" ; "),
    "named-columns.csv": "id,to,weight,from\n" + "".join(f"7,{v},x y,{u}\n" for u, v in EDGES),
    "comments.txt": "# SNAP says\n% KONECT says\n\n  # indented\n" + lines() + "# end\n% end\n",
    "windows.txt": lines().replace("\n", "\r\n"),
    "no-newline-at-the-end.txt": lines().rstrip("\n"),
    "leading-blanks.txt": "".join(f"   {u}   {v}  \n" for u, v in EDGES),
    "weights.txt": "".join(f"{u} {v} 0.5 x\n" for u, v in EDGES),
    "mark-header.csv": "\ufeffsrc,dst\n" + lines(separator=","),
    "mark.csv": "\ufeff" + lines(separator=","),
    "from-one.txt": lines(base=1),
    "leading-zeros.txt": "".join(f"{u:05d} {v:05d}\n" for u, v in EDGES),
}


@pytest.mark.parametrize("chunk", [1, 17, 16 << 20])
@pytest.mark.parametrize("name", EDGE_LISTS)
def test_edge_lists_of_every_kind(tmp_path, name, chunk, monkeypatch):
    monkeypatch.setattr(import_text, "_CHUNK_BYTES", chunk)
    assert in_neighbours(load(put(tmp_path, name, EDGE_LISTS[name]), dim=3)) == EXPECTED
    bad = EDGE_LISTS[name].rstrip("\n").replace("\r", "") + "\noops\n"
    line = bad.count("\n")
    with pytest.raises(
        DatasetError, match=rf"{name}: line {line}: has 1 columns, the first record has [24]"
    ):
        load(put(tmp_path, name, bad))


def test_undirected_edges_are_stored_both_ways(tmp_path):
    data = load(put(tmp_path, "e.txt", lines()), undirected=True)
    assert in_neighbours(data) == {0: [1, 2, 4], 1: [0], 2: [0, 2, 3], 3: [2], 4: [0]}
    assert "undirected, stored both ways" in data.spec.notes


def test_which_number_ids_count_from(tmp_path):
    path = put(tmp_path, "e.txt", "1 2\n2 3\n")
    assert load(path).spec.num_nodes == 3
    assert load(path, one_based=False).spec.num_nodes == 4
    assert load(path, nodes=3).spec.num_nodes == 3  # id 3 can only be the third
    assert in_neighbours(load(path, nodes=5, one_based=False))[2] == [1]
    with pytest.raises(
        DatasetError, match=r"from 1 to 3, and there are 5 .* --zero-based or --one"
    ):
        load(path, nodes=5)  # the last two nodes are in no edge, or the first and the last
    assert in_neighbours(load(path, nodes=5, one_based=True))[1] == [0]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("e.txt", "0 1\n1 x2\n", r"line 2, column 2: expected a target .*number\), found 'x2'"),
        ("e.txt", "0 1\n# c\n\nabc 1\n", r"line 4, column 1: .* found 'abc'"),
        ("e.txt", "0 1\n1 -2\n", r"line 2, column 2: target '-2' is too small: .* is 0"),
        ("e.txt", "0 1\n17 \n", r"line 2: has 1 columns, the first record has 2"),
        ("e.txt", "0 1\n1.5 2.0\n", r"line 2, column 1: .* found '1\.5'"),
        ("e.txt", "0 1\n1.000 2.000\n", r"line 2, column 1: .* found '1\.000'"),
        ("e.txt", "0 1\n1e-3 2\n", r"line 2, column 1: .* found '1e-3'"),
        ("e.txt", "0 1\n1 99999999999999999999\n", r"line 2, column 2: .*too large"),
        ("e.txt", "0 1\n1 2147483647\n", r"line 2, column 2: .*2147483647' is too large"),
        ("e.txt", "0 1\n0x1 2\n", r"line 2, column 1: .* found '0x1'"),
        ("e.txt", "0 1\n1_0 2\n", r"line 2, column 1: .* found '1_0'"),
        ("e.txt", "0 1\n1\0x 2\n", "is a binary file of an unknown kind"),
        ("e.txt", "0,1\n1 2\n", r"line 2: has 1 columns"),
        ("e.txt", "0 1\n1,2\n", r"line 2: has 1 columns"),
        ("e.csv", "0,1\n,2\n", r"line 2, column 1: .* found ''"),
        ("e.csv", "0,1\n1;2\n", r"line 2: has 1 columns"),
        ("e.csv", "id,source,target\n1,0\n", r"line 2: has 2 columns, the first record has 3"),
        ("e.csv.gz", "source,target\n1,q\n", r"line 2, column 2: .* found 'q'"),
        ("e.txt", "a b\n0 1\n", r"columns 'a', 'b': which is the source .* --source COLUMN"),
        ("e.txt", "a b\nb c\n", r"line 1, column 1: .* found 'a'"),
        ("e.txt", "# nothing\n\n", "holds no record"),
        ("e.csv", "source,target\n", "holds no edges"),
        ("e.txt", "0 1\n1 \xff\n", r".*UTF8.*iconv"),
        ("e.txt", "0 1\n" + "1" * (2 << 20), "line 2: is longer than .* is this text"),
    ],
    ids=lambda text: text[:20],
)
def test_the_first_bad_record_is_named(tmp_path, name, text, complaint):
    refused(rf"{name}.*: .*{complaint}", put(tmp_path, name, text.encode("latin-1")))


def test_ids_beyond_a_known_number_of_nodes_are_named(tmp_path):
    for text, line in (("0 1\n1 3\n2 2\n", 2), ("# c\n0 1\n\n1 2\n7 2\n", 5)):
        path = put(tmp_path, "e.txt", text)
        refused(rf"line {line}: edge .* is too large: there are 3 .* --relabel", path, nodes=3)
    path = put(tmp_path, "e.txt", "0 1\n")
    refused("line 1, column 1: source '0' is too small", path, one_based=True)


CELLS = [
    *("1", "+1", "-1", "-0", "1.0", "1.", "2e1", "1.5", "1.000", "007", "99", "100", " 3 ", '"7"'),
    *("x", "1#", "1e300", "nan", "inf", "0x1", "1_0", "é", "1;2"),
]


def whole(cell: str) -> int | None:
    """What an id is, said another way."""
    digits = cell.strip().strip('"').lstrip("+")
    if not re.fullmatch(r"-?[0-9]+(\.0?0?)?|[0-9]+e[0-9]+", digits):
        return None
    value = float(digits)
    return int(value) if 0 <= value <= 99 else None


@settings(max_examples=300, deadline=None)
@given(
    records=st.lists(st.tuples(*[st.sampled_from(CELLS)] * 2), min_size=1, max_size=3),
    separator=st.sampled_from([",", "\t"]),
)
def test_cells_are_read_as_whole_numbers_or_refused(records, separator, tmp_path_factory):
    path = tmp_path_factory.mktemp("e") / "e.csv"
    path.write_text("from" + separator + "to\n" + "\n".join(map(separator.join, records)) + "\n")
    table = import_text.look(path, None)
    roles = [import_text.Role("end", "--end", {name}, 0, 99) for name in ("from", "to")]
    expected = [[whole(cell) for cell in record] for record in records]
    if table.separator != separator or not table.header:
        return  # a word where numbers are expected, or another cut: refused elsewhere
    try:
        runs = [*table.read(roles, table.choose(roles, ["", ""]))]
        found = np.concatenate([np.array(run) for run in runs], axis=1).T.tolist()
    except DatasetError:
        found = None
    assert found == (None if any(None in record for record in expected) else expected)


@settings(max_examples=25, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60),
    undirected=st.booleans(),
)
def test_any_edge_list_is_its_scipy_matrix(tmp_path_factory, edges, undirected):
    path = put(tmp_path_factory.mktemp("e"), "e.txt", lines(edges))
    data = load(path, nodes=31, one_based=False, undirected=undirected)
    matrix = np.zeros((31, 31), bool)
    matrix[tuple(np.array(edges).T)] = True
    expected = scipy.sparse.csc_array(matrix | matrix.T if undirected else matrix)
    np.testing.assert_array_equal(data.indptr, expected.indptr)
    np.testing.assert_array_equal(data.indices, expected.indices)


def test_damaged_gzip_files(tmp_path):
    pairs = np.random.default_rng(0).integers(0, 999, (5000, 2))
    whole = gzip.compress(lines(pairs.tolist()).encode())
    for content in (whole[: len(whole) // 2], whole[:-4], whole[:500] + whole[600:]):
        path = tmp_path / "e.txt.gz"
        path.write_bytes(content)
        refused(r"e\.txt\.gz: the gzip file is cut short or damaged", path)


# --- MatrixMarket ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".mtx", "pattern"), (".mtx.gz", "real"), (".mtx", "complex")]
)
def test_matrix_market_as_scipy_writes_it(tmp_path, kind, suffix):
    plain = tmp_path / "m.mtx"
    matrix = compressed(scipy.sparse.coo_array)
    scipy.io.mmwrite(plain, matrix, field=kind, comment="a comment", symmetry="general")
    assert in_neighbours(load(put(tmp_path, f"m{suffix}", plain.read_bytes()))) == EXPECTED


def test_a_symmetric_matrix_counts_both_ways(tmp_path):
    text = "%%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n2 1\n3 3\n"
    assert in_neighbours(load(put(tmp_path, "m.mtx", text))) == {0: [1], 1: [0], 2: [2]}


BANNER = "%%MatrixMarket matrix coordinate pattern general\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("%%MatrixMarket matrix array real general\n3 3\n", "found 'array'"),
        (BANNER + "3 3\n", "cannot be read as MatrixMarket"),
        (BANNER + "3 4 1\n1 1\n", "square, this is 3 by 4"),
        (BANNER + "% c\n3 3 2\n1 1\n", "Truncated file. Expected another 1"),
        (BANNER + "3 3 1\n1 1\n2 2\n", "Line 4: Too many lines"),
        (BANNER + "3 3 1\n% c\n4 1\n", "cannot be read as MatrixMarket .*Line|Invalid"),
        (BANNER + "3 3 1\n1 0\n", "Line 3: Column index out of bounds"),
        (BANNER + "3 3 1\n1\n", "cannot be read as MatrixMarket"),
        (BANNER + "0 0 0\n", "0 rows and 0 entries cannot be in this file"),
    ],
)
def test_bad_matrix_market_files(tmp_path, text, complaint):
    refused(rf"m\.mtx.*{complaint}", put(tmp_path, "m.mtx", text))


# --- arrays ---------------------------------------------------------------------------------------


def compressed(kind: Any) -> Any:
    source, target = np.array(sorted(set(EDGES))).T
    return kind((np.ones(len(source)), (source, target)), shape=(5, 5))


@pytest.mark.parametrize("said", ["csc", "csr"])
def test_compressed_arrays(tmp_path, said):
    matrix = compressed(scipy.sparse.csc_array if said == "csc" else scipy.sparse.csr_array)
    scipy.sparse.save_npz(tmp_path / "m.npz", matrix)  # which says of itself what it is
    assert in_neighbours(load(tmp_path / "m.npz")) == EXPECTED
    arrays = {"indptr": matrix.indptr, "indices": matrix.indices.astype(np.uint64)}
    for name, array in arrays.items():
        put(tmp_path, f"g.{name}.npy", array)
    assert in_neighbours(load(tmp_path / "g.indptr.npy", csr=said == "csr")) == EXPECTED
    plain = put(tmp_path, "plain.npz", arrays)
    assert in_neighbours(load(plain, csr=said == "csr")) == EXPECTED


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("g.npz", {"indptr": [0, 1, 2], "indices": [0]}, "indptr: runs from 0 to 2, .* the 1 of"),
        ("g.npz", {"indptr": [1, 1], "indices": [0]}, "indptr: runs from 1 to 1"),
        ("g.npz", {"indptr": [0, 2, 1, 3], "indices": [0, 1, 2]}, "indptr: .*; entry 2 is smaller"),
        ("g.npz", {"indptr": [0, 1, 2], "indices": [0, 2]}, "indices: entry 1 is 2, no node of"),
        ("g.npz", {"indptr": [0, 1, 2], "indices": [0, -1]}, "indices: entry 1 is -1, no node"),
        ("g.npz", {"indptr": [0.0, 1.0], "indices": [0]}, "indptr: holds float64 .* whole numbers"),
        ("g.npz", {"indptr": [[0, 1]], "indices": [0]}, r"indptr: holds int64 \(1, 2\)"),
        ("g.npz", {"indptr": [0, 0], "indices": np.zeros(0, int)}, "holds no edges"),
        ("g.npz", {"indptr": [0, 1], "indices": [0], "shape": [1, 2]}, "shape: not that of a squ"),
        ("g.npz", {"rows": np.zeros(3)}, "holds rows; expected edge_index, or indptr"),
        ("g.npz", b"PK\3\4garbage", "cannot be read"),
        ("g.indptr.npy", b"\x93NUMPYgarbage", "cannot be read"),
        ("g.pt", {"a": torch.zeros(2), "b": 1.5}, "holds a, b; expected edge_index"),
        ("e.npy", np.zeros(3, int), "expected an edge_index, .* 'indptr' in its name"),
        ("e.npy", np.zeros((2, 3)), "holds float64"),
        ("e.npy", np.zeros((2, 0), int), "holds no edges"),
        ("e.npy", [[0, 1, 2], [0, 1, -7]], "edge 2 names node -7"),
        ("e.npy", [[0, 2**31], [0, 1]], "edge 1 names node 2147483648, .* number the nodes"),
    ],
)
def test_arrays_that_are_no_graph(tmp_path, name, content, complaint):
    refused(rf"{name}.*{complaint}", put(tmp_path, name, content))


def test_a_matrix_in_another_format_names_the_remedy(tmp_path):
    scipy.sparse.save_npz(tmp_path / "coo.npz", compressed(scipy.sparse.coo_array))
    refused(r"tocsc\(\)", tmp_path / "coo.npz")
    matrix = compressed(scipy.sparse.csc_array)
    arrays = {"indptr": matrix.indptr, "indices": matrix.indices, "format": b"bsr"}
    refused("a matrix in format 'bsr'", put(tmp_path, "bsr.npz", arrays))


@pytest.mark.parametrize("name", ["edge_index.npy", "edge_index.pt"])
def test_an_edge_index_of_pyg(tmp_path, name):
    for array in (PAIRS, PAIRS.T, PAIRS.astype(np.int32), np.asfortranarray(PAIRS)):
        assert in_neighbours(load(put(tmp_path, name, array))) == EXPECTED
    path = put(tmp_path, name, PAIRS + 1)
    assert in_neighbours(load(path, one_based=True)) == EXPECTED
    with pytest.raises(DatasetError, match=r"node id 5 is too large: .*; .* from 1, --one-based"):
        load(path, nodes=5)
    path = put(tmp_path, name, PAIRS)
    with pytest.raises(DatasetError, match=rf"{name}: edge \d+ names node 0, expected 1 to .*"):
        load(path, one_based=True)
    with pytest.raises(DatasetError, match=r"edge 1 goes from 3 to 2, and .* 3 is .*--relabel"):
        load(path, nodes=3)


def test_ids_with_gaps_are_numbered_by_rank(tmp_path):
    ids = np.array([3, 70, 71, 900, 2**31 - 2])  # of nodes 0 to 4
    features = put(tmp_path, "x.npy", np.arange(5.0).reshape(5, 1))
    text = put(tmp_path, "gaps.csv", lines(ids[PAIRS.T].tolist(), ","))
    with pytest.raises(DatasetError, match=r"line 1: edge 0 .*are 5 nodes.* --relabel"):
        load(text, features=features)
    small = put(tmp_path, "small.txt", lines([(9 * u + 4, 9 * v + 4) for u, v in EDGES]))
    for path in (small, put(tmp_path, "small.npy", PAIRS * 9)):
        data = load(path, features=features, relabel=True)
        assert in_neighbours(data) == EXPECTED
        assert data.features.tolist() == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert data.spec.notes[0] == "ids of the file numbered anew, in ascending order"
    with pytest.raises(DatasetError, match=r"how many nodes\? .* says 6, .*ids that occur.* 5"):
        load(small, nodes=6, relabel=True)


# --- features, names ------------------------------------------------------------------------------


def test_features_from_a_file(tmp_path):
    table = np.arange(35, dtype=np.float16).reshape(5, 7)
    features = put(tmp_path, "x.npy", np.asfortranarray(table))
    data = load(put(tmp_path, "e.txt", lines()), features=features)
    np.testing.assert_array_equal(data.features, table)
    assert data.features.dtype == np.float16


NAN = np.where(np.arange(10).reshape(5, 2) == 7, np.nan, 0.0)


@pytest.mark.parametrize(
    ("option", "name", "content", "complaint"),
    [
        ("features", "x.npy", np.zeros((4, 2)), "node id 4 is too large"),
        (
            "features",
            "x.npy",
            np.zeros((5, 2), np.uint16).view("V2"),
            "NumPy has no bfloat16: save float16",
        ),
        ("features", "x.npy", np.zeros(5), r"expected numbers of shape \[N, D\]"),
        ("features", "x.npy", NAN, r"/x\.npy: \[3, 1\] = nan is not finite$"),
        ("features", "x.pt", b"PK\3\4", r"x\.pt: cannot be read .* save it again"),
        ("features", "x.pt", torch.zeros(2, 2).bfloat16(), r"the tensor: .*tensor\.half\(\)"),
        ("features", "x.pt", torch.eye(2).to_sparse(), "the tensor: NumPy cannot take it"),
        ("features", "x.pt", {"a": torch.zeros(2)}, r"x\.pt: expected one array, found a"),
        ("features", "x.txt", "1 2\n", r"x\.txt: is text, .* numpy\.save it"),
        ("labels", "y.npy", np.zeros(5) + 0.5, r"label 0 \(from 0\) is 0\.5, expected a class"),
        ("labels", "y.npy", [0, 0, 0, -2, 0], r"label 3 \(from 0\) is -2"),
        ("labels", "y.txt", "0\n1\nsheep\n", "line 3, column 1: expected a class .* 'sheep'"),
        ("labels", "y.csv", "label\nlabel\n0\n", "line 1, .* found 'label'"),
        ("labels", "y.csv", "0\nlabel\n", "line 2, .* found 'label'"),
        ("labels", "y.csv", "label\n0\n\n1\n0\n0\n0\n", "line 3: is empty: write -1"),
        ("labels", "y.csv", "\n# c\n0\n1\n \n\n1\n0\n0\n", "line 5: is empty: write -1"),
        ("labels", "y.csv", "node,label\n4,1\n4,2\n", r"y\.csv: gives node 4 two labels"),
        ("labels", "y.csv", "node,label\n1,x\n", r"line 2, column 2: expected a class .* 'x'"),
        ("labels", "y.csv", "node,label\n1,-2\n", "line 2, column 2: class '-2' is too small"),
        ("labels", "y.csv", "node,label\n1,\n", "line 2, column 2: expected a class"),
        ("dim", "", 0, "width 0"),
        ("dtype", "", "float3", "expected one of float32"),
    ],
)
def test_bad_features_and_labels(tmp_path, option, name, content, complaint):
    given = put(tmp_path, name, content) if name else content
    refused(complaint, put(tmp_path, "e.txt", lines()), **{option: given})


def test_files_that_say_different_numbers_of_nodes(tmp_path):
    path, wide = put(tmp_path, "e.txt", lines()), put(tmp_path, "x.npy", np.zeros((5, 2)))
    refused("how many nodes", path, features=wide, nodes=3)
    refused("rows of width 2, but dim says 9", path, features=wide, dim=9)
    refused(r"nowhere\.npy: no such file", path, features=tmp_path / "nowhere.npy")


def test_names_that_are_taken(tmp_path):
    path = put(tmp_path, "e.txt", lines())
    with pytest.raises(DatasetError, match="name of a built-in dataset"):
        import_graph(Import(path, "products-like"), tmp_path)
    folder = import_graph(Import(path, "mine"), tmp_path)
    with pytest.raises(DatasetError, match="is there already"):
        import_graph(Import(path, "mine"), tmp_path)
    assert prepare_dataset("mine", root=tmp_path) == folder
    with pytest.raises(DatasetError, match="import it again"):
        prepare_dataset("mine", root=tmp_path, force=True)


# --- labels ---------------------------------------------------------------------------------------

LINE = "1 2\n2 3\n3 4\n"  # nodes 0 to 3, counted from 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("y.csv", "node,label\n4,1\n1,2\n"),
        ("y.csv", "label,node\n1,4\n2,1\n"),
        ("y.csv", "ID_,Class\n4,1\n1,2\n"),
        ("y.tsv", "id\tclass\n4\t1\n1\t2\n"),
        ("y.txt", "# a comment\n4 1\n1 2\n1 2\n"),
        ("y.csv", "4;1;x\n1;2;y\n3;-1;z\n"),
        ("y.csv", "node,label\n4,1.0\n1,2.0\n"),
        ("y.csv", "label\n2\n-1\n-1\n1\n\n \n\n"),
        ("y.txt", "# classes\n\n2\n-1\n-1\n1\n"),
        ("y.npy", np.array([[2], [-1], [-1], [1]], np.int8)),
        ("y.pt", [2, -1, -1, 1]),
    ],
)
def test_labels_by_node_or_in_the_order_of_nodes(tmp_path, name, content):
    """Ids as in the graph's file, which counts from 1; nodes not named have none."""
    data = load(put(tmp_path, "e.txt", LINE), labels=put(tmp_path, name, content), classes=3)
    assert data.labels.tolist() == [2, -1, -1, 1]
    assert data.spec.num_classes == 3
    for ids in splits(data):
        assert (data.labels[ids] >= 0).all(), "a seed node without a label cannot be trained on"


def test_labels_by_node_know_nodes_that_are_in_no_edge(tmp_path):
    edges, labels = put(tmp_path, "e.txt", "0 70\n70 9\n"), put(tmp_path, "y.csv", "9,1\n90,0\n")
    assert load(edges, labels=labels).spec.num_nodes == 91
    data = load(edges, labels=labels, relabel=True)  # 0, 9, 70 and 90
    assert data.labels.tolist() == [-1, 1, -1, 0]
    assert data.indptr.tolist() == [0, 0, 1, 2, 2]
    labels = put(tmp_path, "y.csv", "0,1\n")
    refusal = r"y\.csv: names node 0, which the graph does not have"
    with pytest.raises(DatasetError, match=refusal):
        load(put(tmp_path, "e.txt", LINE), labels=labels, one_based=True)


@pytest.mark.parametrize(
    ("labels", "told", "expected"),
    [
        ([0, 1, 2, 1], None, 3),
        ([0, 2, 2, 0], None, "the largest label is 2, and 2 .* class 1 never; say --classes 3 "),
        ([0, 2, 2, 0], 3, 3),
        ([0, 1, 0, 1], 7, 7),
        ([0, 1, 2, 1], 2, "has class 2, and --classes says 2"),
        ([-1, 1, -1, 1], None, "class 0 never; -1 is no class: are these -1 and 1 two"),
        ([-1, 1, -1, 1], 2, 2),
        ([-1, -1, -1, -1], None, "no node has a label"),
        (np.array([0, 1, 255, 1], np.uint8), None, "largest label is 255, and 3 .* class 2 never"),
        (
            np.array([0, 1, 2**64 - 1, 1], np.uint64),
            None,
            r"label 2 \(from 0\) is 18446744073709551615",
        ),
        (np.array([0, 1, np.inf, 1]), None, r"label 2 \(from 0\) is inf"),
        (np.array([0, 2**62, 1, 1]), None, r"label 1 \(from 0\) is 4611686018427387904"),
        (np.eye(4), None, r"expected whole numbers of shape \[4\]"),
    ],
)
def test_every_class_occurs_unless_it_is_said_how_many_there_are(tmp_path, labels, told, expected):
    path = put(tmp_path, "e.npy", np.array([[0, 1, 2, 3], [1, 2, 3, 0]]))
    given = put(tmp_path, "y.npy", labels)
    if isinstance(expected, str):
        refused(expected, path, labels=given, classes=told)
    else:
        assert load(path, labels=given, classes=told).spec.num_classes == expected


def test_whole_numbers_of_a_float_dtype_are_labels(tmp_path):
    """IGB has float32, and ogbn-papers100M NaN where there is none."""
    path = put(tmp_path, "e.npy", np.array([[0, 1, 2, 3], [1, 2, 3, 0]]))
    data = load(path, labels=put(tmp_path, "y.npy", np.array([1, np.nan, 0, 2], np.float32)))
    assert data.labels.tolist() == [1, -1, 0, 2]


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
def test_splits_by_ids_and_masks(tmp_path, train, val, test):
    files = dict(zip(("train", "val", "test"), (train, val, test), strict=True))
    given = {split: put(tmp_path, *file) for split, file in files.items()}
    data = load(put(tmp_path, "e.txt", LINE), **given)
    assert [sorted(ids) for ids in splits(data)] == [[0, 3], [1], [2]]
    assert data.spec.notes[5].startswith(f"splits from {train[0]}, {val[0]}, {test[0]}")


@pytest.mark.parametrize(
    ("edges", "train", "relabel", "expected"),
    [
        (LINE, [2, 3], False, [1, 2]),  # and what is not given is empty
        ("0 1\n", [0, 1], False, [0, 1]),  # two ids of two nodes are no mask
        ("0 1\n", [False, True], False, [1]),
        ("7 90\n90 7000\n", [7000, 7], True, [2, 0]),
    ],
)
def test_which_nodes_a_split_names(tmp_path, edges, train, relabel, expected):
    path, given = put(tmp_path, "e.txt", edges), put(tmp_path, "t.npy", train)
    assert splits(load(path, train=given, relabel=relabel)) == [expected, [], []]
    given = put(tmp_path, "t.npy", [8])
    with pytest.raises(DatasetError, match=r"t\.npy: names node 8, which the graph does not have"):
        load(path, train=given, relabel=relabel)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"val": [2]}, "no node to train on; say which with --train"),
        ({"train": np.zeros(4, bool)}, r"train\.npy: no node to train on"),
        ({"train": [1, 1]}, r"train\.npy: names a node twice"),
        ({"train": [1], "test": [2, 1]}, r"test\.npy: names a node twice, or one of another split"),
        ({"train": [0]}, r"train\.npy: names node 0, which the graph does not have"),
        ({"train": [True, False]}, r"holds bool \(2,\), expected .* or a mask of shape \[4\]"),
        ({"train": [[1], [2]]}, r"holds int64 \(2, 1\), expected node ids"),
        ({"train": [1.0]}, "holds float64"),
        ({"train": [3]}, r"train\.npy: node 2 \(from 0\) has no label"),
    ],
)
def test_bad_splits(tmp_path, files, complaint):
    given = {split: put(tmp_path, f"{split}.npy", ids) for split, ids in files.items()}
    labels = put(tmp_path, "y.txt", "0\n1\n-1\n0\n")
    refused(complaint, put(tmp_path, "e.txt", LINE), labels=labels, **given)


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
        save(path, **{name: array.numpy() for name, array in content.items()})
    return path


KINDS = ("pt", "pt dict", "pt processed", "npz", "npz packed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 1 << 22])
def test_a_data_of_pyg_brings_what_it_has(tmp_path, kind, chunk, monkeypatch):
    for module in ("npz_stream", "import_arrays"):
        monkeypatch.setattr(f"gatherbench.datasets.{module}.CHUNK", chunk)
    data = load(graph_file(tmp_path, kind))
    assert data.indptr.tolist() == [0, 1, 2, 3, 3]
    assert data.indices.tolist() == [2, 0, 1]
    assert data.features.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert data.features.dtype == np.float32
    assert data.labels.tolist() == [1, 0, 2, -1]
    assert splits(data) == [[0], [], [1, 2]]
    assert not any("INVENTED" in note for note in data.spec.notes)


@pytest.mark.parametrize("kind", ["pt", "npz"])
def test_files_take_the_place_of_what_data_has(tmp_path, kind):
    data = load(
        graph_file(tmp_path, kind, y=torch.zeros(1), x=torch.zeros(9, 9, 9)),
        features=put(tmp_path, "x.pt", np.ones((4, 3), np.float16)),
        labels=put(tmp_path, "y.pt", [3, 2, 1, 0]),
        val=put(tmp_path, "val.txt", "3\n"),
        train=put(tmp_path, "train.txt", "2\n"),
    )
    assert data.features.tolist() == [[1, 1, 1]] * 4
    assert data.labels.tolist() == [3, 2, 1, 0]
    assert splits(data) == [[2], [3], []]


@pytest.mark.parametrize("kind", ["pt", "npz"])
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"edge_index": torch.tensor([[0, 1], [1, 4]])}, "edge 1 goes from 1 to 4, and node id 4"),
        ({"edge_index": torch.tensor([[0, -1], [1, 2]])}, "edge_index.*: edge 1 names node -1"),
        ({"edge_index": torch.zeros(2, 0, dtype=torch.long)}, "holds no edges"),
        ({"edge_index": torch.zeros(2, 3)}, "edge_index.* float"),
        ({"x": torch.zeros(3, 2)}, ", x says 3, .*, y says 4"),
        ({"x": torch.zeros(4)}, ", x: holds float32"),
        ({"y": torch.full((4,), 0.5)}, r", y: label 0 \(from 0\) is 0\.5"),
        ({"train_mask": torch.zeros(4, 2, dtype=torch.bool)}, "train_mask: holds bool .4, 2.,"),
    ],
)
def test_a_bad_data_is_explained_by_what_is_bad(tmp_path, kind, changes, complaint):
    refused(rf"graph\.{kind}.*{complaint}", graph_file(tmp_path, kind, **changes))


def test_how_many_nodes_a_data_says(tmp_path):
    torch.save(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=9), tmp_path / "d.pt")
    assert load(tmp_path / "d.pt").spec.num_nodes == 9
