"""How a sampler is used: threads, forks, wrong input, an epoch in order, and ahead of the loop."""

import gc
import multiprocessing
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import starmap
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling import kernels, numba_sampler
from gatherbench.bench.sampling import workers as workers_module
from gatherbench.bench.sampling.device_sampler import DeviceSampler
from gatherbench.bench.sampling.epoch import batch_seed, draws, epoch_seeds, rank_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler, Targets
from gatherbench.bench.sampling.splitmix import derive, mix, stream
from gatherbench.bench.sampling.workers import AHEAD, begun_ahead, drawn_ahead

from .minibatches import same

NODES, DEGREE = 3000, 40
HOST = torch.device("cpu")
FORK = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def graph() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    return np.arange(NODES + 1, dtype=np.int64) * DEGREE, rng.integers(0, NODES, NODES * DEGREE)


@pytest.mark.parametrize("threads", [2, 5, None])
def test_the_number_of_threads_changes_nothing(graph, threads):
    seeds = torch.randperm(NODES, generator=torch.Generator().manual_seed(0))[:1000]
    one = NeighborSampler(*graph, (25, 10), threads=1)
    many = NeighborSampler(*graph, (25, 10), threads)
    for seed in range(5):
        assert same(one.sample(seeds, seed), many.sample(seeds, seed))


def test_threads_of_the_caller_wait_for_one_another(graph):
    sampler = NeighborSampler(*graph, (20, 10), threads=3)
    seeds = torch.arange(1000)
    alone = [sampler.sample(seeds, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: sampler.sample(seeds, seed), range(8)))
    assert all(map(same, alone, together))


def _sample_in_child(sampler: NeighborSampler, queue) -> None:
    batch = sampler.sample(torch.arange(1000), 3)
    queue.put((batch.num_nodes, int(batch.input_ids.sum()), int(batch.edges[1][0].sum())))


@FORK
def test_in_a_forked_process(graph):
    sampler = NeighborSampler(*graph, (20, 10), threads=2)
    batch = sampler.sample(torch.arange(1000), 3)  # its threads live, and do not come along
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with sampler._lock:  # forked in the middle of a minibatch
        child = context.Process(target=_sample_in_child, args=(sampler, queue))
        child.start()
    child.join(100)
    assert child.exitcode == 0
    expected = (batch.num_nodes, int(batch.input_ids.sum()), int(batch.edges[1][0].sum()))
    assert queue.get() == expected


def test_pickled_and_back(graph):
    sampler = NeighborSampler(*graph, (4, -1), threads=1)
    copy = pickle.loads(pickle.dumps(sampler))
    assert same(copy.sample(torch.arange(9), 1), sampler.sample(torch.arange(9), 1))


@pytest.mark.parametrize("fails", [0, 2])
def test_a_layer_ends_for_all_when_it_fails_for_one(graph, monkeypatch, fails):
    ended = []

    def part(_layer: int, _key: Any, targets: Targets, *_into: Any) -> None:
        member = targets[-2] // 400  # each draws for a third of 1200
        if member == fails:
            raise OSError(f"part {member}")
        threading.Event().wait(0.02)
        ended.append(member)

    sampler = NeighborSampler(*graph, (3,), threads=3)
    monkeypatch.setattr(numba_sampler, "_EDGES_PER_THREAD", 1)
    monkeypatch.setattr(sampler, "_draw_part", part)
    with pytest.raises(OSError, match=f"part {fails}"):
        sampler.sample(torch.arange(1200), 0)
    assert sorted(ended) == sorted({0, 1, 2} - {fails})


SEEDS_REFUSED = [
    (torch.tensor([], dtype=torch.int64), ValueError, "at least one seed node"),
    (torch.tensor([4, 2, 4]), ValueError, "unique"),
    (torch.tensor([0, -1]), IndexError, "-1, ?outside|-1 is outside"),
    (torch.tensor([NODES]), IndexError, f"{NODES}.*outside the graph's nodes 0..{NODES - 1}"),
    (torch.tensor([1], dtype=torch.int32), TypeError, "expected int64, got torch.int32"),
    (torch.tensor([[1]]), ValueError, r"shape \[S\]"),
    (torch.tensor([1], device="meta"), ValueError, "expected on cpu, got meta"),
    ([1, 2], TypeError, "torch tensor, got list"),
]


@pytest.mark.usefixtures("kernels_on_host")
@pytest.mark.parametrize(("seeds", "error", "message"), SEEDS_REFUSED)
def test_wrong_seeds_and_then_right_ones(graph, seeds, error, message):
    for sampler in (NeighborSampler(*graph, (3,)), DeviceSampler(*graph, (3,), HOST)):
        before = sampler.sample(torch.arange(5), 0)
        with pytest.raises(error, match=message):
            sampler.sample(seeds, 0)
        assert same(before, sampler.sample(torch.arange(5), 0))


