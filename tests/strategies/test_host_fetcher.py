"""The host fetcher's threads and buffers: failures surface, work overlaps, and how it is tuned."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import psutil
import pytest
import torch
from host_paths import HOST, MOVERS, GatedPath
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gatherbench.kernels import host_gather
from gatherbench.kernels.host_gather import HostGather
from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import host_fetcher
from gatherbench.strategies.base import Fetcher, Ticket, check_ids
from gatherbench.strategies.buffers import RowBuffer
from gatherbench.strategies.conformance import open_known
from gatherbench.strategies.cpu_gather import CpuGather
from gatherbench.strategies.host_fetcher import (
    EARLIER,
    TORCH,
    Behind,
    DirectPath,
    HostFetcher,
    PathFetcher,
    tuned,
    way_of,
)
from gatherbench.strategies.registry import build

TABLE = torch.arange(3000.0).view(300, 10)


@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_a_failure_comes_out_of_its_fetch_only(lookahead):
    path = GatedPath(TABLE)
    path.gate.set()
    ids = torch.tensor([7, 3])
    with HostFetcher(path, TABLE, lookahead) as fetcher:
        path.failure = OSError("the disk is gone")
        with pytest.raises(OSError, match="the disk is gone"):
            fetcher.submit(ids).result()
        path.failure = None
        for _ in range(2 * lookahead + 2):
            assert same_bytes(fetcher.submit(ids).result(), TABLE[ids]) is None


def test_close_in_flight_waits_for_what_runs_and_drops_what_waits():
    path = GatedPath(TABLE)
    fetcher = HostFetcher(path, TABLE, lookahead=2)
    tickets = [fetcher.submit(torch.tensor([k])) for k in range(3)]
    assert path.began.wait(30)
    with ThreadPoolExecutor(2) as pool:
        asking = pool.submit(tickets[2].result)
        while not tickets[2]._fetch.taken:  # type: ignore[attr-defined]
            pass
        closing = pool.submit(fetcher.close)
        with pytest.raises(TimeoutError):  # it waits for the fetch that runs
            closing.result(0.05)
        path.gate.set()
        closing.result(30)
        with pytest.raises(RuntimeError, match="the fetcher was closed before this fetch began"):
            asking.result(30)
    with pytest.raises(RuntimeError, match="the fetcher is closed"):
        tickets[0].result()


@pytest.mark.parametrize("strategy", MOVERS)
def test_memory_is_constant_over_many_batches_and_close_leaves_nothing(strategy):
    table = torch.zeros((2000, 25))
    batches = [torch.randint(0, 2000, (size,)) for size in (1500, 200, 2000, 1999, 3)]
    files, threads = psutil.Process().num_fds(), set(threading.enumerate())
    with open_known(strategy, table, HOST) as fetcher:

        def run(count: int) -> int:
            flight: list[Ticket] = []
            for k in range(count):
                flight.append(fetcher.submit(batches[k % len(batches)]))
                if len(flight) > fetcher.lookahead:
                    flight.pop(0).result()
            while flight:
                flight.pop(0).result()
            gc.collect()
            return psutil.Process().memory_info().rss

        settled = run(50)
        grown = run(100) - settled
        fetcher.submit(batches[0])  # closed in flight
    assert grown < 8 << 20, f"{grown} B more after 100 batches of 114 kB on average"
    assert set(threading.enumerate()) == threads
    assert psutil.Process().num_fds() <= files


@pytest.mark.parametrize("name", ["cpu_gather", "async_zero_copy", "aligned_zero_copy"])
def test_outputs_reuse_their_buffers(name):
    with build(name).open(TABLE, HOST) as fetcher:
        first = [fetcher.submit(torch.arange(40)).result() for _ in range(fetcher.lookahead + 1)]
        again = [fetcher.submit(torch.arange(30)).result() for _ in range(fetcher.lookahead + 1)]
        assert [t.data_ptr() for t in again] == [t.data_ptr() for t in first]
        assert len({t.data_ptr() for t in first}) == fetcher.lookahead + 1


@given(st.lists(st.integers(0, 1000), max_size=40))
def test_buffers_grow_to_the_largest_batch_in_few_steps(counts):
    made: list[int] = []

    def allocate(count: int) -> Tensor:
        made.append(count)
        return torch.empty((count, 2))

    buffer = RowBuffer(allocate)
    for count in counts:
        assert tuple(buffer.rows(count).shape) == (count, 2)
    largest = max(counts, default=0)
    assert largest <= made[-1] <= max(1.5 * largest, 1)
    assert all(later >= 1.5 * earlier - 1 for earlier, later in pairwise(made))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_closes_nothing_of_its_parent():
    """A loader's worker that ends would otherwise synchronise a GPU that it may not touch."""

    class Counting(HostFetcher):
        closes = 0

        def _close(self) -> None:
            self.closes += 1
            super()._close()

    fetcher = Counting(DirectPath(TABLE), TABLE, lookahead=1)
    child = os.fork()
    if child == 0:
        fetcher.close()
        os._exit(fetcher.closes)
    _, status = os.waitpid(child, 0)
    fetcher.close()
    assert (os.waitstatus_to_exitcode(status), fetcher.closes) == (0, 1)


