"""Meters: what they count really happened, and what they cannot read they say."""

import json
import mmap
import os
import resource
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from gatherbench.bench.meters import cpu as cpu_module
from gatherbench.bench.meters import disk_counters
from gatherbench.bench.meters import load as load_module
from gatherbench.bench.meters import memory as memory_module
from gatherbench.bench.meters.base import UNITS, Reading, Recorder, closed
from gatherbench.bench.meters.cpu import CpuMeter, OtherWork, WallClockMeter, is_quiet, quiet_cores
from gatherbench.bench.meters.disk_counters import DiskMeter
from gatherbench.bench.meters.load import VARIABLES, Load, Waiting
from gatherbench.bench.meters.memory import MemoryMeter
from gatherbench.bench.meters.registry import METERS, open_meters
from gatherbench.kernels import managed_memory, mapped_memory
from gatherbench.reason import unsupported

BURN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass"


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def by_metric(readings: list[Reading] | tuple[Reading, ...]) -> dict[str, Reading]:
    found = {r.metric: r for r in readings}
    assert len(found) == len(readings)
    assert all((r.value is None) == (r.reason is not None) for r in readings)
    return found


def value(readings: dict[str, Reading], metric: str) -> float:
    number = readings[metric].value
    assert number is not None, readings[metric].reason
    return number


def test_every_reading_has_a_unit_a_source_and_a_value_or_a_reason():
    with Recorder(open_meters()) as recorder:
        burn(0.03)
    metrics = by_metric(recorder.readings)
    assert "window_time" in metrics
    assert "wall_time" not in metrics, "the loop writes the epoch's own time"
    for reading in recorder.readings:
        assert reading.unit in UNITS
        assert reading.source


def test_threads_count_and_sleep_does_not():
    meter, clock = CpuMeter(), WallClockMeter()
    threads = [threading.Thread(target=burn, args=(0.15,)) for _ in range(2)]
    meter.begin()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    busy = by_metric(closed(meter))
    assert value(busy, "cpu_user") + value(busy, "cpu_system") >= 0.29
    meter.begin()
    clock.begin()
    time.sleep(0.2)
    idle = by_metric([*closed(clock), *closed(meter)])
    assert value(idle, "window_time") >= 0.2
    assert value(idle, "cpu_user") + value(idle, "cpu_system") < 0.15


SAY, WAIT = "\nprint(flush=True)", "\ninput()"
RUN = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {!r}])"
#: What a child does, and whether it has done it before the window.
CHILDREN = {
    "ended": (BURN.format(0.2), False),
    "lives": (BURN.format(0.2) + SAY + WAIT, False),
    "burnt before": (BURN.format(0.5) + SAY + WAIT, True),
    "its child has ended": (RUN.format(BURN.format(0.2)) + SAY + WAIT, False),
    "its child lives": (RUN.format(BURN.format(0.2) + SAY + WAIT), False),
}


@pytest.mark.parametrize(("script", "before"), CHILDREN.values(), ids=list(CHILDREN))
def test_children_are_charged_with_their_share_of_the_window(script, before):
    """What one burnt before the window must not come back when it is reaped inside."""
    meter = CpuMeter()
    meter.begin()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        if "input()" not in script:
            child.wait()
        if before:
            meter.begin()
            child.communicate(b"\n")
        readings = by_metric(closed(meter))
        if not before:
            child.communicate(b"\n\n")
    used = value(readings, "cpu_user") + value(readings, "cpu_system")
    assert used < 0.3 if before else used >= 0.18


def test_a_counter_that_goes_backwards_gives_no_value(monkeypatch):
    meter = CpuMeter()
    monkeypatch.setattr(cpu_module, "_live_descendants", lambda: (100.0, 0.0))
    meter.begin()
    monkeypatch.setattr(cpu_module, "_live_descendants", lambda: (0.0, 0.0))
    reading = by_metric(closed(meter))["cpu_user"]
    assert reading.value is None
    assert "backwards" in str(reading.reason)


def test_what_ended_children_used_counts_as_the_process_s_own(monkeypatch):
    """In the window the process uses 1 and 2 of each, and its children ten times as much."""
    fields = ("ru_utime", "ru_stime")
    used = {resource.RUSAGE_SELF: 0, resource.RUSAGE_CHILDREN: 0}
    monkeypatch.setattr(cpu_module, "_live_descendants", lambda: (0.0, 0.0))
    monkeypatch.setattr(
        resource,
        "getrusage",
        lambda who: SimpleNamespace(**{f: used[who] * 2**i for i, f in enumerate(fields)}),
    )
    meter = CpuMeter()
    meter.begin()
    used.update({resource.RUSAGE_SELF: 1, resource.RUSAGE_CHILDREN: 10})
    readings = by_metric(closed(meter))
    assert [readings[m].value for m in cpu_module._totals()] == [11, 22]


