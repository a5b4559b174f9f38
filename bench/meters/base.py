"""A meter reports a value or a reason for a window; a recorder nests the windows of several.

A driver that has lost its device may answer with nonsense, which costs the run that number, or with
an error, which costs that meter's numbers. The case's time limit ends a call that never returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from gatherbench.outside import words_of
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
        sources: the source of a metric in the last window, if it differs from the summary.
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


class Recorder:
    """Open the meters' windows in the given order and close them in the reverse order.

    If a meter raises, each of its metrics is a reading with a reason of kind ``failed``; the other
    meters and the run go on. The recorder may be entered again: each time is a new window.

    Attributes:
        readings: those of the last closed window, in the order of the meters.
    """

    def __init__(self, meters: Sequence[Meter]) -> None:
        self._meters = tuple(meters)
        self.readings: tuple[Reading, ...] = ()

    def __enter__(self) -> Self:
        self._broken: dict[int, str] = {}  # by id: a meter may be unhashable
        for meter in self._meters:
            try:
                meter.begin()
            except Exception as error:
                self._broken[id(meter)] = f"begin raised {words_of(error)}"
        return self

    def __exit__(self, *_: object) -> None:
        seen = [self._readings(meter) for meter in reversed(self._meters)]
        self.readings = tuple(reading for readings in reversed(seen) for reading in readings)

    def _readings(self, meter: Meter) -> list[Reading]:
        if id(meter) not in self._broken:
            try:
                return closed(meter)
            except Exception as error:
                self._broken[id(meter)] = f"end raised {words_of(error)}"
        source, reason = f"meter {meter.name}", Reason("failed", self._broken[id(meter)])
        return [Reading(metric, unit, None, source, reason) for metric, unit in meter.units.items()]


def closed(meter: Meter) -> list[Reading]:
    """Close a meter's window; return its readings.

    Raises:
        ValueError: it reports an undeclared metric, or an unknown unit.
    """
    readings = []
    for metric, answer in meter.end().items():
        unit = meter.units.get(metric)
        if unit not in UNITS:
            raise ValueError(f"{metric} is declared with the unit {unit!r}, none of {UNITS}")
        source, series = meter.sources.get(metric, meter.summary), meter.series.get(metric, ())
        value, reason = (None, answer) if isinstance(answer, Reason) else (float(answer), None)
        if value and not LEAST <= value <= MOST:
            value, reason = None, Reason("failed", f"the sensor said {answer}")
        readings.append(Reading(metric, unit, value, source, reason, () if reason else series))
    return readings


def change(before: float | Reason, after: float | Reason) -> float | Reason:
    """Return the difference of a counter between two readings, or the reason for none."""
    if isinstance(after, Reason):
        return after
    if isinstance(before, Reason):
        return before
    return after - before if after >= before else Reason("failed", "the counter went backwards")


def sampled(source: str, samples: int, period_s: float) -> str:
    """Return the name of a polled source with its number of samples and their period."""
    return f"{source} [samples={samples}, period={period_s:g} s]"
