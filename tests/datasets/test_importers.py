"""Files as others write them: each gives the right graph, or is refused with what to do about it.

The right edges, labels and splits were worked out by hand.
"""

import bz2
import gzip
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data, InMemoryDataset

from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.import_options import Import
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.registry import prepare_dataset
from gatherbench.datasets.store import DatasetError, open_dataset

from .edges import edges_of

THREE = {(5, 7), (7, 9), (9, 2)}
RING = {(0, 1), (1, 2), (2, 0)}
PATH = {(0, 1), (1, 0), (1, 2), (2, 1)}
SQUARE = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
WHICH = "which is the source and which the target. Say --source COLUMN and --target COLUMN"
HEADER = r"a header. Say --header or --no-header"
QUOTE = "a quote is not closed on its line"
UNEVEN = r"Row #\d: Expected \d columns, got"
SIZES = "may be the sizes of a graph"
BASE = "from which number do they count. Say --zero-based or --one-based"
MANY_KINDS = "".join(f"{i} {i + 1} k{i}\n" for i in range(1001))
ZERO, ONE = {"one_based": False}, {"one_based": True}


def put(folder: Path, name: str, content: Any) -> Path:
    """A file of text, bytes, an array, or what a function writes to it."""
    path = folder / name
    if callable(content):
        with path.open("wb") as file:
            content(file)
    elif isinstance(content, str | bytes):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    else:
        np.save(path, np.asanyarray(content))
    return path


def saved(content: Any, **how: Any) -> Any:
    return lambda file: torch.save(content, file, **how)


def load(path: Path, **options: Any) -> GraphDataset:
    asked = Import(path, "mine", force=True, **options)
    return open_dataset(import_graph(asked, path.parent))


def refused(complaint: str, path: Path, **options: Any) -> None:
    """It is, in these words; and nothing is left of it."""
    with pytest.raises(DatasetError, match=complaint):
        load(path, **options)
    assert not (path.parent / "mine").exists()


def splits(data: GraphDataset) -> list[list[int]]:
    return [data.train_ids.tolist(), data.val_ids.tolist(), data.test_ids.tolist()]


