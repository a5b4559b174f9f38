"""A meter watches a window of time, between ``begin`` and ``end``; it has a value or a reason."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gatherbench.reason import Reason

#: Of readings and rows: SI base units.
UNITS = ("s", "B", "J", "W", "1", "1/s", "K", "Hz")
#: Magnitudes that a value may have beside 0, so that squares, sums and ratios are numbers.
LEAST, MOST = 1e-60, 1e60

#: Seconds since the window began, and the value or count there.
Series = tuple[tuple[float, float], ...]
#: What a window saw: each metric's number, or why there is none (never a made-up 0).
Window = dict[str, float | Reason]


class Meter(ABC):
    """Counters before polling, polling before estimates, estimates never.

    Attributes:
        units: of every metric that it may report, by name.
        lost: what a run cannot say without it.
        trust: why its numbers may be believed.
        sources: how the last window came by a metric, where the meter itself says more than its
            summary.
        series: of the last window, what a polled metric was over time.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    lost: ClassVar[str]
    trust: ClassVar[str]
    units: Mapping[str, str]
    sources: Mapping[str, str] = {}
    series: Mapping[str, Series] = {}

    def probe(self) -> Reason | None:
        """Say why this meter cannot read here, or ``None``."""
        return None

    @abstractmethod
    def begin(self) -> None:
        """Open a window."""

    @abstractmethod
    def end(self) -> Window:
        """Close it and say what it saw."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One number from one window, or the reason why there is none."""

    metric: str
    unit: str
    value: float | None
    source: str
    reason: Reason | None = None
    series: Series = ()


def change(before: float | Reason, after: float | Reason) -> float | Reason:
    """Tell what a counter counted between two looks at it."""
    if isinstance(after, Reason):
        return after
    if isinstance(before, Reason):
        return before
    if after < before:
        return Reason("failed", "the counter went backwards")
    return after - before


def sampled(source: str, samples: int, period_s: float) -> str:
    """Name a polled source with how often it was read."""
    return f"{source} [samples={samples}, period={period_s:g} s]"
