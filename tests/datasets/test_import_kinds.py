"""Files as others write them: each is read right, or refused with what to do about it.

The right edges, labels and splits were worked out by hand.
"""

import bz2
import gzip
import io
import json
import lzma
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.io
import torch
from torch_geometric.data import Batch, Data, InMemoryDataset

from gatherbench.datasets.asked import Import
from gatherbench.datasets.dataset import DatasetError, GraphDataset
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.store import open_dataset

THREE = {(5, 7), (7, 9), (9, 2)}
RING = {(0, 1), (1, 2), (2, 0)}
PATH = {(0, 1), (1, 0), (1, 2), (2, 1)}
WHICH = "which is the source and which the target. Say --source COLUMN and --target COLUMN"
HEADER = r"a header. Say --header or --no-header"
UNEVEN = "the first record has"
SIZES = "may be the sizes of a graph"


def put(folder: Path, name: str, content: Any) -> Path:
    """A file of text, bytes, an array, or what a function writes to it."""
    path = folder / name
    if callable(content):
        with path.open("wb") as file:
            content(file)
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def load(path: Path, **options: Any) -> GraphDataset:
    asked = Import(path, "mine", dim=1, force=True, **options)
    return open_dataset(import_graph(asked, path.parent), "full")


def edges(data: GraphDataset) -> set[tuple[int, int]]:
    targets = np.repeat(np.arange(data.spec.num_nodes), np.diff(data.indptr))
    return set(zip(data.indices.tolist(), targets.tolist(), strict=True))


