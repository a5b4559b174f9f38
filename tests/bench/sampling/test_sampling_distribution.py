"""Every subset of a list is drawn equally often: chi-squared against the exact distribution.

The seeds are fixed, so a test that passes once passes always; the level (one in ten thousand) says
how unlucky a right sampler would have had to be when it was written.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from scipy import stats

from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler

LEVEL = 1e-4


def is_uniform(drawn: Iterable[tuple[int, ...]], degree: int, fanout: int) -> bool:
    """Whether all ``C(degree, fanout)`` subsets are equally frequent, and nothing else is drawn."""
    seen = Counter(tuple(sorted(subset)) for subset in drawn)
    subsets = list(itertools.combinations(range(degree), fanout))
    if set(seen) - set(subsets):
        return False
    counts = [seen[subset] for subset in subsets]
    assert np.mean(counts) >= 5, "too few draws for a chi-squared test"
    return bool(stats.chisquare(counts).pvalue > LEVEL)


def star_forest(degree: int, targets: int) -> tuple[np.ndarray, np.ndarray]:
    """Targets ``degree .. degree + targets - 1`` all list the nodes ``0 .. degree - 1``."""
    indptr = np.concatenate([np.zeros(degree), np.arange(targets + 1) * degree]).astype(np.int64)
    return indptr, np.tile(np.arange(degree, dtype=np.int32), targets)


def subsets_of(batch: MiniBatch, fanout: int) -> list[tuple[int, ...]]:
    """The neighbours drawn for each target of the first layer, which all have ``fanout``."""
    sources, targets = batch.edges[0]
    neighbours = batch.input_ids[sources[targets.argsort(stable=True)]]
    return [tuple(row) for row in neighbours.reshape(-1, fanout).tolist()]


@pytest.mark.parametrize(("degree", "fanout"), [(2, 1), (5, 2), (6, 3), (7, 6), (12, 4), (70, 2)])
def test_every_subset_is_equally_likely(degree, fanout):
    """Of the CPU sampler; the other draws the same bits."""
    sampler = NeighborSampler(*star_forest(degree, 40_000), (fanout,))
    drawn = sampler.sample(torch.arange(degree, degree + 40_000), 1)
    assert is_uniform(subsets_of(drawn, fanout), degree, fanout)


def with_replacement(degree: int, fanout: int, targets: int) -> Iterable[tuple[int, ...]]:
    rng = random.Random(0)
    return (tuple(rng.choices(range(degree), k=fanout)) for _ in range(targets))


def seldom_the_last(degree: int, fanout: int, targets: int) -> Iterable[tuple[int, ...]]:
    """Floyd's algorithm with a bound that is off by one."""
    rng = random.Random(0)
    for _ in range(targets):
        taken: set[int] = set()
        for highest in range(degree - fanout, degree):
            place = rng.randrange(max(1, highest))
            taken.add(highest if place in taken else place)
        yield tuple(taken)


def test_wrong_samplers_are_rejected():
    for draw in (with_replacement, seldom_the_last):
        assert not is_uniform(draw(6, 3, 10_000), 6, 3)


def test_one_node_over_many_seeds():
    """The seed decides as evenly as the node does."""
    sampler = NeighborSampler(*star_forest(6, 1), (2,), threads=1)
    drawn = (subsets_of(sampler.sample(torch.tensor([6]), seed), 2)[0] for seed in range(2000))
    assert is_uniform(drawn, 6, 2)


def test_layers_draw_independently():
    """The same target in two layers: all pairs of choices are equally frequent."""
    targets = 40_000
    sampler = NeighborSampler(*star_forest(6, targets), (1, 1))
    batch = sampler.sample(torch.arange(6, 6 + targets), 5)
    first, second = (batch.input_ids[edges[0]][:targets] for edges in batch.edges)
    pairs = torch.bincount(first * 6 + second, minlength=36).numpy()
    assert stats.chisquare(pairs).pvalue > LEVEL


def test_a_long_list_is_drawn_evenly():
    degree, fanout = 1_000_000, 50
    sampler = NeighborSampler(*star_forest(degree, 1), (fanout,), threads=1)
    drawn = [
        subsets_of(sampler.sample(torch.tensor([degree]), seed), fanout) for seed in range(800)
    ]
    places = np.array(drawn).ravel()
    assert stats.chisquare(np.histogram(places, bins=100, range=(0, degree))[0]).pvalue > LEVEL
    assert stats.chisquare(np.bincount(places % 64)).pvalue > LEVEL