def test_what_a_gather_takes_is_counted(monkeypatch):
    """In the caller's turn by the clock around it, ahead of it by that of the threads."""
    now = iter([1.0, 1.5, 7.0, 7.25])
    path = DirectPath(TABLE)
    monkeypatch.setattr(host_fetcher.time, "perf_counter", lambda: next(now))
    with HostFetcher(path, TABLE, lookahead=0) as fetcher:
        for _ in range(2):
            fetcher.submit(torch.tensor([7, 3])).result()
        assert fetcher.counts() == {"gather_time": 0.75}
    monkeypatch.undo()
    with HostFetcher(DirectPath(TABLE), TABLE, lookahead=1) as fetcher:
        began = time.perf_counter()
        ticket = fetcher.submit(torch.arange(300))
        assert ticket.result() is ticket.result()
        once = fetcher.counts()["gather_time"]
        assert 0 < once <= time.perf_counter() - began
        ticket.result()
        assert fetcher.counts()["gather_time"] == once


def test_a_gather_ahead_asks_for_pythons_lock_on_the_callers_thread_alone():
    with HostFetcher(DirectPath(TABLE), TABLE, lookahead=1, staged=True) as fetcher:
        before = set(threading.enumerate())
        for _ in range(5):
            fetcher.submit(torch.arange(300)).result()
        assert set(threading.enumerate()) == before


def test_behind_each_gather_python_is_entered_once_and_in_order():
    """As a copy to a GPU is queued there; what it raises, and a bad id, come out of their fetch."""
    done: list[int] = []
    with HostGather(2) as cpu:
        behind = Behind(cpu.native)
        entered, wait = [], cpu.native.wait
        cpu.native.wait = lambda n: (wait(n), entered.append(n))  # type: ignore[method-assign]
        out = [torch.empty(50, 10) for _ in range(12)]

        def begin(k: int, ids: Tensor) -> Callable[[], None]:
            def ended(seconds: float) -> None:
                assert seconds > 0
                assert torch.equal(out[k], TABLE[:50])
                done.append(k)
                if k == 3:
                    raise OSError("no room")

            return behind.begin(lambda: cpu.begin(TABLE, ids, out[k][: len(ids)]), ended)

        waits = [begin(k, torch.arange(50)) for k in range(10)]
        for k in (9, 0, 1, 2, 4, 5, 6, 7, 8):
            waits[k]()
        with pytest.raises(OSError, match="no room"):
            waits[3]()
        with pytest.raises(IndexError, match=r"ids\[0\] = 999"):
            begin(10, torch.tensor([999]))()
        begin(11, torch.arange(50))()
        assert done == [*range(10), 11]
    behind.join(30)
    assert not behind.is_alive(), "it ends when the threads are closed"
    assert len(entered) <= 12 + 1, "once a fetch, and once to end"


@pytest.mark.timeout(60)
def test_a_turn_that_an_interrupt_left_behind_stops_no_later_wait():
    with HostGather(2) as cpu:
        out = torch.empty(50, 10)
        begun = cpu.begin(TABLE, torch.arange(50), out)
        begun._turn.acquire()
        assert begun.result() > 0
        assert torch.equal(out, TABLE[:50])


def test_the_upper_bound_does_not_read_the_hosts_table():
    table = torch.arange(12.0).reshape(4, 3)
    before = table.clone()
    with build("all_in_gpu").open(table, HOST) as fetcher:
        table.numpy()[:] = 0  # unseen by torch, for which this would be a mistake
        assert torch.equal(fetcher.submit(torch.tensor([3, 1])).result(), before[[3, 1]])


def test_ids_on_the_host_are_checked_without_the_threads_of_torch(monkeypatch):
    """They would spin on every core for milliseconds after each minibatch."""

    def pooled(*_: object) -> None:
        raise AssertionError("an operation of torch's pool")

    monkeypatch.setattr(torch, "aminmax", pooled)
    check_ids(torch.tensor([4, 0]), 5, torch.device("cpu"))
    with pytest.raises(IndexError, match=r"ids\[1\] = 5: the table has rows 0\.\.4"):
        check_ids(torch.tensor([4, 5], dtype=torch.int32), 5, torch.device("cpu"))
    with pytest.raises(IndexError, match=r"ids\[0\] = -1"):
        check_ids(torch.tensor([-1, 4]), 5, torch.device("cpu"))


# ---- tuning --------------------------------------------------------------------------------------


LARGE = torch.arange(30_000.0).view(3000, 10)
IDS = torch.randint(0, 3000, (500,), generator=torch.Generator().manual_seed(0))


class Steps:
    """A clock that each step of a way moves on by what that takes, in ms."""

    def __init__(self, path: DirectPath, takes: dict[int, float]) -> None:
        self.now, self.way, self.takes = 0.0, 0, takes
        self.turns: list[int] = []
        self._take = path.take

    def take(self, way: int) -> None:
        self.way = way
        self.turns.append(way)
        self._take(way)

    def step(self) -> None:
        self.now += self.takes[self.way] / 1e3