I64 = np.int64
GRAPHS_REFUSED = [
    (np.array([0, 1], np.int32), np.array([0]), TypeError, "indptr: expected int64"),
    (np.array([0, 1], I64), np.array([0.0]), TypeError, "indices: expected int32 or int64"),
    (np.array([0, 1], I64), np.array([[0]]), ValueError, "indices: expected one dimension"),
    (np.array([0], I64), np.array([], I64), ValueError, "without nodes"),
    (np.array([0, 2], I64), np.array([0]), ValueError, "from 0 to 2, expected from 0 to the 1"),
    (np.array([1, 1], I64), np.array([0]), ValueError, "from 1 to 1"),
    (np.array([0, 2, 1, 3], I64), np.array([0, 1, 2]), ValueError, "decreases"),
]


@pytest.mark.usefixtures("kernels_on_host")
@pytest.mark.parametrize(("indptr", "indices", "error", "message"), GRAPHS_REFUSED)
def test_what_is_no_graph(indptr, indices, error, message):
    with pytest.raises(error, match=message):
        NeighborSampler(indptr, indices, (2,))
    with pytest.raises(error, match=message):
        DeviceSampler(indptr, indices, (2,), HOST)


@pytest.mark.usefixtures("kernels_on_host")
@pytest.mark.parametrize("stranger", [-1, 2, 2**31 - 1])
def test_a_neighbour_outside_the_graph(stranger):
    indptr, indices = np.array([0, 1, 2], np.int64), np.array([1, stranger], np.int32)
    sampler = NeighborSampler(indptr, indices, (2,))
    assert sampler.sample(torch.tensor([0]), 0).num_nodes == (1, 2)
    with pytest.raises(IndexError, match=f"holds node {stranger}, outside"):
        sampler.sample(torch.tensor([1]), 0)
    with pytest.raises(IndexError, match="outside the graph"):
        DeviceSampler(indptr, indices, (2,), HOST)


@pytest.mark.parametrize("fanouts", [(), (5, 0), (-2,), (5, 2.5)])
def test_fanouts_and_threads_that_make_no_sense(graph, fanouts):
    with pytest.raises(ValueError, match="fanouts"):
        NeighborSampler(*graph, fanouts)
    with pytest.raises(ValueError, match="threads = 0"):
        NeighborSampler(*graph, (2,), threads=0)


def test_splitmix_gives_the_published_numbers():
    """The first five numbers of the seed 1234567, as listed with many implementations."""
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert stream(1234567, 5).tolist() == expected
    assert mix(1234567 + 0x9E3779B97F4A7C15) == expected[0]


def test_derived_keys_are_all_different():
    words = [(), (0,), (0, 0), (1, 0), (0, 1), (-1,), (2**63,), *((i, 7) for i in range(1000))]
    assert len({derive(*w) for w in words}) == len(words)
    seeds = {batch_seed(s, e, b) for s in range(9) for e in range(-1, 9) for b in range(9)}
    assert len(seeds) == 810


def test_an_epoch_has_every_seed_node_once_in_its_own_order():
    train = np.arange(1000, 0, -3)
    batches = epoch_seeds(train, 64, 3, 0)
    assert [len(batch) for batch in batches] == [64] * 5 + [14]
    together = torch.cat(batches)
    assert together.dtype == torch.int64
    assert sorted(together.tolist()) == sorted(train.tolist())
    assert together.tolist() != train.tolist()
    again, epoch, seed = (torch.cat(epoch_seeds(train, 64, *of)) for of in ((3, 0), (3, 1), (4, 0)))
    assert torch.equal(together, again)
    assert not torch.equal(together, epoch)
    assert not torch.equal(together, seed)
    with pytest.raises(ValueError, match="train_ids"):
        epoch_seeds(np.arange(0), 2, 0, 0)


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), world=st.integers(1, 9))
def test_ranks_share_the_seeds_of_each_step(sizes, world):
    """Equal counts, no seed twice, in order, and fewer left out than there are ranks."""
    steps = list(torch.randperm(sum(sizes)).split(sizes))
    if max(sizes) < world:
        with pytest.raises(ValueError, match=f"a seed node for each of {world} ranks"):
            rank_seeds(steps, 0, world)
        return
    shares = [rank_seeds(steps, rank, world) for rank in range(world)]
    kept = [step for step in steps if step.numel() >= world]
    assert {len(of_rank) for of_rank in shares} == {len(kept)}
    for step, *of_ranks in zip(kept, *shares, strict=True):
        assert {share.numel() for share in of_ranks} == {step.numel() // world}
        joined = torch.cat(of_ranks)
        assert torch.equal(joined, step[: joined.numel()])
        assert step.numel() - joined.numel() < world


def test_the_shares_of_two_ranks_by_hand():
    steps = [torch.tensor([5, 1, 9, 7, 3]), torch.tensor([4])]
    assert [s.tolist() for s in rank_seeds(steps, 0, 2)] == [[5, 1]]
    assert [s.tolist() for s in rank_seeds(steps, 1, 2)] == [[9, 7]]
    assert [s.tolist() for s in rank_seeds(steps, 0, 1)] == [[5, 1, 9, 7, 3], [4]]


@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(1, 8))
def test_no_two_minibatches_of_an_epoch_are_drawn_alike(seed, epoch, world):
    """One rank draws as it did before there were several."""
    drawn = [batch_seed(seed, epoch, b, r, world) for b in range(5) for r in range(world)]
    assert len(set(drawn)) == 5 * world
    if world == 1:
        assert drawn == [batch_seed(seed, epoch, b) for b in range(5)]


