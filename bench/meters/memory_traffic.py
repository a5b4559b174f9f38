"""Bytes between the processors and their memory, from the memory controllers' own counters.

The paper's first argument is that the CPU's gather touches host memory three times for each byte
that the GPU gets. The controllers count that. They belong to no process, so the kernel asks for a
privilege, and virtual machines have none of them: then there is a reason and no number.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gatherbench.bench.machine.numa import parse_cpulist
from gatherbench.bench.meters.base import Reading, reading
from gatherbench.reason import Reason, unsupported

#: Number of the system call, which libc does not wrap (arch/*/entry/syscalls in Linux).
_NUMBERS = {"x86_64": 298, "aarch64": 241}
#: ``struct perf_event_attr`` as far as its first published version reached (include/uapi/linux).
_ATTRIBUTES_BYTES = 64
#: Read the time enabled and the time running beside the count; close the descriptor on exec.
_TIMES, _CLOSE_ON_EXEC = 1 | 2, 8

_DEVICES = Path("/sys/bus/event_source/devices")
METRICS = ("dram_read", "dram_write")
#: What the kernel calls reads and writes of Intel's memory controllers, on servers and on clients;
#: it gives scale and unit beside them.
_INTEL = (("cas_count_read", "cas_count_write"), ("data_read", "data_write"))
#: AMD's (Zen 4 and later) are not named by the kernel: umc_cas_cmd.rd and .wr, one burst of 64 B
#: each (Linux, tools/perf/pmu-events/arch/x86/amdzen4/memory-controller.json).
_AMD, _AMD_BYTES = ("event=0x0a,rdwrmask=0x1", "event=0x0a,rdwrmask=0x2"), 64.0
_UNITS = {"MiB": 2**20, "KiB": 2**10, "Bytes": 1, "64Bytes": 64}
_NONE = Reason(
    "no_device",
    "the kernel shows no counters of a memory controller (uncore_imc, amd_umc)",
    "run on bare metal",
)
_FORBIDDEN = Reason(
    "no_permission",
    "counters of the whole machine are not for this user",
    "sysctl kernel.perf_event_paranoid=0, or give the process CAP_PERFMON",
)
_SHARED = unsupported(
    "the counter was shared with another tool for part of the window and the rest would be an"
    " estimate",
    "stop other users of perf",
)
_SOURCE = "perf_event_open, every memory controller"

#: ``open(type, config, cpu)`` → file descriptor; raises ``OSError``.
Open = Callable[[int, int, int], int]


def open_counter(kind: int, config: int, cpu: int, pid: int = -1) -> int:
    """``perf_event_open(2)``: a descriptor; reading it gives three unsigned 64-bit numbers.

    Args:
        kind, config: what to count (``type`` and ``config`` of ``perf_event_attr``).
        cpu: on which processor (-1: any).
        pid: of which process (-1: all, which needs a privilege).

    Raises:
        OSError: the kernel refuses, or there is no such counter.
    """
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "no system call number is known for this processor")
    # type, size, config, sample period, sample type, read format, flags
    attributes = struct.pack("IIQQQQQ", kind, _ATTRIBUTES_BYTES, config, 0, 0, _TIMES, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    wide = (ctypes.c_long(x) for x in (pid, cpu, -1, _CLOSE_ON_EXEC))
    padded = attributes.ljust(_ATTRIBUTES_BYTES, b"\0")
    descriptor = int(libc.syscall(ctypes.c_long(number), padded, *wide))
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return descriptor


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one controller: what to open, where, and the bytes that a count stands for."""

    metric: str
    kind: int
    config: int
    cpus: tuple[int, ...]
    bytes_per_count: float


