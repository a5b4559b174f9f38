"""The ways in which NVML tells bytes over the link, in the order of trust.

Each watches a window and answers for both directions, named as the bytes travel: NVML takes the
GPU's view, so what it *receives* (RX) goes from host to device. Which of them may be believed on a
machine is found out by :mod:`gatherbench.bench.meters.trust`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pynvml

from gatherbench.bench.machine.nvml import SensorUnavailableError
from gatherbench.bench.machine.pcie import UnknownLinkError
from gatherbench.bench.meters.base import TOO_SHORT
from gatherbench.bench.meters.gpm import SHORTEST_S, GpmWindow, traffic
from gatherbench.bench.meters.nvml_device import Link, NvmlDevice, field_value
from gatherbench.bench.meters.pcie_link import Count, CounterError, accumulate, most
from gatherbench.bench.meters.poller import Poller

DIRECTIONS = ("host_to_device", "device_to_host")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of a window in one direction, or why there are none.

    ``series`` holds (s since the window opened, bytes since then); ``samples`` counts readings.
    """

    source: str
    value: float | None
    reason: str | None = None
    samples: int = 0
    series: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Watched:
    """Traffic by direction, and the core-seconds that watching it cost."""

    traffic: dict[str, Traffic]
    cpu_s: float | None


class PcieSource(Protocol):
    """One way to read the link's traffic."""

    name: ClassVar[str]
    period_s: ClassVar[float]
    #: Whether it may run beside something that is timed.
    unobtrusive: ClassVar[bool]

    def __init__(self, device: NvmlDevice) -> None:
        """
        Raises:
            SensorUnavailableError: the GPU or its driver does not have this source.
        """

    def start(self) -> None: ...

    def stop(self) -> Watched: ...


def _absent(sources: tuple[str, str], reason: str, samples: int, cpu_s: float | None) -> Watched:
    pairs = zip(DIRECTIONS, sources, strict=True)
    return Watched({d: Traffic(s, None, reason, samples) for d, s in pairs}, cpu_s)


class FieldCounters:
    """Byte counters of 32 bits (driver 555 and later), polled often enough to see every wrap.

    At 55 GB/s they start anew every 78 ms.
    """

    name: ClassVar[str] = "counters"
    period_s: ClassVar[float] = 0.02
    unobtrusive: ClassVar[bool] = True
    _sources = ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", "NVML_FI_DEV_PCIE_COUNT_TX_BYTES")

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._ids = tuple(getattr(pynvml, name) for name in self._sources)
        for answer in device.fields(*self._ids):
            if answer.value is None:
                raise SensorUnavailableError(f"{answer.reason} (NVIDIA driver 555 or later)")
        try:
            self._rate = most(link_or_none(device))
        except UnknownLinkError as unknown:
            raise SensorUnavailableError(str(unknown)) from unknown
        self._poller = Poller(self._read, self.period_s)
        self._opened_s = 0.0

    def _read(self) -> tuple[Sequence[Any], float]:
        """Answers of the driver, unread, and the time after the call."""
        return self._device.answers(*self._ids), time.time()

    def start(self) -> None:
        self._opened_s = time.time()
        self._poller.start()

    def stop(self) -> Watched:
        polled = self._poller.stop()
        count = len(polled.samples)
        if polled.error is not None:
            return _absent(self._sources, polled.error, count, polled.cpu_s)
        found = {}
        for i, (direction, source) in enumerate(zip(DIRECTIONS, self._sources, strict=True)):
            try:
                counts = [_count(answers[i], at_s) for answers, at_s in polled.samples]
                series = accumulate(counts, self._rate)
            except (CounterError, SensorUnavailableError) as error:
                found[direction] = Traffic(source, None, str(error), count)
                continue
            if len(series) == 1:
                reason = "unsupported: the driver did not refresh the counter; use longer epochs"
                found[direction] = Traffic(source, None, reason, count)
                continue
            timed = tuple((t - self._opened_s, float(b)) for t, b in series)
            found[direction] = Traffic(source, timed[-1][1], None, count, timed)
        return Watched(found, polled.cpu_s)


def _count(answer: Any, at_s: float) -> Count:
    """A counter's value; where the driver does not stamp it, the time of the call has to do."""
    found = field_value(answer)
    if found.value is None:
        raise SensorUnavailableError(found.reason or "unsupported: no value")
    return Count(at_s if found.taken_s is None else found.taken_s, int(found.value))


