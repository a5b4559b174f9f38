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
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from gatherbench.bench.machine import nvml as pynvml
from gatherbench.bench.meters.base import Meter, Series, Window, change, sampled
from gatherbench.bench.meters.nvml_device import (
    GpuUnderTest,
    NvmlDevice,
    answer_or_reason,
    no_gpu_reason,
)
from gatherbench.bench.meters.poller import COST_SOURCE, NEVER_OPENED, Polled, Poller
from gatherbench.reason import Reason

#: Shortest window of the energy counter: in 10 s its period of 0.1 s is 1 % at each edge.
SHORTEST_ENERGY_WINDOW_S = 10.0
#: Power is refreshed about as often as the energy counter.
PERIOD_S = 0.1
_CLOCK = "nvmlDeviceGetClockInfo SM"
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


class Sample(NamedTuple):
    """The GPU's sensors at one time: each has a value, or a reason for none."""

    time_s: float
    power_w: float | Reason
    temperature_k: float | Reason
    clock_hz: float | Reason
    slowed_by: tuple[str, ...] | Reason


#: Columns that are polled: unit, sensor of :class:`Sample`, its value for a window, and source.
_POLLED: dict[str, tuple[str, str, Callable[[list[Any]], float], str]] = {
    "gpu_power": ("W", "power_w", statistics.fmean, "mean of NVML_FI_DEV_POWER_INSTANT"),
    "gpu_temperature": ("K", "temperature_k", max, "highest nvmlDeviceGetTemperature"),
    "gpu_clock": ("Hz", "clock_hz", statistics.fmean, f"mean of {_CLOCK}"),
    "gpu_clock_lowest": ("Hz", "clock_hz", min, f"lowest {_CLOCK}"),
    "gpu_slowed": (
        *("1", "slowed_by", lambda causes: statistics.fmean(map(bool, causes))),
        "share of samples with nvmlDeviceGetCurrentClocksEventReasons",
    ),
}


def look(device: NvmlDevice) -> Sample:
    """Read every sensor once; one without an answer gives a reason and affects no other.

    Raises:
        SensorUnavailableError: the GPU is lost.
    """
    now_s = time.monotonic()
    (milliwatts,) = (field.value for field in device.fields(pynvml.NVML_FI_DEV_POWER_INSTANT))
    watts = milliwatts if isinstance(milliwatts, Reason) else milliwatts / 1e3 or _NO_POWER
    heat, clock = answer_or_reason(device.temperature_k), answer_or_reason(device.clock_hz)
    return Sample(now_s, watts, heat, clock, answer_or_reason(device.slowed_by))


def summarise(polled: Polled[Sample]) -> tuple[Window, dict[str, str], Series]:
    """Return means and extremes over a window's samples, their sources, and the power over time.

    A sensor that fails in between has a reason.
    """
    samples, window = polled.samples, Window()
    for metric, (_, sensor, take, _) in _POLLED.items():
        values = [getattr(sample, sensor) for sample in samples]
        reason = polled.error or next((v for v in values if isinstance(v, Reason)), None)
        window[metric] = reason or (take(values) if values else _NEVER_READ)
    sources = {metric: source for metric, (*_, source) in _POLLED.items()}
    causes = {c for s in samples if not isinstance(s.slowed_by, Reason) for c in s.slowed_by}
    sources["gpu_slowed"] += f": {', '.join(sorted(causes)) or 'none'}"
    powers = ((s.time_s - samples[0].time_s, s.power_w) for s in samples)
    return window, sources, tuple((at, w) for at, w in powers if not isinstance(w, Reason))


class GpuEnergyMeter(Meter):
    """Energy alone, for windows in which power is already polled; ``gpu`` ``None``: no GPU."""

    name: ClassVar[str] = "gpu_energy"
    summary: ClassVar[str] = "energy of the GPU over a long window (NVML)"
    lost: ClassVar[str] = "energy of an epoch on the GPU is not measured"
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
    lost: ClassVar[str] = "energy, power and throttling of the GPU are not measured"
    trust: ClassVar[str] = "the driver's counters, taken as they are; energy over 10 s and more"
    units = {
        "gpu_energy": "J",
        **{metric: unit for metric, (unit, *_) in _POLLED.items()},
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
        window, sources, power = summarise(polled)
        often = {m: sampled(text, len(polled.samples), PERIOD_S) for m, text in sources.items()}
        self.sources = {**GpuEnergyMeter.sources, **often, "gpu_power_polling_cpu": COST_SOURCE}
        self.series = {"gpu_power": power}
        return {**energy, **window, "gpu_power_polling_cpu": polled.cost}
