"""Find out whether the link's counters can be trusted: compare them with copies of known size.

Drivers were wrong by 1.67× and by 1000×, and counters stand still on some GPUs. So a run on a GPU
begins by copying a known number of bytes each way, in pinned memory, while the counters are read;
a correct counter's surplus over the payload is packet headers. All cases read the counters if
their ratios are within :data:`TRUSTED` both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gatherbench.bench.meters.nvml_device import COUNTERS, GpuUnderTest, SensorChoice
from gatherbench.bench.meters.pcie import DIRECTIONS, PcieMeter
from gatherbench.reason import Reason, unsupported

#: Accepted ratios of counted to copied bytes: from a loss of 5 % to the headers of 64 B packets
#: with control traffic (EVIDENCE, §4).
TRUSTED = (0.95, 1.25)


class Copier(Protocol):
    """An object that copies a known number of bytes over the link."""

    def copy(self, direction: str, seconds: float) -> float:
        """Copy for about ``seconds``, and return the copied bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """The counters' reading of one copy: bytes, or why there is none. Units: B."""

    direction: str
    counted: float | Reason
    copied: float

    @property
    def ratio(self) -> float | Reason:
        """The counted bytes for each copied byte."""
        return self.counted if isinstance(self.counted, Reason) else self.counted / self.copied

    @property
    def trusted(self) -> bool:
        """Whether the ratio is within :data:`TRUSTED`."""
        low, high = TRUSTED
        return not isinstance(self.ratio, Reason) and low <= self.ratio <= high


def calibrate(uuids: tuple[str, ...], copier: Copier, seconds: float) -> list[Comparison]:
    """Compare the counters with a copy of about ``seconds`` each way; sensors never raise here.

    Args:
        uuids: the names under which NVML may know the GPU.
    """
    meter, comparisons = PcieMeter(GpuUnderTest(uuids, SensorChoice(COUNTERS, None))), []
    for direction in DIRECTIONS:
        meter.begin()
        copied = 0.0 if meter.probe() else copier.copy(direction, seconds)
        comparisons.append(Comparison(direction, meter.end()[f"pcie_{direction}"], copied))
    return comparisons


def choose(comparisons: Sequence[Comparison]) -> SensorChoice:
    """Return whether cases read the counters: they are right both ways; or why they are not."""
    wrong = [comparison for comparison in comparisons if not comparison.trusted]
    if not wrong:
        return SensorChoice(COUNTERS, None)
    counted = {comparison.counted for comparison in comparisons}
    if len(counted) == 1 and isinstance(why := counted.pop(), Reason):  # e.g. the GPU is lost
        return SensorChoice(None, why)
    cause = f"the counters of PCIe traffic are not trusted ({', '.join(map(_doubt, wrong))})"
    return SensorChoice(None, unsupported(cause, "update the NVIDIA driver"))


def _doubt(comparison: Comparison) -> str:
    """Return why a counter is wrong."""
    ratio, (low, high) = comparison.ratio, TRUSTED
    where = comparison.direction.replace("_", " ")
    if isinstance(ratio, Reason):
        return f"{where}: {ratio.cause}"
    return f"{where}: counts {ratio:.3g} B for each byte copied, outside {low} to {high}"
