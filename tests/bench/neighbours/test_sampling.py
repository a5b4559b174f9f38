"""Sampling of neighbours: in a buffer of partitions, and with a memory of earlier minibatches."""

import itertools
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatherbench.bench.neighbours import graphsnapshot
from gatherbench.bench.neighbours.graphsnapshot import FBL, FCR, OTF, NumberedSeeds, SnapshotSampler
from gatherbench.bench.neighbours.mariusgnn import StateSampler, StateSeeds
from gatherbench.bench.plan.doors import OwnSampler, opened
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.rows import Row
from gatherbench.bench.sampling.epoch import batch_seed, draws, epoch_seeds, knowledge_of
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.prepare import prepare
from gatherbench.bench.sampling.sampler import sampler_of
from gatherbench.datasets.store import open_dataset
from gatherbench.strategies.partition_orders import ORDERS, Partitions

from ..run.fakes import measured, skipped
from ..sampling.minibatches import same

NODES, FANOUTS = 300, (5, -1)
BUFFERED = "gatherbench.bench.neighbours.mariusgnn:Buffered"


def state_seeds(
    parts: Partitions, nodes: int, train: np.ndarray, size: int, seed: int, epoch: int
) -> list[StateSeeds]:
    """The tasks of an epoch over a graph of so many nodes without an edge."""
    sampler = StateSampler(parts, np.zeros(nodes + 1, np.int64), np.empty(0, np.int32), (1,))
    return list(sampler.tasks(epoch_seeds(train, size, seed, epoch), seed, epoch, 0))


@pytest.fixture(scope="module")
def graph() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    indptr = np.cumsum([0, *rng.integers(0, 30, NODES)], dtype=np.int64)
    return indptr, rng.integers(0, NODES, indptr[-1]).astype(np.int32)


@given(
    order=st.sampled_from(sorted(ORDERS)),
    train=st.lists(st.integers(0, NODES - 1), unique=True, min_size=1, max_size=80),
    size=st.integers(1, 30),
    epoch=st.integers(0, 3),
)
def test_each_training_node_is_trained_once_an_epoch_where_its_partition_is(
    order, train, size, epoch
):
    parts = Partitions(8, 4, order)
    found = state_seeds(parts, NODES, np.array(train), size, 7, epoch)
    assert sorted(torch.cat([one.nodes for one in found]).tolist()) == sorted(train)
    assert [one.state for one in found] == sorted(one.state for one in found)
    for one in found:
        held = parts.states()[one.state]
        assert set(parts.of(one.nodes.numpy(), NODES).tolist()) <= set(held)
    sizes = Counter[int]()
    for one, following in zip(found, [*found[1:], None], strict=True):
        last = following is None or following.state != one.state
        assert 0 < one.nodes.numel() <= size
        assert last or one.nodes.numel() == size, "only the last of a state is shorter"
        sizes[one.state] += one.nodes.numel()


