"""What the power, heat and clock sensors of a GPU said at several times, and what to make of it.

One sensor without an answer costs its own reading and no other's; a GPU that is lost costs all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import pynvml

from gatherbench.bench.machine.nvml import SensorUnavailableError
from gatherbench.bench.meters.base import TOO_SHORT, Reading
from gatherbench.bench.meters.nvml_device import FieldValue, NvmlDevice

T = TypeVar("T")

#: Power is refreshed about as often as the energy counter.
PERIOD_S = 0.1
#: The driver's own average looks back one second.
_AVERAGE_S = 1.0
POWER = "mean of NVML_FI_DEV_POWER_INSTANT"
#: Where the driver lacks that field (what the call tells: nvml.h).
_USAGE = (
    "mean of nvmlDeviceGetPowerUsage, itself a mean over 1 s on GPUs since Ampere but for GA100;"
    " the driver has no NVML_FI_DEV_POWER_INSTANT"
)
_AVERAGE = "NVML_FI_DEV_POWER_AVERAGE at the window's end"
_TEMPERATURE, _CLOCK = "nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo SM"
_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"


@dataclass(frozen=True, slots=True)
class Sample:
    """What the GPU's sensors say at one time; a reason (text) where one has no answer."""

    time_s: float
    power_w: float | str
    average_w: float | str
    temperature_k: float | str
    clock_hz: float | str
    slowed_by: tuple[str, ...] | str
    power_source: str = POWER


def answer_or_reason(sensor: Callable[[], T]) -> T | str:
    """The sensor's answer, or the reason why it has none."""
    try:
        return sensor()
    except SensorUnavailableError as unavailable:
        return str(unavailable)


def look(device: NvmlDevice) -> Sample:
    """Ask every sensor once; only a GPU that is lost raises.

    Raises:
        SensorUnavailableError: the GPU is gone.
    """
    now_s = time.monotonic()
    instant, average = device.fields(
        pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_FI_DEV_POWER_AVERAGE
    )
    power, source = _watts(instant), POWER
    if instant.value is None:
        usage = answer_or_reason(device.power_w)
        if not isinstance(usage, str):
            power, source = _drawn(usage), _USAGE
    return Sample(
        now_s,
        power,
        _watts(average),
        answer_or_reason(device.temperature_k),
        answer_or_reason(device.clock_hz),
        answer_or_reason(device.slowed_by),
        source,
    )


def _watts(answer: FieldValue) -> float | str:
    if answer.value is None:
        return answer.reason or "unsupported: the field has no value"
    return _drawn(float(answer.value) / 1e3)


def _drawn(watts: float) -> float | str:
    return watts or "failed: the power sensor says 0 W; a GPU that answers draws some"


def summarise(samples: list[Sample], error: str | None) -> list[Reading]:
    """Means and extremes over a window's samples; a sensor that failed on the way has a reason."""
    count = len(samples)
    begin_s = samples[0].time_s if samples else 0.0

    def reading(
        metric: str,
        unit: str,
        source: str,
        values: list[float | str],
        take: Callable[[list[float]], float],
    ) -> Reading:
        reason = error or next((v for v in values if isinstance(v, str)), None)
        if reason is None and not values:
            reason = "unsupported: the sensor was never read; use longer epochs"
        numbers = [v for v in values if not isinstance(v, str)]
        if reason is not None:
            return Reading(metric, unit, None, source, reason, count, PERIOD_S)
        return Reading(metric, unit, take(numbers), source, None, count, PERIOD_S)

    power: list[float | str] = [s.power_w for s in samples]
    source = next((s.power_source for s in samples if s.power_source != POWER), POWER)
    instant = reading("gpu_power", "W", source, power, statistics.fmean)
    if instant.value is not None:
        series = tuple(
            (s.time_s - begin_s, s.power_w) for s in samples if not isinstance(s.power_w, str)
        )
        instant = replace(instant, series=series)
    length_s = samples[-1].time_s - begin_s if samples else 0.0
    average = reading(
        "gpu_power_average", "W", _AVERAGE,
        [s.average_w for s in samples], lambda v: v[-1],
    )  # fmt: skip
    if length_s < _AVERAGE_S and average.value is not None:
        reason = (
            f"{TOO_SHORT} {length_s:.2g} s is too short for what averages over"
            f" {_AVERAGE_S:g} s; use longer epochs"
        )
        average = replace(average, value=None, reason=reason)
    clocks: list[float | str] = [s.clock_hz for s in samples]
    slowed: list[float | str] = [
        s.slowed_by if isinstance(s.slowed_by, str) else float(bool(s.slowed_by)) for s in samples
    ]
    named = sorted({n for s in samples if not isinstance(s.slowed_by, str) for n in s.slowed_by})
    seen = f"{_REASONS}: {', '.join(named) or 'none'}"
    return [
        instant,
        average,
        reading("gpu_temperature", "K", f"highest {_TEMPERATURE}",
                [s.temperature_k for s in samples], max),
        reading("gpu_clock", "Hz", f"mean of {_CLOCK}", clocks, statistics.fmean),
        reading("gpu_clock_lowest", "Hz", f"lowest {_CLOCK}", clocks, min),
        reading("gpu_slowed", "1", f"share of samples with {seen}", slowed, statistics.fmean),
    ]  # fmt: skip
