"""Which GPU a case runs on, and which of its sensors have been found worthy of trust."""

from __future__ import annotations

from dataclasses import dataclass

#: Nothing has been compared with a known copy.
NOT_CALIBRATED = "unsupported: no source was calibrated in this run; run with device cuda"


@dataclass(frozen=True, slots=True)
class SensorChoice:
    """What the calibration of a run found; handed to every case.

    Attributes:
        pcie: name of the trusted source of link traffic
            (:data:`gatherbench.bench.meters.pcie_sources.SOURCES`); ``None``: there is none.
        pcie_reason: why there is none.
    """

    pcie: str | None = None
    pcie_reason: str = NOT_CALIBRATED


@dataclass(frozen=True, slots=True)
class GpuUnderTest:
    """The GPU of this process, by the names under which NVML may know it, and the choice."""

    uuids: tuple[str, ...]
    choice: SensorChoice
