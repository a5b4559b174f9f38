"""Which minibatches an epoch has, which path has which in which block, and ahead of the loop."""

import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from gatherbench.bench.run import epoch_minibatches as epochs_module
from gatherbench.bench.run.block import apart, latin_square
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.rows import Row
from gatherbench.bench.sampling import workers
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.store import open_dataset
from gatherbench.strategies.host_fetcher import HostFetcher

from .fakes import measured


def numbers(ids: Iterable[Tensor]) -> list[list[int]]:
    return [of.tolist() for of in ids]


def of(batches: Iterable[MiniBatch]) -> list[list[int]]:
    return numbers(batch.input_ids for batch in batches)


def test_fresh_epochs_have_minibatches_that_no_other_has(make_job):
    """Of two measured, a warm-up and two further ones no two are alike."""
    job = make_job(epochs=2, warmup_epochs=1)
    epochs = Epochs(job, open_dataset(job.dataset))
    measured = [of(epochs.measured(number)) for number in (0, 1)]
    warm_up, further = of(epochs.warm_up(0)), [of(epochs.further()) for _ in range(2)]
    drawn = [*measured, warm_up, *further]
    assert [len(epoch) for epoch in drawn] == [5] * 5
    assert all(a != b for i, a in enumerate(drawn) for b in drawn[:i])
    for _ in range(2):  # as often as wanted
        assert numbers(epochs) == measured[0] + measured[1]
    assert numbers(epochs.ids(2)) == warm_up


def test_paths_that_take_turns_have_the_order_of_an_epoch_drawn_once(make_job, monkeypatch):
    job, drawn = make_job(), list[int]()
    epochs = Epochs(job, open_dataset(job.dataset))
    draws = epochs_module.draws
    monkeypatch.setattr(
        epochs_module, "draws", lambda *given: drawn.append(given[3]) or draws(*given)
    )
    found = [of(epochs.measured(number)) for number in (0, 0, 1, 1, 0)]
    assert drawn == [0, 1]
    assert found[0] == found[1] == found[4]
    assert found[2] == found[3]


def test_waits_for_what_a_gpu_draws_are_those_of_the_epoch(make_job, monkeypatch):
    """A clock that goes on by a second whenever it is read: one for each of 5 minibatches."""
    job = make_job()
    epochs = Epochs(job, open_dataset(job.dataset))
    of(epochs.measured(0))
    assert epochs.waited_s() is None, "no GPU draws"
    clock = itertools.count()
    monkeypatch.setattr(workers.time, "perf_counter", lambda: float(next(clock)))
    batch = epochs.first[0]
    epochs._begin = lambda *_: lambda: batch
    for draw in (epochs.measured, epochs.warm_up, epochs.measured):
        of(draw(1))
        assert epochs.waited_s() == 5.0


def test_what_a_path_may_know_is_drawn_by_the_cpu(make_job):
    job = make_job()
    epochs = Epochs(job, open_dataset(job.dataset))
    wanted = numbers(epochs)
    epochs._begin = lambda *_: 1 / 0  # type: ignore[assignment, return-value]
    assert numbers(epochs) == wanted


def test_workers_bring_the_kinds_of_edges_along(make_job):
    job = make_job(sampling="live", sampler_workers=1)
    epochs = Epochs(job, open_dataset(job.dataset))
    epochs.typed = lambda batch: replace(batch, kinds=batch.edges[:1])
    assert [len(batch.kinds) for batch in epochs.measured(0)] == [1] * 5


@pytest.mark.parametrize("sampler", ["", "gatherbench.bench.neighbours.graphsnapshot:OTF"])
def test_epochs_may_be_drawn_side_by_side(make_job, sampler):
    job = make_job()
    workload = replace(job.case.workload, sampler=sampler)
    job = replace(job, case=replace(job.case, workload=workload))
    epochs = Epochs(job, open_dataset(job.dataset))
    apart = [numbers(epochs.ids(number)) for number in (0, 1)]
    both = [list(pair) for pair in zip(epochs.ids(0), epochs.ids(1), strict=True)]
    assert [numbers(one) for one in zip(*both, strict=True)] == apart


# ---- in which block ------------------------------------------------------------------------------


PATHS, SETS = st.integers(1, 20), st.integers(2, 20)


@given(PATHS, SETS)
def test_over_a_repeat_each_path_has_each_set_once_and_few_of_a_block_share_one(paths, sets):
    square = latin_square(paths, sets)
    assert len(square) == sets
    for of_path in zip(*square, strict=True):
        assert sorted(of_path) == list(range(sets))
    for block in square:
        assert len(block) == paths
        assert max(Counter(block).values()) == -(-paths // sets)


@given(PATHS, SETS)
def test_behind_each_group_all_paths_have_had_the_same_sets(paths, sets):
    """So a run whose time ends has favoured nobody by more than a part of a group."""
    square = latin_square(paths, sets)
    of_paths = list(zip(*square, strict=True))
    even = [n for n in range(1, sets + 1) if len({frozenset(of[:n]) for of in of_paths}) == 1]
    gaps = [later - earlier for earlier, later in pairwise([0, *even])]
    assert even[-1] == sets
    assert max(gaps) < max(2 * paths, 2) or paths > sets


def test_by_hand():
    """Three paths and seven sets: a square of four and one of three."""
    assert latin_square(3, 7) == [
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 0],
        [3, 0, 1],
        [4, 5, 6],
        [5, 6, 4],
        [6, 4, 5],
    ]
    assert latin_square(3, 2) == [[0, 1, 0], [1, 0, 1]]


