"""Measure core-seconds by the purpose of a thread: gathering, sampling, training.

The total CPU time does not show which work zero-copy saves. The names that samplers and gatherers
give their threads distinguish them, and each one's own CPU clock is read at both ends of the
window. The time of threads that ended inside the window is known only in sum, except for the
sampler's, which report it.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from gatherbench.bench.meters.base import Meter, Window
from gatherbench.bench.sampling.workers import ended
from gatherbench.reason import Reason, unsupported

SAMPLER = "cpu_sampler_workers"
#: Metric of a group, and the prefixes of its threads' names. The first match counts.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (SAMPLER, ("gatherbench-sample",)),
    ("cpu_gather_workers", ("gatherbench-gat", "gatherbench-fetch")),
    ("cpu_meters", ("gatherbench-meter",)),
)
MAIN, NATIVE, OTHER, ENDED = "cpu_main", "cpu_torch_pool", "cpu_other_threads", "cpu_ended_threads"

#: Every metric, in the reported order.
METRICS = (MAIN, *(metric for metric, _ in GROUPS), NATIVE, OTHER, ENDED)

_TASKS = Path("/proc/self/task")
_SOURCE = "CPU clock of each thread (clock_gettime)"


class ThreadMeter(Meter):
    """The core-seconds (user and system together) of this process's threads by group.

    ``cpu_main``: the thread that runs the loop. ``cpu_sampler_workers``, ``cpu_gather_workers``:
    its helpers, and threads that sample or fetch ahead. ``cpu_meters``: the meters' own.
    ``cpu_torch_pool``: threads that Python did not start, torch's OpenMP and autograd pools, on a
    GPU machine the driver's too. ``cpu_ended_threads``: threads that ended inside the window,
    except those that sampled ahead. The groups add up to the process's own core-seconds, without
    its children; only the process's total includes the work of meters that close after this one.
    """

    name: ClassVar[str] = "threads"
    summary: ClassVar[str] = "core-seconds of sampler, gather, torch and other threads"
    lost: ClassVar[str] = "which work the processor's time went to"
    trust: ClassVar[str] = "the kernel's CPU clocks; the groups add up to the process"
    units = dict.fromkeys(METRICS, "s")
    sources = {
        **dict.fromkeys(METRICS, _SOURCE),
        SAMPLER: f"{_SOURCE}; threads that ended: as of their last minibatch",
        ENDED: "process CPU clock less the clocks of its live threads and of ended sampler workers",
    }

    def __init__(self) -> None:
        self._clocks: dict[int, float] = {}
        self._process_s = 0.0
        self._told = 0

    def probe(self) -> Reason | None:
        if _TASKS.is_dir():
            return None
        return unsupported("threads are listed in /proc/self/task", "run on Linux with /proc")

    def begin(self) -> None:
        if self.probe() is None:
            self._told = len(ended)
            self._clocks, self._process_s = _read_clocks()

    def end(self) -> Window:
        if (reason := self.probe()) is not None:
            return dict.fromkeys(METRICS, reason)
        ended_since = dict(ended[self._told :])
        groups = dict.fromkeys(ended_since, SAMPLER) | _groups_of_threads()  # some may be ending
        clocks, process_s = _read_clocks()
        used_s = dict.fromkeys(METRICS, 0.0)
        for thread, late_s in clocks.items():
            early_s = self._clocks.get(thread, 0.0)
            # A clock that fell belongs to a new thread with an old one's number.
            grown_s = late_s - early_s if late_s >= early_s else late_s
            used_s[groups.get(thread, NATIVE)] += grown_s
        # The rest may be below zero, because the clocks are read one after the other.
        ended_s = max(0.0, process_s - self._process_s - sum(used_s.values()))
        since_s = min(ended_s, sum(s for thread, s in ended_since.items() if thread not in clocks))
        used_s[SAMPLER] += since_s
        used_s[ENDED] = ended_s - since_s
        return {**used_s}


def _names_of_threads() -> dict[int, str]:
    """Return the kernel's name of each live thread of this process, by its number.

    Threads of an OpenMP pool inherit their starter's; those of the built-in gather, autograd,
    CUDA's driver and io_uring have names of their own.
    """
    names = {}
    for task in _TASKS.iterdir():
        with suppress(OSError):  # it has ended since it was listed
            names[int(task.name)] = (task / "comm").read_text().strip()
    return names


def _groups_of_threads() -> dict[int, str]:
    """Return the group of each thread that Python or this package named, by its kernel number."""
    groups = {}
    for thread in threading.enumerate():
        if thread.native_id is not None:
            groups[thread.native_id] = _group_of(thread.name) or OTHER
    # Its kernel number is the process's; after os.fork Python still has the parent's.
    groups[os.getpid()] = MAIN
    for number, name in _names_of_threads().items():
        if number not in groups and (group := _group_of(name)) is not None:
            groups[number] = group
    return groups


def _group_of(name: str) -> str | None:
    return next((metric for metric, begins in GROUPS if name.startswith(begins)), None)


def _read_clocks() -> tuple[dict[int, float], float]:
    """Return CPU seconds of each live thread, and of the process with its ended threads."""
    clocks = {}
    for thread in (int(task.name) for task in _TASKS.iterdir()):
        # The kernel's number of a thread's CPU clock, as in pthread_getcpuclockid(3).
        try:
            clocks[thread] = time.clock_gettime((~thread << 3) | 6)
        except OSError:  # it has ended since it was listed
            continue
    return clocks, time.process_time()
