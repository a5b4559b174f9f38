"""Edges, ids and sizes that training gives: converted, or refused with the remedy."""

import warnings

import numpy as np
import pytest
import torch
from torch_geometric import transforms
from torch_geometric.data import Data, HeteroData

from gatherbench.checks import edges_of, ids_of, same_nodes, sizes_of

EDGES = [[0, 1, 1, 3], [1, 2, 0, 2]]


@pytest.mark.parametrize(
    "graph",
    [
        EDGES,
        np.array(EDGES, np.uint8),
        torch.tensor(EDGES, dtype=torch.int32),
        Data(edge_index=torch.tensor(EDGES)),
    ],
)
def test_edges_of_all_that_holds_them(graph):
    found = edges_of(graph, 4)
    assert found.tolist() == EDGES
    assert found.dtype == torch.int64


def test_edges_of_a_transposed_adjacency_keep_their_direction():
    data = Data(edge_index=torch.tensor(EDGES), num_nodes=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = transforms.ToSparseTensor(layout=torch.sparse_csr)(data)
        found = edges_of(data)
    assert sorted(zip(*found.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 2), (3, 2)]


@pytest.mark.parametrize(
    ("graph", "complaint"),
    [
        (Data(num_nodes=9), "data holds num_nodes; expected edge_index"),
        (Data(), "data holds nothing; expected edge_index"),
        (HeteroData(), r"HeteroData: .*to_homogeneous\(\)"),
        (torch.zeros(3, 2).long(), r"shape \[3, 2\], expected \[2, E\]; .*\.t\(\)"),
        (torch.zeros(5).long(), r"shape \[5\], expected \[2, E\]$"),
        (torch.zeros(2, 5), r"holds torch.float32, .* edge_index.long\(\)"),
        (torch.eye(2).to_sparse(), r"a sparse tensor; .*indices\(\)"),
        (torch.tensor([[0, 4], [1, 2]]), "edge 1 goes from 4 to 2, and there are 4 nodes"),
        (torch.tensor([[0], [-1]]), "edge 0 goes from 0 to -1"),
        ("a.txt", "str: expected a Data or an edge_index"),
        (None, "NoneType: expected a Data or an edge_index"),
    ],
)
def test_what_holds_no_edges_is_refused_with_the_remedy(graph, complaint):
    with pytest.raises(ValueError, match=complaint):
        edges_of(graph, 4)


@pytest.mark.parametrize(
    "ids", [[3, 1], np.array([3, 1], np.int32), torch.tensor([3, 1]), torch.tensor([3, 1]).byte()]
)
def test_ids_stay_in_their_order(ids):
    assert ids_of(ids, 4, "train_ids").tolist() == [3, 1]


def test_a_mask_becomes_ids():
    assert ids_of([False, True, False, True], 4, "train_ids").tolist() == [1, 3]
    with pytest.raises(ValueError, match=r"train_ids: has shape \[2\], .* a mask \[4\]"):
        ids_of([False, True], 4, "train_ids")


@pytest.mark.parametrize("ids", [[4], [-1], [0.0], [[0]], "0", [None]])
def test_what_are_no_ids(ids):
    with pytest.raises(ValueError, match="train_ids: "):
        ids_of(ids, 4, "train_ids")


def test_sizes_that_differ_are_all_named():
    data = Data(edge_index=torch.tensor(EDGES), y=torch.arange(6))
    sizes = {"features": 6, **sizes_of(data)}
    assert sizes == {"features": 6, "data.num_nodes": 4, "data.y": 6}
    with pytest.raises(ValueError, match=r"features says 6, data.num_nodes says 4, .*; set it"):
        same_nodes(sizes, "set it")
    data.num_nodes = 6
    assert same_nodes({"features": None, **sizes_of(data)}) == 6
    for y in (torch.zeros(1), torch.zeros(4), torch.tensor(3)):  # of a graph, of its 4 edges
        assert sizes_of(Data(edge_index=torch.tensor(EDGES), y=y)).keys() == {"data.num_nodes"}