TEXT: list[tuple[str, str | bytes, Any, dict[str, Any]]] = [
    # Headers: known names are taken wherever they stand, others have to be told.
    ("r.csv", '"","from","to"\n"1",5,7\n"2",7,9\n"3",9,2\n', THREE, {}),
    ("pandas.csv", ",paper,cites\n0,5,7\n1,7,9\n", WHICH, {}),
    ("pandas.csv", ",paper,cites\n0,5,7\n1,7,9\n2,9,2\n", THREE,
     {"source": "paper", "target": "3"}),
    ("time.csv", "time,src_ip,dst_ip\n11,5,7\n12,7,9\n", WHICH, {}),
    ("two.csv", "id_1,id_2\n5,7\n7,9\n", WHICH, {}),
    ("both.csv", "source,src,target\n5,1,7\n7,1,9\n", "which is the source. Say --source", {}),
    ("cora.csv", "cited,citing\n7,5\n9,7\n2,9\n", THREE, {}),
    ("neo4j.csv", ":START_ID,:END_ID,:TYPE\n5,7,A\n7,9,A\n9,2,A\n", THREE, {}),
    ("blanks.csv", "from_id, To Node\n5, 7\n7, 9\n9, 2\n", THREE, {}),
    ("no.csv", "source,target\n5,7\n", "columns 'source', 'target': no column 'x' for --source",
     {"source": "x"}),
    # A header of numbers, as pandas writes it: ambiguous.
    ("n.csv", "0,1\n5,7\n7,9\n9,2\n", HEADER, {}),
    ("n.csv", "0,1\n5,7\n7,9\n9,2\n", THREE, {"header": True}),
    ("n.csv", "0,1\n1,2\n2,0\n", RING, {"header": False}),
    ("n.csv", ",0,1\n0,5,7\n1,7,9\n", WHICH, {}),
    ("n.csv", '"1","2"\n5,7\n7,9\n', HEADER, {}),
    # What is told of the header is done, though it looks otherwise.
    ("told.csv", "1,0\n0,1\n1,2\n2,0\n", RING, {"header": True}),
    ("told.csv", "source,target\n0,1\n", "invalid value 'source'", {"header": False}),
    ("snap.txt", "# FromNodeId\tToNodeId\n0\t1\n1\t2\n2\t0\n", RING, {}),
    # Without a header: source and target, where there is no other column.
    ("plain.txt", "5 7\n7 9\n9 2", THREE, {}),
    ("weights.txt", "5 7 0.5\n7 9 1\n", WHICH, {}),
    ("weights.txt", "5 7 0.5\n7 9 1\n9 2 .25\n", THREE, {"source": "1", "target": "2"}),
    ("comment.txt", "# dst src\n7 5\n9 7\n2 9\n", THREE, {}),
    # Excel, NumPy, R, other alphabets and ends of lines.
    ("excel.csv", "\ufeffsource;target;w\r\n5;7;0,5\r\n7;9;1,5\r\n9;2;2\r\n", THREE, {}),
    ("mark.csv", "\ufeff5,7\n7,9\n9,2\n", THREE, {}),
    ("mac.csv", "source,target\r5,7\r7,9\r9,2\r", THREE, {}),
    ("windows.csv", "source,target,gr\xf6\xdfe\n5,7,1\n7,9,1\n9,2,1\n".encode("cp1252"), THREE,
     ZERO),
    ("quotes.csv", '"source","target"\n"5","7"\n"7","9"\n"9","2"\n', THREE, {}),
    ("thousands.csv", "source;target\n5;7\n7;1.000\n", "Row #3: .* '1.000'.*pandas.read_csv", {}),
    ("floats.csv", "source,target\n5.0,7.0\n", "Row #2: .* '5.0'", {}),
    ("gap.csv", "source,target\n5,7\n7,\n", "#1: Row #3: .* ''", {}),
    ("negative.csv", "source,target\n5,-7\n7,1\n", "targets: entry 0 .* is -7", ZERO),
    ("large.csv", "source,target\n5,2147483648\n", "'2147483648'.*below 2..31 - 1", {}),
    ("largest.csv", "source,target\n0,2147483647\n", "by its ids it has 2,147,483,647 nodes", {}),
    ("names.txt", "ada bob\nbob cem\n", "invalid value 'ada'", {}),
    ("runs.txt", "  5   7\n  7   9\n", WHICH, {}),
    ("movielens.dat", "1::1193::5\n1::661::3\n", "1 columns, no header: which is the source", {}),
    ("latin.csv", b"source,target,k\n0,1,\xff\n", "UTF8", {"relations": "k"}),
    ("nothing.txt", "# nothing\n\n", "holds no record", {}),
    ("header.csv", "source,target\n", "holds no edges", {}),
    # A quote that is not closed on its line would join records.
    ("open.tsv", '5\t7\tis\n7\t9\t"x\n9\t2\ty"\n', QUOTE, {"relations": "3"}),
    ("open.csv", 'source,target,k\n5,7,"x\n7,9,y"\n9,2,z\n', QUOTE, {}),
    ("late.tsv", '5\t7\tis\n7\t9\tis\n9\t2\t"x\n2\t5\ty"\n', QUOTE, {"relations": "3"}),
    ("last.tsv", '5\t7\tx\n7\t9\tx\n9\t2\t"y\n', THREE, {"relations": "3"}),
    ("inch.tsv", 'source\ttarget\tk\n5\t7\t5" pipe\n7\t9\t"a ""b"""\n9\t2\t"x\t"""\n', THREE,
     {"relations": "3"}),
    # Tabs cut where there are tabs, and only at a line's start a comment begins.
    ("cells.tsv", "source\tw\ttarget\n5\t\t7\n7\t1\t9\n9\t\t2\n", THREE, {}),
    ("index.tsv", "\tsource\ttarget\n0\t5\t7\n1\t7\t9\n2\t9\t2\n", THREE, {}),
    ("blanks.tsv", "source\tname\ttarget\n5\tAda L\t7\n7\tBob\t9\n9\tC D\t2\n", THREE, {}),
    ("hash.csv", "src,dst,tag\n5,7,#a\n7,9,50%\n9,2,C#\n", THREE, {}),
    ("late.txt", "0 1\n# c\n1 2\n", "invalid value '#'", {}),
    # A column has one use.
    ("hrt.tsv", "0\t3\t1\n1\t2\t2\n2\t3\t0\n", RING, {"relations": "2"}),
    ("four.tsv", "0\t3\t1\t2014\n1\t2\t2\t2015\n", WHICH, {"relations": "2"}),
    ("no.txt", "0 1\n1 2\n", "no column '3' for --relations", {"relations": "3"}),
    ("many.txt", MANY_KINDS, "1,001 kinds of edges", {"relations": "3"}),
    ("twice.csv", "a,b\n0,1\n", "one each for source, target", {"source": "a", "target": "1"}),
    ("twice.csv", "src,dst\n0,1\n1,2\n", "source, target, relation", {"relations": "dst"}),
    ("k.csv", "src,dst,k\n0,1,a\n1,2,inverse a\n", "its inverse",
     {"relations": "k", "undirected": True}),
    # Adjacency lists, METIS, lines of sizes.
    ("metis.graph", "4 4\n2 3\n1 3\n1 2 4\n3\n", UNEVEN, {}),
    ("metis-ring.graph", "4 4\n2 4\n1 3\n2 4\n3 1\n", SIZES, {}),
    ("sizes.txt", "3 3\n0 1\n1 2\n2 0\n", SIZES, {}),
    ("sizes.txt", "3 2 3\n1 2 0.5\n2 3 1\n3 1 1\n", SIZES, {"source": "1", "target": "2"}),
    ("digits.txt", f"0 1 {'9' * 5000}\n1 2 3\n", {(0, 1), (1, 2)}, {"source": "1", "target": "2"}),
    ("sizes.txt", "2 1\n0 2\n", {(2, 1), (0, 2)}, {"header": False}),
    ("openke.txt", "3\n0 1 0\n1 2 1\n", "1 columns", {}),
    ("a.adj", "0 1 2\n1 2\n2 0\n", HEADER, {}),
    ("short.csv", "source,target,w\n0,1,2\n1,2\n", "Row #3: Expected 3 columns, got 2", {}),
    # What a file says of itself.
    ("und.txt", "# Undirected graph: x\n0\t1\n1\t2\n", "it says 'undirected': say --undir", {}),
    ("und.txt", "# Undirected graph: x\n0\t1\n1\t2\n", PATH, {"undirected": True}),
    ("und.txt", "# undirected\n0 1\n1 2\n2 0\n", RING, {"undirected": False}),
    ("gephi.csv", "Source,Target,Type\n0,1,Undirected\n1,2,Undirected\n", "'undirected': say", {}),
    ("out.sym", "% sym unweighted\n% 2 3 3\n1 2\n2 3\n", "say --undirected or --directed", {}),
    ("out.sym", "% sym unweighted\n% 2 3 3\n1 2\n2 3\n", PATH, {"undirected": True} | ONE),
    ("out.bip", "% bip unweighted\n1 1\n2 1\n2 2\n", "says? that it is bipartite", {}),
    ("one.txt", "1 2\n2 3\n3 1\n", BASE, {}),
    ("one.txt", "1 2\n2 3\n3 1\n", RING, ONE),
    ("one.txt", "1 2\n2 3\n3 0\n", "targets: entry 2 .* is 0, and nodes are 1 to 3", ONE),
    # MatrixMarket under any name; one per cent sign, as in the network repository.
    ("a.edges", "%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n2 1\n3 2\n", PATH, {}),
    ("a.txt", "%%MatrixMarket matrix coordinate real general\n3 3 3\n1 2 .5\n2 3 1\n3 1 1\n",
     RING, {}),
    ("a.MTX", "%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 2\n2 1 5\n3 2 1\n", PATH,
     {}),
    ("a.mm", "%%MatrixMarket matrix coordinate pattern general\n3 3 9\n1 2\n", "Truncated file",
     {}),
    *(
        ("a.mtx", "%%MatrixMarket matrix coordinate pattern symmetric\n2 2 1\n2 1\n", said, told)
        for said, told in (
            ("leave --zero-based and --directed out", {"one_based": False}),
            ("leave --zero-based and --directed out", {"undirected": False}),
            ("is not text: leave --source, --target and --header out", {"source": "2"}),
        )
    ),
    ("a.mtx", "%%MatrixMarket matrix array real general\n2 2\n1\n1\n1\n1\n", "2 by 2, array", {}),
    ("a.mtx", "%%MatrixMarket matrix coordinate pattern general\n3 4 1\n1 1\n", "3 by 4", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "expected", "options"), TEXT)
