"""Which rows are kept, who knows what, and that hits are counted as they were told in advance."""

import numpy as np
import pytest
import torch

import gatherbench
from gatherbench.strategies import places
from gatherbench.strategies.base import Minibatches
from gatherbench.strategies.data_path import DataPath, zero_copy_path
from gatherbench.strategies.knowledge import Knowledge, adjacency_of
from gatherbench.strategies.registry import build
from gatherbench.strategies.scores import placed

HOST = torch.device("cpu")
#: Node 3 is a source five times, 1 twice, 0 once; the training node 9 aggregates from 1 and 3.
EDGES = torch.tensor([[3, 3, 3, 3, 3, 1, 1, 0], [0, 1, 2, 4, 9, 9, 2, 5]])
KNOWN = Knowledge(
    graph=adjacency_of(EDGES, 10),
    training_ids=np.array([9]),
    earlier=lambda epoch: [torch.tensor([9, 7, 3]), torch.tensor([7, 1])][epoch:],
    measured=[torch.tensor([6, 5]), torch.tensor([6])],
)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ("degree", [1, 3]),
        ("reverse_pagerank", [0, 3]),  # 0 has all of 5, and 1 half of 2 and of 9: a tie
        ("weighted_reverse_pagerank", [3, 9]),  # 9 restarts, and gives 1 and 3 equal parts
        ("presampled", [3, 7]),  # 7 twice; of those asked for once, 3 has the highest degree
        ("oracle", [5, 6]),
    ],
)
def test_each_policy_keeps_what_it_scores_highest(policy, kept):
    found = placed(policy, 2, 10, KNOWN)
    assert found.ids.tolist() == kept
    assert [v for v in range(10) if found.slots[v] >= 0] == kept
    assert found.slots[kept].tolist() == [0, 1]


def test_the_path_of_a_minibatch_by_hand():
    strategy = build("cached_zero_copy", {"policy": "degree", "share": "20%"})
    ids = torch.tensor([3, 5, 1, 3, 8], dtype=torch.int32)  # 3, 1 and 3 again are kept
    (path,) = strategy.data_paths(Minibatches([ids], 400, 10, KNOWN))
    cold = zero_copy_path(torch.tensor([5, 8]), 400, "aligned", "given")
    assert path == DataPath(
        payload_bytes=5 * 400,
        copy_engine_bytes=5 * 4,
        gpu_link_read_bytes=2 * 400,
        gpu_memory_bytes=3 * 400,
        gpu_requests=cold.gpu_requests,
        gpu_page_visits=1,
    )


def test_a_graph_of_other_nodes_than_the_tables_rows_is_refused():
    with pytest.raises(ValueError, match="the graph has 10 nodes and the table 11 rows"):
        build("cached_zero_copy", {"policy": "degree"}).open(torch.zeros(11, 3), HOST, KNOWN)


def test_an_edge_index_becomes_in_neighbours():
    graph = adjacency_of(EDGES, 10)
    found = {v: sorted(graph.indices[graph.indptr[v] : graph.indptr[v + 1]]) for v in range(10)}
    assert {v: ids for v, ids in found.items() if ids} == {
        0: [3], 1: [3], 2: [1, 3], 4: [3], 5: [0], 9: [1, 3],
    }  # fmt: skip
    for wrong in (torch.zeros(3, 2, dtype=torch.int64), torch.tensor([[1], [10]])):
        with pytest.raises(ValueError, match="graph: "):
            adjacency_of(wrong, 10)


def test_in_a_loop_of_ones_own_it_says_what_it_has_to_know():
    needs = r"cached_zero_copy \(.*\) needs minibatches=, the n_id .* and graph=, the edge_index"
    with pytest.raises(ValueError, match=needs):
        gatherbench.unified(torch.randn(10, 4), "cached_zero_copy")


def test_a_part_for_which_there_is_no_room_is_refused(monkeypatch):
    monkeypatch.setattr(places, "free_bytes", lambda _device: 1000)
    twentieth, half = (build("cached_zero_copy", {"share": share}) for share in ("5%", "50%"))
    assert twentieth.skip(HOST, 10_000) is None
    assert str(half.skip(HOST, 10_000)).startswith("no_memory: the part that is kept takes 0.0 MiB")
    assert build("disk_cached", {"share": "5%"}).skip(HOST, 10_000) is None
    refused = str(build("disk_cached", {"share": "50%"}).skip(HOST, 10_000))
    assert refused.startswith("no_memory: the part that is kept takes 0.0 MiB and cpu has")
