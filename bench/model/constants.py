"""One constant of a machine: a number or a curve, its unit and its source, or a range of it.

A range has two ends and no value in between: who asks for the value gets an error, never an end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

#: A curve: ``((bytes, rate), …)`` in ascending order of the bytes.
Points = tuple[tuple[float, float], ...]
_T = TypeVar("_T", float, Points)


@dataclass(frozen=True, slots=True)
class Range:
    """The ends between which a constant lies, where nobody knows more."""

    low: float | Points
    high: float | Points


#: A number or a curve, or the range of one; ``None`` where it is not known.
Value = float | Points | Range | None


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the key and what it may be."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a constant is: its unit, the least and greatest value that make sense, its meaning.

    ``whole``: only whole numbers make sense.
    """

    unit: str
    low: float
    high: float
    meaning: str
    whole: bool = False

    @property
    def expected(self) -> str:
        """The range in words."""
        whole, unit = "whole, " if self.whole else "", "" if self.unit == "1" else f" {self.unit}"
        return f"expected {whole}{self.low:g} to {self.high:g}{unit}"


@dataclass(frozen=True, slots=True)
class _Known(Generic[_T]):
    """
    Attributes:
        values: in ``unit``: one, the two ends of a range, or none where nothing is known.
        unit: an SI unit (``B/s``, ``B``, ``s``, ``1``, ``1/s``).
        source: the document or measurement that it comes from; without a value, why.
    """

    values: tuple[_T, ...]
    unit: str
    source: str

    @property
    def value(self) -> _T | None:
        """The one value, ``None`` where nothing is known.

        Raises:
            ProfileError: a range is known: neither end of it is the value.
        """
        if len(self.values) > 1:
            raise ProfileError(
                f"of a constant only a range is known ({self.source}), and one value is needed"
                " here: give it one in a profile of your own"
            )
        return self.values[0] if self.values else None


@dataclass(frozen=True, slots=True)
class Constant(_Known[float]):
    """One constant of a machine."""


@dataclass(frozen=True, slots=True)
class Curve(_Known[Points]):
    """A rate over bytes: of the table that is read (its span), or of a row."""

    def at(self, num_bytes: float) -> float | None:
        """The rate for a span, or a row, of ``num_bytes``: straight lines over its logarithm.

        Outside the points that were measured the nearest holds.
        """
        if self.value is None:
            return None
        (low, rate), *rest = self.value
        for high, rate_there in rest:
            if num_bytes <= low:
                return rate
            if num_bytes <= high:
                return rate + (rate_there - rate) * math.log(num_bytes / low, high / low)
            low, rate = high, rate_there
        return rate