def test_text_is_read_right_or_refused_with_the_remedy(tmp_path, name, content, expected, options):
    path = put(tmp_path, name, content)
    options = ZERO | options if expected == THREE else options
    if isinstance(expected, str):
        refused(rf"{name}.*{expected}", path, dim=1, **options)
    else:
        assert set(edges_of(load(path, dim=1, **options))) == expected


@settings(max_examples=20, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60),
    undirected=st.booleans(),
)
def test_any_edge_list_is_its_scipy_matrix(tmp_path_factory, pairs, undirected):
    folder = tmp_path_factory.mktemp("e")
    text = "source,target\n" + "".join(f"{u},{v}\n" for u, v in pairs)
    labels = put(folder, "y.npy", np.zeros(31, int))
    path = put(folder, "e.csv", text)
    data = load(path, dim=1, labels=labels, one_based=False, undirected=undirected)
    matrix = np.zeros((31, 31), bool)
    matrix[tuple(np.array(pairs).T)] = True
    expected = scipy.sparse.csc_array(matrix | matrix.T if undirected else matrix)
    np.testing.assert_array_equal(data.indptr, expected.indptr)
    np.testing.assert_array_equal(data.indices, expected.indices)


def test_the_import_says_what_it_took(tmp_path):
    path = put(tmp_path, "e.csv", "id,to,from\n0,7,5\n1,9,7\n")
    assert load(path, one_based=False).spec.notes[6] == (
        "e.csv: text cut at commas, with a header: source 'from', target 'to', of 3 columns"
    )