def test_peak_memory_is_that_of_the_window():
    big = np.ones(200 * 2**20, dtype=np.uint8)
    with_big = psutil.Process().memory_info().rss
    del big
    meter = CpuMeter()
    meter.begin()
    reading = by_metric(closed(meter))["peak_rss"]
    assert reading.value is not None
    if "over the window" in reading.source:
        assert reading.value < with_big - 100 * 2**20
    else:
        assert reading.value >= with_big - 2**20


def test_peak_memory_is_in_bytes_and_says_since_when(tmp_path, monkeypatch):
    status = tmp_path / "status"
    monkeypatch.setattr(cpu_module, "_CLEAR_REFS", tmp_path / "nowhere" / "clear_refs")
    monkeypatch.setattr(cpu_module, "_STATUS", status)
    meter = CpuMeter()
    meter.begin()
    missing = by_metric(closed(meter))["peak_rss"]
    assert (missing.value, missing.reason is None) == (None, False)
    status.write_text("VmPeak:\t 900 kB\nVmHWM:\t   100 kB\nVmRSS:\t  50 kB\n")
    peak = by_metric(closed(meter))["peak_rss"]
    assert peak.value == 102_400
    assert "since process start" in peak.source


def test_a_host_clock_that_stands_still_gives_no_zero(monkeypatch):
    frozen = psutil.cpu_times()
    monkeypatch.setattr(psutil, "cpu_times", lambda: frozen)
    meter = CpuMeter()
    meter.begin()
    readings = by_metric(closed(meter))
    assert readings["system_cpu_busy"].value is None
    assert "did not advance" in str(readings["system_cpu_busy"].reason)


def test_what_is_stolen_waited_for_or_a_guests_is_no_use_of_the_host(monkeypatch):
    """Each field grows by a power of two: the sum says which of them were taken."""
    fields = {
        "user": 1, "nice": 2, "system": 4, "irq": 8, "softirq": 16, "steal": 32,
        "idle": 64, "iowait": 128, "guest": 256, "guest_nice": 512,
    }  # fmt: skip
    meter = CpuMeter()
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(**dict.fromkeys(fields, 0.0)))
    meter.begin()
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(**fields))
    readings = by_metric(closed(meter))
    assert value(readings, "system_cpu_busy") == 1 + 2 + 4 + 8 + 16  # `user` holds the guests
    assert value(readings, "system_cpu_steal") == 32


def test_the_clock_is_innermost_and_times_nothing_of_the_others():
    assert [m.name for m in open_meters()] == [m.name for m in METERS]
    assert METERS[-1] is WallClockMeter


def test_other_work_is_what_the_host_did_beside_us(monkeypatch):
    """Two seconds: the host was busy for 6, a hypervisor took 2, ours were 5 core-seconds."""
    read = {"system_cpu_busy": 6.0, "system_cpu_steal": 2.0, "cpu_user": 4.0, "cpu_system": 1.0}
    monkeypatch.setattr(CpuMeter, "end", lambda _: dict(read))
    monkeypatch.setattr(WallClockMeter, "end", lambda _: {"window_time": 2.0})
    assert OtherWork().cores() == 1.5
    read["cpu_user"] = 8.0  # clocks tick: less than nothing is none
    assert OtherWork().cores() == 0
    read["system_cpu_busy"] = unsupported("nobody counts")  # type: ignore[assignment]
    assert OtherWork().cores() is None
    assert [quiet_cores(n) for n in (2, 64)] == [0.3, 3.2]
    assert is_quiet(None)


# Memory: what is allocated shows up under its kind, and what cannot be told is not zero.

MIB = 2**20


def window() -> dict[str, Reading]:
    meter = MemoryMeter()
    meter.begin()
    return by_metric(closed(meter))


def test_memory_that_is_touched_is_pageable_and_a_mapped_file_is_not(tmp_path):
    before = window()
    block = np.ones(64 * MIB, np.uint8)
    after = window()
    assert value(after, "host_pageable") - value(before, "host_pageable") >= 60 * MIB
    assert after["host_pageable"].source == "/proc/self/status RssAnon + RssShmem"
    file = tmp_path / "table"
    file.write_bytes(b"x" * (16 * MIB))
    before = window()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[i] for i in range(0, 16 * MIB, 4096))
        during = window()
    assert value(during, "host_file_mapped") - value(before, "host_file_mapped") >= 15 * MIB
    assert value(during, "host_pageable") - value(before, "host_pageable") < 8 * MIB
    del block


