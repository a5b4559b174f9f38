"""Define a meter: it reports a value or a reason for a window from ``begin`` to ``end``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gatherbench.reason import Reason

#: Units of readings and rows: SI base units.
UNITS = ("s", "B", "J", "W", "1", "1/s", "K", "Hz")
#: Magnitudes of values other than 0, so that squares, sums and ratios are finite.
LEAST, MOST = 1e-60, 1e60

#: Seconds since the window began, each with the value or count at that time.
Series = tuple[tuple[float, float], ...]
#: The result of a window: each metric's number, or why there is none (never a made-up 0).
Window = dict[str, float | Reason]


class Meter(ABC):
    """A meter. It prefers counters, polls if there are none, and never estimates.

    Attributes:
        units: of every metric that it may report, by name.
        lost: the information that a run lacks without it.
        trust: why its numbers are trustworthy.
        sources: the source of a metric in the last window, if it differs from the meter's
        summary.
        series: a polled metric over time in the last window.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    lost: ClassVar[str]
    trust: ClassVar[str]
    units: Mapping[str, str]
    sources: Mapping[str, str] = {}
    series: Mapping[str, Series] = {}

    def probe(self) -> Reason | None:
        """Return why this meter cannot read here, or ``None``."""
        return None

    @abstractmethod
    def begin(self) -> None:
        """Open a window."""

    @abstractmethod
    def end(self) -> Window:
        """Close the window and return its result."""


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
    """Return the difference of a counter between two readings, or the reason for none."""
    if isinstance(after, Reason):
        return after
    if isinstance(before, Reason):
        return before
    if after < before:
        return Reason("failed", "the counter went backwards")
    return after - before


def sampled(source: str, samples: int, period_s: float) -> str:
    """Return the name of a polled source with its number of samples and their period."""
    return f"{source} [samples={samples}, period={period_s:g} s]"
