"""What the host's processor did in a window, how long that was, and what others did beside us.

It is the cost that zero-copy is meant to save.

Everything is a difference of cumulative counters. The process tree comes from ``getrusage``, whose
clock is finer than the 10 ms tick of ``/proc/<pid>/stat`` and which sees every thread
(``/proc/<pid>/status`` counts the context switches of the main thread alone). The whole system is
read too, because work done for us by kernel threads or drivers is charged to no process of ours.
"""

from __future__ import annotations

import re
import resource
import time
from pathlib import Path
from typing import ClassVar

import psutil

from gatherbench.bench.meters.base import Reading, reading
from gatherbench.reason import Reason, unsupported

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")

CORE_SECONDS = ("cpu_user", "cpu_system")
_TREE_CPU = "getrusage(self, ended children) + psutil.cpu_times(live children)"
_TREE_COUNTS = "getrusage(self, ended children)"
_SYSTEM = "psutil.cpu_times, every core of the host"
_WENT_BACK = unsupported("the counter went backwards, a process left the tree during the window")
_NO_TICK = Reason("too_short", "/proc/stat did not advance (tick: 10 ms)", "use longer epochs")
_NO_PEAK = unsupported("this kernel reports no VmHWM", "run on Linux with /proc mounted")


class CpuMeter:
    """``cpu_user``, ``cpu_system`` (the tree, children included), ``system_cpu_busy``, ``…_steal``
    (the whole host) in core-seconds; ``context_switches_…``, ``page_faults_…`` (this process and
    its ended children); ``peak_rss`` (this process, B): over the window where the kernel lets its
    mark be reset, else since the process began: its source says which.
    """

    name: ClassVar[str] = "cpu"
    summary: ClassVar[str] = "core-seconds, context switches, page faults, peak memory"
    lost: ClassVar[str] = "what a strategy costs the processor"
    trust: ClassVar[str] = "cumulative counters of the kernel, read at both ends of the window"

    def __init__(self) -> None:
        self._totals = _totals()
        self._live_s = (0.0, 0.0)
        self._system = psutil.cpu_times()
        self._peak_reset = False

    def probe(self) -> Reason | None:
        return None

    def start(self) -> None:
        # The meter's own work stays outside of the window: totals are read last here, first below.
        self._peak_reset = _reset_peak_rss()
        self._system = psutil.cpu_times()
        self._live_s = _live_descendants()
        self._totals = _totals()

    def stop(self) -> list[Reading]:
        totals = _totals()
        peak = _peak_reading(self._peak_reset)
        system = psutil.cpu_times()
        live_s = _live_descendants()
        change = {metric: totals[metric] - self._totals[metric] for metric in totals}
        for metric, late, early in zip(CORE_SECONDS, live_s, self._live_s, strict=True):
            change[metric] += late - early
        return [
            *(_difference(metric, "s", change.pop(metric), _TREE_CPU) for metric in CORE_SECONDS),
            *(_difference(metric, "1", value, _TREE_COUNTS) for metric, value in change.items()),
            *_system_readings(self._system, system),
            peak,
        ]


