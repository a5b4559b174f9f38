"""A ratio from repeats: its value, and an interval that covers the truth.

The unit of evidence is the *repeat*, a process of its own: epochs within one process are alike, and
more of them do not tell how much processes differ. A series therefore has one number a repeat, the
logarithm of its median epoch. Every statement about series is a sum of means of such logarithms.
``python -m tools.interval_coverage`` simulates how often the interval covers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

#: Share of the intervals that cover the truth (with two repeats: at least that share).
CONFIDENCE = 0.95

#: Of which the exponential still is a number.
_LARGEST_LOG = 700.0

#: One factor of a product: its exponent (1 or -1), and the logarithm of each repeat's value.
Factor = tuple[int, ArrayLike]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value between its bounds. With one repeat nothing bounds it: 0 to infinity.

    Attributes:
        value: geometric mean over the repeats; a product or ratio of such.
        low, high: its 95 % interval.
        repeats: of the factor that has the fewest.
        chance: how often equal series would differ so much (two-sided p of a ratio of 1).
    """

    value: float
    low: float
    high: float
    repeats: int
    chance: float = 1.0

    @property
    def half_width(self) -> float:
        """How far the upper bound lies above the value, as a share of it."""
        return self.high / self.value - 1

    @property
    def ends(self) -> tuple[float, float, float]:
        """Value, low and high; NaN for bounds that one repeat does not give."""
        known = math.isfinite(self.high)
        return (self.value, *((self.low, self.high) if known else (math.nan, math.nan)))

    @property
    def inverse(self) -> Interval:
        """Of the reciprocal."""
        return Interval(1 / self.value, 1 / self.high, _over(self.low), self.repeats, self.chance)


def interval_of(*factors: Factor) -> Interval:
    """The product of geometric means, each with exponent 1 or -1, and its 95 % interval.

    One factor: Student's interval of a mean of logarithms. Several: Welch's, with Satterthwaite's
    degrees of freedom (B. L. Welch, Biometrika 34, 1947), since series differ in their spread. With
    two repeats in a factor that estimate is too unsure to be used: one degree of freedom is then
    assumed, which covers in more than 95 %.

    Raises:
        ValueError: a factor without a value.
    """
    centre, variance, weighted, counts = 0.0, 0.0, 0.0, []
    for exponent, values in factors:
        logs = np.asarray(values, float)
        if not logs.size:
            raise ValueError("no interval of nothing: a factor has no repeat")
        counts.append(logs.size)
        centre += exponent * float(logs.mean())
        if logs.size > 1:
            # Values that are equal up to rounding have no variance.
            part = float(logs.var(ddof=1)) / logs.size
            variance += part
            weighted += part**2 / (logs.size - 1)
    fewest = min(counts)
    value = math.exp(centre)
    if fewest == 1:
        return Interval(value, 0.0, math.inf, 1)
    freedom = 1.0 if fewest == 2 or not weighted else variance**2 / weighted
    error = math.sqrt(variance)
    reach = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    chance = 2 * float(stdtr(freedom, -abs(centre) / error)) if error else float(not centre)
    low, high = math.exp(centre - reach), math.exp(min(centre + reach, _LARGEST_LOG))
    return Interval(value, low, high, fewest, chance)


def _over(value: float) -> float:
    return 1 / value if value else math.inf
