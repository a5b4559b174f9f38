"""Measure energy and power of one GPU, and what may have slowed it down: heat, clocks, limits.

The energy counter is refreshed about every 100 ms, which would dominate the value of a short
window: below :data:`SHORTEST_ENERGY_WINDOW_S` it is refused. Power is polled in between. On A100
and H100 the power sensor measures a quarter of the time only (Yang et al., "Part-time Power
Measurements", arXiv 2312.02741): the counter may use the same sensor, so repeats are needed.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from gatherbench.bench.machine import nvml as pynvml
from gatherbench.bench.meters.base import Meter, Series, Window, change, sampled
from gatherbench.bench.meters.nvml_device import (
    FieldValue,
    GpuUnderTest,
    NvmlDevice,
    answer_or_reason,
    no_gpu_reason,
)
from gatherbench.bench.meters.poller import COST_SOURCE, NEVER_OPENED, Polled, Poller
from gatherbench.reason import Reason

T = TypeVar("T")

#: Shortest window of the energy counter: in 10 s its period of 0.1 s is 1 % at each edge.
SHORTEST_ENERGY_WINDOW_S = 10.0
#: Power is refreshed about as often as the energy counter.
PERIOD_S = 0.1
#: The driver's own average covers the last second.
_AVERAGE_S = 1.0

POWER = "mean of NVML_FI_DEV_POWER_INSTANT"
#: The source if the driver lacks that field (meaning of the call: nvml.h).
_USAGE = (
    "mean of nvmlDeviceGetPowerUsage, itself a mean over 1 s on GPUs since Ampere but for GA100;"
    " the driver has no NVML_FI_DEV_POWER_INSTANT"
)
_NO_POWER = Reason("failed", "the power sensor says 0 W; a GPU that answers draws some")
_NEVER_READ = Reason("too_short", "the sensor was never read", "use longer epochs")
_TOO_SHORT_FOR_ENERGY = Reason(
    "too_short",
    f"a window of less than {SHORTEST_ENERGY_WINDOW_S:g} s is too short for a counter that is"
    " refreshed every 0.1 s",
    "see stage `energy`, or `energy` of the plan",
)
_STOOD_STILL = Reason(
    "failed", "the energy counter stood still or fell", "was the driver reloaded?"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """The GPU's sensors at one time: each has a value, or a reason for none."""

    time_s: float
    power_w: float | Reason
    average_w: float | Reason
    temperature_k: float | Reason
    clock_hz: float | Reason
    slowed_by: tuple[str, ...] | Reason
    power_source: str = POWER


def look(device: NvmlDevice) -> Sample:
    """Read every sensor once; one without an answer gives a reason and affects no other.

    Raises:
        SensorUnavailableError: the GPU is lost.
    """
    now_s = time.monotonic()
    instant, average = device.fields(
        pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_FI_DEV_POWER_AVERAGE
    )
    power, source = _watts(instant), POWER
    if isinstance(instant.value, Reason):
        usage = answer_or_reason(device.power_w)
        if not isinstance(usage, Reason):
            power, source = usage or _NO_POWER, _USAGE
    return Sample(
        now_s,
        power,
        _watts(average),
        answer_or_reason(device.temperature_k),
        answer_or_reason(device.clock_hz),
        answer_or_reason(device.slowed_by),
        source,
    )


def _watts(answer: FieldValue) -> float | Reason:
    if isinstance(answer.value, Reason):
        return answer.value
    return float(answer.value) / 1e3 or _NO_POWER


