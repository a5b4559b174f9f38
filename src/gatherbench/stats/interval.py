"""A ratio from repeats: its value, and an interval that covers the truth.

The unit of evidence is the *repeat*, a process of its own: epochs within one process are alike, and
more of them do not tell how much processes differ. A series therefore has one number a repeat, the
logarithm of its median epoch. Every statement about series is a sum of means of such logarithms.

Where paths took turns in one process, what they share (how fast that process is, and that block)
falls out of their ratio. Such series are paired: within a block, then the mean over the blocks of a
process is its one number, and the interval that of these means over processes. So it holds that a
path may fare otherwise in one process than in the next, which no number of blocks tells.
How often the interval covers was simulated (``stats/NOTES.md``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

#: Share of the intervals that cover the truth (with two repeats: at least that share).
CONFIDENCE = 0.95

#: Of which the exponential still is a number.
_LARGEST_LOG = 700.0

#: The logarithm of each block, by process and number of the block.
Blocks = Mapping[float, Mapping[int, float]]


class Logs(tuple[float, ...]):
    """The logarithm of each repeat's median epoch; ``blocks``: those of paths that took turns."""

    blocks: Blocks

    def __new__(cls, medians: Iterable[float], blocks: Blocks | None = None) -> Logs:
        made = super().__new__(cls, medians)
        made.blocks = blocks or {}
        return made


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
        high = 1 / self.low if self.low else math.inf
        return Interval(1 / self.value, 1 / self.high, high, self.repeats, self.chance)


def interval_of(*factors: Factor) -> Interval:
    """The product of geometric means, each with exponent 1 or -1, and its 95 % interval.

    One factor: Student's interval of a mean of logarithms. Several: Welch's, with Satterthwaite's
    degrees of freedom (B. L. Welch, Biometrika 34, 1947), since series differ in their spread. With
    two repeats in a factor that estimate is too unsure to be used: one degree of freedom is then
    assumed, which covers in more than 95 %. Series that took turns in the same processes are one
    factor first, paired within their blocks.

    Raises:
        ValueError: a factor without a value.
    """
    centre, variance, weighted, counts = 0.0, 0.0, 0.0, []
    for exponent, values in _independent(factors):
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


def _independent(factors: Sequence[Factor]) -> Iterator[Factor]:
    """The factors; those that took turns in the same processes as one."""
    groups: list[tuple[list[Factor], dict[float, dict[int, float]]]] = []
    for factor in factors:
        exponent, logs = factor
        if not isinstance(logs, Logs):
            yield factor
            continue
        mine = {p: {b: exponent * x for b, x in of.items()} for p, of in logs.blocks.items()}
        for number, (members, theirs) in enumerate(groups):
            shared = _summed(mine, theirs)
            # Of a single process in common nothing is known but within it.
            if len(shared) > 1 or len(shared) == len(mine) == len(theirs) == 1:
                groups[number] = [*members, factor], shared
                break
        else:
            groups.append(([factor], mine))
    for members, blocks in groups:
        yield (1, _means(blocks)) if len(members) > 1 else members[0]


def _summed(one: Blocks, other: Blocks) -> dict[float, dict[int, float]]:
    """The sums of the blocks that both have."""
    found = {
        process: {
            block: x + other[process][block] for block, x in of.items() if block in other[process]
        }
        for process, of in one.items()
        if process in other
    }
    return {process: of for process, of in found.items() if of}


def _means(blocks: Blocks) -> ArrayLike:
    """The mean of each process."""
    return [float(np.mean(list(of.values()))) for of in blocks.values()]