OTHERS = {
    "e.txt.gz": (gzip.compress(b"0 1\n"), "gzip.* gunzip"),
    "e.bz2": (bz2.compress(b"0 1\n"), "bz2.* bunzip2"),
    "e.zip": (lambda f: zipfile.ZipFile(f, "w").writestr("e.txt", "0 1\n"), "zip archive.* unzip"),
    "e.parquet": (lambda f: pd.DataFrame({"a": [1]}).to_parquet(f), "Parquet.* to_csv"),
    "e.mat": (lambda f: scipy.io.savemat(f, {"a": np.eye(2)}), "MATLAB.*loadmat"),
    "e.pkl": (pickle.dumps({"a": 1}), "pickle.* numpy.save"),
    "u.csv": ("source,target\r\n0,1\r\n".encode("utf-16"), "UTF-16.* iconv"),
    "le.csv": ("source,target\r\n0,1\r\n".encode("utf-16-le"), "UTF-16.* iconv"),
    "e.graphml": ('<?xml version="1.0"?><graphml/>', "GraphML.*write_edgelist"),
    "e.json": (json.dumps({"nodes": [], "links": []}), "JSON.*write_edgelist"),
    "e.dot": ("digraph G {\n0 -> 1;\n}\n", "DOT"),
    "e.net": ("*Vertices 2\n1\n2\n*Arcs\n1 2\n", "Pajek"),
    "e.col": ("c comment\np edge 3 1\ne 1 2\n", "DIMACS"),
    "e.safetensors": (b"\x13" + bytes(7) + b'{"a": {"dtype": ""}', "binary file of an unknown"),
    "e.bin": (b"0 1\n1\0x 2\n", "binary file of an unknown kind"),
    "not-there.txt": (None, "no such file"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_another_kind_are_called_what_they_are(tmp_path, name):
    content, words = OTHERS[name]
    path = put(tmp_path, name, content) if content is not None else tmp_path / name
    refused(f"{name}: .*{words}", path)


# --- arrays ---------------------------------------------------------------------------------------

GRAPH = {
    "edge_index": torch.tensor([[0, 1, 2], [1, 2, 0]]),
    "x": torch.arange(8.0).reshape(4, 2),
    "y": torch.tensor([[1], [0], [2], [-1]]),
    "train_mask": torch.tensor([True, False, False, False]),
    "test_mask": torch.tensor([False, True, True, False]),
}
KINDS = ("pt", "pt dict", "pt processed", "npz", "npz packed", "folder")


def graph_file(folder: Path, kind: str, **changes: torch.Tensor) -> Path:
    content = GRAPH | changes
    arrays = {name: array.numpy() for name, array in content.items()}
    path = folder / f"graph.{kind.partition(' ')[0]}"
    if kind == "pt":
        torch.save(Data(**content), path)
    elif kind == "pt dict":
        torch.save(content, path)
    elif kind == "pt processed":
        torch.save((Data(**content).to_dict(), None, Data), path)
    elif kind == "folder":
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
    else:
        (np.savez_compressed if "packed" in kind else np.savez)(path, **arrays)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_data_of_pyg_brings_what_it_has(tmp_path, kind):
    data = load(graph_file(tmp_path, kind))
    assert set(edges_of(data)) == RING
    assert data.features.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert data.features.dtype == np.float32
    assert data.labels.tolist() == [1, 0, 2, -1]
    assert splits(data) == [[0], [], [1, 2]]
    assert not any("INVENTED" in note for note in data.spec.notes)


def test_files_take_the_place_of_what_data_has(tmp_path):
    data = load(
        graph_file(tmp_path, "pt", y=torch.zeros(1), x=torch.zeros(9, 9, 9)),
        features=put(tmp_path, "x.pt", saved(torch.ones(4, 3).half())),
        labels=put(tmp_path, "y.pt", saved(torch.tensor([3, 2, 1, 0]))),
        val=put(tmp_path, "val.npy", [3]),
        train=put(tmp_path, "train.npy", [2]),
    )
    assert data.features.tolist() == [[1, 1, 1]] * 4
    assert data.labels.tolist() == [3, 2, 1, 0]
    assert splits(data) == [[2], [3], []]


@pytest.mark.parametrize("kind", ["pt", "npz"])
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"edge_index": torch.tensor([[0, 1], [1, 4]])},
         "targets: entry 1 .* is 4.*0 to 3, as many"),
        ({"edge_index": torch.tensor([[0, -1], [1, 2]])}, "sources: entry 1 .* is -1"),
        ({"edge_index": torch.zeros(2, 0, dtype=torch.long)}, "holds no edges"),
        ({"edge_index": torch.zeros(2, 3)}, "edge_index: holds float32"),
        ({"x": torch.zeros(3, 2)}, ", x says 3, .*, y says 4"),
        ({"x": torch.zeros(4)}, ", x: holds float32"),
        ({"y": torch.full((4,), 0.5)}, r", y: label 0 \(from 0\) is 0\.5"),
        ({"train_mask": torch.zeros(4, 2, dtype=torch.bool)}, "train_mask: holds bool .4, 2.,"),
        ({"num_nodes": torch.tensor([3, 4])}, r"num_nodes: holds int64 \(2,\)"),
    ],
)  # fmt: skip
def test_a_bad_data_is_explained_by_what_is_bad(tmp_path, kind, changes, complaint):
    refused(complaint, graph_file(tmp_path, f"{kind} dict" if kind == "pt" else kind, **changes))


