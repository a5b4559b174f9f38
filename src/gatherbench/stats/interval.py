"""Compute a ratio from repeats: its value and its confidence interval.

The unit of evidence is the *repeat*, a separate process: epochs within one process are alike, and
more of them do not show how much processes differ. So a series has one number per repeat, the
logarithm of its median epoch. A ratio of two series is a difference of means of such logarithms.

If paths took turns in one process, their common factors (the speed of that process and block)
cancel in the ratio. Such series are paired within a block; the mean over the blocks of a process is
its one number, and the interval is that of these means over processes, whose differences no number
of blocks shows. Its coverage was simulated (``stats/NOTES.md``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

#: The share of intervals that contain the true value (with two repeats: at least that share).
CONFIDENCE = 0.95
#: The largest logarithm whose exponential is finite, rounded down.
_LARGEST_LOG = 700.0
#: The logarithm of each block, by process and number of the block.
Blocks = Mapping[float, Mapping[int, float]]


class Logs(tuple[float, ...]):
    """The logarithms of the repeats' median epochs; ``blocks``: those of blocks taken in turns."""

    blocks: Blocks

    def __new__(cls, medians: Iterable[float], blocks: Blocks | None = None) -> Logs:
        made = super().__new__(cls, medians)
        made.blocks = blocks or {}
        return made


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its confidence interval. With one repeat the interval is 0 to infinity.

    Attributes:
        value: the geometric mean over the repeats, or the ratio of two such means.
        low, high: its 95 % interval.
        repeats: the repeats of the series that has fewer.
        chance: how often equal series would differ so much (two-sided p of a ratio of 1).
    """

    value: float
    low: float
    high: float
    repeats: int
    chance: float = 1.0

    @property
    def half_width(self) -> float:
        """The distance from the value to the upper bound, as a share of the value."""
        return self.high / self.value - 1

    @property
    def ends(self) -> tuple[float, float, float]:
        """The value, low and high; NaN for the bounds of a single repeat."""
        bounds = (self.low, self.high) if math.isfinite(self.high) else (math.nan, math.nan)
        return self.value, *bounds

    @property
    def inverse(self) -> Interval:
        """The interval of the reciprocal."""
        high = 1 / self.low if self.low else math.inf
        return Interval(1 / self.value, 1 / self.high, high, self.repeats, self.chance)


def interval_of(logs: ArrayLike) -> Interval:
    """Compute the geometric mean of a series, given as the logarithms of its repeats' values, and
    Student's interval of it; a ``ValueError`` for an empty series."""
    return _interval((1, logs))


def ratio_of(numerator: ArrayLike, denominator: ArrayLike) -> Interval:
    """Compute the ratio of two series, each given as the logarithms of its repeats' values.

    Series that took turns in the same processes are paired within their blocks. For others it is
    Welch's interval, with Satterthwaite's degrees of freedom (B. L. Welch, Biometrika 34, 1947),
    since series differ in their spread. If one has only two repeats, that estimate is too
    uncertain: one degree of freedom is then assumed, which covers more than 95 %. An empty series
    is a ``ValueError``.
    """
    if isinstance(numerator, Logs) and isinstance(denominator, Logs):
        mine, theirs = numerator.blocks, denominator.blocks
        pairs = [
            [mine[process][block] - x for block, x in blocks.items() if block in mine[process]]
            for process, blocks in theirs.items()
            if process in mine
        ]
        means = [float(np.mean(differences)) for differences in pairs if differences]
        # A single common process gives evidence only about that process.
        if len(means) > 1 or len(means) == len(mine) == len(theirs) == 1:
            return interval_of(means)
    return _interval((1, numerator), (-1, denominator))


def _interval(*series: tuple[int, ArrayLike]) -> Interval:
    """Compute the interval of a sum of means, each with its sign."""
    centre, variance, weighted, counts = 0.0, 0.0, 0.0, []
    for sign, values in series:
        logs = np.asarray(values, float)
        if not logs.size:
            raise ValueError("no interval of nothing: a series has no repeat")
        counts.append(logs.size)
        centre += sign * float(logs.mean())
        if logs.size > 1:
            # Values that are equal up to rounding count as having no variance.
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
