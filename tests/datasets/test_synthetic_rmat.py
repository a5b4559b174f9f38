"""The RMAT generator: its law, its numbers, and that nothing but the seed decides what it makes."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatherbench.datasets import draw, generated
from gatherbench.datasets.rmat import Rmat
from gatherbench.datasets.store import DatasetError, open_dataset
from gatherbench.datasets.synthetic import named_shapes


def graph(law: Rmat, draws: int, seed: int = 0, threads: int = 1) -> tuple[NDArray, NDArray]:
    degrees, rows = zip(*draw.rmat_columns(law, draws, seed, threads), strict=True)
    return np.concatenate(degrees), np.concatenate(rows)


def cell_chance(law: Rmat, u: int, v: int) -> float:
    """The definition: the product of the quadrants' weights, level by level."""
    weight = {(0, 0): law.a, (0, 1): law.b, (1, 0): law.b, (1, 1): law.d}
    chance = 1.0
    for level in range(law.levels):
        chance *= weight[u >> level & 1, v >> level & 1]
    return chance


@given(nodes=st.integers(2, 40))
def test_the_cells_are_those_of_the_definition(nodes):
    law = Rmat(nodes, undirected=False)
    chances, counts = law.cells()
    expected = Counter(
        round(cell_chance(law, u, v), 15) for u, v in itertools.permutations(range(nodes), 2)
    )
    found: Counter[float] = Counter()
    for chance, count in zip(chances, counts, strict=True):
        found[round(float(chance), 15)] += int(count)
    assert found == expected


def test_draws_for_inverts_the_expectation():
    law = Rmat(11, undirected=False)
    draws = law.draws_for(60)
    chances = [cell_chance(law, u, v) for u, v in itertools.permutations(range(11), 2)]

    def expected(m: int) -> float:
        return sum(1 - (1 - p) ** m for p in chances)

    assert expected(draws - 1) < 60 <= expected(draws)


@settings(max_examples=25, deadline=None)
@given(nodes=st.integers(2, 300), undirected=st.booleans(), seed=st.integers(0, 2**40))
def test_the_graph_is_simple_sorted_and_in_range(nodes, undirected, seed):
    degrees, rows = graph(Rmat(nodes, undirected), 500, seed)
    assert len(degrees) == nodes
    assert degrees.sum() == len(rows)
    columns = np.repeat(np.arange(nodes), degrees)
    pairs = columns * nodes + rows
    assert (np.diff(pairs) > 0).all(), "sorted, no duplicates"
    assert (rows < nodes).all()
    assert (rows != columns).all(), "no self-loops"
    if undirected:
        np.testing.assert_array_equal(np.sort(rows.astype(np.int64) * nodes + columns), pairs)


@pytest.mark.parametrize("undirected", [True, False])
def test_threads_and_blocks_change_nothing(monkeypatch, undirected):
    law = Rmat(3000, undirected)
    expected = graph(law, 40_000, seed=3)
    monkeypatch.setattr(draw, "_SMALL_BLOCK", 100)
    for threads in (2, 5, 8):
        got = graph(law, 40_000, 3, threads)
        np.testing.assert_array_equal(got[0], expected[0])
        np.testing.assert_array_equal(got[1], expected[1])
    monkeypatch.setattr(draw, "_BLOCK_ENTRIES", 700)
    np.testing.assert_array_equal(graph(law, 40_000, 3, 2)[1], expected[1])
    assert not np.array_equal(graph(law, 40_000, seed=4)[0], expected[0])


@pytest.mark.parametrize("nodes", [1024, 1025, 1500])
def test_the_edges_are_as_many_as_expected(nodes):
    for undirected in (True, False):
        law = Rmat(nodes, undirected)
        found = [len(graph(law, law.draws_for(20_000), seed)[1]) for seed in range(5)]
        # Distinct cells vary less than Poisson's sqrt(20000) = 141; pairs count twice.
        assert abs(np.mean(found) - 20_000) < 3 * 2 * 141 / np.sqrt(5)


def test_draws_follow_the_weights_of_the_law(monkeypatch):
    """Chi-squared of single draws against the definition, with the scrambling undone."""
    law, draws = Rmat(8, undirected=False), 200_000
    chance, other = draw.alias_table()
    seed = np.uint64(12345)
    keys = np.empty(draws, np.uint64)
    found = draw._draw(keys, draws, seed, chance, other, law.levels, 8, 0, 8, False)
    names = [int(draw._scramble(np.uint64(v), np.uint64(8), np.uint64(3), seed)) for v in range(8)]
    assert sorted(names) == list(range(8)), "scrambling is a bijection"
    counts = Counter(zip((keys[:found] >> np.uint64(32)).tolist(),
                         (keys[:found] & np.uint64(0xFFFFFFFF)).tolist(), strict=True))  # fmt: skip
    statistic = 0.0
    for u, v in itertools.permutations(range(8), 2):
        expected = draws * cell_chance(law, u, v)
        statistic += (counts[names[v], names[u]] - expected) ** 2 / expected
    loops = draws * sum(cell_chance(law, u, u) for u in range(8))
    statistic += (draws - found - loops) ** 2 / loops
    assert statistic < 94.5, "chi-squared, 56 degrees of freedom, p = 0.001"