TEXT: list[tuple[str, str | bytes, Any, dict[str, Any]]] = [
    # Headers: known names are taken wherever they stand, others have to be told.
    ("r.csv", '"","from","to"\n"1",5,7\n"2",7,9\n"3",9,2\n', THREE, {}),
    ("r.txt", '"from" "to"\n"1" 5 7\n"2" 7 9\n', UNEVEN, {}),
    ("pandas.csv", ",paper,cites\n0,5,7\n1,7,9\n", WHICH, {}),
    (
        "pandas.csv",
        ",paper,cites\n0,5,7\n1,7,9\n2,9,2\n",
        THREE,
        {"source": "paper", "target": "3"},
    ),
    ("time.csv", "time,src_ip,dst_ip\n11,5,7\n12,7,9\n", WHICH, {}),
    ("two.csv", "id_1,id_2\n5,7\n7,9\n", WHICH, {}),
    ("both.csv", "source,src,target\n5,1,7\n7,1,9\n", "which is the source. Say --source", {}),
    ("cora.csv", "cited,citing\n7,5\n9,7\n2,9\n", THREE, {}),
    ("neo4j.csv", ":START_ID,:END_ID,:TYPE\n5,7,A\n7,9,A\n9,2,A\n", THREE, {}),
    (
        "gephi.csv",
        "Source,Target,Type,Id\n5,7,Directed,0\n7,9,Directed,1\n9,2,Directed,2\n",
        THREE,
        {},
    ),
    ("no.csv", "source,target\n5,7\n", "no column 'x' for --source: columns", {"source": "x"}),
    # A header of numbers, as pandas writes it: ambiguous, whatever the file's name.
    ("n.csv", "0,1\n5,7\n7,9\n9,2\n", HEADER, {}),
    ("n.tsv", "0\t1\n5\t7\n7\t9\n", HEADER, {}),
    ("n.txt", "0,1,2\n5,7,1\n7,9,1\n", HEADER, {}),
    ("n.csv", "0,1\n5,7\n7,9\n9,2\n", THREE, {"header": True}),
    ("n.csv", "0,1\n1,2\n2,0\n", RING, {"header": False}),
    ("n.csv", ",0,1\n0,5,7\n1,7,9\n", WHICH, {}),
    ("n.csv", '"1","2"\n5,7\n7,9\n', HEADER, {}),
    ("snap.txt", "# FromNodeId\tToNodeId\n0\t1\n1\t2\n2\t0\n", RING, {}),
    ("facebook.txt", "0 1\n1 2\n2 0\n", RING, {}),
    # Without a header: the first two columns, unless another may be one of the ends.
    ("index.csv", "0,5,7\n1,7,9\n", WHICH, {}),
    ("temporal.txt", "9 8 1217567877\n1 9 1217573801\n", WHICH, {}),
    ("weights.txt", "5 7 0.5\n7 9 1\n9 2 2.5e-1\n", THREE, {}),
    ("weight-first.txt", "0.5 5 7\n1 7 9\n", WHICH, {}),
    ("knn.txt", "1 2 3\n2 3 1\n3 1 2\n", WHICH, {}),
    ("comment.txt", "# dst src\n7 5\n9 7\n2 9\n", THREE, {}),
    # Excel, NumPy, R, other alphabets and ends of lines.
    ("excel.csv", "\ufeffsource;target;w\r\n5;7;0,5\r\n7;9;1,5\r\n9;2;2\r\n", THREE, {}),
    ("thousands.csv", "source;target\n5;7\n7;1.000\n", "line 3, column 2: .* found '1.000'", {}),
    ("thousands.csv", 'source,target\n5,7\n7,"1,234"\n', "line 3, column 2: .* '1,234'", {}),
    ("decimals.csv", "source;target\n5,0;7,0\n", "line 2, column 1: .* found '5,0'", {}),
    (
        "open.tsv",
        '5\t7\tis\n7\t9\t"x\n9\t2\ty"\n',
        "line 2: a quote is opened and not closed",
        {"relations": "3"},
    ),
    ("open.csv", 'source,target,k\n5,7,"x\n7,9,y"\n', "line 2: a quote", {"relations": "3"}),
    (
        "inch.tsv",
        'source\ttarget\tk\n5\t7\t5" pipe\n7\t9\t"a ""b"""\n9\t2\t"x\t"""\n',
        THREE,
        {"relations": "3"},
    ),
    ("last.tsv", '5\t7\tx\n7\t9\tx\n9\t2\t"y\n', "line 3: a quote", {"relations": "3"}),
    ("quotes.csv", '"source","target"\n"5","7"\n"7","9"\n"9","2"\n', THREE, {}),
    ("floats.csv", "source,target\n5.0,7.0\n7.0,9.0\n9.0,2.0\n", THREE, {}),
    ("savetxt.txt", "5.00000e+00 7.00000e+00\n7.0e+00 9.0e+00\n9e0 2e0\n", THREE, {}),
    ("gap.csv", "source,target\n5.0,7.0\n7.0,\n", "line 3, column 2: .* found ''", {}),
    ("windows.csv", "source,target,gr\xf6\xdfe\n5,7,1\n7,9,1\n9,2,1\n".encode("cp1252"), THREE, {}),
    ("mac.csv", "source,target\r5,7\r7,9\r9,2\r", THREE, {}),
    ("names.txt", "ada bob\nbob cem\n", "line 1, column 1: .* found 'ada'", {}),
    ("movielens.dat", "1::1193::5\n1::661::3\n", "1 columns, no header; expected one each", {}),
    # Tabs cut where there are tabs, and only at a line's start a comment begins.
    ("cells.tsv", "source\tw\ttarget\n5\t\t7\n7\t1\t9\n9\t\t2\n", THREE, {}),
    ("index.tsv", "\tsource\ttarget\n0\t5\t7\n1\t7\t9\n2\t9\t2\n", THREE, {}),
    ("blanks.tsv", "source\tname\ttarget\n5\tAda L\t7\n7\tBob\t9\n9\tC D\t2\n", THREE, {}),
    ("tail.tsv", "5\t7\t\n7\t9\t\n9\t2\t\n", THREE, {}),
    ("hash.csv", "src,dst,tag\n5,7,#a\n7,9,50%\n9,2,C#\n", THREE, {}),
    # A column has one use.
    ("hrt.tsv", "0\t3\t1\n1\t2\t2\n2\t3\t0\n", RING, {"relations": "2"}),
    ("htr.tsv", "0\t1\t3\n1\t2\t2\n2\t0\t3\n", RING, {"relations": "3"}),
    ("four.tsv", "0\t3\t1\t2014\n1\t2\t2\t2015\n", WHICH, {"relations": "2"}),
    (
        "twice.csv",
        "a,b\n0,1\n",
        "expected one each for source, target",
        {"source": "a", "target": "1"},
    ),
    (
        "twice.csv",
        "src,dst\n0,1\n1,2\n",
        "one each for source, target, relation",
        {"relations": "dst"},
    ),
    # Adjacency lists, METIS, lines of sizes.
    ("metis.graph", "4 4\n2 3\n1 3\n1 2 4\n3\n", UNEVEN, {}),
    ("metis-ring.graph", "4 4\n2 4\n1 3\n2 4\n3 1\n", SIZES, {}),
    ("hmetis.hgr", "2 4\n1 2 3\n2 4\n", UNEVEN, {}),
    ("sizes.txt", "3 3\n0 1\n1 2\n2 0\n", SIZES, {}),
    ("sizes.txt", "3 2 3\n1 2 0.5\n2 3 1\n3 1 1\n", SIZES, {}),
    ("sizes.txt", "2 4\n0 1\n1 3\n", SIZES, {}),
    ("sizes.txt", "2 1\n0 2\n", {(2, 1), (0, 2)}, {"header": False}),
    ("openke.txt", "3\n0 1 0\n1 2 1\n2 0 0\n", UNEVEN, {}),
    ("a.adj", "0 1 2\n1 2\n2 0\n", UNEVEN, {}),
    ("libsvm.txt", "1 3:0.5 7:1\n0 1:1 2:1\n", WHICH, {}),
    # What a file says of itself.
    ("und.txt", "# Undirected graph: x\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n", PATH, {}),
    ("und.txt", "# undirected\n0 1\n1 2\n2 0\n", RING, {"undirected": False}),
    ("und.txt", "# undirected: false\n0 1\n", "say --directed or --undirected", {}),
    ("out.sym", "% sym unweighted\n% 2 3 3\n1 2\n2 3\n", PATH, {}),
    ("out.asym", "% asym weighted\n1 2\t1 1082\n2 3\t1 1083\n3 1\t2 1084\n", RING, {}),
    ("out.bip", "% bip unweighted\n1 1\n2 1\n2 2\n", "says that it is bipartite", {}),
    ("one.txt", "# ids start at 1\n2 3\n3 4\n", {(1, 2), (2, 3)}, {}),
    ("zero.txt", "# 0-based\n1 2\n2 3\n", {(1, 2), (2, 3)}, {}),
    ("one.txt", "# one-based\n0 1\n", "line 2, column 1: source '0' is too small", {}),
    # MatrixMarket under any name; one per cent sign, as in the network repository.
    ("a.edges", "%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n2 1\n3 2\n", PATH, {}),
    (
        "a.txt",
        "%%MatrixMarket matrix coordinate real general\n3 3 2\n1 2 .5\n2 3 1\n",
        {(0, 1), (1, 2)},
        {},
    ),
    (
        "a.MTX",
        "%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 5\n",
        {(0, 1), (1, 0)},
        {},
    ),
    (
        "a.mm",
        "%%MatrixMarket matrix coordinate pattern general\n3 3 9999999\n1 2\n",
        "cannot be in this",
        {},
    ),
]


