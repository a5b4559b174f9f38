"""Check a GPU before a run's first case: its idle power, and which sensors of its link to trust.

It runs in a process of its own, like a case, and takes about half a minute. Every case receives
the choice; a resumed run keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from gatherbench.bench.meters.base import Reading, closed
from gatherbench.bench.meters.nvml_device import COUNTERS, GpuUnderTest, SensorChoice, uuids_of
from gatherbench.bench.meters.power import SHORTEST_ENERGY_WINDOW_S, GpuPowerMeter
from gatherbench.bench.meters.trust import calibrate, choose
from gatherbench.bench.run.job import CHOICE, Job, outcome
from gatherbench.bench.run.part import CALIBRATION_STAGE as STAGE
from gatherbench.bench.run.part import PartWriter
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.reason import Reason

#: The size of the known copies, and how long each source observes each: some periods of the
#: slowest.
COPY_MIB, COPY_S = 256, 1.0
#: Opening a context raises the clocks, which fall back within seconds; then the GPU is observed.
SETTLE_S, IDLE_S = 3.0, SHORTEST_ENERGY_WINDOW_S


def torch_gpu_uuids(device: torch.device) -> tuple[str, ...]:
    """Return the names by which NVML may know a torch device."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return uuids_of(index, str(torch.cuda.get_device_properties(index).uuid))


def gpu_under_test(device: torch.device, choice: SensorChoice | None) -> GpuUnderTest | None:
    """Return the GPU whose meters a case reads; ``None`` without a GPU."""
    if device.type != "cuda":
        return None
    return GpuUnderTest(torch_gpu_uuids(device), choice or SensorChoice())


class PinnedCopier:
    """Copies between pinned host memory and the GPU by its copy engines."""

    def __init__(self, device: torch.device, size: int) -> None:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        on_gpu = torch.empty(size, dtype=torch.uint8, device=device)
        self._pairs = {"host_to_device": (on_gpu, host), "device_to_host": (host, on_gpu)}
        self._device = device

    def copy(self, direction: str, seconds: float) -> float:
        """Copy for about ``seconds``; return the bytes."""
        target, source = self._pairs[direction]
        begin = time.monotonic()
        copied = 0
        while time.monotonic() - begin < seconds:
            target.copy_(source, non_blocking=True)
            copied += target.nbytes
            torch.cuda.synchronize(self._device)
        return float(copied)


def check_sensors(job: Job, out: PartWriter) -> None:
    """Calibrate the GPU's sensors for the run; the answer names those to trust."""
    begin, choices = time.monotonic(), list[SensorChoice]()

    def work() -> None:
        choices.append(calibrate_gpu(job.run, out.row))

    status, reason = outcome(work)
    if reason is not None:
        choices = [SensorChoice(None, Reason("failed", f"the calibration ended with {reason}"))]
    out.end(job.run, status, reason, time.monotonic() - begin)
    out.write("answer", choice=CHOICE.dump_python(choices[0], mode="json"))


def calibrate_gpu(make: RowMaker, emit: Callable[[Row], None]) -> SensorChoice:
    """Calibrate the current GPU; rows go to ``emit`` as they are known."""
    device = torch.device("cuda", torch.cuda.current_device())
    torch.zeros(1, device=device)  # opens the context: the idle process is then ready to train
    torch.cuda.synchronize(device)
    time.sleep(SETTLE_S)
    uuids = torch_gpu_uuids(device)
    emit(make.row(STAGE, idle_power(GpuUnderTest(uuids, SensorChoice()))))
    comparisons = calibrate(uuids, PinnedCopier(device, COPY_MIB << 20), COPY_S)
    copies = f"bytes counted for each byte copied, copies of {COPY_MIB} MiB of pinned memory"
    for comparison in comparisons:
        metric, source = f"pcie_{comparison.direction}_ratio", f"{COUNTERS}: {copies}"
        trust = "trusted" if comparison.trusted else "untrusted"
        if isinstance(ratio := comparison.ratio, Reason):
            emit(make.missing(STAGE, metric, "1", source, ratio))
        else:
            emit(make.ok(STAGE, metric, "1", ratio, f"{source}; {trust}"))
    choice, columns = choose(comparisons), (STAGE, "pcie_trusted", "1")
    if choice.pcie_reason is None:
        emit(make.ok(*columns, 1.0, f"{choice.pcie} is read by all cases"))
    else:
        emit(make.missing(*columns, "calibration", choice.pcie_reason))
    return choice


def idle_power(gpu: GpuUnderTest) -> Reading:
    """Return the GPU's power while a process holds it and does nothing, over :data:`IDLE_S`."""
    meter = GpuPowerMeter(gpu)
    meter.begin()
    begin = time.monotonic()
    time.sleep(IDLE_S)
    length_s = time.monotonic() - begin
    (seen,) = (reading for reading in closed(meter) if reading.metric == "gpu_energy")
    watts = None if seen.value is None else seen.value / length_s
    source = f"{seen.source} over {length_s:.1f} s, idle, with an open CUDA context"
    return Reading("idle_power", "W", watts, source, seen.reason)
