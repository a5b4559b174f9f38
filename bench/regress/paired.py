"""The rule of a comparison of two trees: from pairs of times to a ratio, its interval, a verdict.

A pair is one process of each tree, run at the same time block by block in turn, so that what slows
the machine down slows both. It gives one logarithm of a ratio, the head's time over the base's.
Which of the two runs first is drawn, so without a difference in the code that logarithm is as
often above 0 as below, by as much: its distribution is symmetric whatever the noise. That is all
that Wilcoxon's signed-rank test needs, and the interval that belongs to it (Hodges and Lehmann,
Annals of Mathematical Statistics 34(2), 1963; Hollander, Wolfe and Chicken, Nonparametric
Statistical Methods, 3rd ed. 2014, section 3.3). With t the threshold:

==========  ======================================================================
SLOW        the 95 % interval lies above 1 + t, and the family's interval above 1
FAST        the 95 % interval lies below 1 / (1 + t), and the family's below 1
SAME        the 95 % interval lies between the two
AMBIGUOUS   else: the reason says what is missing
==========  ======================================================================

The family's interval is so wide that of comparisons of equal code fewer than 5 % say SLOW of any of
their benchmarks (Bonferroni), and by what the threshold asks beside, hardly any do. SLOW and FAST
become AMBIGUOUS beside a yardstick that has moved in the same direction: a benchmark of the same
group that runs none of our code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gatherbench.bench.regress.verdict import THRESHOLD, Verdict

#: With fewer pairs no signed-rank interval of 95 % exists: 2 / 2**5 > 0.05.
MIN_PAIRS = 6
ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Pairs:
    """One benchmark: the log-ratio of head to base of each pair of processes."""

    name: str
    log_ratios: tuple[float, ...]
    group: str | None = None
    yardstick: bool = False


def interval(log_ratios: Sequence[float], error: float) -> tuple[float, float]:
    """Bounds of the centre of ``log_ratios``; each is wrong with a chance of at most ``error / 2``.

    Infinite where there are too few values for so small an error.
    """
    averages = walsh_averages(log_ratios)
    spare = _spare(len(log_ratios), error / 2)
    if spare == 0:
        return -math.inf, math.inf
    return float(averages[spare - 1]), float(averages[-spare])


def walsh_averages(values: Sequence[float]) -> np.ndarray:
    """The means of all pairs of values, each with itself too, in order: ``[n (n + 1) / 2]``.

    Their median is the Hodges–Lehmann estimate of the centre.
    """
    data = np.asarray(values, float)
    above = np.triu_indices(len(data))
    return np.sort((data[above[0]] + data[above[1]]) / 2)


def judge(pairs: Pairs, family: int, threshold: float = THRESHOLD) -> Verdict:
    """The verdict on one benchmark of ``family`` by the rule above."""
    count = len(pairs.log_ratios)
    ratio = math.exp(float(np.median(walsh_averages(pairs.log_ratios)))) if count else math.nan
    if count < MIN_PAIRS:
        reason = f"{count} of at least {MIN_PAIRS} pairs"
        return Verdict(pairs.name, "AMBIGUOUS", reason, ratio)
    low, high = (math.exp(bound) for bound in interval(pairs.log_ratios, ERROR))
    surely_above, surely_below = interval(pairs.log_ratios, 2 * ERROR / family)
    slow, fast = 1 + threshold, 1 / (1 + threshold)

    def verdict(word: str, reason: str) -> Verdict:
        return Verdict(pairs.name, word, reason, ratio, low, high)  # type: ignore[arg-type]

    if low > slow and surely_above > 0:
        return verdict("SLOW", f"slower by over {threshold:.0%}")
    if high < fast and surely_below < 0:
        return verdict("FAST", f"faster by over {threshold:.0%}")
    if fast <= low and high <= slow:
        return verdict("SAME", f"within {threshold:.0%}")
    if low > slow or high < fast:
        reason = f"one of {family} may look like that by chance"
        return verdict("AMBIGUOUS", reason)
    side = "slower" if high > slow else "faster"
    if low < fast and high > slow:
        side = "slower or faster"
    return verdict("AMBIGUOUS", f"perhaps {side} by {threshold:.0%}")


def judge_all(all_pairs: Sequence[Pairs], threshold: float = THRESHOLD) -> list[Verdict]:
    """A verdict each, yardsticks considered."""
    verdicts = [judge(pairs, len(all_pairs), threshold) for pairs in all_pairs]
    return beside_yardsticks(verdicts, {pairs.name: pairs for pairs in all_pairs})


def beside_yardsticks(verdicts: Sequence[Verdict], pairs: Mapping[str, Pairs]) -> list[Verdict]:
    """The verdicts, SLOW and FAST withdrawn where a yardstick of the group says the same."""
    moved: dict[tuple[str | None, str], Verdict] = {
        (pairs[v.name].group, v.word): v
        for v in verdicts
        if pairs[v.name].yardstick and v.word in ("SLOW", "FAST")
    }
    judged = []
    for verdict in verdicts:
        mark = moved.get((pairs[verdict.name].group, verdict.word))
        if mark is None:
            judged.append(verdict)
            continue
        why = "and this is not our code: the two sides did not run alike"
        if not pairs[verdict.name].yardstick:
            yardstick = mark.name.rpartition("::")[2]
            why = f"but so is the yardstick {yardstick} ({mark.ratio:.3f})"
        judged.append(replace(verdict, word="AMBIGUOUS", reason=f"{verdict.reason}, {why}"))
    return judged


def _spare(count: int, tail: float) -> int:
    """How many of the smallest Walsh averages a one-sided bound may leave out, plus one.

    The largest k with P(W < k) <= ``tail``, W the signed-rank statistic of ``count`` values, whose
    2 ** count signs are equally likely.
    """
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1
    for rank in range(1, count + 1):
        ways[rank:] = ways[rank:] + ways[: len(ways) - rank]
    return int(np.searchsorted(np.cumsum(ways) / 2.0**count, tail, side="right"))