@pytest.mark.parametrize(("name", "content", "expected", "options"), TEXT)
def test_text_is_read_right_or_refused_with_the_remedy(tmp_path, name, content, expected, options):
    path = put(tmp_path, name, content)
    if isinstance(expected, str):
        with pytest.raises(DatasetError, match=expected):
            load(path, **options)
        assert not (tmp_path / "mine").exists()
    else:
        assert edges(load(path, **options)) == expected


def test_the_import_says_what_it_took(tmp_path):
    path = put(tmp_path, "e.csv", "id,to,from\n0,7,5\n1,9,7\n")
    assert load(path).spec.notes[6] == (
        "e.csv: text cut at commas, with a header: source 'from', target 'to', of 3 columns"
    )


def test_kinds_are_whole_cells(tmp_path):
    text = "src\tdst\tkind\n0\t1\thas author\n1\t2\tC#\n2\t0\tC\n"
    data = load(put(tmp_path, "k.tsv", text), relations="kind")
    assert data.spec.relations == ("C", "C#", "has author")
    kinds = np.load(data.folder / "relations.npy")
    assert kinds.tolist() == [0, 2, 1]  # of 2 -> 0, 0 -> 1, 1 -> 2


OTHERS = {
    "e.bz2": (bz2.compress(b"0 1\n"), "bz2.* bunzip2"),
    "e.xz": (lzma.compress(b"0 1\n"), "xz.* unxz"),
    "e.zip": (lambda f: zipfile.ZipFile(f, "w").writestr("e.txt", "0 1\n"), "zip archive.* unzip"),
    "e.xlsx": (lambda f: zipfile.ZipFile(f, "w").writestr("xl/workbook.xml", ""), "Excel.* CSV"),
    "e.parquet": (lambda f: pd.DataFrame({"a": [1]}).to_parquet(f), "Parquet.* to_csv"),
    "e.feather": (lambda f: pd.DataFrame({"a": [1]}).to_feather(f), "Feather.* to_csv"),
    "e.mat": (lambda f: scipy.io.savemat(f, {"a": np.eye(2)}), "MATLAB.*loadmat"),
    "e73.mat": (b"MATLAB 7.3 MAT-file" + bytes(600), "MATLAB.* h5py"),
    "e.h5": (b"\x89HDF\r\n\x1a\n" + bytes(99), "HDF5.* h5py"),
    "e.pkl": (pickle.dumps({"a": 1}), "pickle.* numpy.save"),
    "u.csv": ("source,target\r\n0,1\r\n".encode("utf-16"), "UTF-16.* iconv"),
    "le.csv": ("source,target\r\n0,1\r\n".encode("utf-16-le"), "UTF-16.* iconv"),
    "e.safetensors": ((8).to_bytes(8, "little") + b'{"a":1} ' + bytes(8), "safetensors"),
    "e.graphml": ('<?xml version="1.0"?><graphml/>', "GraphML.*write_edgelist"),
    "e.json": (json.dumps({"nodes": [], "links": []}), "JSON.*write_edgelist"),
    "e.gml": ('Creator "igraph"\ngraph\n[\n]\n', "GML"),
    "e.dot": ("digraph G {\n0 -> 1;\n}\n", "DOT"),
    "e.net": ("*Vertices 2\n1\n2\n*Arcs\n1 2\n", "Pajek"),
    "e.dl": ("dl n=3 format=edgelist1\ndata:\n1 2\n", "UCINET"),
    "e.col": ("c comment\np edge 3 1\ne 1 2\n", "DIMACS"),
    "not-there.txt": (None, "no such file"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_another_kind_are_called_what_they_are(tmp_path, name):
    content, words = OTHERS[name]
    path = put(tmp_path, name, content) if content is not None else tmp_path / name
    with pytest.raises(DatasetError, match=f"{name}: .*{words}"):
        load(path)


def test_content_decides_and_not_the_name(tmp_path):
    packed = io.BytesIO()
    np.savez(packed, edge_index=[[0, 1, 2], [1, 2, 0]])
    assert edges(load(put(tmp_path, "npz.txt", packed.getvalue()))) == RING
    assert edges(load(put(tmp_path, "plain.txt.gz", "0 1\n1 2\n2 0\n"))) == RING
    assert edges(load(put(tmp_path, "b.txt", gzip.compress(b"0 1\n1 2\n2 0\n")))) == RING


EDGE_INDEX = torch.tensor([[0, 1, 2], [1, 2, 0]])
Y = torch.tensor([0, 1, 1])


def saved(content: Any, **how: Any) -> Any:
    return lambda file: torch.save(content, file, **how)


def ring(nodes: int) -> Data:
    ends = torch.arange(nodes)
    return Data(x=torch.ones(nodes, 2), edge_index=torch.stack([ends, (ends + 1) % nodes]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (saved(InMemoryDataset.collate([ring(3), ring(4)])), "holds 2 graphs"),
        (saved([ring(3), ring(4), ring(5)]), "holds 3 graphs.* Batch.from_data_list"),
        (saved(Batch.from_data_list([ring(3), ring(4)])), "asks for .*Batch"),
        (saved(ring(3), pickle_protocol=4), "pickled by protocol 4.* without pickle_protocol"),
        (saved(ring(3), _use_new_zipfile_serialization=False), "old form.* torch.save it again"),
        (saved({"edges": EDGE_INDEX}), "holds edges; expected edge_index"),
        (
            saved(Data(edge_index=EDGE_INDEX, y=Y, train_mask=["a"])),
            r"train_mask: NumPy cannot take it \(a list",
        ),
        (saved(Data(edge_index=EDGE_INDEX, y=Y, train_mask=torch.ones(3, 2).bool())), "train_mask"),
    ],
)
def test_what_a_torch_file_is_stands_in_the_refusal(tmp_path, content, words):
    with pytest.raises(DatasetError, match=words):
        load(put(tmp_path, "d.pt", content))


def test_lists_are_masks_and_fields_that_are_not_used_are_named(tmp_path):
    mask, rest = [True, False, True], {"edge_attr": torch.ones(3, 1), "pos": torch.ones(3, 2)}
    data = Data(edge_index=EDGE_INDEX, y=Y, train_mask=mask, **rest)
    data = load(put(tmp_path, "d.pt", saved(data)))
    assert data.train_ids.tolist() == [0, 2]
    assert data.spec.notes[6] == "d.pt: edge_index; not used: edge_attr, pos"


def test_a_data_of_pyg_1_is_read(tmp_path, monkeypatch):
    class Old:
        pass

    Old.__module__, Old.__qualname__ = "torch_geometric.data.data", "Data"
    monkeypatch.setattr("torch_geometric.data.data.Data", Old)
    old = Old()
    old.__dict__.update(x=torch.ones(3, 2), edge_index=EDGE_INDEX, y=Y, edge_attr=None)
    path = put(tmp_path, "old.pt", saved((old, None)))
    monkeypatch.undo()
    data = open_dataset(import_graph(Import(path, "mine"), tmp_path), "full")
    assert edges(data) == RING
    assert data.labels.tolist() == [0, 1, 1]


SQUARE = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (",class_id\n0,2\n1,0\n2,1\n3,1\n", {}, "which is the node id. Say --node COLUMN"),
        (",label\n3,1\n0,2\n2,1\n1,0\n", {"node": "1"}, [2, 0, 1, 1]),
        (",label\n3,2\n0,0\n2,1\n1,1\n", {"node": "0", "label": "label"}, [2, 0, 1, 1]),
        ("id,days,target_class\n0,5,2\n1,6,0\n", {}, "which is the class. Say --label COLUMN"),
        ("id,days,target_class\n0,5,2\n1,6,0\n2,7,1\n3,8,1\n", {"label": "3"}, [2, 0, 1, 1]),
        ("id,new_id,target\n70,0,2\n80,1,0\n", {}, "which is the node id. Say --node COLUMN"),
        ("0 2\n1 0\n2 1\n3 1\n", {}, [2, 0, 1, 1]),
        ("venue\n2\n0\n1\n1\n", {}, [2, 0, 1, 1]),
        ("0\n2\n0\n1\n1\n", {}, HEADER),
        ("0\n2\n0\n1\n1\n", {"header": True}, [2, 0, 1, 1]),
        ("0\n2\n1\n1\n", {}, [0, 2, 1, 1]),
        ("0,1\n0,2\n1,0\n2,1\n3,1\n", {}, HEADER),
        ("2\n\n1\n1\n", {}, "line 2: is empty"),
    ],
)
def test_labels_as_others_write_them(tmp_path, text, options, expected):
    labels = put(tmp_path, "y.csv", text)
    path = put(tmp_path, "e.npy", SQUARE)
    if isinstance(expected, str):
        with pytest.raises(DatasetError, match=expected):
            load(path, labels=labels, **options)
    else:
        assert load(path, labels=labels, **options).labels.tolist() == expected


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (",0\n0,3\n1,1\n", {}, "Say --node COLUMN"),
        ("0,3\n1,1\n", {}, "Say --node COLUMN"),
        (",0\n0,3\n1,1\n", {"node": "2"}, [1, 3]),
        (",node_idx\n0,3\n1,1\n", {}, [1, 3]),
        ("0\n3\n1\n", {}, HEADER),
        ("0\n3\n1\n", {"header": True}, [1, 3]),
        ("0\n3\n1\n", {"header": False}, [0, 1, 3]),
        ("3\n0\n", {}, [0, 3]),
        ("train\n0\n1\n0\n1\n", {}, [1, 3]),
        ("0\n1\n0\n1\n", {}, [1, 3]),
    ],
)
def test_splits_as_others_write_them(tmp_path, text, options, expected):
    train, path = put(tmp_path, "t.csv", text), put(tmp_path, "e.npy", SQUARE)
    if isinstance(expected, str):
        with pytest.raises(DatasetError, match=expected):
            load(path, train=train, **options)
    else:
        assert sorted(load(path, train=train, **options).train_ids.tolist()) == expected


