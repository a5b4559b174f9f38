"""Labels, features and splits of one's own, in files or beside the edges: whose node is whose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.store import DatasetError, open_dataset

EDGES = "1 2\n2 3\n3 4\n"  # nodes 0 to 3, counted from 1


def load(path: Path, **options: Any) -> GraphDataset:
    options.setdefault("dim", 2 if "features" not in options else None)
    return open_dataset(import_graph(path, "mine", root=path.parent, force=True, **options), "full")


def put(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    if isinstance(content, str):
        path.write_text(content)
    elif path.suffix == ".pt":
        torch.save(torch.as_tensor(content), path)
    else:
        np.save(path, np.asarray(content))
    return path


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
    data = load(put(tmp_path, "e.txt", EDGES), labels=put(tmp_path, name, text))
    assert data.labels.tolist() == [2, -1, -1, 1]
    assert data.spec.num_classes == 3


def test_labels_by_node_know_nodes_that_are_in_no_edge(tmp_path: Path) -> None:
    edges, labels = put(tmp_path, "e.txt", "0 70\n70 9\n"), put(tmp_path, "y.csv", "9,1\n90,0\n")
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
            put(tmp_path, "e.txt", EDGES), labels=put(tmp_path, "y.csv", text), one_based=True,
            num_nodes=4,
        )  # fmt: skip


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_empty_lines_amid_labels_are_refused_and_behind_them_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    monkeypatch.setattr("gatherbench.datasets.import_text._CHUNK_BYTES", pieces)
    edges = put(tmp_path, "e.txt", EDGES)
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
    data = load(put(tmp_path, "e.txt", EDGES), **given)
    assert [sorted(ids) for ids in splits(data)] == [[0, 3], [1], [2]]
    assert data.spec.notes[5].startswith(f"splits from {train[0]}, {val[0]}, {test[0]}")


def test_splits_that_are_not_given_are_empty(tmp_path: Path) -> None:
    data = load(put(tmp_path, "e.txt", EDGES), train=put(tmp_path, "t.txt", "2\n3\n"))
    assert splits(data) == [[1, 2], [], []]


def test_two_ids_of_two_nodes_are_no_mask(tmp_path: Path) -> None:
    edges = put(tmp_path, "e.txt", "0 1\n")
    assert splits(load(edges, train=put(tmp_path, "t.npy", [0, 1]))) == [[0, 1], [], []]
    assert splits(load(edges, train=put(tmp_path, "t.npy", [False, True]))) == [[1], [], []]


def test_splits_of_ids_with_gaps_are_numbered_with_them(tmp_path: Path) -> None:
    edges, train = put(tmp_path, "e.txt", "7 90\n90 7000\n"), put(tmp_path, "t.npy", [7000, 7])
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
        load(put(tmp_path, "e.txt", EDGES), labels=labels, **given)
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
