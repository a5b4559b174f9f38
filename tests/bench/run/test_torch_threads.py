"""torch's threads while a case is measured: who changes them fails, and ours wake no pool."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gatherbench.bench.run.check import WrongThreadsError, threads_kept
from gatherbench.bench.run.part import read_part, rows_of
from gatherbench.strategies.host_fetcher import DirectPath

from . import fakes

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
