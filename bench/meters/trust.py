"""Which of the link's counters may be believed: each is held against copies of known size.

Drivers have been off by 1.67× and by 1000×, counters stand still on some GPUs, and a metric comes
back as 0 now and then. So a run on a GPU begins by moving a known number of bytes each way, in
pinned memory, under the eyes of every source; what a source says beyond the payload is packet
headers. The first source whose ratios are within :data:`TRUSTED` both ways is read by all cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gatherbench.bench.machine.nvml import SensorUnavailableError
from gatherbench.bench.meters.gpu_choice import SensorChoice
from gatherbench.bench.meters.nvml_device import Link, NvmlDevice
from gatherbench.bench.meters.pcie_sources import DIRECTIONS, SOURCES, PcieSource, link_or_none

#: Bytes that a source counts for each byte copied, from 5 % lost to the headers of 64 B packets
#: and the traffic of control (EVIDENCE, §4).
TRUSTED = (0.95, 1.25)


class Copier(Protocol):
    """Moves bytes of known number over the link."""

    def copy(self, direction: str, seconds: float, at_half: Callable[[], None]) -> float:
        """Copy for about ``seconds`` and wait for the end; the bytes moved.

        ``at_half`` is called while copies are under way.
        """
        ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one source said of one copy.

    ``counted`` is ``None`` where it said nothing, and ``reason`` says why. Units: B.
    """

    source: str
    direction: str
    counted: float | None
    copied: float
    reason: str | None = None

    @property
    def ratio(self) -> float | None:
        """Bytes counted for each byte copied."""
        return None if self.counted is None else self.counted / self.copied


@dataclass(frozen=True, slots=True)
class Calibration:
    """Every comparison, and the link before and during the copies (``None``: not told)."""

    comparisons: list[Comparison]
    link_idle: Link | None
    link_loaded: Link | None


def calibrate(
    device: NvmlDevice,
    copier: Copier,
    seconds: float,
    sources: Sequence[type[PcieSource]] = SOURCES,
) -> Calibration:
    """Hold every source against a copy of about ``seconds`` each way; never raises for a sensor."""
    idle = link_or_none(device)
    loaded: list[Link | None] = []
    found: list[Comparison] = []
    for kind in sources:
        try:
            source = kind(device)
        except SensorUnavailableError as unavailable:
            found += [Comparison(kind.name, d, None, 0.0, str(unavailable)) for d in DIRECTIONS]
            continue
        for direction in DIRECTIONS:
            source.start()
            copied = copier.copy(direction, seconds, lambda: loaded.append(link_or_none(device)))
            seen = source.stop().traffic[direction]
            found.append(Comparison(kind.name, direction, seen.value, copied, seen.reason))
    fastest = max((link for link in loaded if link), key=lambda x: (x.gen, x.width), default=None)
    return Calibration(found, idle, fastest)


def choose(comparisons: Sequence[Comparison]) -> SensorChoice:
    """The first source, in the order of trust, that is right both ways; else what is wrong."""
    said: list[str] = []
    for name in dict.fromkeys(c.source for c in comparisons):
        wrong = [verdict(c) for c in comparisons if c.source == name]
        if not any(wrong):
            return SensorChoice(pcie=name, pcie_reason="")
        said += [f"{name} {word}" for word in wrong if word]
    # One semicolon: what follows the last one of a reason is its remedy.
    why = ", ".join(said).replace("; ", ", ")
    nobody = f"unsupported: no source of PCIe traffic is trusted ({why}); update the NVIDIA driver"
    return SensorChoice(None, nobody)


def verdict(comparison: Comparison) -> str | None:
    """Why a comparison speaks against its source; ``None`` when it does not."""
    ratio, direction = comparison.ratio, comparison.direction.replace("_", " ")
    if ratio is None:
        return f"{direction}: {comparison.reason}"
    low, high = TRUSTED
    if low <= ratio <= high:
        return None
    return f"{direction}: counts {ratio:.3g} B for each byte copied, outside {low} to {high}"
