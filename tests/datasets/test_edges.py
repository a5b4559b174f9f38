"""Edge lists become columns, against a set of pairs, over chunk borders and past 32 bits; kinds of
edges are written beside the graph, read back, and refused where they are none."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatherbench.datasets import edges as module
from gatherbench.datasets.dataset import RELATIONS_FILE, DatasetError, GraphDataset
from gatherbench.datasets.edges import columns, edge_keys, read_relations, write_edges
from gatherbench.datasets.import_options import Import
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.ogb_source import table_of
from gatherbench.datasets.store import open_dataset

from .edges import kinds_of

GRAPHS = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.tuples(*[st.integers(0, n - 1)] * 2, st.integers(0, 3)), max_size=40),
    )
)


@given(graph=GRAPHS, undirected=st.booleans(), chunk=st.sampled_from([1, 3, 1 << 22]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_columns_hold_each_edge_once_in_order_with_its_lowest_kind(
    graph, undirected, chunk, monkeypatch
):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    nodes, edges = graph
    source, target, kind = np.array(edges, np.int32).reshape(-1, 3).T
    keys = edge_keys([(source, target)], len(source), nodes, "test", undirected)
    typed = keys * 4 + np.tile(kind, 1 + undirected)
    lowest: dict[tuple[int, int], int] = {}
    for u, v, k in sorted(edges + [(v, u, k) for u, v, k in edges] * undirected):
        lowest.setdefault((v, u), k)
    for runs, kinds in (columns(keys, nodes), 1), (columns(typed, nodes, 4), 4):
        degree, rows, found = (np.concatenate(part) for part in zip(*runs, strict=True))
        assert len(degree) == nodes
        ends = zip(np.repeat(np.arange(nodes), degree).tolist(), rows.tolist(), strict=True)
        assert list(ends) == sorted(lowest)
        assert found.tolist() == [lowest[edge] % kinds for edge in sorted(lowest)]


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_keys_do_not_overflow_narrow_ids(dtype):
    nodes = 111_059_956
    last = np.array([nodes - 1], dtype)
    assert edge_keys([(last, last)], 1, nodes, "test").tolist() == [nodes * nodes - 1]
    both = edge_keys([(last, last)], 1, nodes, "test", undirected=True)
    assert both.tolist() == [nodes**2 - 1] * 2


@pytest.mark.parametrize("bad", [-1, 3])
@pytest.mark.parametrize("end", ["source", "target"])
def test_a_node_that_is_not_there_is_named(bad, end):
    ends = {"source": np.array([0, 1]), "target": np.array([2, 2])}
    ends[end][1] = bad
    with pytest.raises(DatasetError, match=f"some.csv: an edge names node {bad}, but there are 3"):
        edge_keys([(ends["source"], ends["target"])], 2, 3, "some.csv")


EDGES = "from,to,what\n0,1,likes\n2,1,knows\n1,0,likes\n0,2,knows\n2,2,is\n0,1,knows\n"


@pytest.fixture
def imported(tmp_path: Path) -> GraphDataset:
    (tmp_path / "edges.csv").write_text(EDGES)
    folder = import_graph(Import(tmp_path / "edges.csv", "tiny", relations="what", dim=4), tmp_path)
    return open_dataset(folder)


def test_a_column_of_the_edge_list_says_what_edges_are(imported):
    assert imported.spec.relations == ("is", "knows", "likes")
    # From 0 to 1 are two kinds: the first of both.
    assert kinds_of(imported) == {
        "is": [(2, 2)], "knows": [(0, 1), (0, 2), (2, 1)], "likes": [(1, 0)],
    }  # fmt: skip


def test_reverse_edges_have_kinds_of_their_own(tmp_path):
    """A kind is a whole cell, whatever stands in it."""
    path = tmp_path / "edges.tsv"
    path.write_text("0\t1\thas author\n1\t2\tC#\n")
    chosen = Import(path, "both", relations="3", dim=4, undirected=True)
    kinds = kinds_of(open_dataset(import_graph(chosen, tmp_path)))
    assert kinds == {"has author": [(0, 1)], "inverse has author": [(1, 0)],
                     "C#": [(1, 2)], "inverse C#": [(2, 1)]}  # fmt: skip


def test_an_array_of_kinds_lies_beside_an_edge_index(tmp_path):
    ends, kinds = np.array([[0, 1, 2], [1, 2, 0]]), np.array([7, 5, 7])
    np.savez(tmp_path / "g.npz", edge_index=ends, edge_type=kinds)
    folder = import_graph(Import(tmp_path / "g.npz", "g", relations="edge_type", dim=4), tmp_path)
    assert kinds_of(open_dataset(folder)) == {"5": [(1, 2)], "7": [(0, 1), (2, 0)]}


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
