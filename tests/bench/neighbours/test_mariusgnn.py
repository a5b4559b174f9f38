"""Minibatches of a buffer of partitions: who is trained in which state; swaps, and accuracy."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatherbench.bench.neighbours.mariusgnn import StateSampler, StateSeeds
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.rows import Row
from gatherbench.bench.sampling.epoch import draws, epoch_seeds, knowledge_of
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
