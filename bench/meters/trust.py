"""Find the trustworthy counter of the link: compare each with copies of known size.

Drivers were wrong by 1.67× and by 1000×, counters stand still on some GPUs, and now and then a
metric is 0. So a run on a GPU begins by copying a known number of bytes each way, in pinned memory,
while every source is read; a correct source's surplus over the payload is packet headers. All cases
read the first source whose ratios are within :data:`TRUSTED` both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gatherbench.bench.meters.nvml_device import NvmlDevice, SensorChoice
from gatherbench.bench.meters.pcie import DIRECTIONS, SOURCES, PcieSource
from gatherbench.reason import Reason, SensorUnavailableError, unsupported

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
    """One source's reading of one copy: bytes, or why there is none. Units: B."""

    source: str
    direction: str
    counted: float | Reason
    copied: float

    @property
    def ratio(self) -> float | Reason:
        """The counted bytes for each copied byte."""
        return self.counted if isinstance(self.counted, Reason) else self.counted / self.copied

    @property
    def trusted(self) -> bool:
        """Whether the source's ratio is within :data:`TRUSTED`."""
        low, high = TRUSTED
        return not isinstance(self.ratio, Reason) and low <= self.ratio <= high


@dataclass(frozen=True, slots=True)
class SensorCheck:
    """Every comparison with a copy."""

    comparisons: list[Comparison] = field(default_factory=list)
    unavailable: Reason | None = None  # why every sensor of the GPU failed

    @property
    def choice(self) -> SensorChoice:
        """The source that the cases read, or why there is none."""
        why = self.unavailable
        return SensorChoice(None, why) if why else choose(self.comparisons)


def calibrate(
    device: NvmlDevice,
    copier: Copier,
    seconds: float,
    sources: Sequence[type[PcieSource]] = SOURCES,
) -> SensorCheck:
    """Compare every source with a copy of about ``seconds`` each way; sensors never raise here."""
    comparisons: list[Comparison] = []
    for kind in sources:
        try:
            source = kind(device)
        except SensorUnavailableError as unavailable:
            comparisons += [Comparison(kind.name, d, unavailable.reason, 0.0) for d in DIRECTIONS]
            continue
        for direction in DIRECTIONS:
            source.begin()
            copied = copier.copy(direction, seconds)
            counted = source.end().bytes[DIRECTIONS.index(direction)]
            comparisons.append(Comparison(kind.name, direction, counted, copied))
    return SensorCheck(comparisons)


def choose(comparisons: Sequence[Comparison]) -> SensorChoice:
    """Return the first source that is right both ways, or why each of them is wrong."""
    wrong = [c for c in comparisons if not c.trusted]
    for name in dict.fromkeys(c.source for c in comparisons):
        if name not in {c.source for c in wrong}:
            return SensorChoice(name, None)
    counted = {c.counted for c in comparisons}
    if len(counted) == 1 and isinstance(why := counted.pop(), Reason):  # e.g. the GPU is lost
        return SensorChoice(None, why)
    cause = f"no source of PCIe traffic is trusted ({', '.join(map(_doubt, wrong))})"
    return SensorChoice(None, unsupported(cause, "update the NVIDIA driver"))


def _doubt(comparison: Comparison) -> str:
    """Return why a source is wrong."""
    ratio, (low, high) = comparison.ratio, TRUSTED
    where = f"{comparison.source} {comparison.direction.replace('_', ' ')}"
    if isinstance(ratio, Reason):
        return f"{where}: {ratio.cause}"
    return f"{where}: counts {ratio:.3g} B for each byte copied, outside {low} to {high}"
