"""A graph laid out anew is the same graph, its nodes numbered otherwise."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatherbench.bench.sampling.epoch import epoch_seeds
from gatherbench.datasets.dataset import ORDER_FILE, DatasetError, DatasetSpec, GraphDataset
from gatherbench.datasets.ordered import ORDERS, by_degree, by_rcm, ranks, write_ordered
from gatherbench.datasets.registry import imported, prepare_dataset
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import dataset_folder, open_dataset
from gatherbench.datasets.writer import DatasetWriter

Order = NDArray[np.int64]


def small(folder: Path, seed: int = 0) -> GraphDataset:
    """Node 3 is listed by 3 others, node 0 by 2, node 4 by 1, nodes 1 and 2 by none."""
    spec = DatasetSpec("mine", 1.0, 5, 0, 3, "float32", 4, "by hand", "none")
    features = np.random.default_rng(seed).standard_normal((5, 3)).astype(np.float32)
    with DatasetWriter(folder, spec) as writer:
        lists = [[3], [0, 3], [3, 0], [4], []]
        degrees = np.array([len(one) for one in lists])
        writer.write_columns([(degrees, np.array([n for one in lists for n in one]))])
        writer.write_features(features)
        writer.write_labels(np.array([0, 1, 2, 3, -1]))
        writer.write_splits(np.array([3, 0]), np.array([1]), np.array([2]))
    return open_dataset(folder)


def edges_of(data: GraphDataset, number: Order) -> set[tuple[int, int]]:
    """Source and target of every edge, each node by its ``number``."""
    targets = np.repeat(np.arange(data.spec.num_nodes), np.diff(data.indptr))
    found = zip(number[data.indices].tolist(), number[targets].tolist(), strict=True)
    return set(found)


def test_by_degree_comes_first_what_most_nodes_list(tmp_path):
    assert by_degree(small(tmp_path / "mine")).tolist() == [3, 0, 4, 1, 2]


@pytest.mark.parametrize("name", ORDERS)
def test_the_graph_is_the_same_but_for_its_numbers(tmp_path, monkeypatch, name):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path))
    given = small(tmp_path / "mine")
    made = open_dataset(prepare_dataset(f"mine+{name}"))
    order = np.load(made.folder / ORDER_FILE)
    assert order.tolist() == ORDERS[name](given).tolist()
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
    assert edges_of(made, order) == edges_of(given, np.arange(5))
    np.testing.assert_array_equal(made.features, given.features[order])
    np.testing.assert_array_equal(made.labels, given.labels[order])
    for split in ("train_ids", "val_ids", "test_ids"):
        np.testing.assert_array_equal(order[getattr(made, split)], getattr(given, split))
    assert made.name == f"mine+{name}"
    assert [folder.name for folder in imported()] == ["mine"]


def test_an_epoch_has_the_same_seed_nodes(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path))
    given = small(tmp_path / "mine")
    made = open_dataset(prepare_dataset("mine+degree"))
    order = np.load(made.folder / ORDER_FILE)
    seeds = [epoch_seeds(data.train_ids, 1, 7, 2) for data in (given, made)]
    assert [one.tolist() for one in seeds[0]] == [order[one.numpy()].tolist() for one in seeds[1]]


def test_it_is_laid_out_anew_when_its_graph_has_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path))
    small(tmp_path / "mine")
    first = prepare_dataset("mine+degree")
    written = (first / "spec.json").stat().st_mtime_ns
    assert (prepare_dataset("mine+degree") / "spec.json").stat().st_mtime_ns == written
    spec = open_dataset(tmp_path / "mine").spec
    with DatasetWriter(tmp_path / "mine", spec) as writer:
        writer.write_columns([(np.array([1, 0, 0, 0, 0]), np.array([4]))])
        writer.write_features(np.zeros((5, 3), np.float32))
        writer.write_labels(np.zeros(5, np.int64))
        writer.write_splits(np.array([0]), np.array([1]), np.array([2]))
    assert open_dataset(prepare_dataset("mine+degree")).spec.num_edges == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wordnet+size", "'size' is no order of nodes; there are degree, rcm"),
        ("wordnett+degree", "no dataset called 'wordnett'.*wordnet"),
        ("wordnet+degree+degree", "expected letters"),
        ("wordnet+", "expected letters"),
    ],
)
def test_what_is_no_order_is_refused_by_name(tmp_path, name, said):
    with pytest.raises(DatasetError, match=said):
        prepare_dataset(name, root=tmp_path)


def test_a_name_that_could_be_taken_for_an_order_is_refused_for_a_graph():
    with pytest.raises(DatasetError):
        dataset_folder("mine+degree+x")


@pytest.mark.parametrize("order", [[0, 0, 1, 2, 3], [0, 1, 2, 3, 5], [0, 1, 2]])
def test_what_is_no_permutation_of_the_nodes_is_rejected(tmp_path, order):
    given = small(tmp_path / "mine")
    with pytest.raises(ValueError, match="order:"):
        write_ordered(given, np.array(order), tmp_path / "mine+degree", "mine+degree", silent)


@given(st.permutations(range(7)))
def test_ranks_undo_an_order(order):
    """Applied twice a permutation is another one: [1, 2, 0] of itself is [2, 0, 1]."""
    found = np.array(order)
    assert ranks(found)[found].tolist() == list(range(7)) == found[ranks(found)].tolist()
    assert ranks(np.array([1, 2, 0])).tolist() == [2, 0, 1]


def test_rcm_brings_neighbours_together(tmp_path):
    """A path 0-3-1-4-2: numbered along the path, each neighbour is one away."""
    spec = DatasetSpec("path", 1.0, 5, 0, 1, "float32", 1, "by hand", "none")
    lists = [[3], [3, 4], [4], [0, 1], [1, 2]]
    with DatasetWriter(tmp_path / "path", spec) as writer:
        writer.write_columns([(np.array([len(x) for x in lists]), np.concatenate(lists))])
        writer.write_features(np.zeros((5, 1), np.float32))
        writer.write_labels(np.zeros(5, np.int64))
        writer.write_splits(np.array([0]), np.array([1]), np.array([2]))
    place = ranks(by_rcm(open_dataset(tmp_path / "path")))
    assert [abs(place[a] - place[b]) for a, b in [(0, 3), (3, 1), (1, 4), (4, 2)]] == [1] * 4


def test_rcm_says_when_a_graph_is_too_large(tmp_path):
    given = small(tmp_path / "mine")
    many = dataclasses.replace(given.spec, num_nodes=1 << 32)
    with pytest.raises(DatasetError, match=r"take mine\+degree"):
        by_rcm(dataclasses.replace(given, spec=many))
