"""Sampling that remembers: its order, its shares, what it keeps; and wrong versions of it."""

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gatherbench.bench.neighbours import graphsnapshot
from gatherbench.bench.neighbours.graphsnapshot import FBL, FCR, OTF, NumberedSeeds, SnapshotSampler
from gatherbench.bench.plan.doors import OwnSampler, opened
from gatherbench.bench.sampling.epoch import batch_seed
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler

from ..sampling.minibatches import same

NODES, DEGREE = 60, 40
RENEWED = FCR(alpha=2.0, every=4, threshold=30)
FLOWING = OTF(alpha=2.0, refresh=0.2, fetch=0.0, threshold=30)


def graph(dtype: type = np.int32) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Each node has 40 distinct neighbours, but that of number v < 20 only v of them."""
    rng = np.random.default_rng(0)
    lists = [rng.permutation(NODES)[: v if v < 20 else DEGREE] for v in range(NODES)]
    return np.cumsum([0, *map(len, lists)], dtype=np.int64), np.concatenate(lists).astype(dtype)


GRAPH = graph()


def epoch(
    sampler: SnapshotSampler, batches: int, seed: int = 0, nodes: range = range(15, 35)
) -> list[MiniBatch]:
    seeds = [NumberedSeeds(torch.tensor(list(nodes)), n, seed) for n in range(batches)]
    return [sampler.sample(one, batch_seed(seed, 0, one.number)) for one in seeds]


def drawn(batches: list[MiniBatch], layer: int = 0) -> list[dict[int, set[int]]]:
    """Of each minibatch: node → what was drawn for it."""
    found = []
    for batch in batches:
        ids, of = batch.input_ids, defaultdict(set)
        for source, target in ids[batch.edges[layer]].T.tolist():
            of[target].add(source)
        found.append(dict(of))
    return found


def sampler(structure: FBL, fanouts: tuple[int, ...] = (5,), threads: int = 0) -> SnapshotSampler:
    made = SnapshotSampler(structure, *GRAPH, fanouts)
    return made.clone(threads) if threads else made


EVERY = [RENEWED, FLOWING, replace(FLOWING, shared=True, fetch=0.4)]


@pytest.mark.parametrize("structure", EVERY, ids=repr)
def test_an_epoch_depends_on_its_seed_alone(structure):
    one = sampler(structure, (5, 3), threads=1)
    first = epoch(one, 10)
    epoch(one, 3, seed=7)  # what came before, and was not finished, changes nothing
    again = epoch(one, 10)
    other = epoch(one.clone(threads=2), 10)
    anew = epoch(sampler(structure, (5, 3), threads=2), 10)
    for more in (again, other, anew):
        assert all(same(a, b) for a, b in zip(first, more, strict=True))
    assert not all(same(a, b) for a, b in zip(first, epoch(one, 10, seed=8), strict=True))


@pytest.mark.parametrize("structure", EVERY, ids=repr)
def test_what_is_drawn_are_distinct_neighbours_as_many_as_the_fanout(structure):
    indptr, indices = GRAPH
    for batch in epoch(sampler(structure, (5, 3)), 12):
        for layer, fanout in enumerate((5, 3)):
            ids = batch.input_ids
            pairs = ids[batch.edges[layer]].T.tolist()
            assert len({tuple(pair) for pair in pairs}) == len(pairs)
            for target in ids[: batch.num_nodes[layer]].tolist():
                mine = {source for source, of in pairs if of == target}
                neighbours = set(indices[indptr[target] : indptr[target + 1]].tolist())
                assert mine <= neighbours
                assert len(mine) == min(fanout, len(neighbours))


def test_minibatches_are_drawn_in_their_order():
    one = sampler(FLOWING)
    epoch(one, 3)
    for number, key in ((5, 0), (2, 0), (3, 1)):
        with pytest.raises(ValueError, match="depends on the one before"):
            one.sample(NumberedSeeds(torch.arange(3), number, key), 0)


def test_fcr_draws_from_ten_neighbours_and_from_others_after_four_minibatches():
    """A fan-out of 5, twice that in a cache; node 15 to 19 have no more than 30 and no cache."""
    batches = drawn(epoch(sampler(RENEWED), 60))
    for node in range(20, 35):
        pools = [set().union(*(one[node] for one in batches[k : k + 4])) for k in range(0, 60, 4)]
        assert max(map(len, pools)) <= 10
        assert len(set(map(frozenset, pools))) > 10
        assert len(set().union(*pools)) >= DEGREE - 4
    assert len(set().union(*(one[19] for one in batches[:4]))) > 10


def test_otf_renews_a_fifth_of_ten_entries_at_a_time():
    """2 of 10 are drawn anew; the 1/4 that is there already changes nothing: 1.5 of 10 change."""
    one = sampler(FLOWING)
    rows, changes = [], []
    for number in range(400):
        one.sample(NumberedSeeds(torch.arange(20, 35), number, 3), number)
        rows.append(one._caches[0].rows[one._caches[0].slots[20:35]].copy())
    for before, after in itertools.pairwise(rows):
        assert all(len(set(row)) == 10 for row in after.tolist())
        changes.append((before != after).sum(axis=1))
    assert np.max(changes) <= 2
    assert np.mean(changes) == pytest.approx(2 * 0.75, rel=0.06)


def test_without_refresh_and_fetch_a_cache_stays_for_the_epoch():
    batches = drawn(epoch(sampler(replace(FLOWING, refresh=0.0)), 40))
    assert all(len(set().union(*(one[v] for one in batches))) == 10 for v in range(20, 35))


def test_fetched_shares_come_from_the_whole_list():
    """Of 5 edges 2 from the list; 30 of its 40 are in no cache: 1.5 of 5 (and no duplicates)."""
    one = sampler(replace(FLOWING, refresh=0.0, fetch=0.4))
    cache, outside = one._caches[0], []
    for number in range(300):
        batch = one.sample(NumberedSeeds(torch.arange(20, 35), number, 3), number)
        for node, mine in drawn([batch])[0].items():
            if node < 35 and cache.slots[node] >= 0:
                row = set(cache.rows[cache.slots[node]].tolist())
                outside.append(len(mine - row))
    assert max(outside) == 2
    assert np.mean(outside) == pytest.approx(1.5, rel=0.05)


def test_one_cache_for_all_layers_is_smaller():
    each, shared = (sampler(replace(RENEWED, shared=s), (5, 3)) for s in (False, True))
    hot = NODES - 20
    assert [one.rows.shape for one in each._caches] == [(hot, 10), (hot, 6)]
    assert [one.rows.shape for one in shared._caches] == [(hot, 10)]
    # Rows of 4 B an entry, 16 B of their age, and a slot for each node.
    assert each.cache_bytes == hot * (16 * 4 + 2 * 16) + 2 * 4 * NODES
    assert shared.cache_bytes == hot * (10 * 4 + 16) + 4 * NODES


@pytest.mark.parametrize("structure", [RENEWED, FLOWING])
def test_every_neighbour_is_as_likely_over_epochs(structure):
    one, counts = sampler(structure), np.zeros(NODES)
    for seed in range(1000):
        (batch,) = drawn(epoch(one, 1, seed, range(40, 41)))
        counts[list(batch[40])] += 1
    seen = counts[GRAPH[1][GRAPH[0][40] : GRAPH[0][41]]]
    expected = 1000 * 5 / DEGREE
    assert counts.sum() == seen.sum() == 5000
    # 40 counts of a binomial: their spread is that of draws without replacement.
    assert ((seen - expected) ** 2 / expected).sum() < 72


def test_plain_sampling_is_what_fbl_draws_and_all_count_what_they_saw():
    """Of 20 nodes 5 each time, and once in a set as often as it is drawn."""
    plain, whole = NeighborSampler(*GRAPH, (5, 3)), sampler(FBL(), (5, 3))
    steps = [torch.arange(15, 35)] * 3
    tally = whole.tally()
    pairs = set()
    for task in whole.tasks(steps, 0, 0, 0):
        batch = whole.sample(task, task.number)
        assert same(batch, plain.sample(task.nodes, task.number))
        tally.add(batch)
        for edges in batch.edges:
            pairs |= set(map(tuple, batch.input_ids[edges].T.tolist()))
    counted = {one.metric: one.value for one in tally.counted(1.0)}
    assert counted == {"distinct_neighbours": len(pairs), "structure_cache": 0}
    assert len(pairs) > 100


def test_impossible_policies_are_refused():
    for policy, why in (
        ("LRU", "LRU"),
        ("FCR keep=0.1", "no parameter 'keep'"),
        ("FCR every=0", "every = '0': .*greater than 0"),
        ("OTF refresh=1.5", "refresh = '1.5': .*less than or equal to 1"),
        ("FCR alpha=0.5", "alpha = '0.5': .*greater than or equal to 1"),
    ):
        with pytest.raises(ValueError, match=why):
            opened(f"gatherbench.bench.neighbours.graphsnapshot:{policy}", OwnSampler)
    with pytest.raises(ValueError, match=r"fanouts = \(3, -1\): OTF keeps.*positive.*FBL"):
        FLOWING.open(np.array([0, 1]), np.array([0]), (3, -1), 0)
    assert FBL().open(np.array([0, 1]), np.array([0]), (3, -1), 0).fanouts == (3, -1)


# ---- wrong ones -------------------------------------------------------------------------------


def never_anew(patch: pytest.MonkeyPatch) -> None:
    """Caches of ``fcr`` that are drawn once."""
    plain = graphsnapshot._draw_cached
    patch.setattr(graphsnapshot, "_draw_cached", lambda *given: plain(*given[:-3], 1, *given[-2:]))


def no_threshold(patch: pytest.MonkeyPatch) -> None:
    plain = graphsnapshot._Cache.of
    patch.setattr(
        graphsnapshot._Cache, "of", lambda degrees, size, _, dtype: plain(degrees, size, 0, dtype)
    )


def cache_of_all(patch: pytest.MonkeyPatch) -> None:
    """Plain sampling under another name."""
    patch.setattr(SnapshotSampler, "_draw_part", NeighborSampler._draw_part)


@pytest.mark.parametrize("wrong", [never_anew, no_threshold, cache_of_all])
def test_wrong_versions_of_fcr_fail(wrong, monkeypatch):
    wrong(monkeypatch)
    with pytest.raises(AssertionError):
        test_fcr_draws_from_ten_neighbours_and_from_others_after_four_minibatches()


def test_a_memory_that_outlives_its_epoch_fails(monkeypatch):
    plain = SnapshotSampler.sample

    def sample(self: SnapshotSampler, seeds: NumberedSeeds, seed: int) -> MiniBatch:
        if seeds.number == 0 and self._epochs:
            self._epochs -= 1  # as if the epoch went on
        return plain(self, seeds, seed)

    monkeypatch.setattr(SnapshotSampler, "sample", sample)
    with pytest.raises(AssertionError):
        test_an_epoch_depends_on_its_seed_alone(FLOWING)
