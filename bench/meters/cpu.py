"""Measure the host processor's work in a window, the window's time, and other processes' work.

This is the cost that zero-copy is meant to save.

Every value is a difference of cumulative counters. The process tree comes from ``getrusage``, whose
clock is finer than the 10 ms tick of ``/proc/<pid>/stat`` and which includes every thread. The
whole system is read too, because the run's own processes are not charged for work of kernel threads
or drivers.
"""

from __future__ import annotations

import re
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil

from gatherbench.bench.machine import kernel_text
from gatherbench.bench.meters.base import Meter, Window
from gatherbench.reason import Reason, unsupported

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")

CORE_SECONDS = ("cpu_user", "cpu_system")
_SYSTEM = ("system_cpu_busy", "system_cpu_steal")
#: Fields of ``psutil.cpu_times``; one that this kernel lacks counts as 0. ``user`` includes guests,
#: and waiting for input or output is idle.
_TICKS = {
    "system_cpu_busy": ("user", "nice", "system", "irq", "softirq"),
    "system_cpu_steal": ("steal",),
    "idle": ("idle", "iowait"),
}
_USAGE = "getrusage(self, ended children) + psutil.cpu_times(live children)"
_SOURCES = {
    **dict.fromkeys(CORE_SECONDS, _USAGE),
    **dict.fromkeys(_SYSTEM, "psutil.cpu_times, every core of the host"),
}
_WENT_BACK = unsupported("the counter went backwards, a process left the tree during the window")
_NO_TICK = Reason("too_short", "/proc/stat did not advance (tick: 10 ms)", "use longer epochs")
_NO_PEAK = unsupported("this kernel reports no VmHWM", "run on Linux with /proc mounted")


class CpuMeter(Meter):
    """``cpu_user``, ``cpu_system`` (the tree, children included), ``system_cpu_busy``, ``…_steal``
    (the whole host) in core-seconds; ``peak_rss`` (this process): over the window where the kernel
    lets its mark be reset, else since the process began: its source says which.
    """

    name: ClassVar[str] = "cpu"
    summary: ClassVar[str] = "core-seconds and peak memory"
    lost: ClassVar[str] = "what a strategy costs the processor is not measured"
    trust: ClassVar[str] = "cumulative counters of the kernel, read at both ends of the window"
    units = {
        **dict.fromkeys((*CORE_SECONDS, *_SYSTEM), "s"),
        "peak_rss": "B",
    }

    def begin(self) -> None:
        # The window excludes the meter's own work: totals are read last here, first below.
        self._reset = _reset_peak_rss()
        self._system = psutil.cpu_times()
        self._live_s = _live_descendants()
        self._totals = _totals()

    def end(self) -> Window:
        totals = _totals()
        peak = re.search(r"^VmHWM:\s+(\d+) kB$", kernel_text(_STATUS), re.MULTILINE)
        system = psutil.cpu_times()
        live_s = _live_descendants()
        used = {metric: totals[metric] - self._totals[metric] for metric in totals}
        for metric, late, early in zip(CORE_SECONDS, live_s, self._live_s, strict=True):
            used[metric] += late - early
        ticks = {
            metric: sum(getattr(system, f, 0.0) - getattr(self._system, f, 0.0) for f in fields)
            for metric, fields in _TICKS.items()
        }
        if sum(ticks.values()) > 0:
            used |= {metric: ticks[metric] for metric in _SYSTEM}
        since = "over the window" if self._reset else "since process start, it cannot be reset here"
        self.sources = {**_SOURCES, "peak_rss": f"/proc/self/status VmHWM, {since}"}
        # The clocks count microseconds; the rest is binary rounding.
        numbers = {m: round(float(v), 6) for m, v in used.items()}
        window: Window = {m: _WENT_BACK if v < 0 else v for m, v in numbers.items()}
        window["peak_rss"] = _NO_PEAK if peak is None else float(peak[1]) * 1024
        return {metric: window.get(metric, _NO_TICK) for metric in self.units}


def _totals() -> dict[str, float]:
    """Return what this process and its ended children have used since their start, by metric."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = own.ru_utime + ended.ru_utime, own.ru_stime + ended.ru_stime
    return dict(zip(CORE_SECONDS, (user, system), strict=True))


def _live_descendants() -> tuple[float, float]:
    """Return core-seconds (user, system) of live descendants and of children they waited for.

    A child that ends inside the window moves from here to ``RUSAGE_CHILDREN`` with all of its
    time, so the difference of the two sums charges the window with just its share.
    """
    user_s = system_s = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            user_s += times.user + times.children_user
            system_s += times.system + times.children_system
    return user_s, system_s


def _reset_peak_rss() -> bool:
    """Ask the kernel to reset the high-water mark (proc(5), ``clear_refs``, value 5)."""
    with suppress(OSError):
        return _CLEAR_REFS.write_text("5") > 0
    return False


class WallClockMeter(Meter):
    """The window's time in seconds, which turns core-seconds into cores and joules into watts.

    The loop measures an epoch's own time. To measure a GPU's work, synchronise before the window is
    closed.
    """

    name: ClassVar[str] = "clock"
    summary: ClassVar[str] = "how long the meters watched (monotonic clock)"
    lost: ClassVar[str] = "mean power and mean cores in use cannot be derived"
    trust: ClassVar[str] = "the kernel's monotonic clock"
    units = {"window_time": "s"}
    sources = {"window_time": "time.perf_counter"}

    def begin(self) -> None:
        self._opened_s = time.perf_counter()

    def end(self) -> Window:
        return {"window_time": time.perf_counter() - self._opened_s}


#: Cores, or share of the host's cores, that other work may use during a clean measurement: daemons
#: and kernel threads need that much.
QUIET_CORES, QUIET_SHARE = 0.3, 0.05


def quiet_cores(cores: int) -> float:
    """Return how many of the host's ``cores`` other work may use during a clean measurement."""
    return max(QUIET_CORES, QUIET_SHARE * cores)


class OtherWork:
    """Count the cores that other processes use from now on; children of this one are excluded.

    Kernel threads count as other work, even if they work for this process, and so does time that a
    hypervisor gave to other machines (steal). In a container, the host's cores are counted.
    """

    def __init__(self) -> None:
        self._clock, self._cpu = WallClockMeter(), CpuMeter()
        self._clock.begin()
        self._cpu.begin()

    def cores(self) -> float | None:
        """Return their mean number since this object was made; ``None``: a counter is missing."""
        read = self._cpu.end() | self._clock.end()
        numbers = [read[name] for name in (*_SYSTEM, *CORE_SECONDS, "window_time")]
        if any(isinstance(number, Reason) for number in numbers):
            return None
        busy, steal, user, system, seconds = map(float, numbers)  # type: ignore[arg-type]
        return max(0.0, busy + steal - user - system) / seconds if seconds else None


def is_quiet(other_cores: float | None) -> bool:
    """Return whether so little other work is negligible; an unknown amount counts as negligible."""
    return other_cores is None or other_cores <= quiet_cores(psutil.cpu_count() or 1)