@pytest.mark.parametrize("dtype", [np.longdouble, complex, np.uint16, np.uint64, bool])
def test_features_that_no_run_can_use_are_refused(tmp_path, dtype):
    features = put(tmp_path, "x.npy", np.ones((4, 2), dtype))
    with pytest.raises(DatasetError, match=r"x\.npy: holds .* of dtype float16, float32"):
        import_graph(Import(put(tmp_path, "e.npy", SQUARE), "mine", features=features), tmp_path)


def test_features_of_another_byte_order_are_read(tmp_path):
    table = np.arange(8, dtype=">f4").reshape(4, 2)
    asked = Import(put(tmp_path, "e.npy", SQUARE), "mine", features=put(tmp_path, "x.npy", table))
    data = open_dataset(import_graph(asked, tmp_path), "full")
    assert data.features.dtype == np.dtype("<f4")
    np.testing.assert_array_equal(data.features, table)


def test_no_node_to_train_on_is_said_at_import(tmp_path):
    """Node 0 has the one label, and nothing leads to it."""
    labels = put(tmp_path, "y.npy", np.array([0, -1]))
    with pytest.raises(DatasetError, match="none to train on"):
        load(put(tmp_path, "e.npy", np.array([[0], [1]])), labels=labels)


def test_features_are_not_invented_for_ids_that_labels_name(tmp_path):
    labels = put(tmp_path, "y.csv", "node,label\n0,1\n1,0\n2200000,1\n")
    path = put(tmp_path, "e.txt", "0 1\n1 2\n2 0\n")
    with pytest.raises(DatasetError, match="by its ids it has 2,200,001 nodes"):
        import_graph(Import(path, "mine", labels=labels), tmp_path)


