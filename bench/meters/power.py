"""Energy and power of one GPU, and what may have held it back: heat, clocks, limits.

The energy counter is refreshed about every 100 ms, so a short window would mostly tell where in
that beat it fell: below :data:`SHORTEST_ENERGY_WINDOW_S` it is refused. Power is polled in between.
On A100 and H100 the power sensor looks at a quarter of the time only (Yang et al., "Part-time Power
Measurements", arXiv 2312.02741): the counter may rest on the same sensor, so repeats are needed.
"""

from __future__ import annotations

import time
from typing import ClassVar

from gatherbench.bench.machine.nvml import SensorUnavailableError
from gatherbench.bench.meters.base import TOO_SHORT, Reading
from gatherbench.bench.meters.gpu_choice import GpuUnderTest
from gatherbench.bench.meters.nvml_device import NvmlDevice
from gatherbench.bench.meters.pcie import no_gpu_reason
from gatherbench.bench.meters.poller import Poller, polling_cost
from gatherbench.bench.meters.power_samples import (
    PERIOD_S,
    POWER,
    Sample,
    answer_or_reason,
    look,
    summarise,
)

#: Windows of the energy counter: at 10 s its beat of 0.1 s is 1 % at each edge.
SHORTEST_ENERGY_WINDOW_S = 10.0
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"


class GpuPowerMeter:
    """Energy (J), power (W), temperature (K), clock (Hz), throttling (share of samples).

    Args:
        gpu: which one; ``None``: no GPU takes part.
    """

    name: ClassVar[str] = "gpu_power"
    summary: ClassVar[str] = "energy, power, temperature and clocks of the GPU (NVML)"
    lost: ClassVar[str] = "energy and power of the GPU, and whether it was throttled"
    trust: ClassVar[str] = "the driver's counters, taken as they are; energy over 10 s and more"

    def __init__(self, gpu: GpuUnderTest | None = None) -> None:
        self._gpu = gpu
        self._device: NvmlDevice | None = None
        self._reason: str | None = None
        self._poller: Poller[Sample] | None = None
        self._energy = EnergyWindow()

    def probe(self) -> str | None:
        if self._device is None and self._reason is None:
            self._reason = self._open()
        return self._reason

    def _open(self) -> str | None:
        if self._gpu is None:
            return no_gpu_reason()
        try:
            device = NvmlDevice(self._gpu.uuids)
        except SensorUnavailableError as unavailable:
            return str(unavailable)
        self._device = device
        self._poller = Poller(lambda: look(device), PERIOD_S)
        return None

    def start(self) -> None:
        if self.probe() is None and self._poller is not None and self._device is not None:
            self._poller.start()
            self._energy.open(self._device)

    def stop(self) -> list[Reading]:
        if self._poller is None or self._device is None:
            reason = self._reason or "failed: the window was never opened"
            return [
                Reading("gpu_energy", "J", None, ENERGY, reason),
                Reading("gpu_power", "W", None, POWER, reason),
            ]
        energy = self._energy.close(self._device)
        polled = self._poller.stop()
        readings = [energy, *summarise(polled.samples, polled.error)]
        return [*readings, polling_cost("gpu_power_polling_cpu", polled.cpu_s)]


class GpuEnergyMeter:
    """Energy alone: for windows in which power is polled already. Units: J.

    Args:
        gpu: which one.
    """

    name: ClassVar[str] = "gpu_energy"
    summary: ClassVar[str] = "energy of the GPU over a long window (NVML)"
    lost: ClassVar[str] = "energy of an epoch on the GPU"
    trust: ClassVar[str] = "the driver's counter, taken as it is, over 10 s and more"

    def __init__(self, gpu: GpuUnderTest) -> None:
        self._gpu = gpu
        self._device: NvmlDevice | None = None
        self._window = EnergyWindow()
        self._reason: str | None = None

    def probe(self) -> str | None:
        if self._device is None and self._reason is None:
            device = answer_or_reason(lambda: NvmlDevice(self._gpu.uuids))
            if isinstance(device, str):
                self._reason = device
            else:
                self._device = device
        return self._reason

    def start(self) -> None:
        if self.probe() is None and self._device is not None:
            self._window.open(self._device)

    def stop(self) -> list[Reading]:
        if self._device is None:
            reason = self._reason or "failed: the window was never opened"
            return [Reading("gpu_energy", "J", None, ENERGY, reason)]
        return [self._window.close(self._device)]


class EnergyWindow:
    """The energy counter's difference over a window, refused where the window is too short."""

    def __init__(self) -> None:
        self._opened_s = time.monotonic()
        self._joules: float | str = "failed: the window was never opened"

    def open(self, device: NvmlDevice) -> None:
        """Read the counter; never raises."""
        self._joules = answer_or_reason(device.energy_j)
        self._opened_s = time.monotonic()

    def close(self, device: NvmlDevice) -> Reading:
        """The energy since :meth:`open`. Units: J."""
        length_s = time.monotonic() - self._opened_s
        late = answer_or_reason(device.energy_j)
        early = self._joules
        what = ("gpu_energy", "J")
        for answer in (early, late):
            if isinstance(answer, str):
                return Reading(*what, None, ENERGY, answer)
        if length_s < SHORTEST_ENERGY_WINDOW_S:
            return Reading(
                *what,
                None,
                ENERGY,
                f"{TOO_SHORT} less than {SHORTEST_ENERGY_WINDOW_S:g} s is too short for a counter"
                " that is refreshed every 0.1 s; see stage `energy`, or `energy` of the plan",
                samples=2,
            )
        joules = float(late) - float(early)
        if joules <= 0:
            reason = "failed: the energy counter stood still or fell; was the driver reloaded?"
            return Reading(*what, None, ENERGY, reason, samples=2)
        return Reading(*what, joules, ENERGY, samples=2)
