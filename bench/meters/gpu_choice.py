"""Which GPU a case runs on, and which of its sensors have been found worthy of trust."""

from __future__ import annotations

from dataclasses import dataclass

from gatherbench.bench.machine.reason import Reason

NOT_CALIBRATED = Reason(
    "unsupported", "no source was calibrated in this run", "run with device cuda"
)


@dataclass(frozen=True, slots=True)
class SensorChoice:
    """What the calibration of a run found; handed to every case.

    Attributes:
        pcie: name of the trusted source of link traffic
            (:data:`gatherbench.bench.meters.pcie.SOURCES`); ``None``: there is none.
        pcie_reason: why there is none.
    """

    pcie: str | None = None
    pcie_reason: Reason | None = NOT_CALIBRATED


@dataclass(frozen=True, slots=True)
class GpuUnderTest:
    """The GPU of this process, by the names under which NVML may know it, and the choice."""

    uuids: tuple[str, ...]
    choice: SensorChoice