class Gpm:
    """Performance metrics of Hopper and later: mean rates over intervals of 200 ms and more."""

    name: ClassVar[str] = "gpm"
    period_s: ClassVar[float] = 0.25
    unobtrusive: ClassVar[bool] = True
    _sources = ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", "NVML_GPM_METRIC_PCIE_TX_PER_SEC")

    def __init__(self, device: NvmlDevice) -> None:
        if not device.gpm_supported():
            raise SensorUnavailableError(
                "unsupported: this GPU has no performance metrics; they begin with Hopper"
            )
        self._device = device
        self._poller: Poller[tuple[float, Any]] = Poller(
            lambda: (time.monotonic(), device.gpm_sample()), self.period_s
        )

    def start(self) -> None:
        self._poller.start()

    def stop(self) -> Watched:
        polled = self._poller.stop()
        with GpmWindow(polled.samples) as window:
            count = len(polled.samples)
            reason = polled.error
            if reason is None and window.length_s < SHORTEST_S:
                reason = (
                    f"{TOO_SHORT} {window.length_s:.2g} s is shorter than the"
                    f" {SHORTEST_S:g} s that these metrics need; use longer epochs"
                )
            if reason is not None:
                return _absent(self._sources, reason, count, polled.cpu_s)
            try:
                found = traffic(window.chain())
            except SensorUnavailableError as error:
                return _absent(self._sources, str(error), count, polled.cpu_s)
        return Watched(
            {
                direction: Traffic(source, None, told, count)
                if isinstance(told, str)
                else Traffic(source, told[-1][1], None, len(told), told)
                for direction, source, told in zip(DIRECTIONS, self._sources, found, strict=True)
            },
            polled.cpu_s,
        )


class SampledThroughput:
    """The last resort: samples of 20 ms each, for which the call blocks, extrapolated.

    Values of drivers differ by 1.67× and by 1000× from the truth, and each call holds a driver lock
    while it waits, so it is never used beside anything that is timed.
    """

    name: ClassVar[str] = "throughput"
    period_s: ClassVar[float] = 0.05
    unobtrusive: ClassVar[bool] = False
    _sources = (
        "nvmlDeviceGetPcieThroughput RX, samples of 20 ms extrapolated over the window",
        "nvmlDeviceGetPcieThroughput TX, samples of 20 ms extrapolated over the window",
    )

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._counters = (pynvml.NVML_PCIE_UTIL_RX_BYTES, pynvml.NVML_PCIE_UTIL_TX_BYTES)
        device.throughput(self._counters[0])
        self._poller = Poller(self._read, self.period_s)
        self._opened_s = 0.0

    def _read(self) -> tuple[float, tuple[float, ...], float]:
        begin_s = time.monotonic()
        rates = tuple(self._device.throughput(counter) for counter in self._counters)
        return begin_s, rates, time.monotonic()

    def start(self) -> None:
        self._poller.start()
        self._opened_s = time.monotonic()  # after the first sample, which blocks

    def stop(self) -> Watched:
        closed_s = time.monotonic()
        polled = self._poller.stop()
        # A sample that reaches beyond an edge of the window has seen what is not of it.
        inside = [
            rates
            for begin_s, rates, end_s in polled.samples
            if self._opened_s <= begin_s and end_s <= closed_s
        ]
        reason = polled.error
        if reason is None and not inside:
            reason = "unsupported: the window is too short for a sample; use longer epochs"
        if reason is not None:
            return _absent(self._sources, reason, len(inside), polled.cpu_s)
        found = {}
        for i, (direction, source) in enumerate(zip(DIRECTIONS, self._sources, strict=True)):
            mean = sum(rates[i] for rates in inside) / len(inside)
            moved = mean * (closed_s - self._opened_s)
            found[direction] = Traffic(source, moved, None, len(inside))
        return Watched(found, polled.cpu_s)


#: In the order in which they are tried.
SOURCES: tuple[type[PcieSource], ...] = (FieldCounters, Gpm, SampledThroughput)


def link_or_none(device: NvmlDevice) -> Link | None:
    """The link, or ``None`` where the driver does not describe it."""
    try:
        return device.link()
    except SensorUnavailableError:
        return None
