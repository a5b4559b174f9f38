"""Kinds of edges: written beside the graph, read back, and refused where they are none."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.datasets.dataset import RELATIONS_FILE, DatasetError, GraphDataset
from gatherbench.datasets.edges import columns, edge_keys, read_relations, write_edges
from gatherbench.datasets.import_options import Import
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.ogb_source import table_of
from gatherbench.datasets.store import open_dataset

from .edges import kinds_of

EDGES = "from,to,what\n0,1,likes\n2,1,knows\n1,0,likes\n0,2,knows\n2,2,is\n0,1,knows\n"


@pytest.fixture
def imported(tmp_path: Path) -> GraphDataset:
    (tmp_path / "edges.csv").write_text(EDGES)
    folder = import_graph(Import(tmp_path / "edges.csv", "tiny", relations="what", dim=4), tmp_path)
    return open_dataset(folder)


def test_a_column_of_the_edge_list_says_what_edges_are(imported):
    assert imported.spec.relations == ("is", "knows", "likes")
    assert kinds_of(imported) == {
        (1, 0): "likes",
        (0, 1): "knows",  # the first of its two kinds
        (2, 1): "knows",
        (0, 2): "knows",
        (2, 2): "is",
    }


def test_reverse_edges_have_kinds_of_their_own(tmp_path):
    (tmp_path / "edges.txt").write_text("0 1 a\n1 2 b\n")
    folder = import_graph(
        Import(tmp_path / "edges.txt", "both", relations="3", dim=4, undirected=True), tmp_path
    )
    assert kinds_of(open_dataset(folder)) == {
        (0, 1): "a",
        (1, 0): "inverse a",
        (1, 2): "b",
        (2, 1): "inverse b",
    }


def test_an_array_of_kinds_lies_beside_an_edge_index(tmp_path):
    ends, kinds = np.array([[0, 1, 2], [1, 2, 0]]), np.array([7, 5, 7])
    np.savez(tmp_path / "g.npz", edge_index=ends, edge_type=kinds)
    folder = import_graph(Import(tmp_path / "g.npz", "g", relations="edge_type", dim=4), tmp_path)
    assert kinds_of(open_dataset(folder)) == {(0, 1): "7", (1, 2): "5", (2, 0): "7"}


def test_a_graph_without_kinds_says_how_to_have_them(imported):
    plain = replace(imported, spec=replace(imported.spec, relations=()))
    with pytest.raises(DatasetError, match=r"no kinds.*--relations"):
        read_relations(plain)


@pytest.mark.parametrize("damage", ["short", "number", "type", "gone"])
def test_damaged_kinds_are_never_believed(imported, damage):
    path = imported.folder / RELATIONS_FILE
    kinds = np.load(path)
    if damage == "gone":
        path.unlink()
    else:
        wrong = {"short": kinds[1:], "number": kinds + 1, "type": kinds.astype(np.int64)}
        np.save(path, wrong[damage])
    with pytest.raises(DatasetError, match=RELATIONS_FILE):
        read_relations(imported)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), min_size=1))
def test_columns_with_kinds_are_columns(edges):
    source, target, kind = np.array(edges).T
    plain = list(columns(edge_keys([(source, target)], len(edges), 6, "x"), 6))
    keys = edge_keys([(source, target)], len(edges), 6, "x") * 4 + kind
    typed = list(columns(keys, 6, 4))
    for (degrees, rows, _), (others, same, kinds) in zip(plain, typed, strict=True):
        assert degrees.tolist() == others.tolist()
        assert rows.tolist() == same.tolist()
        ends = zip(rows.tolist(), np.repeat(np.arange(6), degrees).tolist(), strict=True)
        for (u, v), found in zip(ends, kinds.tolist(), strict=True):
            assert found == min(k for s, t, k in edges if (s, t) == (u, v))


def test_keys_that_do_not_fit_are_refused():
    spec: Any = SimpleNamespace(num_nodes=2**31, relations=("a", "b", "c", "d"), name="x")
    writer: Any = SimpleNamespace(spec=spec)
    with pytest.raises(DatasetError, match="63 bits"):
        write_edges(writer, np.zeros(1, np.int64), np.zeros(1, np.int64))


def test_nodes_without_rows_have_the_mean_of_their_neighbours():
    given_rows = {"paper": np.array([[1.0, 2.0], [3.0, 6.0]])}
    edges = {
        ("author", "writes", "paper"): np.array([[0, 0, 1], [0, 1, 1]]),
        ("author", "at", "place"): np.array([[0, 1], [0, 0]]),
    }
    counts = {"paper": 2, "author": 3, "place": 1}
    table = table_of(given_rows, edges, counts)
    # Authors: (1,2)+(3,6) halved, (3,6), nobody; the place: the mean of the first two authors.
    assert table.tolist() == [[1, 2], [3, 6], [2, 4], [3, 6], [0, 0], [2.5, 5]]
    assert table.dtype == np.float32
    with pytest.raises(DatasetError, match="author"):
        table_of(given_rows, {}, counts)


def test_wordnet_says_what_a_neighbour_is(wordnet_root):
    data = open_dataset(wordnet_root / "wordnet")
    kinds, names = read_relations(data), data.spec.relations
    counts = dict(zip(names, np.bincount(kinds, minlength=len(names)).tolist(), strict=True))
    assert len(names) == 32
    # As many broader terms as narrower ones, each the other's.
    assert counts["hypernym"] == counts["hyponym"] == 89_089
    assert counts["inverse of pertainym"] == 4613
    # Entity, the root: all its neighbours are narrower terms.
    first = kinds[: data.indptr[1]]
    assert {names[kind] for kind in first} == {"hyponym"}
