"""Measure bytes over the GPU's PCI Express link in a window, by one of NVML's sources.

They are the link's bytes, headers of its packets included: more than the payload that a strategy
requests, and reported separately from it. NVML takes the GPU's view, so what it *receives* (RX)
goes from host to device. :mod:`gatherbench.bench.meters.trust` finds the trustworthy source of a
machine.
"""

from __future__ import annotations

import functools
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gatherbench.bench.machine import nvml as pynvml
from gatherbench.bench.machine.pcie import UnknownLinkError, fastest_rate, raw_rate
from gatherbench.bench.meters.base import Meter, Series, Window, sampled
from gatherbench.bench.meters.nvml_device import (
    NOT_CALIBRATED,
    GpuUnderTest,
    Link,
    NvmlDevice,
    answer_or_reason,
    field_value,
    gpm_metrics,
    no_gpu_reason,
)
from gatherbench.bench.meters.poller import COST_SOURCE, Poller, Wrapping
from gatherbench.reason import Reason, SensorUnavailableError, unsupported

DIRECTIONS = ("host_to_device", "device_to_host")
_METRICS = tuple(f"pcie_{direction}" for direction in DIRECTIONS)
_COST = "pcie_polling_cpu"
#: The byte counters are 32 bits wide: they wrap after 4 GiB, at 55 GB/s every 78 ms.
MODULUS = 2**32
#: The largest difference of a counter's time stamp and the time of its reading.
STAMP_S = 0.005
#: A GPM metric needs this time between its two snapshots.
SHORTEST_GPM_S = 0.2
MIB = 2**20

Snapshot = tuple[float, Any]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The result of a window by direction: totals over time, or why there are none."""

    answers: Sequence[Series | Reason]
    samples: int
    cost: float | Reason

    @property
    def bytes(self) -> list[float | Reason]:
        """The total of each direction, in the order of :data:`DIRECTIONS`."""
        return [one[-1][1] if isinstance(one, tuple) else one for one in self.answers]


class PcieSource(ABC):
    """A source of the link's traffic, polled over a window.

    Raises:
        SensorUnavailableError: the GPU or its driver does not have this source.
    """

    name: ClassVar[str]
    period_s: ClassVar[float]
    #: The fields or metrics that it reads, in the order of :data:`DIRECTIONS`.
    sources: ClassVar[tuple[str, str]]

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._poller: Poller[Any] = Poller(self._read, self.period_s)
        self._opened_s = 0.0

    @abstractmethod
    def _read(self) -> Any:
        """Take one reading."""

    @abstractmethod
    def _series(self, samples: Sequence[Any]) -> Sequence[Series | Reason]:
        """Return the bytes of each direction over time."""

    def begin(self) -> None:
        """Open a window."""
        self._opened_s = time.time()
        self._poller.start()

    def end(self) -> Traffic:
        """Close the window and return its traffic."""
        polled = self._poller.stop()
        found: Sequence[Series | Reason] | Reason | None = polled.error
        if found is None:
            found = answer_or_reason(lambda: self._series(polled.samples))
        both = (found, found) if isinstance(found, Reason) else found
        return Traffic(both, len(polled.samples), polled.cost)


class FieldCounters(PcieSource):
    """Byte counters of 32 bits (driver 555 and later), polled often enough for every wrap."""

    name = "counters"
    period_s = 0.02
    sources = ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", "NVML_FI_DEV_PCIE_COUNT_TX_BYTES")

    def __init__(self, device: NvmlDevice) -> None:
        super().__init__(device)
        self._ids = tuple(getattr(pynvml, name) for name in self.sources)
        for answer in device.fields(*self._ids):
            if isinstance(why := answer.value, Reason):
                if why.kind == "unsupported":
                    why = replace(why, remedy=f"{why.remedy} (NVIDIA driver 555 or later)")
                raise SensorUnavailableError(why)
        try:
            self._counter = link_counter(device.link())
        except UnknownLinkError as unknown:
            raise SensorUnavailableError(unknown.reason) from unknown

    def _read(self) -> tuple[Sequence[Any], float]:
        """Return the driver's unparsed answers, and the time after the call."""
        return self._device.answers(*self._ids), time.time()

    def _series(self, samples: Sequence[tuple[Any, float]]) -> Sequence[Series | Reason]:
        return [answer_or_reason(lambda i=i: self._totals(i, samples)) for i in range(2)]  # type: ignore[misc]

    def _totals(self, number: int, samples: Sequence[tuple[Any, float]]) -> Series:
        counts = []
        for answers, called_s in samples:
            field = field_value(answers[number])
            if isinstance(field.value, Reason):
                raise SensorUnavailableError(field.value)
            # Without a stamp of the driver, use the time of the call.
            counts.append((called_s if field.taken_s is None else field.taken_s, int(field.value)))
        series = self._counter.accumulate(counts)
        if len(series) == 1:
            cause = "the driver did not refresh the counter"
            raise SensorUnavailableError(Reason("too_short", cause, "use longer epochs"))
        return tuple((time_s - self._opened_s, float(count)) for time_s, count in series)


def link_counter(link: Link | None) -> Wrapping:
    """Return the byte counter of a link (``None``: unknown to the driver), for its full rate.

    Raises:
        UnknownLinkError: the rate of such links is unknown, so a wrap could be missed.
    """
    rate = raw_rate(link.gen_max, link.width_max) if link else fastest_rate()
    return Wrapping("the byte counter", "B", MODULUS, rate, STAMP_S)