def test_the_states_of_a_node_are_drawn_alike_often_and_anew_in_each_epoch():
    """Three of six states hold each partition; chi-square, of two degrees of freedom."""
    parts, train = Partitions(4, 2, "beta"), np.arange(2000)
    first, second = (state_seeds(parts, 2000, train, 2000, 0, epoch) for epoch in (0, 1))
    states = parts.states()
    of_part = Counter[tuple[int, int]]()
    for one in first:
        for part in parts.of(one.nodes.numpy(), 2000).tolist():
            of_part[part, one.state] += 1
    for part in range(4):
        where = [k for k, state in enumerate(states) if part in state]
        counts = [of_part[part, k] for k in where]
        expected = 500 / len(where)
        assert sum(counts) == 500
        assert len(where) == 3
        assert sum((n - expected) ** 2 / expected for n in counts) < 13.8  # in one of 1000 above
    assert any(not torch.equal(a.nodes, b.nodes) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_nobody_outside_the_state_is_seen_and_everybody_inside_may_be(graph, order):
    parts = Partitions(8, 4, order)
    sampler = StateSampler(parts, *graph, (-1,))
    indptr, indices = graph
    of = parts.of(np.arange(NODES), NODES)
    for i, seeds in enumerate(state_seeds(parts, NODES, np.arange(NODES), 40, 0, 0)):
        held = np.isin(of, parts.states()[seeds.state])
        batch = sampler.sample(seeds, i)
        assert held[batch.input_ids.numpy()].all()
        whole = NeighborSampler(*graph, (-1,)).sample(seeds.nodes, i)
        assert not held[whole.input_ids.numpy()].all(), "the plain sampler looks past the buffer"
        sources, targets = batch.edges[0]
        ends = (batch.input_ids[of_all].tolist() for of_all in (targets, sources))
        seen = Counter(zip(*ends, strict=True))
        inside = Counter(
            (v, int(u)) for v in seeds.nodes.tolist() for u in indices[indptr[v] : indptr[v + 1]]
            if held[u]
        )  # fmt: skip
        assert seen == inside


def test_in_a_buffer_for_everything_minibatches_are_those_without_partitions(graph):
    seeds = torch.arange(10, 40)
    whole = NeighborSampler(*graph, FANOUTS).sample(seeds, 5)
    sampler = StateSampler(Partitions(8, 8, "beta"), *graph, FANOUTS)
    assert same(whole, sampler.sample(StateSeeds(seeds, 0), 5))


def test_whoever_draws_and_in_whatever_order_draws_the_same(graph):
    """By clones beside each other, and backwards through the states."""
    parts = Partitions(8, 4, "comet")
    tasks = [
        (seeds, i) for i, seeds in enumerate(state_seeds(parts, NODES, np.arange(NODES), 30, 3, 0))
    ]
    sampler = StateSampler(parts, *graph, FANOUTS)
    plain = [sampler.sample(*task) for task in tasks]
    assert all(
        same(one, sampler.sample(*task))
        for one, task in zip(reversed(plain), reversed(tasks), strict=True)
    )
    clones = [sampler.clone(threads=1) for _ in range(3)]

    def every_third(k: int) -> list[MiniBatch]:
        return [clones[k].sample(*task) for task in tasks[k::3]]

    with ThreadPoolExecutor(3) as pool:
        for k, found in enumerate(pool.map(every_third, range(3))):
            assert all(same(a, b) for a, b in zip(plain[k::3], found, strict=True))


def test_a_broken_graph_and_too_few_nodes_are_named(graph):
    indptr, indices = graph
    broken = indices.copy()
    broken[3] = NODES
    sampler = StateSampler(Partitions(4, 4, "beta"), indptr, broken, FANOUTS)
    with pytest.raises(IndexError, match=r"holds node 300, outside the graph's 0..299"):
        sampler.sample(StateSeeds(torch.arange(NODES), 0), 0)
    many = Partitions(NODES + 1, 2, "sequential")
    with pytest.raises(ValueError, match="300 rows has no 301 partitions"):
        StateSampler(many, indptr, indices, FANOUTS)


def test_a_workload_s_minibatches_are_those_of_its_partitions(tiny_root, monkeypatch):
    """And an earlier epoch, which a path may learn from, is one of them."""
    monkeypatch.setenv("GATHERBENCH_DATA", str(tiny_root))
    plain = Workload("tiny", fanouts=(4, 3), batch_size=32)
    workload = replace(plain, sampler=f"{BUFFERED} parts=8 held=2")
    folder, identity = prepare(workload)
    assert identity != prepare(plain)[1]
    dataset = open_dataset(folder)
    sampler = sampler_of(workload, dataset.indptr, dataset.indices)
    assert isinstance(draws(workload, sampler, dataset.train_ids, 0)[0][0], StateSeeds)
    assert sampler.partitions == Partitions(8, 2, "beta")
    known = knowledge_of(workload, dataset)
    assert known.earlier is not None
    for ids in known.earlier(0):
        assert len(set(Partitions(8, 2, "beta").of(ids.numpy(), 400).tolist())) <= 2
    assert prepare(replace(plain, sampler=f"{BUFFERED} parts=8 held=8")) == prepare(plain)
    whole_graph = sampler_of(plain, dataset.indptr, dataset.indices)
    whole = draws(plain, whole_graph, dataset.train_ids, 0)
    assert torch.equal(whole[0][0], epoch_seeds(dataset.train_ids, 32, 0, 0)[0])


@pytest.mark.parametrize(
    ("gpus", "parts", "why"),
    [
        (2, 8, "minibatches of its own number: for one rank alone"),
        (1, 500, "a table of 400 rows has no 500 partitions: take fewer"),
    ],
)
def test_ranks_of_several_lengths_and_too_few_nodes_are_refused_before_a_case_runs(
    tiny_root, monkeypatch, gpus, parts, why
):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tiny_root))
    with pytest.raises(ValueError, match=why):
        prepare(Workload("tiny", gpus=gpus, sampler=f"{BUFFERED} parts={parts} held=2"))


# ---- cases of a workload with partitions ---------------------------------------------------------


def parted(job: Job, words: str = "parts=8 held=2", max_batches: int = 0) -> Job:
    """The job with partitions, on epochs of whole length."""
    drawn = f"{BUFFERED} {words}"
    workload = replace(job.case.workload, sampler=drawn, max_batches=max_batches)
    prepare(workload)
    return replace(job, case=replace(job.case, workload=workload))


