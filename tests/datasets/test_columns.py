"""Edge lists become columns: against a set of pairs, over chunk borders and past 32 bits."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatherbench.datasets import edges as module
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.edges import columns, edge_keys

EDGES = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40)
    )
)


@given(graph=EDGES, undirected=st.booleans(), chunk=st.sampled_from([1, 3, 1 << 22]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_columns_hold_each_edge_once_in_order(graph, undirected, chunk, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    nodes, pairs = graph
    source, target = np.array(pairs, np.int32).reshape(-1, 2).T
    keys = edge_keys([(source, target)], len(source), nodes, "test", undirected)
    runs = list(columns(keys, nodes))
    degree = np.concatenate([run[0] for run in runs])
    rows = np.concatenate([run[1] for run in runs])
    assert len(degree) == nodes
    expected = set(pairs) | ({(v, u) for u, v in pairs} if undirected else set())
    found = list(zip(rows.tolist(), np.repeat(np.arange(nodes), degree).tolist(), strict=True))
    assert found == sorted(expected, key=lambda edge: (edge[1], edge[0]))


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
