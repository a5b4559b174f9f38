"""Measure bytes over the GPU's PCI Express link in a window, by the byte counters of NVML.

They are the link's bytes, headers of its packets included: more than the payload that a strategy
requests, and reported separately from it. NVML takes the GPU's view, so what it *receives* (RX)
goes from host to device. :mod:`gatherbench.bench.meters.trust` checks the counters of a machine.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from gatherbench.bench.machine import nvml as pynvml
from gatherbench.bench.meters.base import Meter, Series, Window, sampled
from gatherbench.bench.meters.nvml_device import (
    NOT_CALIBRATED,
    GpuUnderTest,
    NvmlDevice,
    answer_or_reason,
    field_value,
    no_gpu_reason,
)
from gatherbench.bench.meters.poller import COST_SOURCE, Poller, Wrapping
from gatherbench.reason import Reason, SensorUnavailableError

DIRECTIONS = ("host_to_device", "device_to_host")
#: The fields that are read, in the order of :data:`DIRECTIONS`.
FIELDS = ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", "NVML_FI_DEV_PCIE_COUNT_TX_BYTES")
_METRICS = tuple(f"pcie_{direction}" for direction in DIRECTIONS)
_COST = "pcie_polling_cpu"
#: The counters are 32 bits wide: they wrap after 4 GiB, at 55 GB/s every 78 ms.
MODULUS = 2**32
#: Seconds between two readings: one late reading loses no wrap.
PERIOD_S = 0.02
#: The largest difference of a counter's time stamp and the time of its reading.
STAMP_S = 0.005


class PcieMeter(Meter):
    """Bytes over the link by direction, and the core-seconds that polling them cost.

    The counters (driver 555 and later) are polled often enough for every wrap. ``gpu`` says whether
    they are trusted (``None``: no GPU takes part).
    """

    name: ClassVar[str] = "pcie"
    summary: ClassVar[str] = "bytes over the GPU's PCI Express link (NVML)"
    lost: ClassVar[str] = "what really crosses the link is not measured; declared bytes remain"
    trust: ClassVar[str] = "held against pinned copies of known size when a run on a GPU begins"
    units = {**dict.fromkeys(_METRICS, "B"), _COST: "s"}
    sources = dict.fromkeys(_METRICS, "NVML PCIe traffic")

    def __init__(self, gpu: GpuUnderTest | None = None) -> None:
        self._gpu = gpu
        self._opened_s = 0.0

    @functools.cached_property
    def _poller(self) -> Poller[Any] | Reason:
        """The counters, opened once for all windows, or why there are none."""
        if self._gpu is None:
            return no_gpu_reason()
        uuids, choice = self._gpu.uuids, self._gpu.choice
        if choice.pcie is None:
            return choice.pcie_reason or NOT_CALIBRATED
        return answer_or_reason(lambda: self._open(NvmlDevice(uuids)))

    def _open(self, device: NvmlDevice) -> Poller[Any]:
        ids = tuple(getattr(pynvml, name) for name in FIELDS)
        for answer in device.fields(*ids):
            if isinstance(why := answer.value, Reason):
                if why.kind == "unsupported":
                    why = replace(why, remedy=f"{why.remedy} (NVIDIA driver 555 or later)")
                raise SensorUnavailableError(why)
        # At an unknown rate of the link a wrap could be missed: then this raises.
        self._counter = Wrapping("the byte counter", "B", MODULUS, device.link_rate(), STAMP_S)
        return Poller(lambda: (device.answers(*ids), time.time()), PERIOD_S)

    def probe(self) -> Reason | None:
        return self._poller if isinstance(self._poller, Reason) else None

    def begin(self) -> None:
        if not isinstance(self._poller, Reason):
            self._opened_s = time.time()
            self._poller.start()

    def end(self) -> Window:
        if isinstance(self._poller, Reason):
            return dict.fromkeys(_METRICS, self._poller)
        polled, window = self._poller.stop(), Window()
        series: dict[str, Series] = {}
        for number, metric in enumerate(_METRICS):
            try:
                if polled.error:
                    raise SensorUnavailableError(polled.error)
                series[metric] = self._totals(number, polled.samples)
                window[metric] = series[metric][-1][1]
            except SensorUnavailableError as lost:
                window[metric] = lost.reason
        texts = [sampled(field, len(polled.samples), PERIOD_S) for field in FIELDS]
        self.sources = dict(zip(self.units, (*texts, COST_SOURCE), strict=True))
        self.series = series
        return {**window, _COST: polled.cost}

    def _totals(self, number: int, samples: Sequence[tuple[Any, float]]) -> Series:
        """Return the bytes of a direction over time, from the driver's unparsed answers.

        Raises:
            SensorUnavailableError: they make no total.
        """
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
