"""The graph and the table that follow from a hash: the same however they are made, and as said."""

import math

import numpy as np
import pytest

from gatherbench.bench.run.table import load_table
from gatherbench.datasets import draw
from gatherbench.datasets.dataset import DatasetError, GraphDataset, array_path
from gatherbench.datasets.draw import fill, hashed_columns
from gatherbench.datasets.generated import ALPHA, MOST
from gatherbench.datasets.registry import prepare_dataset
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import open_dataset
from gatherbench.datasets.synthetic import HashedSource, named_shapes

from .hash_law import degrees, neighbours, rows_of_a_minibatch, splitmix64

SOURCES = {source.name: source for source in map(HashedSource, named_shapes())}
PAPERS = SOURCES["hashed-papers100M"]
SCALE = 20_000 / PAPERS.shape.nodes


def law(source: HashedSource) -> tuple[float, float]:
    return source.least, source.shape.skew


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    return open_dataset(prepare_dataset(PAPERS.name, SCALE, tmp_path_factory.mktemp("hashed")))


def test_a_value_follows_from_its_row_and_column():
    """Row 7 of five columns: three words a row, of each the low and the high 24 bits."""
    table = np.empty((9, 5), np.float32)
    fill(table)
    z = int(splitmix64(np.array([(1 << 60) + 7 * 3 + 1], np.uint64))[0])
    low, high = ((bits / 2**24 - 0.5) * 12**0.5 for bits in (z & 0xFFFFFF, z >> 40))
    assert table[7, 2:4] == pytest.approx([low, high], rel=1e-6)


def test_rows_are_the_same_in_pieces_and_look_like_noise(monkeypatch):
    whole, some = np.empty((2000, 7), np.float32), np.empty((300, 7), np.float32)
    fill(whole)
    fill(some, first=1500)
    assert np.array_equal(some, whole[1500:1800])
    monkeypatch.setattr(draw, "_PIECE", 13)
    again = np.zeros_like(whole)
    fill(again)
    assert np.array_equal(again, whole)
    assert len(np.unique(whole)) > 0.99 * whole.size
    assert (whole.mean(), whole.std()) == pytest.approx((0, 1), abs=0.03)


def test_the_graph_is_the_same_in_any_blocks(monkeypatch):
    def graph() -> tuple[np.ndarray, np.ndarray]:
        runs = list(hashed_columns(5000, *law(PAPERS), silent))
        degrees, rows = (np.concatenate(part) for part in zip(*runs, strict=True))
        return degrees, rows

    degrees, rows = graph()
    monkeypatch.setattr(draw, "_COLUMNS", 77)
    for one, other in zip((degrees, rows), graph(), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("source", SOURCES.values(), ids=list(SOURCES))
def test_the_law_is_the_one_that_is_said(source):
    """Of in-neighbours the first percent of ranks has 0.01^(1/skew): 21.5 % with 3."""
    nodes = 20_000
    made = hashed_columns(nodes, *law(source), silent)
    found, rows = (np.concatenate(part) for part in zip(*made, strict=True))
    assert np.array_equal(found, degrees(source, np.arange(nodes)))
    node, entry = np.nonzero(np.arange(MOST) < found[:100, None])
    wanted = neighbours(source, nodes / source.shape.nodes, node, entry)
    assert np.array_equal(rows[: len(wanted)], wanted)
    least, skew = law(source)
    twice = math.ceil(2 * least)
    assert (found >= twice).mean() == pytest.approx((least / twice) ** ALPHA, abs=0.015)
    assert found.mean() == pytest.approx(source.shape.edges / source.shape.nodes, rel=0.1)
    often = np.sort(np.bincount(rows, minlength=nodes))[::-1]
    assert often[: nodes // 100].sum() / len(rows) == pytest.approx(0.01 ** (1 / skew), abs=0.01)
    assert np.argsort(np.bincount(rows))[-100:].std() > nodes / 5, "hubs lie anywhere"


@pytest.mark.parametrize(
    ("name", "seeds", "fanouts", "published"),
    [
        # Times and link rate of a chart: K-Wu/pytorch-direct_dgl, README (Reddit, RTX 3090).
        ("hashed-reddit", 1000, (25, 10), 125_000),
        ("hashed-papers100M", 1024, (10, 10, 10), 664_000),  # dmlc/dgl #7541
    ],
)
def test_a_minibatch_asks_for_as_many_rows_as_is_published(name, seeds, fanouts, published):
    rows = rows_of_a_minibatch(SOURCES[name], 1.0, seeds, fanouts)
    assert rows == pytest.approx(published, rel=0.05)


def test_the_folder_holds_no_table_and_the_table_is_made_in_memory(made):
    spec = made.spec
    assert (spec.num_nodes, spec.row_bytes, spec.hashed) == (20_000, 512, True)
    stat = array_path(made.folder, "features").stat()
    assert stat.st_size > spec.table_bytes
    assert stat.st_blocks * 512 <= 64 << 10
    table = load_table(made)
    wanted = np.empty((spec.num_nodes, spec.feature_dim), np.float32)
    fill(wanted)
    assert np.array_equal(table.features.numpy(), wanted)
    assert table.truth is table.features
    assert "made by hash" in table.where


def test_a_hole_is_never_read_as_a_table(made, monkeypatch):
    from gatherbench.bench.run import table as table_module

    monkeypatch.setattr(table_module, "available_bytes", lambda: made.spec.table_bytes)
    with pytest.raises(MemoryError, match="smaller scale"):
        load_table(made)


def test_the_smallest_graph_has_a_node_in_each_split_and_others_are_refused(tmp_path):
    for scale in (1e-9, 20):
        with pytest.raises(DatasetError, match="not 100 to"):
            PAPERS.estimate(scale)
    data = open_dataset(prepare_dataset(PAPERS.name, 100 / PAPERS.shape.nodes, tmp_path))
    assert min(map(len, (data.train_ids, data.val_ids, data.test_ids))) == 1
