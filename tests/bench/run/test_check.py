"""What is compared, and what is said of it: rows, where the table lies, threads of torch."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gatherbench.bench.run import check as check_module
from gatherbench.bench.run.check import (
    SPOT_BATCHES,
    RowChecker,
    WrongMemoryError,
    WrongRowsError,
    WrongThreadsError,
    growth_row,
    memory_beside_torch,
    residency_row,
    threads_kept,
)
from gatherbench.bench.run.loop import Watch
from gatherbench.bench.run.part import read_part, rows_of
from gatherbench.bench.run.rows import RowMaker
from gatherbench.reason import Reason
from gatherbench.strategies.base import Fetcher, Residency, Ticket
from gatherbench.strategies.host_fetcher import DirectPath

from . import fakes

MAKE = RowMaker("run", "c", "m", "cuda", "w", "d", "aligned_zero_copy", "given", 0)


class Claims(Fetcher):
    """Says of itself what the test wants."""

    def __init__(self, *parts: Residency) -> None:
        super().__init__(torch.zeros(2, 2), torch.device("cpu"))
        self._parts = parts

    def residency(self) -> tuple[Residency, ...]:
        return self._parts

    def _submit(self, ids: torch.Tensor) -> Ticket:
        raise AssertionError("nothing is fetched here")


ASKED = "cudaPointerGetAttributes"
HOT = Residency("Device", "Device", ASKED, "the hot rows")
PAGES = Residency("the file on disk", "the page cache (9 pages)", "mincore")
BUSY = Reason("busy", "9 pages stay")


@pytest.mark.parametrize(
    ("parts", "cached", "value", "source", "reason"),
    [
        ([HOT, Residency("Host", "Host", ASKED)], None, 1,
         f"{ASKED}: the hot rows in Device, the table in Host", ""),
        ([], None, None, ASKED, "unsupported: an empty table"),
        # A table that others keep in memory says nothing of the path.
        ([PAGES], BUSY, None, "mincore", "busy: 9 pages stay"),
    ],
)  # fmt: skip
def test_where_the_table_lies_is_a_row(parts, cached, value, source, reason):
    row = residency_row(Claims(*parts), MAKE, cached)
    assert (row.stage, row.metric, row.value, row.source) == ("check", "residency", value, source)
    assert (row.reason or "").startswith(reason)


def test_a_table_that_was_copied_to_the_gpu_is_not_timed():
    moved = Claims(HOT, Residency("Host", "Device", ASKED))
    with pytest.raises(WrongMemoryError, match=r"table was found in Device .* reads it in Host"):
        residency_row(moved, MAKE)


@pytest.mark.parametrize(
    ("table", "grown", "moved"),
    [
        (4 << 30, 1 << 30, False),
        (4 << 30, (1 << 30) + 1, True),
        (96 << 30, 96 << 30, True),
        (96 << 30, 9 << 30, False),
        (96 << 30, 10 << 30, True),
        (96 << 30, -(1 << 30), False),
    ],
)
def test_a_managed_table_that_moves_to_the_gpu_fails(monkeypatch, table, grown, moved):
    """By what is in use beside torch's own memory, which may grow."""
    total, torchs, others = 140 << 30, [5 << 30], [2 << 30]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: torchs[0])
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda _: (total - torchs[0] - others[0], total)
    )
    before = memory_beside_torch(torch.device("cuda"))
    torchs[0] += 20 << 30
    others[0] += grown
    assert memory_beside_torch(torch.device("cuda")) - before == grown
    if moved:
        with pytest.raises(WrongMemoryError, match=f"grew by {grown:,} B beside torch's"):
            growth_row(grown, table, MAKE)
    else:
        row = growth_row(grown, table, MAKE)
        assert (row.stage, row.metric, row.unit) == ("check", "gpu_memory_growth", "B")
        assert row.value == grown


CPU = torch.device("cpu")
TABLE = torch.arange(400.0).reshape(200, 2)


def look(
    watch: Watch, number: int, ids: torch.Tensor, x: torch.Tensor | Callable[[], torch.Tensor]
) -> None:
    watch.handed(number, ids)
    with watch.looked_at(number, ids, x if isinstance(x, torch.Tensor) else x()):
        pass


