"""Bytes over the GPU's PCI Express link in a window, from the source that the calibration trusts.

They are the link's bytes, headers of its packets included: more than the payload that a strategy
asked for, and reported beside it, never mixed with it.
"""

from __future__ import annotations

from typing import ClassVar

from gatherbench.bench.machine.nvml import SensorUnavailableError, nvml_session
from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.gpu_choice import GpuUnderTest
from gatherbench.bench.meters.nvml_device import NvmlDevice
from gatherbench.bench.meters.pcie_sources import DIRECTIONS, SOURCES, PcieSource
from gatherbench.bench.meters.poller import polling_cost

NO_GPU_IN_RUN = "no_device: this run moves nothing to a GPU; run with device cuda"


def no_gpu_reason() -> str:
    """Why there is nothing to read in a run without a GPU."""
    try:
        with nvml_session():
            return NO_GPU_IN_RUN
    except SensorUnavailableError as unavailable:
        return str(unavailable)


class PcieMeter:
    """Bytes over the link by direction (B), and the core-seconds that polling them cost (s).

    Args:
        gpu: which one, and the source to read; ``None``: no GPU takes part.
        timed: whether what the window holds is timed; some sources must not run beside that.
    """

    name: ClassVar[str] = "pcie"
    summary: ClassVar[str] = "bytes over the GPU's PCI Express link (NVML)"
    lost: ClassVar[str] = "what really crossed the link; declared bytes remain"
    trust: ClassVar[str] = "held against pinned copies of known size when a run on a GPU begins"

    def __init__(self, gpu: GpuUnderTest | None = None, *, timed: bool = True) -> None:
        self._gpu, self._timed = gpu, timed
        self._source: PcieSource | None = None
        self._reason: str | None = None

    def probe(self) -> str | None:
        if self._source is None and self._reason is None:
            self._reason = self._open()
        return self._reason

    def _open(self) -> str | None:
        """Open the source, once for all windows; why it cannot be."""
        if self._gpu is None:
            return no_gpu_reason()
        choice = self._gpu.choice
        kind = next((s for s in SOURCES if s.name == choice.pcie), None)
        if kind is None:
            return choice.pcie_reason
        if self._timed and not kind.unobtrusive:
            return (
                "unsupported: the only source that the calibration trusts blocks 20 ms a sample and"
                " is kept out of timed epochs; stage `energy` has its reading"
            )
        try:
            self._source = kind(NvmlDevice(self._gpu.uuids))
        except SensorUnavailableError as unavailable:
            return str(unavailable)
        return None

    def start(self) -> None:
        if self.probe() is None and self._source is not None:
            self._source.start()

    def stop(self) -> list[Reading]:
        if self._source is None:
            source = "NVML PCIe traffic"
            reason = self._reason or "failed: the window was never opened"
            return [Reading(f"pcie_{d}", "B", None, source, reason) for d in DIRECTIONS]
        watched = self._source.stop()
        period_s = self._source.period_s
        readings = [
            Reading(
                f"pcie_{direction}",
                "B",
                seen.value,
                seen.source,
                seen.reason,
                seen.samples,
                period_s,
                seen.series,
            )
            for direction, seen in watched.traffic.items()
        ]
        return [*readings, polling_cost("pcie_polling_cpu", watched.cpu_s)]
