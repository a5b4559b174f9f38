"""Open and close one window over several meters, nested, so that a failing meter is harmless.

A driver that has lost its device may answer with nonsense, which costs the run that number, or with
an error, which costs that meter's numbers. The case's time limit ends a call that never returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from gatherbench.bench.meters.base import LEAST, MOST, UNITS, Meter, Reading
from gatherbench.outside import words_of
from gatherbench.reason import Reason


class Recorder:
    """Open the meters' windows in the given order and close them in the reverse order.

    If a meter raises, each of its metrics is a reading with a reason of kind ``failed``; the other
    meters and the run go on. The recorder may be entered again: each time is a new window.

    Attributes:
        readings: those of the last closed window, in the order of the meters.
    """

    def __init__(self, meters: Sequence[Meter]) -> None:
        self._meters = tuple(meters)
        self._broken: dict[int, str] = {}
        self.readings: tuple[Reading, ...] = ()

    def __enter__(self) -> Self:
        self._broken = {}
        for number, meter in enumerate(self._meters):
            try:
                meter.begin()
            except Exception as error:
                self._broken[number] = f"begin raised {words_of(error)}"
        return self

    def __exit__(self, *_: object) -> None:
        seen = [self._closed(number) for number in reversed(range(len(self._meters)))]
        self.readings = tuple(reading for readings in reversed(seen) for reading in readings)

    def _closed(self, number: int) -> list[Reading]:
        meter = self._meters[number]
        if why := self._broken.get(number):
            return broken(meter, why)
        try:
            return closed(meter)
        except Exception as error:
            return broken(meter, f"end raised {words_of(error)}")


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


def broken(meter: Meter, why: str) -> list[Reading]:
    """Return a reading with the reason for each metric of a failed meter."""
    source, reason = f"meter {meter.name}", Reason("failed", why)
    return [Reading(metric, unit, None, source, reason) for metric, unit in meter.units.items()]
