"""Core-seconds by thread: each group gets what its threads burnt, and ended threads are told."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from gatherbench.bench.meters import threads as threads_module
from gatherbench.bench.meters.base import Reading, closed
from gatherbench.bench.meters.threads import METRICS, ThreadMeter
from gatherbench.kernels.host_gather import CHUNK_BYTES, HostGather

BURNT = 0.15
LITTLE = 0.1


def burn(seconds: float = BURNT) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def values(readings: list[Reading]) -> dict[str, float]:
    assert [r.metric for r in readings] == list(METRICS)
    found = {}
    for reading in readings:
        assert reading.unit == "s"
        assert reading.value is not None, reading.reason
        assert reading.value >= 0
        found[reading.metric] = reading.value
    return found


def gone(thread: threading.Thread) -> None:
    """Wait until it has ended; the kernel lets go of it a little later than Python."""
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        time.sleep(0.001)


@contextmanager
def pool(prefix: str) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, thread_name_prefix=prefix) as executor:
        executor.submit(int).result()  # the thread is there
        yield executor


@pytest.mark.parametrize(
    ("prefix", "metric"),
    [
        ("gatherbench-sample", "cpu_sampler_workers"),
        ("gatherbench-gather", "cpu_gather_workers"),
        ("gatherbench-fetch", "cpu_gather_workers"),
        ("gatherbench-meter-x", "cpu_meters"),
        ("somebody", "cpu_other_threads"),
    ],
)
def test_a_named_thread_is_charged_to_its_group(prefix, metric):
    meter = ThreadMeter()
    with pool(prefix) as executor:
        executor.submit(burn).result()  # before the window: does not count
        meter.begin()
        executor.submit(burn).result()
        used = values(closed(meter))
    assert BURNT <= used.pop(metric) < 2 * BURNT
    used.pop("cpu_main")
    assert sum(used.values()) < LITTLE


def test_the_main_thread_is_its_own_group_and_a_new_thread_counts_from_its_start():
    meter = ThreadMeter()
    meter.begin()
    burn()
    with pool("gatherbench-sample") as executor:
        executor.submit(burn).result()
        used = values(closed(meter))
    assert used["cpu_sampler_workers"] >= BURNT
    assert used["cpu_main"] >= BURNT


def test_a_sampler_that_ended_in_the_window_has_what_it_told(monkeypatch):
    """A tenth of a second of some 0.15; the rest is known to be of threads that ended."""
    told: list[tuple[int, float]] = []
    monkeypatch.setattr(threads_module, "ended", told)
    meter = ThreadMeter()
    meter.begin()
    worker = threading.Thread(target=burn)
    worker.start()
    told.append((worker.native_id or 0, 0.1))
    gone(worker)
    used = values(closed(meter))
    assert used["cpu_sampler_workers"] == pytest.approx(0.1)
    assert used["cpu_ended_threads"] >= BURNT - 0.1 - 0.01


OF_A_PROCESS = """
import os, time, torch
from gatherbench.bench.meters.threads import ThreadMeter

def used(work):
    meter = ThreadMeter()
    meter.begin()
    work()
    return meter.end()

def burn():
    while time.process_time() < 0.15:
        pass

# As in every case: a server that has imported the libraries forks its process.
if os.fork() == 0:
    found = used(burn)
    os._exit(not found["cpu_main"] > 0.9 * sum(found.values()) > 0)
print("fork", os.waitstatus_to_exitcode(os.wait()[1]))
torch.set_num_threads(2)
a = torch.ones(500, 500)
a @ a
found = used(lambda: [a.add(1).exp() for _ in range(30)])
print("torch", found["cpu_torch_pool"] > 0 and found["cpu_other_threads"] == 0)
"""


def test_a_forks_main_thread_and_torchs_pool_are_told_apart():
    """In a process of its own, where torch may have more than one thread."""
    command = [sys.executable, "-c", OF_A_PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["fork", "0", "torch", "True"], done.stdout + done.stderr


def test_threads_that_ended_in_the_window_are_told_in_sum_and_never_lost():
    meter = ThreadMeter()
    before = threading.Event()
    thread = threading.Thread(target=lambda: (burn(), before.wait(), burn()))
    thread.start()
    while sum(t.native_id is not None for t in threading.enumerate()) < 2:
        pass
    meter.begin()
    before.set()
    gone(thread)
    brief = threading.Thread(target=burn, name="gatherbench-gather_0")
    brief.start()
    gone(brief)
    used = values(closed(meter))
    # The clocks of process and threads are not read in one moment: some ms may be missing.
    assert used["cpu_ended_threads"] >= 1.7 * BURNT
    assert used["cpu_gather_workers"] == 0


def test_the_groups_add_up_to_the_process_without_its_children():
    meter = ThreadMeter()
    early = time.process_time()
    meter.begin()
    burnt = "import time\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-c", burnt], check=True)
    with pool("gatherbench-gather") as executor:
        work = executor.submit(burn)
        burn()
        work.result()
        used = values(closed(meter))
    late = time.process_time()
    assert sum(used.values()) == pytest.approx(late - early, abs=0.05)


def test_the_gatherers_helpers_carry_the_name_that_the_meter_looks_for():
    rows = 4 * CHUNK_BYTES // 4096
    table = torch.zeros(rows, 1024)
    out, ids = torch.empty_like(table), torch.arange(rows)
    meter = ThreadMeter()
    with HostGather(threads=2) as gather:
        gather.gather(table, ids, out)  # starts the helper
        meter.begin()
        used = dict.fromkeys(METRICS, 0.0)
        while not used["cpu_gather_workers"]:  # whenever a busy machine gives it a turn
            gather.gather(table, ids, out)
            used = values(closed(meter))
    assert used["cpu_other_threads"] == 0


def test_a_thread_number_that_is_given_again_counts_from_nothing(monkeypatch):
    meter = ThreadMeter()
    clocks = iter([({7: 5.0, 8: 1.0}, 6.0), ({7: 0.25, 8: 1.0}, 6.5)])
    monkeypatch.setattr(threads_module, "_read_clocks", lambda: next(clocks))
    meter.begin()
    used = values(closed(meter))
    assert used["cpu_torch_pool"] == 0.25
    assert used["cpu_ended_threads"] == 0.25


def test_what_ended_samplers_told_is_in_one_group_alone(monkeypatch):
    """Of 2.0 s thread 7, live, has 0.5; 8 told 0.75 before it ended, and 0.75 are nobody's.

    What 7 told is on its clock, and 9 ended before the window.
    """
    told = [(9, 0.25)]
    clocks = iter([({7: 1.0}, 3.0), ({7: 1.5}, 5.0)])
    monkeypatch.setattr(threads_module, "ended", told)
    monkeypatch.setattr(threads_module, "_read_clocks", lambda: next(clocks))
    meter = ThreadMeter()
    meter.begin()
    told += [(7, 0.25), (8, 0.75)]
    used = values(closed(meter))
    assert (used["cpu_sampler_workers"], used["cpu_ended_threads"]) == (0.5 + 0.75, 0.75)
    assert sum(used.values()) == 2.0


def test_without_proc_the_reason_stands_there(monkeypatch):
    monkeypatch.setattr(threads_module, "_TASKS", Path("/nowhere"))
    meter = ThreadMeter()
    meter.begin()
    readings = closed(meter)
    assert [r.metric for r in readings] == list(METRICS)
    assert {str(r.reason).split(":")[0] for r in readings} == {"unsupported"}
