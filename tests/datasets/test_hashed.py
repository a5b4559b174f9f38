"""The graph and the table that follow from a hash: the same however they are made, and as said."""

import math

import numpy as np
import pytest

from gatherbench.bench.run.table import load_table
from gatherbench.datasets import hash_draw, hashed
from gatherbench.datasets.dataset import DatasetError, GraphDataset, array_path
from gatherbench.datasets.hash_draw import columns, fill
from gatherbench.datasets.hashed import HashedSource
from gatherbench.datasets.registry import prepare_dataset
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import open_dataset

NAME, SCALE = "hashed-papers", 20_000 / HashedSource.nodes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    return open_dataset(prepare_dataset(NAME, SCALE, tmp_path_factory.mktemp("hashed")))


def splitmix64(counter: int) -> int:
    """Output ``counter`` of splitmix64 with seed 0, in plain Python."""
    z = counter * 0x9E3779B97F4A7C15 % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ z >> shift) * factor % 2**64
    return z ^ z >> 31


def test_a_value_follows_from_its_row_and_column():
    """Row 7 of five columns: three words a row, of each the low and the high 24 bits."""
    table = np.empty((9, 5), np.float32)
    fill(table)
    z = splitmix64((1 << 60) + 7 * 3 + 1)
    low, high = ((bits / 2**24 - 0.5) * math.sqrt(12) for bits in (z & 0xFFFFFF, z >> 40))
    assert table[7, 2:4] == pytest.approx([low, high], rel=1e-6)


def test_rows_are_the_same_in_pieces_and_look_like_noise(monkeypatch):
    whole, some = np.empty((2000, 7), np.float32), np.empty((300, 7), np.float32)
    fill(whole)
    fill(some, first=1500)
    assert np.array_equal(some, whole[1500:1800])
    monkeypatch.setattr(hash_draw, "_PIECE", 13)
    again = np.zeros_like(whole)
    fill(again)
    assert np.array_equal(again, whole)
    assert len(np.unique(whole)) > 0.99 * whole.size
    assert (whole.mean(), whole.std()) == pytest.approx((0, 1), abs=0.03)


def test_the_graph_is_the_same_in_any_blocks(monkeypatch):
    def graph() -> tuple[np.ndarray, np.ndarray]:
        runs = list(columns(5000, silent))
        degrees, rows = (np.concatenate(part) for part in zip(*runs, strict=True))
        return degrees, rows

    degrees, rows = graph()
    monkeypatch.setattr(hash_draw, "_COLUMNS", 77)
    for one, other in zip((degrees, rows), graph(), strict=True):
        assert np.array_equal(one, other)


def test_the_law_is_the_one_that_is_said():
    """Of Pareto's law with exponent 1.5 a share of 2^-1.5 has twice the least; of in-neighbours
    the first percent of ranks has 0.01^(1/3) = 21.5 %."""
    nodes = 200_000
    degrees, rows = (np.concatenate(part) for part in zip(*columns(nodes, silent), strict=True))
    assert degrees.min() == 5
    assert degrees.max() <= hashed.MOST
    assert (degrees >= 2 * hashed.LEAST).mean() == pytest.approx(0.3456, abs=0.01)
    assert degrees.mean() == pytest.approx(HashedSource.degree, rel=0.1)
    often = np.sort(np.bincount(rows, minlength=nodes))[::-1]
    assert often[: nodes // 100].sum() / len(rows) == pytest.approx(0.215, abs=0.01)
    hubs = np.flatnonzero(np.bincount(rows, minlength=nodes) > 1000)
    assert hubs.std() > nodes / 5, "hubs lie anywhere"


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
    assert HashedSource().estimate(1.0).table_bytes == 48 << 30


def test_a_hole_is_never_read_as_a_table(made, monkeypatch):
    from gatherbench.bench.run import table as table_module

    monkeypatch.setattr(table_module, "available_bytes", lambda: made.spec.table_bytes)
    with pytest.raises(MemoryError, match="smaller scale"):
        load_table(made)


def test_a_size_that_cannot_be_had_is_refused():
    for scale in (1e-9, 100):
        with pytest.raises(DatasetError, match="not 100 to"):
            HashedSource().estimate(scale)