def test_an_edge_index_lies_either_way_and_says_from_where_it_counts(tmp_path):
    for array in (SQUARE, SQUARE.T, np.asfortranarray(SQUARE), SQUARE.astype(np.uint8)):
        found = edges_of(load(put(tmp_path, "e.npy", array)))
        assert set(found) == {(0, 1), (1, 2), (2, 3), (3, 0)}
    path = put(tmp_path, "e.npy", SQUARE + 1)
    assert load(path).spec.num_nodes == 5
    assert load(path, one_based=True).spec.num_nodes == 4
    torch.save(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=9), tmp_path / "d.pt")
    assert load(tmp_path / "d.pt").spec.num_nodes == 9


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("m.npz", lambda f: scipy.sparse.save_npz(f, scipy.sparse.eye_array(3)), r"\.nonzero\(\)"),
        ("e.npy", b"\x93NUMPYgarbage", "cannot be read"),
        ("e.npz", b"PK\3\4garbage", "cannot be read"),
        ("e.npy", np.zeros(3, int),
         r"holds int64 \(3,\), expected whole numbers of shape \[2, any"),
        ("e.npy", [[0, 2**31], [0, 1]], "by its ids it has 2,147,483,647 nodes"),
        ("e.npy", [[-5], [-3]], "sources: entry 0 .* is -5"),
        ("e.pt", saved({"a": torch.zeros(2)}), "holds a; expected edge_index"),
        ("e.pt", saved(InMemoryDataset.collate([Data(x=torch.ones(n, 1)) for n in (3, 4)])),
         "holds 2 graphs"),
        ("e.pt", saved([Data(x=torch.ones(n, 1)) for n in (3, 4, 5)]),
         "holds 3 graphs.* Batch.from_data_list"),
        ("e.pt", saved((GRAPH["edge_index"], GRAPH["y"])), "holds 2 graphs or tensors"),
        ("e.pt", saved(()), "holds 0 graphs or tensors"),
        ("e.pt", saved(Batch.from_data_list([Data(x=torch.ones(3, 1))])), "asks for .*Batch"),
        ("e.pt", saved(Data(x=torch.ones(3, 1)), pickle_protocol=4), "without pickle_protocol"),
        ("e.pt", saved(Data(), _use_new_zipfile_serialization=False), "old form"),
        ("e.pt", saved({"edge_index": torch.tensor([[0], [1]]), "train_mask": ["a"]}),
         r"train_mask: cannot be read \(a list\)"),
        ("e.pt",
         saved({"edge_index": torch.tensor([[0], [1]]), "x": torch.ones(2, 1).bfloat16()}),
         r"x: cannot be read .*tensor\.half\(\)"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_graph(tmp_path, name, content, complaint):
    refused(rf"{name}.*{complaint}", put(tmp_path, name, content))


def test_lists_are_masks_and_fields_that_are_not_used_are_named(tmp_path):
    mask, rest = [True, False, True], {"edge_attr": torch.ones(3, 1), "pos": torch.ones(3, 2)}
    data = Data(edge_index=GRAPH["edge_index"], y=torch.arange(3), train_mask=mask, **rest)
    data = load(put(tmp_path, "d.pt", saved(data)))
    assert data.train_ids.tolist() == [0, 2]
    assert data.spec.notes[6] == "d.pt: edge_index; not used: edge_attr, pos"


def test_a_data_of_pyg_1_is_read(tmp_path, monkeypatch):
    class Old:
        pass

    Old.__module__, Old.__qualname__ = "torch_geometric.data.data", "Data"
    monkeypatch.setattr("torch_geometric.data.data.Data", Old)
    old = Old()
    old.__dict__.update(GRAPH, edge_attr=None)
    path = put(tmp_path, "old.pt", saved((old, None)))
    monkeypatch.undo()
    data = load(path)
    assert set(edges_of(data)) == RING
    assert data.labels.tolist() == [1, 0, 2, -1]


# --- features, labels, splits ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ">f4", np.uint8])
def test_features_from_a_file(tmp_path, dtype):
    table = np.arange(28, dtype=dtype).reshape(4, 7)
    features = put(tmp_path, "x.npy", np.asfortranarray(table))
    data = load(put(tmp_path, "e.npy", SQUARE), features=features)
    np.testing.assert_array_equal(data.features, table)
    assert data.features.dtype == np.dtype(dtype).newbyteorder("<")


@pytest.mark.parametrize(
    ("option", "name", "content", "complaint"),
    [
        ("features", "x.npy", np.zeros((3, 2)), "sources: entry 3 .* is 3, and nodes are 0 to 2"),
        ("features", "x.npy", np.zeros(4), r"holds float64 \(4,\)"),
        ("features", "x.npy", np.ones((4, 2), np.longdouble), "of dtype float16, float32"),
        ("features", "x.npy", np.ones((4, 2), np.uint16), "of dtype float16, float32"),
        ("features", "x.npy", np.zeros((4, 2), "V2"), "of dtype float16, float32"),
        ("features", "x.npy", [[1, 2], [1, np.nan], [1, 2], [1, 2]],
         r"x\.npy: \[1, 1\] = nan is not"),
        ("features", "x.npz", lambda f: np.savez(f, a=[1]), "expected one array, found a"),
        ("features", "x.txt", "1 2\n", "is text, .* numpy.save it"),
        ("labels", "y.npy", [0.5, 0, 0, 0], r"label 0 \(from 0\) is 0\.5, expected a class"),
        ("labels", "y.npy", [0, 0, 0, -2], r"label 3 \(from 0\) is -2"),
        ("labels", "y.npy", np.array([0, 1, 2**64 - 1, 1], "u8"), "is 18446744073709551615"),
        ("labels", "y.npy", [-1, -1, -1, -1], "no node has a label"),
        ("labels", "y.npy", [0, 2, 2, 0], "largest label is 2, and 2 different .*--classes 3"),
        ("labels", "y.npy", [-1, 1, -1, 1], "are these -1 and 1 two"),
        ("labels", "y.npy", np.array([0, 1, 255, 1], "u1"), "largest label is 255"),
        ("labels", "y.npy", np.eye(4), r"of shape \[any\]"),
        ("labels", "y.csv", "node,label\n3,1\n0,2\n", "is text, .* numpy.save it"),
        ("train", "t.txt", "3\n1\n", "is text, .* numpy.save it"),
        ("train", "t.npy", [0, 1, 0, 1], r"t\.npy: names a node twice"),  # 1, 3 as a mask?
        ("train", "t.npy", [4], "entry 0 .* is 4, and nodes are 0 to 3"),
        ("train", "t.npy", [True, False], r"holds bool \(2,\), expected .* of shape \[4\]"),
        ("train", "t.npy", [[1], [2]], r"holds int64 \(2, 1\)"),
        ("train", "t.npy", [False] * 4, "no node to train on"),
        ("val", "t.npy", [2], "no node to train on; say which with --train"),
        ("dim", "", 0, "width 0"),
        ("classes", "", 0, "--classes 0: expected 1 or more"),
        ("dtype", "", "float3", "expected one of float32"),
    ],
)  # fmt: skip
def test_bad_features_labels_and_splits(tmp_path, option, name, content, complaint):
    chosen = put(tmp_path, name, content) if name else content
    refused(complaint, put(tmp_path, "e.npy", SQUARE), **{option: chosen})


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("y.npy", np.array([[2], [0], [-1], [1]], np.int8), {}),
        ("y.npy", np.array([2, 0, np.nan, 1], np.float32), {}),
        ("y.pt", saved(torch.tensor([2, 0, -1, 1])), {}),
    ],
)
def test_labels_in_the_order_of_nodes(tmp_path, name, content, options):
    labels = put(tmp_path, name, content)
    data = load(put(tmp_path, "e.npy", SQUARE), labels=labels, **options)
    assert data.labels.tolist() == [2, 0, -1, 1]
    assert data.spec.num_classes == 3
    for ids in splits(data):
        assert (data.labels[ids] >= 0).all(), "a seed node without a label cannot be trained on"


