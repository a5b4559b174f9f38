"""Decide every verdict on a difference by one rule.

Let t be the smallest difference that matters. For the ratio of one cost (a time) to another:

==========  =====================================================
SLOW        the whole interval lies above 1 + t
FAST        the whole interval lies below 1 / (1 + t)
SAME        the whole interval lies between the two
AMBIGUOUS   otherwise: more repeats are needed
==========  =====================================================

On a GPU two paths whose epochs are both limited by issuing work
(:mod:`gatherbench.bench.read.derive`) get the word HOST-BOUND instead. Sentences call paths that
are SAME or AMBIGUOUS *too close to separate*.

Of many ratios judged at once, one may look slower by chance. If a caller gives their number, the
``family``, SLOW and FAST also require that less than 5 % of such families would show so large a
difference if nothing differed (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gatherbench.stats.interval import CONFIDENCE, Interval

Word = Literal["SAME", "FAST", "SLOW", "AMBIGUOUS"]
#: The verdicts on two paths of one run.
PathWord = Word | Literal["HOST-BOUND"]

#: The smallest difference between epochs that matters, as a share.
THRESHOLD = 0.05


@dataclass(frozen=True, slots=True)
class Judgement:
    """A ratio with its interval, the verdict on it, and the reason in words."""

    interval: Interval
    word: Word
    reason: str


def judge(
    ratio: Interval,
    *,
    threshold: float = THRESHOLD,
    more_is_better: bool = False,
    family: int = 1,
    busy: str = "",
) -> Judgement:
    """Return the verdict on a ratio of new to base, one of a ``family`` judged at once.

    Args:
        more_is_better: true for values such as a rate; FAST is then above.
        busy: names the side measured while other work ran, if any: a faster result then proves
            nothing, and a slower one needs a check.
    """
    cost = ratio.inverse if more_is_better else ratio
    sides = ["worse"] * (cost.high > 1 + threshold) + ["better"] * (cost.low < 1 / (1 + threshold))
    word = word_of(cost.low, cost.high, threshold)
    if ratio.repeats < 2:
        word, reason = "AMBIGUOUS", "one repeat does not tell how much processes differ"
    elif word == "SAME":
        reason = f"the whole interval is within {threshold:.0%}"
    elif word == "AMBIGUOUS":
        reason = f"perhaps {' or '.join(sides)} by more than {threshold:.0%}: more repeats"
    else:
        reason = f"the whole interval is {sides[0]} by more than {threshold:.0%}"
    if word in ("SLOW", "FAST") and family * ratio.chance > 1 - CONFIDENCE:
        word, reason = "AMBIGUOUS", f"one of {family} may look like that by chance: more repeats"
    elif word == "SLOW" and busy:
        reason += f"; {busy}: run again on an idle machine to know how much"
    elif word == "FAST" and busy:
        word, reason = "AMBIGUOUS", f"{busy}: run again on an idle machine"
    return Judgement(ratio, word, reason)


def word_of(low: float, high: float, threshold: float = THRESHOLD) -> Word:
    """Return the word for a ratio of costs with these bounds, whatever their source."""
    slow, fast = 1 + threshold, 1 / (1 + threshold)
    if low > slow:
        return "SLOW"
    if high < fast:
        return "FAST"
    return "SAME" if fast <= low and high <= slow else "AMBIGUOUS"


def is_open(low: float, high: float) -> bool:
    """Tell whether a ratio with these bounds (NaN for one repeat) is undecided."""
    return word_of(low, high) == "AMBIGUOUS"


def judge_exactly(base: float, new: float, *, more_is_better: bool = False) -> Judgement:
    """Return the verdict on computed values: any difference beyond rounding counts."""
    how = "computed, not measured: compared exactly"
    if math.isclose(base, new, rel_tol=1e-9):
        return Judgement(Interval(1.0, 1.0, 1.0, 1), "SAME", how)
    ratio = new / base if base else math.nan
    word: Word = "SLOW" if (new > base) != more_is_better else "FAST"
    return Judgement(Interval(ratio, ratio, ratio, 1), word, how)
