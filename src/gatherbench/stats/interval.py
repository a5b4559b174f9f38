"""Compute a ratio from repeats: its value and its confidence interval.

The unit of evidence is the *repeat*, a separate process: epochs within one process are alike, and
more of them do not show how much processes differ. So a series has one number per repeat, the
logarithm of its median epoch. Every statement about series is a sum of means of such logarithms.

If paths took turns in one process, their common factors (the speed of that process and block)
cancel in the ratio. Such series are paired within a block; the mean over the blocks of a process is
its one number, and the interval is that of these means over processes. So the interval includes
that a path's speed differs between processes, which no number of blocks shows. Its coverage was
simulated (``stats/NOTES.md``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


#: One factor of a product: its exponent (1 or -1), and the logarithm of each repeat's value.
Factor = tuple[int, ArrayLike]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its confidence interval. With one repeat the interval is 0 to infinity.

    Attributes:
        value: the geometric mean over the repeats, or a product or ratio of such means.
        low, high: its 95 % interval.
        repeats: the repeats of the factor that has the fewest.
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
        is_bounded = math.isfinite(self.high)
        return (self.value, *((self.low, self.high) if is_bounded else (math.nan, math.nan)))

    @property
    def inverse(self) -> Interval:
        """The interval of the reciprocal."""
        high = 1 / self.low if self.low else math.inf
        return Interval(1 / self.value, 1 / self.high, high, self.repeats, self.chance)


def interval_of(*factors: Factor) -> Interval:
    """Compute the product of geometric means, each with exponent 1 or -1, and its 95 % interval.

    For one factor it is Student's interval of a mean of logarithms; for several it is Welch's, with
    Satterthwaite's degrees of freedom (B. L. Welch, Biometrika 34, 1947), since series differ in
    their spread. If a factor has only two repeats, that estimate is too uncertain: one degree of
    freedom is then assumed, which covers more than 95 %. Series that took turns in the same
    processes first become one factor, paired within their blocks.

    Raises:
        ValueError: a factor has no value.
    """
    centre, variance, weighted, counts = 0.0, 0.0, 0.0, []
    for exponent, values in _independent(factors):
        logs = np.asarray(values, float)
        if not logs.size:
            raise ValueError("no interval of nothing: a factor has no repeat")
        counts.append(logs.size)
        centre += exponent * float(logs.mean())
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


def _independent(factors: Sequence[Factor]) -> Iterator[Factor]:
    """Yield the factors, with those that took turns in the same processes joined into one."""
    groups: list[tuple[list[Factor], dict[float, dict[int, float]]]] = []
    for factor in factors:
        exponent, logs = factor
        if not isinstance(logs, Logs):
            yield factor
            continue
        own_blocks = {
            p: {b: exponent * x for b, x in by_block.items()} for p, by_block in logs.blocks.items()
        }
        for number, (members, their_blocks) in enumerate(groups):
            shared = _summed(own_blocks, their_blocks)
            # A single common process gives evidence only about that process.
            if len(shared) > 1 or len(shared) == len(own_blocks) == len(their_blocks) == 1:
                groups[number] = [*members, factor], shared
                break
        else:
            groups.append(([factor], own_blocks))
    for members, blocks in groups:
        yield (1, _means(blocks)) if len(members) > 1 else members[0]


def _summed(a: Blocks, b: Blocks) -> dict[float, dict[int, float]]:
    """Add up the blocks that both have."""
    sums = {
        process: {
            block: x + b[process][block] for block, x in by_block.items() if block in b[process]
        }
        for process, by_block in a.items()
        if process in b
    }
    return {process: by_block for process, by_block in sums.items() if by_block}


def _means(blocks: Blocks) -> ArrayLike:
    """Return the mean of each process."""
    return [float(np.mean(list(by_block.values()))) for by_block in blocks.values()]