def test_ids_of_splits_count_as_those_of_edges(tmp_path):
    path = put(tmp_path, "e.txt", "1 2\n2 3\n3 4\n")
    train, labels = put(tmp_path, "t.npy", [2, 3]), put(tmp_path, "y.npy", [-1, 0, 1, -1, 0])
    data = load(path, labels=labels, train=train, one_based=True)  # node 5 is in no edge
    assert splits(data) == [[1, 2], [], []]
    with pytest.raises(DatasetError, match=r"t\.npy: node 0 \(from 0\) has no label"):
        load(path, labels=labels, train=put(tmp_path, "t.npy", [1]), one_based=True)


@pytest.mark.parametrize("train", [[3, 1], [False, True, False, True]])
def test_splits_are_ids_or_masks(tmp_path, train):
    path, file = put(tmp_path, "e.npy", SQUARE), put(tmp_path, "t.npy", train)
    assert sorted(load(path, train=file).train_ids.tolist()) == [1, 3]


def test_no_node_to_train_on_is_said_at_import(tmp_path):
    """Node 0 has the one label, and nothing leads to it."""
    labels = put(tmp_path, "y.npy", np.array([0, -1]))
    refused("none to train on", put(tmp_path, "e.npy", np.array([[0], [1]])), labels=labels)