def test_without_a_gpu_its_figures_have_a_reason():
    assert not torch.cuda.is_available(), "this test is for a machine without a GPU"
    readings = window()
    for metric in (
        "host_pinned", "host_managed", "gpu_allocated_peak", "gpu_reserved_peak",
    ):  # fmt: skip
        assert str(readings[metric].reason).startswith("no_device: ")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands where torch.cuda does."""
    peaks = {"now": 700}
    fake = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        reset_peak_memory_stats=lambda: peaks.update(now=300),
        max_memory_allocated=lambda: peaks["now"],
        max_memory_reserved=lambda: 2 * peaks["now"],
        host_memory_stats=lambda: {"allocated_bytes.current": 4096},
    )
    monkeypatch.setattr(torch, "cuda", fake)
    return fake


def test_on_a_gpu_peaks_are_those_of_the_window(cuda, monkeypatch):
    monkeypatch.setattr(mapped_memory, "_held", {(4096, 1000): 2, (9000, 24): 1, (1, 5): 1})
    monkeypatch.setattr(mapped_memory, "_foreign", {(1, 5)})
    monkeypatch.setattr(managed_memory, "_spans", {64: managed_memory.Span(64, 77)})
    readings = window()
    assert value(readings, "gpu_allocated_peak") == 300
    assert value(readings, "gpu_reserved_peak") == 600
    assert value(readings, "host_pinned") == 1024 + 4096  # torch's own is in its allocator's count
    assert value(readings, "host_managed") == 77
    assert "less registered bytes" in readings["host_pageable"].source


def test_a_case_that_leaves_the_gpu_alone_does_not_wake_it(cuda):
    cuda.is_initialized = lambda: False
    assert str(window()["gpu_allocated_peak"].reason).startswith("unsupported: ")
    assert cuda.max_memory_allocated() == 700, "nothing was reset"


def test_pageable_memory_is_never_below_nothing(monkeypatch):
    monkeypatch.setattr(mapped_memory, "_held", {(0, 1 << 50): 1})
    assert value(window(), "host_pageable") == 0.0


@pytest.mark.parametrize("content", [None, "VmHWM:\t 100 kB\n"])
def test_a_kernel_that_does_not_say(tmp_path, monkeypatch, content):
    status = tmp_path / "status"
    if content is not None:
        status.write_text(content)
    monkeypatch.setattr(memory_module, "_STATUS", status)
    assert (MemoryMeter().probe() is None) == (content is not None)
    readings = window()
    for metric in ("host_pageable", "host_file_mapped"):
        assert str(readings[metric].reason).startswith("unsupported: ")


# ---- a busy machine ------------------------------------------------------------------------------


IDLE, BUSY = Load(0.1, 4, 0.2), Load(3.0, 4, 9.8)
CPU = {"usable_cores": 4, "quota_cores": None}


def test_the_load_is_what_others_did_in_a_window(monkeypatch):
    """Of 0.5 s on four cores others had 1.5 core-seconds."""
    work = SimpleNamespace(cores=lambda: 1.5 / 0.5)
    monkeypatch.setattr(load_module, "OtherWork", lambda: work)
    slept = list[float]()
    monkeypatch.setattr(load_module, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr(load_module.psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(load_module.os, "getloadavg", lambda: (9.8, 5.0, 1.0))
    assert (Load.now(), slept) == (BUSY, [0.5])
    assert BUSY.busy
    assert not IDLE.busy, "daemons"
    assert not Load(None, 4, 9.8).busy, "nobody counted"


@pytest.mark.parametrize(
    ("threads", "quota", "load", "passive", "reason"),
    [
        (0, None, IDLE, False, ""),
        (0, None, BUSY, True, "other work uses 3.0 of 4 cores (load average 9.8)"),
        (1, None, BUSY, True, "other work uses 3.0 of 4 cores (load average 9.8)"),
        (0, 1.5, IDLE, True, "4 threads have 1.5 cores"),
        (1, 1.5, IDLE, False, ""),
        (2, None, IDLE, False, ""),
    ],
)
def test_threads_sleep_where_there_are_fewer_free_cores_than_threads(
    threads, quota, load, passive, reason
):
    found = Waiting.chosen(threads, CPU | {"quota_cores": quota}, load, {})
    assert (found.passive, found.reason) == (passive, reason)
    assert str(found) == ("passively" if passive else "by default")


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_set_stays(name, monkeypatch):
    found = Waiting.chosen(0, CPU, BUSY, {name: "7", "PATH": "/bin"})
    assert (found.variables, found.reason) == ({name: "7"}, "")
    assert str(found) == f"with {name}=7"
    assert not found.passive
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    made = found.environment()
    assert {one: made.get(one) for one in VARIABLES} == dict.fromkeys(VARIABLES) | {name: "7"}


def test_the_policy_is_read_back_from_what_a_run_keeps():
    made = Waiting.chosen(0, CPU, IDLE, {"OMP_WAIT_POLICY": "passive"})
    kept = json.loads(json.dumps({"waiting": asdict(made)}))
    assert Waiting.of(kept).passive
    assert Waiting.of({}) == Waiting({})


# ---- the disk ------------------------------------------------------------------------------------


#: reads completed, merged, sectors read, ms; writes likewise; in flight, ms, ms.
STAT = "{reads} 5 {sectors} 30 70 9 8000 60 0 50 90\n"
IO = "rchar: 999\nwchar: 9\nsyscr: 5\nsyscw: 1\nread_bytes: {read}\nwrite_bytes: 77\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``io``, and the device on which ``tmp_path`` lies, with its name."""
    number = tmp_path.stat().st_dev
    (tmp_path / "block/nvme0n1/queue").mkdir(parents=True)
    (tmp_path / "block/nvme0n1/nvme0n1p2").mkdir()
    (tmp_path / "devices").mkdir()
    link = tmp_path / "devices" / f"{os.major(number)}:{os.minor(number)}"
    link.symlink_to(tmp_path / "block/nvme0n1")
    say(tmp_path, reads=100, sectors=4000, read=10_000)
    monkeypatch.setattr(disk_counters, "_IO", tmp_path / "io")
    monkeypatch.setattr(disk_counters, "_DEVICES", tmp_path / "devices")
    return tmp_path


