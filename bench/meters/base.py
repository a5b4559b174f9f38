"""What a meter is: something that watches a window of time and says what it saw, or why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Reading:
    """One number from one window, or the reason why there is none (never a made-up 0).

    ``samples`` counts the readings of the sensor behind the value (2 for a difference of two
    counter readings) and ``period_s`` is their spacing where the sensor is polled.
    """

    metric: str
    unit: str
    value: float | None
    source: str
    reason: str | None = None
    samples: int = 0
    period_s: float | None = None


class Meter(Protocol):
    """Counters before polling, polling before estimates, estimates never."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def probe(self) -> str | None:
        """Why this meter cannot read here, or ``None``.

        A reason begins with its kind: ``no_device``, ``unsupported`` or ``no_permission``, then a
        colon and a sentence with the remedy.
        """
        ...

    def start(self) -> None:
        """Open a window. Never raises: a sensor that fails yields a reading with a reason."""
        ...

    def stop(self) -> list[Reading]:
        """Close the window and report it."""
        ...
