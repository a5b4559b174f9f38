"""What a meter is: something that watches a window of time and says what it saw, or why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from gatherbench.reason import Reason

#: Of readings and rows: SI base units.
UNITS = ("s", "B", "J", "W", "1", "1/s", "K", "Hz")
#: Magnitudes that a value may have beside 0, so that squares, sums and ratios are numbers.
LEAST, MOST = 1e-60, 1e60
NEVER_OPENED = Reason("failed", "the window was never opened")


@dataclass(frozen=True, slots=True)
class Reading:
    """One number from one window, or the reason why there is none (never a made-up 0)."""

    metric: str
    unit: str
    value: float | None
    source: str
    reason: Reason | None = None
    samples: int = 0  # readings of the sensor behind it; 2 for a difference of a counter's
    period_s: float | None = None  # between them, where the sensor is polled
    series: tuple[tuple[float, float], ...] = ()  # (s, value or count since the window opened)


def reading(
    metric: str,
    unit: str,
    answer: float | Reason,
    source: str,
    samples: int = 0,
    period_s: float | None = None,
    series: tuple[tuple[float, float], ...] = (),
) -> Reading:
    """The reading of a sensor that answers with a number or with a reason."""
    if isinstance(answer, Reason):
        return Reading(metric, unit, None, source, answer, samples, period_s)
    return Reading(metric, unit, float(answer), source, None, samples, period_s, series)


def cited(reading: Reading) -> str:
    """The source as a row keeps it: ``SOURCE [samples=N]`` or ``SOURCE [samples=N, period=S s]``.

    A reading that was never sampled keeps its bare source.
    """
    if not reading.samples:
        return reading.source
    period = "" if reading.period_s is None else f", period={reading.period_s:g} s"
    return f"{reading.source} [samples={reading.samples}{period}]"


@runtime_checkable
class Meter(Protocol):
    """Counters before polling, polling before estimates, estimates never."""

    name: ClassVar[str]
    summary: ClassVar[str]
    #: What a run cannot say without it, and why its readings may be believed.
    lost: ClassVar[str]
    trust: ClassVar[str]

    def probe(self) -> Reason | None:
        """Why this meter cannot read here, or ``None``."""
        ...

    def start(self) -> None:
        """Open a window. Never raises: a sensor that fails yields a reading with a reason."""
        ...

    def stop(self) -> list[Reading]:
        """Close the window and report it."""
        ...