def say(kernel: Path, reads: int, sectors: int, read: int) -> None:
    device = next((kernel / "devices").iterdir())
    (device / "stat").write_text(STAT.format(reads=reads, sectors=sectors))
    (kernel / "io").write_text(IO.format(read=read))


def meter(kernel: Path) -> DiskMeter:
    return DiskMeter(kernel / "data not made yet")


def window_of(meter: DiskMeter, kernel: Path, **later: int) -> dict[str, Reading]:
    meter.begin()
    say(kernel, **later)
    return {one.metric: one for one in closed(meter)}


def test_the_window_is_the_difference_of_the_counters(kernel):
    assert meter(kernel).probe() is None
    found = window_of(meter(kernel), kernel, reads=130, sectors=4080, read=50_960)
    assert {name: (one.value, one.unit) for name, one in found.items()} == {
        "disk_read_process": (40_960, "B"),
        "disk_read_device": (40_960, "B"),  # 80 sectors of 512 B
        "disk_reads_device": (30, "1"),
    }
    assert found["disk_read_process"].source == "/proc/self/io read_bytes"
    named = "/sys/class/block/nvme0n1/stat, sectors of 512 B"
    assert found["disk_read_device"].source == named


def test_a_partition_has_counters_of_its_own(kernel):
    link = next((kernel / "devices").iterdir())
    link.unlink()
    link.symlink_to(kernel / "block/nvme0n1/nvme0n1p2")
    say(kernel, reads=1, sectors=1, read=1)
    found = window_of(meter(kernel), kernel, reads=2, sectors=9, read=1)
    assert found["disk_read_device"].value == 8 * 512
    assert "nvme0n1p2/stat" in found["disk_read_device"].source


def test_files_that_are_missing_are_reasons_and_not_zeros(kernel):
    broken = meter(kernel)
    (kernel / "io").unlink()
    found = {one.metric: one for one in closed(broken)}
    assert found["disk_read_process"].value is None
    assert "counts no bytes of a process" in str(found["disk_read_process"].reason)
    assert found["disk_reads_device"].value == 0
    next((kernel / "devices").iterdir()).unlink()
    found = {one.metric: one for one in closed(meter(kernel))}
    assert {one.value for one in found.values()} == {None}
    assert "lies on no block device" in str(found["disk_read_device"].reason)
    assert str(meter(kernel).probe()).startswith("unsupported: ")


def test_a_device_that_tells_nothing_and_one_that_was_replaced(kernel):
    one = meter(kernel)
    found = window_of(one, kernel, reads=3, sectors=10, read=50_000)
    assert str(found["disk_reads_device"].reason) == "failed: the counter went backwards"
    (next((kernel / "devices").iterdir()) / "stat").write_text("")
    assert "stat cannot be read" in str(closed(one)[1].reason)


def test_the_meter_of_a_case_watches_the_disk_of_its_dataset(tmp_path):
    (opened,) = [one for one in open_meters(folder=tmp_path) if isinstance(one, DiskMeter)]
    (own,) = [one for one in open_meters() if isinstance(one, DiskMeter)]
    assert opened._device == DiskMeter(tmp_path)._device
    assert own.name == "disk"