@given(nodes=st.integers(2, 5000), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=15, deadline=None)
def test_scrambling_is_a_bijection(nodes, seed):
    law = np.uint64(nodes), np.uint64((nodes - 1).bit_length()), np.uint64(seed)
    assert {int(draw._scramble(np.uint64(v), *law)) for v in range(nodes)} == set(range(nodes))


def test_hubs_are_not_at_low_ids_and_degrees_are_skewed():
    law = Rmat(5000, undirected=True)
    degrees, _ = graph(law, law.draws_for(100_000))
    top = np.argsort(degrees)[-100:]
    assert 1500 < top.mean() < 3500
    assert degrees.max() > 20 * degrees.mean()


def test_impossible_laws_are_refused():
    with pytest.raises(DatasetError, match="2 nodes or more"):
        Rmat(1, undirected=False)
    with pytest.raises(DatasetError, match=r"too dense"):
        Rmat(100, undirected=False).draws_for(9_900)


# --- features, labels, splits ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", generated.FEATURE_DTYPES)
def test_features_depend_on_the_seed_alone(dtype, monkeypatch):
    monkeypatch.setattr(generated, "_CHUNK_VALUES", 50)

    def table(seed: int, workers: int) -> NDArray:
        monkeypatch.setattr(generated, "worker_count", lambda: workers)
        return np.concatenate(list(generated.feature_rows(101, 7, dtype, seed)))

    one = table(9, 1)
    assert one.shape == (101, 7)
    assert one.dtype == np.dtype(dtype)
    assert np.isfinite(one).all()
    np.testing.assert_array_equal(one, table(9, 3))
    assert not np.array_equal(one, table(8, 1))
    assert len(np.unique(one, axis=0)) == 101, "chunks repeat each other"
    if one.dtype.kind == "f":
        assert (one.mean(), one.std()) == pytest.approx((0, 1), abs=0.1), "of 707 normal numbers"


@given(
    degrees=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    sizes=st.tuples(*[st.integers(0, 30)] * 3),
)
def test_splits_are_disjoint_connected_and_fill_training_first(degrees, sizes):
    splits = generated.random_splits(np.array(degrees), sizes, 0)
    together = np.concatenate(splits)
    assert len(np.unique(together)) == len(together)
    assert all(degrees[v] for v in together)
    connected = sum(d > 0 for d in degrees)
    left = connected
    for split, size in zip(splits, sizes, strict=True):
        assert len(split) == min(size, left)
        left -= len(split)


# --- the source -----------------------------------------------------------------------------------


def test_every_named_shape_can_be_made_small(tmp_path):
    assert [s.name for s in named_shapes()] == [
        "reddit-like", "products-like", "papers100M-like", "twitter-like", "sk-like", "wiki-like"
    ]  # fmt: skip
    for source in named_shapes()[1:5:3]:  # undirected, directed
        scale = 2000 / source.nodes
        estimate = source.estimate(scale)
        source.prepare(tmp_path / source.name, scale, lambda *_: None)
        data = open_dataset(tmp_path / source.name)
        spec = data.spec
        assert (spec.num_nodes, spec.feature_dim) == (estimate.num_nodes, source.feature_dim)
        assert abs(spec.num_edges / estimate.num_edges - 1) < 0.03
        mean = source.edges / source.nodes
        assert abs(spec.num_edges / spec.num_nodes / mean - 1) < 0.03, "mean degree is kept"
        assert len(data.train_ids) == round(source.splits[0] * scale)
        assert data.labels.min() >= 0
        assert spec.num_classes == source.num_classes
        assert (np.diff(data.indptr)[data.train_ids] > 0).all()


def test_two_makings_give_the_same_bytes(tmp_path):
    (products,) = (s for s in named_shapes() if s.name == "products-like")
    for folder in ("a", "b"):
        products.prepare(tmp_path / folder, 0.001, lambda *_: None)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_scales_that_cannot_be_are_refused():
    shapes = {source.name: source for source in named_shapes()}
    with pytest.raises(DatasetError, match=r"too dense .* choose a larger scale"):
        shapes["reddit-like"].estimate(0.001)
    with pytest.raises(DatasetError, match="too small"):
        shapes["wiki-like"].estimate(1e-9)
    with pytest.raises(DatasetError, match="at most 2\\^31"):
        shapes["sk-like"].estimate(50)
    assert shapes["wiki-like"].estimate(2).num_nodes == 2 * shapes["wiki-like"].nodes