class Gpm(PcieSource):
    """Performance metrics of Hopper and later: mean rates over intervals of 200 ms and more.

    Now and then a metric is exactly 0 in spite of traffic. The link of a working GPU always has
    some traffic, so a 0 is a failed sample.
    """

    name = "gpm"
    period_s = 0.25
    sources = ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", "NVML_GPM_METRIC_PCIE_TX_PER_SEC")

    def __init__(self, device: NvmlDevice) -> None:
        super().__init__(device)
        self._snapshots: list[Any] = []
        if not device.gpm_supported():
            cause = "this GPU has no performance metrics"
            raise SensorUnavailableError(unsupported(cause, "they begin with Hopper"))

    def _read(self) -> Snapshot:
        at_s, snapshot = time.monotonic(), self._device.gpm_sample()
        self._snapshots.append(snapshot)
        return at_s, snapshot

    def _series(self, samples: Sequence[Snapshot]) -> Sequence[Series | Reason]:
        return gpm_traffic(chain(samples))

    def end(self) -> Traffic:
        try:
            return super().end()
        finally:
            while self._snapshots:
                pynvml.nvmlGpmSampleFree(self._snapshots.pop(0))


def chain(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Select snapshots from edge to edge, each at least :data:`SHORTEST_GPM_S` after the last.

    Raises:
        SensorUnavailableError: the edges are closer than that.
    """
    kept, (end_s, _) = [snapshots[0]], snapshots[-1]
    if (length_s := end_s - kept[0][0]) < SHORTEST_GPM_S:
        cause = (
            f"a window of {length_s:.2g} s is shorter than the {SHORTEST_GPM_S:g} s that these"
            " metrics need"
        )
        raise SensorUnavailableError(Reason("too_short", cause, "use longer epochs"))
    for snapshot in snapshots[1:-1]:
        if snapshot[0] - kept[-1][0] >= SHORTEST_GPM_S <= end_s - snapshot[0]:
            kept.append(snapshot)
    return [*kept, snapshots[-1]]


def gpm_traffic(snapshots: Sequence[Snapshot]) -> list[Series | Reason]:
    """Return bytes from host to device and back since the first snapshot, at each one's time.

    A direction in which an interval has exactly 0 has a reason instead.

    Raises:
        SensorUnavailableError: NVML refuses.
    """
    metrics = (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC)
    times = np.array([at_s for at_s, _ in snapshots])
    intervals = itertools.pairwise(snapshot for _, snapshot in snapshots)
    rates = np.array([gpm_metrics(early, late, metrics) for early, late in intervals])  # MiB/s
    totals = np.cumsum(rates * MIB * np.diff(times)[:, None], axis=0)
    answers: list[Series | Reason] = []
    for rate, total in zip(rates.T, totals.T, strict=True):
        if zeros := int((rate == 0).sum()):
            cause = f"the metric came back as 0 for {zeros} of {len(rate)} intervals"
            answers.append(unsupported(cause, "a driver fault, run again"))
        else:
            series = zip((times - times[0]).tolist(), [0.0, *total.tolist()], strict=True)
            answers.append(tuple(series))
    return answers


#: The sources, in the order in which they are tried.
SOURCES: tuple[type[PcieSource], ...] = (FieldCounters, Gpm)


class PcieMeter(Meter):
    """Bytes over the link by direction, and the core-seconds that polling them cost.

    ``gpu`` has the source to read (``None``: no GPU takes part).
    """

    name: ClassVar[str] = "pcie"
    summary: ClassVar[str] = "bytes over the GPU's PCI Express link (NVML)"
    lost: ClassVar[str] = "what really crossed the link; declared bytes remain"
    trust: ClassVar[str] = "held against pinned copies of known size when a run on a GPU begins"
    units = {**dict.fromkeys(_METRICS, "B"), _COST: "s"}
    sources = dict.fromkeys(_METRICS, "NVML PCIe traffic")

    def __init__(self, gpu: GpuUnderTest | None = None) -> None:
        self._gpu = gpu

    @functools.cached_property
    def _source(self) -> PcieSource | Reason:
        """The source, opened once for all windows, or why there is none."""
        if self._gpu is None:
            return no_gpu_reason()
        uuids, choice = self._gpu.uuids, self._gpu.choice
        kind = next((s for s in SOURCES if s.name == choice.pcie), None)
        if kind is None:
            return choice.pcie_reason or NOT_CALIBRATED
        return answer_or_reason(lambda: kind(NvmlDevice(uuids)))

    def probe(self) -> Reason | None:
        return self._source if isinstance(self._source, Reason) else None

    def begin(self) -> None:
        if not isinstance(self._source, Reason):
            self._source.begin()

    def end(self) -> Window:
        if isinstance(self._source, Reason):
            return dict.fromkeys(_METRICS, self._source)
        source, found = self._source, self._source.end()
        texts = [sampled(text, found.samples, source.period_s) for text in source.sources]
        self.sources = dict(zip(self.units, (*texts, COST_SOURCE), strict=True))
        both = zip(_METRICS, found.answers, strict=True)
        self.series = {metric: one for metric, one in both if isinstance(one, tuple)}
        return dict(zip(self.units, (*found.bytes, found.cost), strict=True))