class MemoryTrafficMeter:
    """Bytes read from and written to DRAM by everything on the machine. Units: B.

    ``dram_read``, ``dram_write``: sums over all controllers of all sockets, the GPU's reads of host
    memory included.

    Args:
        devices: where the kernel lists its counters.
        open_event: opens one.
    """

    name: ClassVar[str] = "memory_traffic"
    summary: ClassVar[str] = "bytes between processors and DRAM (perf_event_open)"
    lost: ClassVar[str] = "how often a byte touches host memory is declared, not measured"
    trust: ClassVar[str] = "the memory controllers' own counters, never scaled up"

    def __init__(self, devices: Path = _DEVICES, open_event: Open = open_counter) -> None:
        self._devices, self._open = devices, open_event
        self._reason: Reason | None = None
        self._counters: list[tuple[Event, int]] | None = None
        self._early: list[tuple[int, int, int]] = []

    def probe(self) -> Reason | None:
        """Opens every counter once and closes it."""
        counters, reason = self._open_all()
        _close(counters)
        return reason

    def start(self) -> None:
        if self._counters is None:  # they stay open from window to window, and cost nothing
            self._counters, self._reason = self._open_all()
        self._early = [_read(descriptor) for _, descriptor in self._counters]

    def stop(self) -> list[Reading]:
        late = [_read(descriptor) for _, descriptor in self._counters or ()]
        return [
            reading(metric, "B", self._reason or self._total(metric, late), _SOURCE, samples=2)
            for metric in METRICS
        ]

    def _total(self, metric: str, late: list[tuple[int, int, int]]) -> float | Reason:
        total = 0.0
        for (event, _), before, after in zip(self._counters or (), self._early, late, strict=True):
            count, enabled, running = (b - a for a, b in zip(before, after, strict=True))
            if running != enabled:
                return _SHARED
            if event.metric == metric:
                total += count * event.bytes_per_count
        return total

    def _open_all(self) -> tuple[list[tuple[Event, int]], Reason | None]:
        counters: list[tuple[Event, int]] = []
        try:
            events = find_events(self._devices)
        except (OSError, ValueError) as error:
            return [], unsupported(f"a counter's description is not understood ({error})")
        if {event.metric for event in events} != set(METRICS):
            return [], _NONE
        try:
            for event in events:
                for cpu in event.cpus:
                    counters.append((event, self._open(event.kind, event.config, cpu)))
        except OSError as error:
            _close(counters)
            if error.errno in (errno.EACCES, errno.EPERM):
                return [], _FORBIDDEN
            cause = f"perf_event_open: {error.strerror}"
            return [], unsupported(cause, "run on bare metal")
        return counters, None


def find_events(devices: Path) -> list[Event]:
    """Read and write events of every memory controller that the kernel describes.

    Raises:
        ValueError: a description is not in the kernel's format (Documentation/ABI, "event_source").
    """
    intel = sorted(devices.glob("uncore_imc*"))
    for names in _INTEL:
        found = [
            _event(device, metric, *_described(device / "events" / name))
            for device in intel
            for metric, name in zip(METRICS, names, strict=True)
            if (device / "events" / name).is_file()
        ]
        if found:  # never both: they would count the same bytes twice
            return found
    return [
        _event(device, metric, terms, _AMD_BYTES)
        for device in sorted(devices.glob("amd_umc*"))
        for metric, terms in zip(METRICS, _AMD, strict=True)
    ]


def _described(event: Path) -> tuple[str, float]:
    """The terms of a named event, and the bytes that a count stands for."""
    unit = Path(f"{event}.unit").read_text().strip()
    if unit not in _UNITS:
        raise ValueError(f"{event.name} is in {unit!r}")
    return event.read_text().strip(), float(Path(f"{event}.scale").read_text()) * _UNITS[unit]


def _event(device: Path, metric: str, terms: str, bytes_per_count: float) -> Event:
    config = 0
    for term in terms.split(","):
        field, _, value = term.partition("=")
        register, _, bits = (device / "format" / field).read_text().strip().partition(":")
        if register != "config":
            raise ValueError(f"{field} belongs into {register}")
        config |= int(value or "1", 0) << int(bits.partition("-")[0])
    cpus = tuple(sorted(parse_cpulist((device / "cpumask").read_text())))
    kind = int((device / "type").read_text())
    return Event(metric, kind, config, cpus, bytes_per_count)


def _read(descriptor: int) -> tuple[int, int, int]:
    """Count, nanoseconds enabled and nanoseconds running."""
    count, enabled, running = struct.unpack("QQQ", os.read(descriptor, 24))
    return count, enabled, running


def _close(counters: list[tuple[Event, int]]) -> None:
    for _, descriptor in counters:
        os.close(descriptor)