def test_how_many_classes_there_are_may_be_said(tmp_path):
    path, labels = put(tmp_path, "e.npy", SQUARE), put(tmp_path, "y.npy", [-1, 1, -1, 1])
    assert load(path, labels=labels, classes=2).spec.num_classes == 2
    with pytest.raises(DatasetError, match="has class 1, and --classes says 1"):
        load(path, labels=labels, classes=1)


def test_names_that_are_taken(tmp_path):
    path = put(tmp_path, "e.npy", SQUARE)
    with pytest.raises(DatasetError, match="name of a built-in dataset"):
        import_graph(Import(path, "products-like"), tmp_path)
    folder = import_graph(Import(path, "mine"), tmp_path)
    with pytest.raises(DatasetError, match="is there: choose"):
        import_graph(Import(path, "mine"), tmp_path)
    assert prepare_dataset("mine", root=tmp_path) == folder
    with pytest.raises(DatasetError, match="import it again"):
        prepare_dataset("mine", root=tmp_path, force=True)


# --- sizes ----------------------------------------------------------------------------------------


def test_features_are_not_invented_for_gaps_between_ids(tmp_path):
    path = put(tmp_path, "e.txt", "0 1\n1 2200000\n")
    refused("by its ids it has 2,200,001 nodes, .* return_inverse=True", path)
    assert load(path, dim=1, dtype="int8").spec.num_nodes == 2_200_001