def test_strong_scaling_splits_the_steps_and_weak_scaling_joins_them(graph):
    ids, one = np.arange(100), Workload("wordnet", batch_size=8)
    sampler = NeighborSampler(*graph, (2,))

    def seeds(workload: Workload, rank: int = 0) -> list[torch.Tensor]:
        return [nodes for nodes, _ in draws(workload, sampler, ids, 0, rank)]

    alone = seeds(one)
    assert [s.numel() for s in alone] == [8] * 12 + [4]
    strong, weak = (replace(one, gpus=2, scaling=scaling) for scaling in ("strong", "weak"))
    first, second = (seeds(strong, rank) for rank in range(2))
    assert [s.numel() for s in first] == [4] * 12 + [2]
    assert all(map(torch.equal, map(torch.cat, zip(first, second, strict=True)), alone))
    first, second = (seeds(weak, rank) for rank in range(2))
    assert [s.numel() for s in first] == [8] * 6 + [2]
    assert torch.equal(torch.cat([*first, *second]).sort().values, torch.arange(100))
    few = replace(weak, max_batches=3)
    assert [s.numel() for s in seeds(few, 1)] == [8] * 3


# ---- drawn ahead ---------------------------------------------------------------------------------


FEW, SEED = 300, 11
Task = tuple[Tensor, int]


@pytest.fixture(scope="module")
def sampler() -> NeighborSampler:
    rng = np.random.default_rng(0)
    indptr = np.cumsum([0, *rng.integers(0, 40, FEW)], dtype=np.int64)
    return NeighborSampler(indptr, rng.integers(0, FEW, indptr[-1]), (5, 3), threads=1)


def tasks(count: int, epoch: int = 0) -> list[Task]:
    """Those of ``count`` minibatches; the last has a single seed node."""
    seeds = epoch_seeds(np.arange(3 * count - 2), 3, SEED, epoch) if count else []
    return [(batch, batch_seed(SEED, epoch, i)) for i, batch in enumerate(seeds)]


@pytest.fixture(scope="module")
def workers_left() -> Callable[[], set[threading.Thread]]:
    """The sampler's threads that tests of this file began."""

    def now() -> set[threading.Thread]:
        every = threading.enumerate()
        return {thread for thread in every if thread.name.startswith("gatherbench-sample")}

    before = now()
    return lambda: now() - before


def until(true: Callable[[], bool]) -> None:
    """Wait for what other threads are about to do."""
    end = time.monotonic() + 100
    while not true():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.001)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 20), workers=st.sampled_from([1, 2, 3, 8]))
def test_the_same_minibatches_bit_for_bit(sampler, workers_left, count, workers):
    wanted = list(starmap(sampler.sample, tasks(count)))
    found = list(drawn_ahead([sampler.clone(1).sample for _ in range(workers)], tasks(count)))
    assert len(found) == len(wanted) == count
    assert all(map(same, found, wanted))
    assert not workers_left()


def test_one_that_is_ready_first_waits_for_its_turn():
    second = threading.Event()

    def draw(number: int) -> int:
        if number == 0:
            assert second.wait(100), "minibatch 1 is drawn beside minibatch 0"
        if number == 1:
            second.set()
        return number

    assert list(drawn_ahead([draw, draw], zip(range(7)))) == list(range(7))


@pytest.mark.parametrize("workers", [1, 3])
def test_never_more_than_two_a_worker_are_ahead(workers):
    """Beside the one that the loop has: ready or being drawn, at whatever moment one begins."""
    begun, had, most, at_once, busy = 0, 0, 0, 0, 0
    lock = threading.Lock()

    def draw(number: int) -> int:
        nonlocal begun, most, at_once, busy
        with lock:
            begun, busy = begun + 1, busy + 1
            most, at_once = max(most, begun - had), max(at_once, busy)
        time.sleep(0.001)
        with lock:
            busy -= 1
        return number

    count = 20
    for number in drawn_ahead([draw] * workers, zip(range(count))):
        with lock:
            had += 1
        assert number == had - 1
        # Not fewer either: while the loop trains, all that may be drawn are drawn.
        wanted = min(count, number + 1 + AHEAD * workers)
        until(lambda wanted=wanted: begun == wanted)
    assert begun == count
    assert AHEAD * workers <= most <= AHEAD * workers + 1  # one may be on its way to the loop
    assert at_once <= workers