@given(PATHS, SETS, st.integers(0, 1 << 30))
@example(20, 2, 0)
@example(3, 2, 0)
def test_no_neighbours_have_the_same_set_from_the_first_epoch_to_the_last(paths, sets, seed):
    draw, before, order = random.Random(seed), None, list[int]()
    for block in latin_square(paths, sets):
        of_path = dict(enumerate(block))
        found = apart(of_path, draw, before)
        assert sorted(found) == list(range(paths))
        order += [of_path[path] for path in found]
        before = order[-1]
    assert all(a != b for a, b in pairwise(order))


def test_where_those_that_are_left_share_a_set_they_follow_each_other():
    assert sorted(apart({"a": 0, "c": 0}, random.Random(0), 0)) == ["a", "c"]
    assert apart({"a": 0, "b": 1, "c": 0}, random.Random(0), 1)[1] == "b"
    assert apart({}, random.Random(0)) == []


def test_every_order_of_a_block_is_as_likely():
    """Else a path would always have the same neighbour, whose caches it finds."""
    draw = random.Random("0 tiny 0")
    count = Counter("".join(apart({"a": 0, "b": 1, "c": 2}, draw)) for _ in range(600))
    assert len(count) == 6
    assert all(abs(seen - 100) < 40 for seen in count.values()), "4 standard deviations"


def test_two_of_four_that_share_a_set_leave_every_other_order_open():
    """12 of the 24 orders have a and b apart; the rarest of them is drawn in one of 16."""
    draw = random.Random(0)
    seen = {"".join(apart({"a": 0, "b": 0, "c": 1, "d": 2}, draw)) for _ in range(600)}
    assert len(seen) == 12


def test_behind_an_epoch_of_its_set_a_path_is_not_the_first():
    draw = random.Random(0)
    count = Counter("".join(apart({"a": 0, "b": 1, "c": 2}, draw, 0)) for _ in range(400))
    assert set(count) == {"bac", "bca", "cab", "cba"}
    assert all(abs(seen - 100) < 40 for seen in count.values())


def test_one_draw_gives_one_order_so_a_block_can_be_run_again():
    sets = dict(enumerate(latin_square(5, 8)[3]))
    orders = [apart(sets, random.Random("0 tiny 0 3"), 2) for _ in range(2)]
    assert orders[0] == orders[1]


# ---- drawn ahead of the loop ---------------------------------------------------------------------


KEEPS = {"policy": "degree", "share": "20%"}
WAYS = [
    ("cpu_gather", {}, {}),
    ("async_zero_copy", {}, {}),
    ("cached_zero_copy", KEEPS, {"warmup_epochs": 2}),
]


def values(rows: list[Row], metric: str) -> list[float]:
    return [row.value for row in rows if row.metric == metric and row.value is not None]


def samplers_threads() -> set[threading.Thread]:
    every = threading.enumerate()
    return {thread for thread in every if thread.name.startswith("gatherbench-sample")}


@pytest.fixture
def drawn_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that drew the minibatches."""
    names: list[str] = []
    plain = NeighborSampler.sample

    def noted(self: Any, *task: Any) -> MiniBatch:
        names.append(threading.current_thread().name)
        return plain(self, *task)

    monkeypatch.setattr(NeighborSampler, "sample", noted)
    return names


@pytest.mark.parametrize(("strategy", "params", "how"), WAYS)
def test_losses_and_bytes_are_those_without_workers(make_job, drawn_by, strategy, params, how):
    before = samplers_threads()
    alone = measured(make_job(strategy, params=params, **how))
    assert not any(name.startswith("gatherbench-sample") for name in drawn_by)
    drawn_by.clear()
    ahead = measured(make_job(strategy, params=params, sampler_workers=2, **how))
    for metric in ("loss", "payload", "rows_on_device", "test_accuracy", "minibatches"):
        assert values(ahead, metric) == values(alone, metric)
    assert len(values(ahead, "loss")) == 2
    by_workers = [name for name in drawn_by if name.startswith("gatherbench-sample")]
    # The two that are checked first; the warm-up and two measured epochs, of 5 minibatches each.
    assert len(by_workers) >= 2 + 3 * 5
    assert samplers_threads() <= before


def test_workers_draw_with_one_thread_each(make_job):
    job = make_job(sampler_workers=3)
    epochs = Epochs(job, open_dataset(job.dataset))
    assert [worker.threads for worker in epochs._workers] == [1, 1, 1]
    assert epochs.sampler.threads is None
    wanted = [batch.input_ids.tolist() for batch in epochs.first]
    assert [batch.input_ids.tolist() for batch in epochs.measured(0)] == wanted


def test_a_case_that_fails_in_an_epoch_leaves_no_thread(make_job, monkeypatch):
    before, plain = samplers_threads(), HostFetcher._submit
    fetched: list[Tensor] = []

    def submit(self: HostFetcher, ids: Tensor) -> Any:
        fetched.append(ids)
        if len(fetched) > 9:  # the first checks and the warm-up have gone well
            raise MemoryError("no room for the rows")
        return plain(self, ids)

    monkeypatch.setattr(HostFetcher, "_submit", submit)
    with pytest.raises(MemoryError, match="no room for the rows"):
        measured(make_job(sampler_workers=2))
    assert len(fetched) == 10
    assert samplers_threads() <= before