def values(rows: list[Row], metric: str, basis: str = "measured") -> list[float | None]:
    return [row.value for row in rows if (row.metric, row.basis) == (metric, basis)]


def test_every_way_to_have_them_gives_the_same_minibatches(make_job):
    drawn = []
    for workers in (0, 2):
        job = parted(make_job(sampling="live", sampler_workers=workers))
        epochs = Epochs(job, open_dataset(job.dataset))
        drawn.append([batch.input_ids for batch in epochs.measured(0)])
    other = [batch.input_ids for batch in epochs.measured(1)]
    first, more = drawn
    assert len(first) > 20
    assert all(torch.equal(a, b) for a, b in zip(first, more, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=False))
    cut_short = Epochs(parted(make_job(), max_batches=3), open_dataset(job.dataset)).first
    assert len(cut_short) == 3
    assert all(torch.equal(first[i], cut_short[i].input_ids) for i in range(3))


@pytest.mark.parametrize(("ahead", "parts", "swaps"), [("0", 8, 27), ("1", 8, 27), ("1", 4, 5)])
def test_the_buffer_swaps_as_it_was_declared_in_each_epoch(make_job, ahead, parts, swaps):
    """8 partitions, 2 at a time: 6 + 7 (6 - 3) = 27 swaps; 4: 2 + 3 (2 - 1) = 5; 2 reads more."""
    job = make_job("partition_buffer", params={"ahead": ahead}, epochs=2)
    rows = measured(parted(job, f"parts={parts} held=2"))
    assert values(rows, "swaps") == [swaps] * 2
    for basis in ("measured", "declared"):
        assert values(rows, "disk_requests", basis) == [swaps + 2] * 2
    assert values(rows, "disk_read") == values(rows, "disk_read", "declared")
    both = zip(values(rows, "payload"), values(rows, "disk_payload", "declared"), strict=True)
    assert values(rows, "rows_in_memory") == [(asked - missed) / 132 for asked, missed in both]


def test_all_paths_train_alike_on_partitions_and_otherwise_without(make_job):
    jobs = parted(make_job("partition_buffer")), parted(make_job()), make_job()
    buffered, gathered, whole = (values(measured(job), "loss") for job in jobs)
    assert buffered == pytest.approx(gathered, rel=1e-6)
    assert gathered != pytest.approx(whole, rel=1e-3)


def test_without_partitions_the_buffer_is_skipped(make_job):
    said = skipped(make_job("partition_buffer"))
    assert str(said).startswith("unsupported: minibatches keep to no partitions")


def test_the_model_is_scored_after_each_epoch_outside_the_clock(make_job):
    """Then it trains on from epoch to epoch; else each begins with what the warm-up has trained."""
    often, once = (
        measured(make_job(epochs=3, eval_batches=2, eval_every_epoch=word))
        for word in (True, False)
    )
    scored = {row.epoch: row.value for row in often if row.metric == "test_accuracy"}
    assert sorted(scored) == [-1, 0, 1, 2]
    assert scored[-1] == scored[2]
    assert len(values(once, "test_accuracy")) == 1
    on, anew = values(often, "loss"), values(once, "loss")
    assert on[0] == anew[0]
    assert all(more < less for more, less in zip(on[1:], anew[1:], strict=True))


# ---- sampling that remembers ---------------------------------------------------------------------


MANY, DEGREE = 60, 40
RENEWED = FCR(alpha=2.0, every=4, threshold=30)
FLOWING = OTF(alpha=2.0, refresh=0.2, fetch=0.0, threshold=30)


def lists(dtype: type = np.int32) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Each node has 40 distinct neighbours, but that of number v < 20 only v of them."""
    rng = np.random.default_rng(0)
    lists = [rng.permutation(MANY)[: v if v < 20 else DEGREE] for v in range(MANY)]
    return np.cumsum([0, *map(len, lists)], dtype=np.int64), np.concatenate(lists).astype(dtype)


GRAPH = lists()


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
    hot = MANY - 20
    assert [one.rows.shape for one in each._caches] == [(hot, 10), (hot, 6)]
    assert [one.rows.shape for one in shared._caches] == [(hot, 10)]
    # Rows of 4 B an entry, 16 B of their age, and a slot for each node.
    assert each.cache_bytes == hot * (16 * 4 + 2 * 16) + 2 * 4 * MANY
    assert shared.cache_bytes == hot * (10 * 4 + 16) + 4 * MANY


@pytest.mark.parametrize("structure", [RENEWED, FLOWING])
def test_every_neighbour_is_as_likely_over_epochs(structure):
    one, counts = sampler(structure), np.zeros(MANY)
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