def test_of_a_timed_epoch_some_rows_of_some_minibatches_are_compared_and_any_may_be():
    ids = torch.arange(199, 99, -1)  # 100 rows: every third from 0, 1 or 2 on
    looked_at, said = set(), set()
    for seed in range(40):
        checker = RowChecker(TABLE, CPU)
        checker.draw.seed(seed)
        with checker.watching("in epoch 0", 20) as watch:
            for number in range(20):
                before = checker.rows
                look(watch, number, ids, TABLE[ids])
                assert checker.rows == before, "compared within the epoch"
        assert 33 * SPOT_BATCHES <= checker.rows <= 34 * SPOT_BATCHES
        for number in range(20):
            try:
                with checker.watching("in epoch 3", 20) as watch:
                    look(watch, number, ids, TABLE[ids] + 1)
            except WrongRowsError as error:
                minibatch, row, *_ = str(error).split(", ")
                looked_at.add(minibatch)
                said.add(row)
    assert looked_at == {f"minibatch {number}" for number in range(20)}, "the draws leave out one"
    assert said == {f"in epoch 3: row {number}" for number in (0, 1, 2)}


def test_what_is_kept_is_bounded_and_compared_once(monkeypatch):
    monkeypatch.setattr(check_module, "_KEPT_BYTES", 3 * 10 * 8 - 1)  # three minibatches fill it
    checker, ids, compared = RowChecker(TABLE, CPU), torch.arange(10), []
    with checker.watching("in the warm-up") as watch:
        for number in range(7):
            look(watch, number, ids, TABLE[ids])
            compared.append(checker.rows)
    assert compared == [0, 0, 30, 30, 30, 60, 60]
    assert checker.rows == 70


def test_a_failed_epoch_leaves_no_rows_behind():
    ids, checker = torch.arange(10), RowChecker(TABLE, CPU)
    with suppress(ZeroDivisionError), checker.watching("in epoch 77") as watch:
        look(watch, 0, ids, TABLE[ids])
        raise ZeroDivisionError
    kept = [seen for seen in gc.get_objects() if type(seen) is check_module._KeptRows]
    assert not [seen for seen in kept if "77" in seen.where]
    assert checker.rows == 0


def last_byte_flipped(ids: torch.Tensor) -> torch.Tensor:
    wrong = TABLE[ids]
    wrong.view(torch.uint8)[99, 7] ^= 1
    return wrong


@pytest.mark.parametrize(
    ("fetched", "said"),
    [
        (last_byte_flipped, r"row 99, column 1: .* \(1 of 100 rows differ\)"),
        (lambda ids: TABLE[ids].to("meta"), "minibatch 4 lies on meta, not cpu"),
    ],
)
def test_large_minibatches_are_compared_to_their_last_byte_and_where_they_lie(
    monkeypatch, fetched, said
):
    monkeypatch.setattr(check_module, "_BLOCK", 32)
    ids = torch.arange(100)
    with (
        pytest.raises(WrongRowsError, match=said),
        RowChecker(TABLE, CPU).watching("before timing") as watch,
    ):
        look(watch, 4, ids, fetched(ids))


@pytest.mark.parametrize("all_rows", [True, False])
def test_a_path_that_changes_the_ids_it_was_handed_is_wrong(all_rows):
    """Its rows are those of the ids as they are then, and not those of the minibatch."""
    checker, ids = RowChecker(TABLE, CPU), torch.arange(100)
    watched = checker.watching("in epoch 1", None if all_rows else 1)
    with (
        pytest.raises(WrongRowsError, match=r"^minibatch 0, .*: the path changed the ids that"),
        watched as watch,
    ):
        look(watch, 0, ids, lambda: TABLE[ids.fill_(7)])


def test_residency_is_looked_at_when_rows_were_fetched_and_none_was_compared(monkeypatch):
    """Even where so little may be put aside that rows are compared on the way."""
    monkeypatch.setattr(check_module, "available_bytes", lambda: 8 * 100)
    checker = RowChecker(TABLE, CPU)
    seen: list[int] = []
    ids = torch.arange(100)  # 800 B, and 100 B may be put aside
    with checker.watching("", None, lambda: seen.append(checker.rows)) as watch:
        assert seen == []
        for number in range(4):
            look(watch, number, ids, TABLE[ids])
        assert checker.rows > 0
    assert seen == [0]
    assert checker.rows == 400