@pytest.fixture
def open_fetcher(monkeypatch):
    opened = []

    def opens(mode: str = "pinned") -> PathFetcher:
        fetcher = CpuGather(mode=mode).open(LARGE, HOST)  # type: ignore[arg-type]
        opened.append(fetcher)
        return fetcher

    monkeypatch.setattr(host_fetcher, "available_cores", lambda: 4)
    monkeypatch.setattr(host_gather, "CHUNK_BYTES", 1 << 10)
    yield opens
    for fetcher in opened:
        fetcher.close()


@pytest.mark.parametrize(
    ("takes", "chosen"),
    [
        ({1: 20.0, 2: 10.2, 3: 10.0, 4: 10.4, TORCH: 10.0}, 2),  # 10 / 10.2 = 0.98
        ({1: 20.0, 2: 10.4, 3: 10.0, 4: 10.4, TORCH: 10.0}, 3),  # 10 / 10.4 = 0.96
        ({1: 20.0, 2: 15.0, 3: 12.0, 4: 11.0, TORCH: 10.0}, TORCH),
        ({1: 9.8, 2: 10.4, 3: 10.0, 4: 10.4, TORCH: 9.6}, 1),
    ],
)
def test_the_fewest_threads_whose_step_is_fast_enough_and_torchs_pool_last(
    open_fetcher, monkeypatch, takes, chosen
):
    fetcher = open_fetcher()
    clock = Steps(fetcher._path, takes)
    monkeypatch.setattr(host_fetcher.time, "perf_counter", lambda: clock.now)
    found = tuned(fetcher, clock.take, list(takes), IDS, clock.step, lambda: None)
    values = {step.metric: step.value for step in found}
    assert values["gather_threads"] == (chosen or torch.get_num_threads())
    assert values["gather_on_torch_pool"] == (chosen == TORCH)
    assert values["gather_2_threads_step_time"] == pytest.approx(takes[2] / 1e3)
    assert values["gather_torch_pool_step_time"] == pytest.approx(takes[TORCH] / 1e3)
    assert values["gathered"] == 6 * 500 * 10 * 4
    assert clock.turns[:10] == [*takes, *takes], "in turns, so that all meet the same machine"
    assert clock.turns[-1] == way_of(found) == chosen


def test_no_step_finds_the_rows_of_another_in_the_caches(open_fetcher, monkeypatch):
    seen: list[bytes] = []
    submit = Fetcher.submit

    def noted(self: Fetcher, ids: Tensor) -> object:
        seen.append(ids.numpy().tobytes())
        return submit(self, ids)

    monkeypatch.setattr(Fetcher, "submit", noted)
    open_fetcher().tune(IDS, lambda: None)
    assert len(seen) > 20
    assert len(set(seen)) > 0.95 * len(seen)  # a shift is drawn of 3000


@pytest.mark.parametrize("way", [1, 2, TORCH])
def test_rows_are_right_whatever_way_was_taken(open_fetcher, way):
    fetcher = open_fetcher()
    fetcher._path.take(way)
    for ids in (IDS, IDS.int(), IDS[:0]):
        assert same_bytes(fetcher.submit(ids).result(), reference_gather(LARGE, ids)) is None
    assert fetcher.counts()["gather_time"] > 0


def test_torchs_pool_is_for_who_waits_for_staged_rows_on_the_host(open_fetcher, monkeypatch):
    """Ahead of the training it would be a second pool, and a GPU that reads in place has none."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert open_fetcher()._ways(IDS) == [1, 2, 3, 4, TORCH]
    assert open_fetcher("prefetch")._ways(IDS) == [1, 2, 3, 4]
    with build("unified_zero_copy").open(LARGE, HOST) as fetcher:
        assert fetcher._ways(IDS) == [1, 2, 3, 4]  # type: ignore[attr-defined]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert open_fetcher()._ways(IDS) == [1, 2, 3, 4]
    monkeypatch.setattr(host_gather, "CHUNK_BYTES", 1 << 20)
    fetcher = open_fetcher()
    (step,) = fetcher.tune(IDS, lambda: None)
    assert (step.metric, step.value) == ("gather_threads", 1)
    assert step.source == "a minibatch is too small to share"


def test_another_process_does_as_the_first(open_fetcher):
    first, second = open_fetcher("prefetch"), open_fetcher("prefetch")
    found = first.tune(IDS, lambda: None)
    told = second.recall(found)
    assert second._path.cpu.threads == first._path.cpu.threads == way_of(found)
    assert [step.value for step in told] == [step.value for step in found]
    assert all(step.source.endswith(EARLIER) for step in told)
    assert second.setup[-len(told) :] == told
    assert first.tuning == second.tuning != open_fetcher().tuning
    pinned = open_fetcher()
    with build("unified_zero_copy").open(LARGE, HOST) as direct:
        assert direct.tuning != pinned.tuning, "it takes no torch pool from who stages"
