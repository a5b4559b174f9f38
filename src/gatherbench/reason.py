"""Why a number is absent: an object in code, and one text where it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gatherbench.outside import plain

#: ``too_short``: the sensor is there, and the window was too short for it. ``failed``: something
#: went wrong. ``unknown``: the model lacks a constant. ``not_applicable``: there is no such number.
#: The others: what this machine, its software or this user does not have.
_Lacking = Literal[
    "no_device", "unsupported", "no_permission", "not_installed", "no_memory", "busy"
]
Kind = Literal[_Lacking, "too_short", "failed", "unknown", "not_applicable"]


@dataclass(frozen=True, slots=True)
class Reason:
    """What is so (``cause``), and what would change it (``remedy``; empty: nothing known)."""

    kind: Kind
    cause: str
    remedy: str = ""

    def __str__(self) -> str:
        """As rows and tables have it: ``kind: cause; remedy``, in one printable line."""
        return plain(f"{self.kind}: {self.cause}" + (f"; {self.remedy}" if self.remedy else ""))


def unsupported(cause: str, remedy: str = "") -> Reason:
    """This machine, its software or this path has no such thing."""
    return Reason("unsupported", cause, remedy)


def kind_of(said: str) -> str:
    """The kind of a reason in words, as rows have it; empty: it has none."""
    return next((kind for kind in get_args(Kind) if said.startswith(f"{kind}: ")), "")


class ReasonError(Exception):
    """An error that is the reason for a missing number."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class SensorUnavailableError(ReasonError):
    """A sensor cannot be read."""