def test_tasks_are_asked_for_as_they_are_drawn_and_none_before_the_first(workers_left):
    asked: list[int] = []

    def tasks() -> Iterator[tuple[int]]:
        for number in range(10):
            asked.append(number)
            yield (number,)

    with closing(cast(Any, drawn_ahead([int], tasks()))) as batches:
        assert (asked, workers_left()) == ([], set())
        assert next(batches) == 0
        assert asked == [0, 1, 2]


def test_no_worker_is_called_by_two_threads_at_once():
    class Alone:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, number: int) -> int:
            assert self.lock.acquire(blocking=False), "called while it was at work"
            time.sleep(0.0005)
            self.lock.release()
            return number

    assert list(drawn_ahead([Alone() for _ in range(4)], zip(range(60)))) == list(range(60))


@pytest.mark.parametrize(("workers", "bad"), [(1, 0), (3, 4), (3, 9)])
def test_an_exception_comes_out_at_its_minibatch(workers_left, workers, bad):
    def draw(number: int) -> int:
        if number == bad:
            raise IndexError(f"seed node of minibatch {number}")
        return number

    batches = drawn_ahead([draw] * workers, zip(range(10)))
    for number in range(bad):
        assert next(batches) == number
    with pytest.raises(IndexError, match=f"seed node of minibatch {bad}"):
        next(batches)
    assert not workers_left()
    assert next(batches, None) is None


def test_a_task_that_cannot_be_had_ends_it_too(workers_left):
    def tasks() -> Iterator[tuple[int]]:
        yield (0,)
        raise OSError("no more seeds")

    with pytest.raises(OSError, match="no more seeds"):
        list(drawn_ahead([int], tasks()))
    assert not workers_left()


def stopped(batches: Iterator[int]) -> None:
    next(batches)
    cast(Any, batches).close()


def forgotten(batches: Iterator[int]) -> None:
    next(batches)
    next(batches)


def failed(batches: Iterator[int]) -> None:
    with pytest.raises(ZeroDivisionError):
        sum(number / 0 for number in batches)


@pytest.mark.parametrize("leave", [stopped, forgotten, failed])
def test_who_stops_early_leaves_nothing_running(workers_left, leave):
    ended, begun = [], []

    def draw(number: int) -> int:
        begun.append(number)
        time.sleep(0.005)
        ended.append(number)
        return number

    leave(drawn_ahead([draw] * 2, zip(range(100))))
    gc.collect()
    assert not workers_left()
    assert sorted(begun) == sorted(ended), "one is still being drawn"
    assert len(begun) <= 2 + AHEAD * 2


def test_a_minibatch_belongs_to_the_loop_alone():
    """Kept here it would be freed outside the step that used it."""
    batches = drawn_ahead([torch.zeros], zip(range(1, 5)))
    gone = weakref.ref(next(batches))
    until(lambda: gone() is None)  # its thread lets go of it when it has told the iterator
    assert len(list(batches)) == 3


def test_a_clone_draws_the_same_beside_the_other_and_reads_no_graph_again(sampler, monkeypatch):
    def never(*_: Any) -> None:
        raise AssertionError("the graph was checked again")

    with monkeypatch.context() as patched:
        patched.setattr(kernels, "max_degree", never)
        patched.setattr(numba_sampler, "check_graph", never)
        clone = sampler.clone(threads=1)
    assert (clone.fanouts, clone.num_nodes, clone.threads) == (sampler.fanouts, FEW, 1)
    assert np.shares_memory(clone._indptr, sampler._indptr)
    assert not np.shares_memory(clone._table, sampler._table)
    assert not np.shares_memory(clone._ids, sampler._ids)
    (task,) = tasks(1)
    with sampler._lock, ThreadPoolExecutor(1) as other:  # no one waits for another's lock
        found = other.submit(clone.sample, *task).result(timeout=100)
    assert same(found, sampler.sample(*task))


def test_what_is_begun_ahead_says_how_long_it_was_waited_for(monkeypatch):
    """A clock that goes on by a second whenever it is read, and by ten while one is waited for."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    def result(number: int) -> int:
        now[0] += 10.0
        return number

    monkeypatch.setattr(workers_module.time, "perf_counter", clock)
    waits: list[float] = []
    tasks = ((number,) for number in range(3))
    drawn = begun_ahead(lambda number: lambda: result(number), tasks, 2, waits.append)
    assert list(drawn) == [0, 1, 2]
    assert waits == [11.0] * 3
