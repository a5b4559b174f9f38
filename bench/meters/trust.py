"""Which of the link's counters may be believed: each is held against copies of known size.

Drivers have been off by 1.67× and by 1000×, counters stand still on some GPUs, and a metric comes
back as 0 now and then. So a run on a GPU begins by moving a known number of bytes each way, in
pinned memory, under the eyes of every source; what a source says beyond the payload is packet
headers. The first source whose ratios are within :data:`TRUSTED` both ways is read by all cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gatherbench.bench.meters.nvml_device import Link, NvmlDevice, SensorChoice
from gatherbench.bench.meters.pcie import DIRECTIONS, SOURCES, PcieSource
from gatherbench.reason import Reason, SensorUnavailableError, unsupported

#: Bytes that a source counts for each byte copied, from 5 % lost to the headers of 64 B packets
#: and the traffic of control (EVIDENCE, §4).
TRUSTED = (0.95, 1.25)


class Copier(Protocol):
    """Moves bytes of known number over the link."""

    def copy(self, direction: str, seconds: float, at_half: Callable[[], None]) -> float:
        """The bytes moved in about ``seconds``; ``at_half`` is called while copies run."""
        ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one source said of one copy: bytes, or why it said nothing. Units: B."""

    source: str
    direction: str
    counted: float | Reason
    copied: float

    @property
    def ratio(self) -> float | Reason:
        """Bytes counted for each byte copied."""
        return self.counted if isinstance(self.counted, Reason) else self.counted / self.copied

    @property
    def trusted(self) -> bool:
        """Whether the source is right here."""
        low, high = TRUSTED
        return not isinstance(self.ratio, Reason) and low <= self.ratio <= high


@dataclass(frozen=True, slots=True)
class SensorCheck:
    """Every comparison, and the link before and during the copies (``None``: not told)."""

    comparisons: list[Comparison] = field(default_factory=list)
    link_idle: Link | None = None
    link_loaded: Link | None = None
    unavailable: Reason | None = None  # why no sensor of the GPU could be asked at all

    @property
    def choice(self) -> SensorChoice:
        """The source that the cases shall read, or why there is none."""
        why = self.unavailable
        return SensorChoice(None, why) if why else choose(self.comparisons)


def calibrate(
    device: NvmlDevice,
    copier: Copier,
    seconds: float,
    sources: Sequence[type[PcieSource]] = SOURCES,
) -> SensorCheck:
    """Hold every source against a copy of about ``seconds`` each way; never raises for a sensor."""
    idle = device.link()
    loaded: list[Link | None] = []
    found: list[Comparison] = []
    for kind in sources:
        try:
            source = kind(device)
        except SensorUnavailableError as unavailable:
            found += [Comparison(kind.name, d, unavailable.reason, 0.0) for d in DIRECTIONS]
            continue
        for direction in DIRECTIONS:
            source.begin()
            copied = copier.copy(direction, seconds, lambda: loaded.append(device.link()))
            counted = source.end().bytes[DIRECTIONS.index(direction)]
            found.append(Comparison(kind.name, direction, counted, copied))
    fastest = max((link for link in loaded if link), key=lambda x: (x.gen, x.width), default=None)
    return SensorCheck(found, idle, fastest)


def choose(comparisons: Sequence[Comparison]) -> SensorChoice:
    """The first source, in the order of trust, that is right both ways; else what is wrong."""
    doubts: list[str] = []
    for name in dict.fromkeys(c.source for c in comparisons):
        wrong = [c for c in comparisons if c.source == name and not c.trusted]
        if not wrong:
            return SensorChoice(name, None)
        doubts += [f"{name} {_doubt(comparison)}" for comparison in wrong]
    said = {c.counted for c in comparisons}
    if len(said) == 1 and isinstance(why := said.pop(), Reason):  # a GPU that is lost, say
        return SensorChoice(None, why)
    cause = f"no source of PCIe traffic is trusted ({', '.join(doubts)})"
    return SensorChoice(None, unsupported(cause, "update the NVIDIA driver"))


def _doubt(comparison: Comparison) -> str:
    """What speaks against a source."""
    ratio, direction = comparison.ratio, comparison.direction.replace("_", " ")
    if isinstance(ratio, Reason):
        return f"{direction}: {ratio.cause}"
    low, high = TRUSTED
    return f"{direction}: counts {ratio:.3g} B for each byte copied, outside {low} to {high}"
