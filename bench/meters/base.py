"""What a meter is: something that watches a window of time and says what it saw, or why not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Protocol

#: Of readings and rows: SI base units.
UNITS = ("s", "B", "J", "W", "1", "K", "Hz")
#: How the reason begins where a sensor is there and only the window was too short for it.
TOO_SHORT = "unsupported: a window of"


@dataclass(frozen=True, slots=True)
class Reading:
    """One number from one window, or the reason why there is none (never a made-up 0).

    ``samples`` counts the readings of the sensor behind the value (2 for a difference of two
    counter readings) and ``period_s`` is their spacing where the sensor is polled. ``series`` keeps
    what was polled, for a picture over time: (s since the window opened, value then); a counter's
    values are those since the window opened.
    """

    metric: str
    unit: str
    value: float | None
    source: str
    reason: str | None = None
    samples: int = 0
    period_s: float | None = None
    series: tuple[tuple[float, float], ...] = ()


_SAMPLING = re.compile(r" \[samples=(\d+)(?:, period=([^ ]+) s)?\]$")


def cited(reading: Reading) -> str:
    """The source as a row keeps it: ``SOURCE [samples=N]`` or ``SOURCE [samples=N, period=S s]``.

    A reading that was never sampled keeps its bare source.
    """
    if not reading.samples:
        return reading.source
    period = "" if reading.period_s is None else f", period={reading.period_s:g} s"
    return f"{reading.source} [samples={reading.samples}{period}]"


def sampling_of(source: str) -> tuple[int, float | None]:
    """Sample count and period (s) that :func:`cited` wrote into a row's source; (0, None): none."""
    found = _SAMPLING.search(source)
    if found is None:
        return 0, None
    return int(found[1]), None if found[2] is None else float(found[2])


class Meter(Protocol):
    """Counters before polling, polling before estimates, estimates never."""

    name: ClassVar[str]
    summary: ClassVar[str]
    #: What a run cannot say without it, and why its readings may be believed.
    lost: ClassVar[str]
    trust: ClassVar[str]

    def probe(self) -> str | None:
        """Why this meter cannot read here, or ``None``.

        A reason begins with its kind: ``no_device``, ``unsupported``, ``no_permission`` or
        ``busy``, then a colon and a sentence with the remedy.
        """
        ...

    def start(self) -> None:
        """Open a window. Never raises: a sensor that fails yields a reading with a reason."""
        ...

    def stop(self) -> list[Reading]:
        """Close the window and report it."""
        ...