def summarise(polled: Polled[Sample]) -> tuple[Window, dict[str, str], Series]:
    """Return means and extremes over a window's samples, their sources, and the power over time.

    A sensor that fails in between has a reason.
    """
    samples = polled.samples
    begin_s = samples[0].time_s if samples else 0.0
    length_s = samples[-1].time_s - begin_s if samples else 0.0

    def all_of(values: Sequence[T | Reason], take: Callable[[list[T]], float]) -> float | Reason:
        reason = polled.error or next((v for v in values if isinstance(v, Reason)), None)
        if reason is not None:
            return reason
        numbers = [value for value in values if not isinstance(value, Reason)]
        return take(numbers) if numbers else _NEVER_READ

    average = all_of([s.average_w for s in samples], lambda watts: watts[-1])
    if length_s < _AVERAGE_S and not isinstance(average, Reason):
        cause = f"a window of {length_s:.2g} s is too short for what averages over {_AVERAGE_S:g} s"
        average = Reason("too_short", cause, "use longer epochs")
    clocks = [s.clock_hz for s in samples]
    found: Window = {
        "gpu_power": all_of([s.power_w for s in samples], statistics.fmean),
        "gpu_power_average": average,
        "gpu_temperature": all_of([s.temperature_k for s in samples], max),
        "gpu_clock": all_of(clocks, statistics.fmean),
        "gpu_clock_lowest": all_of(clocks, min),
        "gpu_slowed": all_of(
            [s.slowed_by for s in samples], lambda by: sum(map(bool, by)) / len(by)
        ),
    }
    causes = [s.slowed_by for s in samples if not isinstance(s.slowed_by, Reason)]
    by = sorted({cause for one in causes for cause in one})
    clock, reasons = "nvmlDeviceGetClockInfo SM", "nvmlDeviceGetCurrentClocksEventReasons"
    sources = {
        "gpu_power": next((s.power_source for s in samples if s.power_source != POWER), POWER),
        "gpu_power_average": "NVML_FI_DEV_POWER_AVERAGE at the window's end",
        "gpu_temperature": "highest nvmlDeviceGetTemperature",
        "gpu_clock": f"mean of {clock}",
        "gpu_clock_lowest": f"lowest {clock}",
        "gpu_slowed": f"share of samples with {reasons}: {', '.join(by) or 'none'}",
    }
    series = tuple(
        (s.time_s - begin_s, s.power_w) for s in samples if not isinstance(s.power_w, Reason)
    )
    return found, sources, series


class GpuEnergyMeter(Meter):
    """Energy alone, for windows in which power is already polled; ``gpu`` ``None``: no GPU."""

    name: ClassVar[str] = "gpu_energy"
    summary: ClassVar[str] = "energy of the GPU over a long window (NVML)"
    lost: ClassVar[str] = "energy of an epoch on the GPU"
    trust: ClassVar[str] = "the driver's counter, taken as it is, over 10 s and more"
    units = {"gpu_energy": "J"}
    sources = {"gpu_energy": "nvmlDeviceGetTotalEnergyConsumption"}

    def __init__(self, gpu: GpuUnderTest | None = None) -> None:
        self._gpu = gpu
        self._opened_s = 0.0
        self._early: float | Reason = NEVER_OPENED

    @functools.cached_property
    def _device(self) -> NvmlDevice | Reason:
        """The GPU, opened once for all windows, or why there is none."""
        if self._gpu is None:
            return no_gpu_reason()
        uuids = self._gpu.uuids
        return answer_or_reason(lambda: NvmlDevice(uuids))

    def probe(self) -> Reason | None:
        return self._device if isinstance(self._device, Reason) else None

    def begin(self) -> None:
        if not isinstance(self._device, Reason):
            self._early = answer_or_reason(self._device.energy_j)
            self._opened_s = time.monotonic()

    def end(self) -> Window:
        if isinstance(self._device, Reason):
            return {"gpu_energy": self._device}
        length_s = time.monotonic() - self._opened_s
        joules = change(self._early, answer_or_reason(self._device.energy_j))
        if isinstance(joules, float) and length_s < SHORTEST_ENERGY_WINDOW_S:
            return {"gpu_energy": _TOO_SHORT_FOR_ENERGY}
        return {"gpu_energy": joules or _STOOD_STILL}


class GpuPowerMeter(GpuEnergyMeter):
    """Energy, power, temperature, clock, throttling (share of samples)."""

    name: ClassVar[str] = "gpu_power"
    summary: ClassVar[str] = "energy, power, temperature and clocks of the GPU (NVML)"
    lost: ClassVar[str] = "energy and power of the GPU, and whether it was throttled"
    trust: ClassVar[str] = "the driver's counters, taken as they are; energy over 10 s and more"
    units = {
        "gpu_energy": "J",
        "gpu_power": "W",
        "gpu_power_average": "W",
        "gpu_temperature": "K",
        "gpu_clock": "Hz",
        "gpu_clock_lowest": "Hz",
        "gpu_slowed": "1",
        "gpu_power_polling_cpu": "s",
    }

    @functools.cached_property
    def _poller(self) -> Poller[Sample] | Reason:
        device = self._device
        return device if isinstance(device, Reason) else Poller(lambda: look(device), PERIOD_S)

    def begin(self) -> None:
        if not isinstance(self._poller, Reason):
            self._poller.start()
        super().begin()

    def end(self) -> Window:
        energy = super().end()
        if isinstance(self._poller, Reason):
            return {**energy, "gpu_power": self._poller}
        polled = self._poller.stop()
        found, sources, power = summarise(polled)
        often = {m: sampled(text, len(polled.samples), PERIOD_S) for m, text in sources.items()}
        self.sources = {**GpuEnergyMeter.sources, **often, "gpu_power_polling_cpu": COST_SOURCE}
        self.series = {"gpu_power": power}
        return {**energy, **found, "gpu_power_polling_cpu": polled.cost}
