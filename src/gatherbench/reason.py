"""Explain why a number is absent: by an object in code, and by one text where it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gatherbench.outside import plain

#: What this machine, its software or this user lacks.
_Lacking = Literal[
    "no_device", "unsupported", "no_permission", "not_installed", "no_memory", "busy"
]
#: ``too_short``: the sensor is there, and the window was too short for it. ``failed``: something
#: went wrong. ``unknown``: the model lacks a constant. ``not_applicable``: there is no such number.
Kind = Literal[_Lacking, "too_short", "failed", "unknown", "not_applicable"]


@dataclass(frozen=True, slots=True)
class Reason:
    """The ``cause`` of a missing number, and what would change it (``remedy``; empty: unknown)."""

    kind: Kind
    cause: str
    remedy: str = ""

    def __str__(self) -> str:
        """Return the text for rows and tables: ``kind: cause; remedy``, in one printable line."""
        return plain(f"{self.kind}: {self.cause}" + (f"; {self.remedy}" if self.remedy else ""))


def unsupported(cause: str, remedy: str = "") -> Reason:
    """Return the reason that this machine, its software or this path lacks something."""
    return Reason("unsupported", cause, remedy)


class ReasonError(Exception):
    """An error that gives the reason for a missing number."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class SensorUnavailableError(ReasonError):
    """A sensor cannot be read."""
