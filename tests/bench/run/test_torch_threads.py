"""torch's threads while a case is measured: whoever changes them, or wakes its pool, fails it."""

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run import torch_threads
from gatherbench.bench.run.part import read_part, rows_of
from gatherbench.bench.run.torch_threads import TorchThreads, WrongThreadsError
from gatherbench.strategies.cpu_gather import CpuGather
from gatherbench.strategies.host_fetcher import DirectPath

from . import fakes

#: In a process of its own, in which torch has used its pool.
PROCESS = """
import time
import numpy as np, torch
from gatherbench.bench.meters.threads import pool_cpu_s
from gatherbench.bench.run.torch_threads import TorchThreads, WrongThreadsError
from gatherbench.strategies.base import copied
from gatherbench.strategies.cpu_gather import CpuGather
torch.set_num_threads(2)
ones = torch.ones(1 << 20)
ones.add(1).exp()

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
threads = TorchThreads()
from gatherbench.kernels.policies import POLICIES
from gatherbench.kernels.request_histogram import mask_histogram
point = POLICIES["aligned"].point(400, 4)
with threads.kept("in a count"):
    say("counts", lambda: mask_histogram(point, np.arange(70_000), 400, 400, 0))
import numba
try:
    with threads.kept("in a count"):
        numba.get_num_threads()
except WrongThreadsError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What the process says, line by line."""
    free = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "NUMBA_"))}
    command = [sys.executable, "-c", PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, env=free, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_work_of_torchs_pool_is_seen(said):
    assert said[0] == "sums 2 True"


def test_ids_are_copied_without_torchs_pool(said):
    assert said[1] == "copies 2 False"


def test_requests_of_70_000_rows_are_counted_without_torchs_threads(said):
    assert said[2] == "counts 1 False"


def test_what_numba_does_to_torch_is_noticed(said):
    """The fault as it was: to ask numba for its number of threads starts its OpenMP layer."""
    assert said[3].startswith("torch had 1 threads and now has")


def test_the_number_is_as_before_whatever_happened(monkeypatch):
    now = 3
    monkeypatch.setattr(torch, "get_num_threads", lambda: now)
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    threads = TorchThreads()
    with threads.kept("quietly"):
        pass
    assert given == []
    message = "torch had 3 threads and now has 8: a call here"
    with pytest.raises(WrongThreadsError, match=message), threads.kept("here"):
        now = 8
    with pytest.raises(KeyError), threads.kept("here"):
        raise KeyError
    assert given == [3, 3]


@pytest.mark.parametrize(
    ("busy_s", "declared", "fails"),
    [(0.41, 1, False), (0.43, 1, True), (0.43, 4, False), (0.0, 1, False)],
)
def test_a_twentieth_of_all_cores_is_what_a_pool_may_take(monkeypatch, busy_s, declared, fails):
    """Of 2 s on 4 cores 0.4 s, and 0.02 s; one that is new may be Python's."""
    rested = {7: 1.0, 8: 0.0, 9: 3.0}
    spins = [{**rested, 7: 0.2}, {**rested, 7: 0.9}]  # after the epoch of a path before this one
    ended = {7: 1.0 + busy_s / 2, 8: busy_s / 2, 6: 5.0}
    clocks = iter([*spins, rested, rested, ended])
    monkeypatch.setattr(torch_threads, "pool_cpu_s", lambda: next(clocks))
    now = iter([10.0, 12.0])
    monkeypatch.setattr(torch_threads, "_now_s", lambda: next(now))
    monkeypatch.setattr(torch_threads, "available_cores", lambda: 4)
    message = "threads of torch's pool worked 0.430 s in epoch 0, of 2.000 s on 4 cores"
    refused = pytest.raises(WrongThreadsError, match=message) if fails else nullcontext()
    with refused, TorchThreads().resting("in epoch 0", declared):
        pass


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


def test_a_case_whose_pool_works_fails_unless_its_path_declares_it(make_job, monkeypatch):
    seconds = iter(range(0, 10_000_000, 1000))
    monkeypatch.setattr(torch_threads, "pool_cpu_s", lambda: {7: float(next(seconds))})
    with pytest.raises(WrongThreadsError, match="in the warm-up"):
        fakes.measured(make_job())
    monkeypatch.setattr(CpuGather, "_open", lambda *_: Declares(*_[1:3]))
    fakes.measured(replace(make_job(), part=make_job().part.with_suffix(".declares")))


class Declares(measure_module.Fetcher):
    """Gathers with torch's pool, and says so."""

    torch_threads = 2

    def _submit(self, ids: Tensor) -> "Ready":
        return Ready(self.table[ids])

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        self.table = features


class Ready:
    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def result(self) -> Tensor:
        return self.rows