def _totals() -> dict[str, float]:
    """What this process and its ended children have used since they began, by metric."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "cpu_user": own.ru_utime + ended.ru_utime,
        "cpu_system": own.ru_stime + ended.ru_stime,
        "context_switches_voluntary": own.ru_nvcsw + ended.ru_nvcsw,
        "context_switches_involuntary": own.ru_nivcsw + ended.ru_nivcsw,
        "page_faults_minor": own.ru_minflt + ended.ru_minflt,
        "page_faults_major": own.ru_majflt + ended.ru_majflt,
    }


def _live_descendants() -> tuple[float, float]:
    """User and system core-seconds of all live descendants and of the children they waited for.

    A child that ends inside the window moves from here to ``RUSAGE_CHILDREN`` with all of its
    time, so the difference of the two sums charges the window with just its share.
    """
    user_s = system_s = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        user_s += times.user + times.children_user
        system_s += times.system + times.children_system
    return user_s, system_s


def _difference(metric: str, unit: str, value: float, source: str) -> Reading:
    value = round(float(value), 6)  # the clocks count microseconds; the rest is binary rounding
    return reading(metric, unit, _WENT_BACK if value < 0 else value, source, samples=2)


def _system_readings(early: object, late: object) -> list[Reading]:
    """Busy and stolen core-seconds of the host; waiting for input or output is idle."""

    def delta(*fields: str) -> float:
        # A field that this kernel does not report counts nothing. `user` includes guests already.
        return sum(getattr(late, f, 0.0) - getattr(early, f, 0.0) for f in fields)

    busy_s = delta("user", "nice", "system", "irq", "softirq")
    steal_s = delta("steal")
    readings = []
    for metric, value in (("system_cpu_busy", busy_s), ("system_cpu_steal", steal_s)):
        if busy_s + steal_s + delta("idle", "iowait") <= 0:
            readings.append(Reading(metric, "s", None, _SYSTEM, _NO_TICK, samples=2))
        else:
            readings.append(_difference(metric, "s", value, _SYSTEM))
    return readings


def _reset_peak_rss() -> bool:
    """Ask the kernel to forget the high-water mark (proc(5), ``clear_refs``, value 5)."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def _peak_reading(reset: bool) -> Reading:
    scope = "over the window" if reset else "since process start, it cannot be reset here"
    status = _STATUS.read_text() if _STATUS.is_file() else ""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    answer = _NO_PEAK if found is None else float(found[1]) * 1024
    source = f"/proc/self/status VmHWM, {scope}"
    return reading("peak_rss", "B", answer, source, samples=0 if found is None else 1)


class WallClockMeter:
    """Seconds of the window, by which core-seconds become cores, joules watts.

    An epoch's own time is taken by the loop. Whoever closes a window over work of a GPU
    synchronises first.
    """

    name: ClassVar[str] = "clock"
    summary: ClassVar[str] = "how long the meters watched (monotonic clock)"
    lost: ClassVar[str] = "mean power and mean cores in use"
    trust: ClassVar[str] = "the kernel's monotonic clock"

    def __init__(self) -> None:
        self._opened_s = 0.0

    def probe(self) -> Reason | None:
        return None

    def start(self) -> None:
        self._opened_s = time.perf_counter()

    def stop(self) -> list[Reading]:
        elapsed_s = time.perf_counter() - self._opened_s
        return [Reading("window_time", "s", elapsed_s, "time.perf_counter", samples=2)]


#: Cores, or share of the host's cores, that other work may have beside a quiet measurement: daemons
#: and kernel threads take that much.
QUIET_CORES, QUIET_SHARE = 0.3, 0.05


def quiet_cores(cores: int) -> float:
    """How many of the host's ``cores`` other work may have beside a quiet measurement."""
    return max(QUIET_CORES, QUIET_SHARE * cores)


class OtherWork:
    """How many cores other work keeps busy from now on; our children's work is ours.

    Kernel threads are other work, those that work for us as well, and what a hypervisor gave to
    other machines (steal). In a container the host may be larger than our share.
    """

    def __init__(self) -> None:
        self._clock, self._cpu = WallClockMeter(), CpuMeter()
        self._clock.start()
        self._cpu.start()

    def cores(self) -> float | None:
        """Since this was made; ``None`` where the kernel does not count."""
        read = {r.metric: r.value for r in (*self._cpu.stop(), *self._clock.stop())}
        host = (read["system_cpu_busy"], read["system_cpu_steal"])
        ours = (read["cpu_user"], read["cpu_system"])
        seconds = read["window_time"]
        if None in (*host, *ours) or not seconds:
            return None
        return max(0.0, sum(x or 0 for x in host) - sum(x or 0 for x in ours)) / seconds


def is_quiet(other_cores: float | None) -> bool:
    """Whether that much other work can be overlooked; it can where nobody counted it."""
    return other_cores is None or other_cores <= quiet_cores(psutil.cpu_count() or 1)
