"""Before the first case of a run on a GPU: its link, its idle power, and whom to believe.

It runs in a process of its own, like a case, and costs about half a minute. What it finds are rows
of the stage ``calibration`` and ``sensors.json``, which every case is handed; a resumed run keeps
them. A run without a GPU has neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from gatherbench.bench.machine.nvml import SensorUnavailableError
from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.gpu_choice import GpuUnderTest, SensorChoice
from gatherbench.bench.meters.nvml_device import NvmlDevice, uuids_of
from gatherbench.bench.meters.power import SHORTEST_ENERGY_WINDOW_S, GpuPowerMeter
from gatherbench.bench.meters.trust import Calibration, Comparison, calibrate, choose, verdict
from gatherbench.bench.run.reading_row import row_of
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import CALIBRATION_STAGE as STAGE

#: How long each source watches each copy: some periods of the slowest of them.
COPY_S = 1.0
#: Opening a context raises the clocks; they fall back within seconds.
SETTLE_S = 3.0
#: How long the idle GPU is watched.
IDLE_S = SHORTEST_ENERGY_WINDOW_S
#: One copy: large enough that starting it costs nothing.
COPY_BYTES = 256 << 20


def torch_gpu_uuids(device: torch.device) -> tuple[str, ...]:
    """Names by which NVML may know a torch device."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return uuids_of(index, str(torch.cuda.get_device_properties(index).uuid))


def gpu_under_test(device: torch.device, choice: SensorChoice | None) -> GpuUnderTest | None:
    """The GPU whose meters a case reads; ``None`` without a GPU."""
    if device.type != "cuda":
        return None
    return GpuUnderTest(torch_gpu_uuids(device), choice or SensorChoice())


class PinnedCopier:
    """Copies between pinned host memory and the GPU by its copy engines."""

    def __init__(self, device: torch.device, size: int = COPY_BYTES) -> None:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        on_gpu = torch.empty(size, dtype=torch.uint8, device=device)
        self._pairs = {"host_to_device": (on_gpu, host), "device_to_host": (host, on_gpu)}
        self._device = device

    def copy(self, direction: str, seconds: float, at_half: Callable[[], None]) -> float:
        target, source = self._pairs[direction]
        begin = time.monotonic()
        copied, halfway = 0, False
        while time.monotonic() - begin < seconds:
            target.copy_(source, non_blocking=True)
            copied += target.nbytes
            if not halfway and time.monotonic() - begin > seconds / 2:
                halfway = True
                at_half()  # while the copy just queued is under way
            torch.cuda.synchronize(self._device)
        return float(copied)


def calibrate_gpu(
    make: RowMaker, emit: Callable[[Row], None], idle_s: float | None = None
) -> SensorChoice:
    """Calibrate the current GPU; rows go to ``emit`` as they are known.

    Args:
        make, emit: make a row, and take it.
        idle_s: how long the idle GPU is watched (``None``: :data:`IDLE_S`).

    Returns:
        The sources that the cases shall read.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    torch.zeros(1, device=device)  # opens the context: what idles is a process ready to train
    torch.cuda.synchronize(device)
    time.sleep(SETTLE_S)
    uuids = torch_gpu_uuids(device)
    for reading in idle_power(
        GpuUnderTest(uuids, SensorChoice()), IDLE_S if idle_s is None else idle_s
    ):
        emit(row_of(reading, make, STAGE))
    try:
        found = calibrate(NvmlDevice(uuids), PinnedCopier(device), COPY_S)
    except SensorUnavailableError as unavailable:
        emit(make.missing(STAGE, "pcie_ratio", "1", "NVML", str(unavailable)))
        return SensorChoice(None, str(unavailable))
    for row in rows_of_calibration(found, make):
        emit(row)
    return choose(found.comparisons)


def idle_power(gpu: GpuUnderTest, seconds: float) -> list[Reading]:
    """What the GPU draws while a process holds it and does nothing, over ``seconds``."""
    meter = GpuPowerMeter(gpu)
    meter.start()
    begin = time.monotonic()
    time.sleep(seconds)
    length_s = time.monotonic() - begin
    readings = meter.stop()
    said = "idle, with an open CUDA context"
    idle = []
    for reading in readings:
        if reading.metric == "gpu_energy":
            watts = None if reading.value is None else reading.value / length_s
            source = f"{reading.source} over {length_s:.1f} s, {said}"
            idle.append(Reading("idle_power", "W", watts, source, reading.reason, reading.samples))
        elif reading.metric in ("gpu_power", "gpu_temperature", "gpu_clock"):
            idle.append(
                Reading(
                    f"idle_{reading.metric}",
                    reading.unit,
                    reading.value,
                    f"{reading.source}, {said}",
                    reading.reason,
                    reading.samples,
                    reading.period_s,
                )
            )
    return idle


def rows_of_calibration(found: Calibration, make: RowMaker, of: str = "pinned memory") -> list[Row]:
    """Ratio, bytes copied and verdict of every comparison, and the link idle and loaded.

    ``of`` says in the sources what was copied.
    """
    rows = [row for one in found.comparisons for row in _compared(one, make, of)]
    choice = choose(found.comparisons)
    rows.append(
        make.ok(STAGE, "pcie_trusted", "1", 1.0, f"{choice.pcie} is read by all cases")
        if choice.pcie
        else make.missing(STAGE, "pcie_trusted", "1", "calibration", choice.pcie_reason)
    )
    for when, link in (("idle", found.link_idle), ("loaded", found.link_loaded)):
        for name in ("gen", "gen_max", "width", "width_max"):
            metric = f"link_{name}_{when}"
            if link is None:
                reason = "unsupported: NVML does not describe the link; ask lspci -vv for LnkSta"
                rows.append(make.missing(STAGE, metric, "1", "NVML", reason))
            else:
                rows.append(make.ok(STAGE, metric, "1", getattr(link, name), "NVML PCIe link"))
    return rows


def _compared(one: Comparison, make: RowMaker, of: str) -> list[Row]:
    metric = f"pcie_{one.direction}_ratio"
    source = f"{one.source}: bytes counted for each byte copied, {of}"
    if one.ratio is None:
        return [make.missing(STAGE, metric, "1", source, one.reason or "unsupported: no value")]
    trust = "trusted" if verdict(one) is None else "untrusted"
    copied = f"{one.source}: bytes copied, {of}"
    return [
        make.ok(STAGE, metric, "1", one.ratio, f"{source}; {trust}"),
        make.ok(STAGE, f"pcie_{one.direction}_copied", "B", one.copied, copied),
    ]
