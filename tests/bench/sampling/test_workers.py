"""Minibatches drawn ahead: the same ones in the same order, not too many; and nothing is left."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import starmap
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gatherbench.bench.sampling import kernels, numba_sampler
from gatherbench.bench.sampling import workers as workers_module
from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.workers import AHEAD, begun_ahead, drawn_ahead

from .minibatches import same

NODES, SEED = 300, 11
Task = tuple[Tensor, int]


@pytest.fixture(scope="module")
def sampler() -> NeighborSampler:
    rng = np.random.default_rng(0)
    indptr = np.cumsum([0, *rng.integers(0, 40, NODES)], dtype=np.int64)
    return NeighborSampler(indptr, rng.integers(0, NODES, indptr[-1]), (5, 3), threads=1)


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
    assert (clone.fanouts, clone.num_nodes, clone.threads) == (sampler.fanouts, NODES, 1)
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