def test_whether_rows_are_copied_before_or_after_their_step_is_drawn_for_each_epoch():
    """Rows that are right only while the first minibatch is trained on, or only before: of 40
    epochs some find it, and some do not."""
    table, ids = torch.arange(6.0).view(3, 2), torch.tensor([2, 0])
    found = []
    for _ in range(40):
        checker, x = RowChecker(table, torch.device("cpu")), table[ids]
        try:
            with checker.watching("in epoch 0") as watch:
                watch.handed(0, ids)
                with watch.looked_at(0, ids, x):
                    x.zero_()
            found.append(False)
        except WrongRowsError:
            found.append(True)
    assert set(found) == {False, True}


# ---- threads of torch ----------------------------------------------------------------------------


#: In a process of its own, in which torch has used its pool.
PROCESS = """
import os, threading, time
from pathlib import Path
import numpy as np, torch
from gatherbench.strategies.base import copied
from gatherbench.strategies.cpu_gather import CpuGather
torch.set_num_threads(2)
ones = torch.ones(1 << 20)
ones.add(1).exp()

def pool_cpu_s():  # CPU seconds of each thread of an OpenMP pool: it has its starter's name
    tasks = Path("/proc/self/task").iterdir()
    names = {int(task.name): (task / "comm").read_text() for task in tasks}
    known = {one for one, name in names.items() if name.startswith("gatherbench-")}
    known |= {os.getpid(), *(thread.native_id for thread in threading.enumerate())}
    inherited = {names[one] for one in known if one in names}
    pool = (one for one, name in names.items() if one not in known and name in inherited)
    # The kernel's number of a thread's CPU clock, as in pthread_getcpuclockid(3).
    return {one: time.clock_gettime((~one << 3) | 6) for one in pool}

def asleep():  # what each thread of the pool has used, once all of them sleep
    states = {"R"}
    while states - {"S"}:
        time.sleep(0.01)
        stats = [open(f"/proc/self/task/{one}/stat").read() for one in pool_cpu_s()]
        states = {stat.rpartition(")")[2].split()[0] for stat in stats}
    return pool_cpu_s()

def say(what, work):
    before = asleep()
    work()
    after = pool_cpu_s()
    woken = any(after.get(one, was) > was for one, was in before.items())
    print(what, torch.get_num_threads(), woken)

say("sums", lambda: [ones.add(1).exp() for _ in range(50)])
ids = torch.from_numpy(np.arange(200_000) % 900)
table = torch.from_numpy(np.zeros((900, 2), np.float32))
with CpuGather(mode="prefetch").open(table, torch.device("cpu")) as fetcher:
    for _ in range(4):  # buffers are made, which wakes it once
        fetcher.submit(ids).result()
    say("copies", lambda: [(copied(ids), fetcher.submit(ids).result()) for _ in range(20)])
torch.set_num_threads(1)
from gatherbench.kernels.policies import POLICIES
from gatherbench.kernels.requests import count_requests
point = POLICIES["aligned"].point(400, 4)
say("counts", lambda: count_requests(point, np.arange(70_000), 400))
"""


def test_sums_wake_torchs_pool_and_copies_of_ids_and_counts_of_requests_do_not():
    free = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "NUMBA_"))}
    command = [sys.executable, "-c", PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, env=free, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["sums 2 True", "copies 2 False", "counts 1 False"]


def test_a_case_whose_path_changes_them_fails(make_job, monkeypatch):
    """When it fetches, and when it opens: the case is the one that did it, not the next."""
    number = torch.get_num_threads()
    for method in ("stage", "__init__"):
        job, real = make_job(), getattr(DirectPath, method)
        job = replace(job, part=job.part.with_suffix(f".{method}"))

        def changes(self: DirectPath, *given: Tensor, real=real) -> None:
            monkeypatch.setattr(torch, "get_num_threads", lambda: number + 1)
            real(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(DirectPath, method, changes)
            with pytest.raises(WrongThreadsError):
                fakes.measured(job)
        monkeypatch.setattr(torch, "get_num_threads", lambda: number)
        last = rows_of(read_part(job.part))[-1]
        assert (last.stage, last.metric, last.status) == ("check", "threads", "failed")


def test_the_next_case_has_the_threads_that_it_was_given():
    given = torch.get_num_threads()
    try:
        with pytest.raises(WrongThreadsError, match=r"a call in open\(\)"), threads_kept("open"):
            torch.set_num_threads(given + 1)
        assert torch.get_num_threads() == given
    finally:
        torch.set_num_threads(given)