def test_what_memory_cannot_hold_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_MEMORY_GIB", "0.0000001")  # 107 bytes; 3 edges take 48
    assert load(put(tmp_path, "e.npy", np.array([[0, 1, 2], [1, 2, 0]]))).spec.num_edges == 3
    monkeypatch.setattr(np, "concatenate", lambda *_: pytest.fail("it is read"))
    for path in (
        put(tmp_path, "f.npy", np.zeros((2, 7), int)),
        put(tmp_path, "e.txt", "0 1\n" * 99),
    ):
        with pytest.raises(DatasetError, match=r"its edges need about [\d,]+ bytes of memory, and"):
            load(path)
    with pytest.raises(DatasetError, match="it need about 108 bytes of memory, and 107 are free"):
        check_memory(108, "it")


def test_memory_that_ends_while_reading_is_said_in_words(tmp_path, monkeypatch):
    path = put(tmp_path, "e.txt", "0 1\n1 2\n")
    for error in (MemoryError(), OSError(12, "Cannot allocate memory")):
        monkeypatch.setattr(
            "gatherbench.datasets.importers.read_edges",
            lambda *_, e=error: (_ for _ in ()).throw(e),
        )
        with pytest.raises(DatasetError, match=r"too little memory .*16 bytes an edge"):
            load(path)