def test_what_memory_cannot_hold_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_MEMORY_GIB", "0.0000001")  # 107 bytes; 3 edges take 48
    assert load(put(tmp_path, "e.npy", np.array([[0, 1, 2], [1, 2, 0]]))).spec.num_edges == 3
    monkeypatch.setattr(np, "subtract", lambda *_: pytest.fail("it is read"))
    for path in (
        put(tmp_path, "f.npy", np.zeros((2, 7), int)),
        put(tmp_path, "e.txt", "0 1\n" * 99),
        put(tmp_path, "e.mtx", "%%MatrixMarket matrix coordinate pattern general\n9 9 9\n1 2\n"),
    ):
        with pytest.raises(
            DatasetError, match=r"its (edges|records) need about [\d,]+ bytes of mem"
        ):
            load(path)
    with pytest.raises(DatasetError, match="it need about 108 bytes of memory, and 107 are free"):
        check_memory(108, "it")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), r"too little memory .*16 bytes an edge"),
        (OSError(12, "Cannot allocate memory"), r"too little memory .*16 bytes an edge"),
        (OSError(27, "File too large"), "ulimit -f"),
    ],
)
def test_limits_of_the_process_are_said_in_words(tmp_path, monkeypatch, error, words):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("gatherbench.datasets.importers.read_graph", fail)
    refused(words, put(tmp_path, "e.txt", "0 1\n1 2\n"))
