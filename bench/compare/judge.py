"""The rule of a comparison: from the epochs of two runs to a ratio, its interval and a verdict.

The ratio is of medians, its 95 % interval the hierarchical bootstrap's
(:func:`gatherbench.bench.derive.epochs.bootstrap_medians`). With t the threshold, for times and
costs:

==========  ======================================================================
SLOW        the whole interval lies above 1 + t, and more than chance is behind it
FAST        the whole interval lies below 1 / (1 + t), and more than chance likewise
SAME        the whole interval lies between the two
AMBIGUOUS   else: the reason says what is missing
==========  ======================================================================

The threshold is the smallest difference that matters, and what two runs of one build may differ by
for reasons that none of their epochs shows. It is also what keeps many comparisons from raising
many false alarms: the interval of equal runs lies off 1 in one comparison of twenty, but hardly
ever off 1 by 5 %. What that leaves is a noisy run of few repeats, whose bootstrap cannot draw
values that it has not seen and so makes the interval too narrow. Hence "more than chance": the
logarithm of the ratio must also exceed its standard error, corrected for the few repeats, by the
97.5 % quantile of Student's t. ``tests/bench/reading/test_compare_rates.py`` counts false alarms
and misses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from gatherbench.bench.derive.epochs import bootstrap_medians

Word = Literal["SAME", "FAST", "SLOW", "AMBIGUOUS"]

THRESHOLD = 0.05
RESAMPLES = 2000
#: 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom (NIST/SEMATECH e-Handbook of
#: Statistical Methods, 1.3.6.7.2); beyond the last one it is used on, which errs to caution.
_T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

#: One factor of a ratio: its exponent (1 or -1) and its values, with the index level ``repeat``.
Factor = tuple[int, "pd.Series[float]"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """``ratio`` with its 95 % interval, and what to make of it."""

    ratio: float
    low: float
    high: float
    word: Word
    reason: str


def judge(
    factors: Sequence[Factor],
    *,
    threshold: float = THRESHOLD,
    more_is_better: bool = False,
    busy: str = "",
) -> Judgement:
    """The verdict on a product of medians, each with exponent 1 or -1.

    New over base is ``[(1, new), (-1, base)]``; two more factors make it a ratio of ratios. The
    draws are seeded: the same values give the same interval.

    Args:
        more_is_better: of the values, as of a rate; FAST is then above.
        busy: says beside which run there was other work: a difference proves nothing then.
    """
    if any((values <= 0).any() for _, values in factors):
        return Judgement(math.nan, math.nan, math.nan, "AMBIGUOUS", "a value of 0 has no ratio")
    rng = np.random.default_rng(0)
    log_ratio, logs, variance, freedom = 0.0, np.zeros(RESAMPLES), 0.0, 0
    counts = [values.index.get_level_values("repeat").nunique() for _, values in factors]
    for (exponent, values), repeats in zip(factors, counts, strict=True):
        draws = np.log(bootstrap_medians(values, RESAMPLES, rng))
        log_ratio += exponent * math.log(values.median())
        logs += exponent * draws
        # A bootstrap of n repeats scatters by a factor (n - 1) / n too little (Davison & Hinkley,
        # Bootstrap Methods and their Application, section 2.3).
        variance += float(draws.var()) * repeats / max(repeats - 1, 1)
        freedom += repeats - 1
    low, high = (float(x) for x in np.exp(np.percentile(logs, [2.5, 97.5])))
    word, reason = _word(
        1 / high if more_is_better else low, 1 / low if more_is_better else high, threshold
    )
    found, fewest = math.exp(log_ratio), min(counts)
    if fewest < 2:
        word, reason = "AMBIGUOUS", "one repeat does not tell how much processes differ"
    elif word in ("SLOW", "FAST") and busy:
        word, reason = "AMBIGUOUS", f"{busy}: run again on an idle machine"
    elif word in ("SLOW", "FAST"):
        quantile = _T_QUANTILES[min(freedom, len(_T_QUANTILES)) - 1]
        if abs(log_ratio) <= quantile * math.sqrt(variance):
            reason = f"chance could do that with {fewest} repeats that differ so much: more repeats"
            word = "AMBIGUOUS"
    return Judgement(found, low, high, word, reason)


def judge_exactly(base: float, new: float, *, more_is_better: bool = False) -> Judgement:
    """The verdict on values that are computed: any difference beyond rounding counts."""
    how = "computed, not measured: compared exactly"
    if math.isclose(base, new, rel_tol=1e-9):
        return Judgement(1.0, 1.0, 1.0, "SAME", how)
    ratio = new / base if base else math.nan
    word: Word = "SLOW" if (new > base) != more_is_better else "FAST"
    return Judgement(ratio, ratio, ratio, word, how)


def _word(low: float, high: float, threshold: float) -> tuple[Word, str]:
    """The rule for a cost whose ratio lies between ``low`` and ``high``."""
    slow, fast = 1 + threshold, 1 / (1 + threshold)
    if low > slow:
        return "SLOW", f"the whole interval is worse by more than {threshold:.0%}"
    if high < fast:
        return "FAST", f"the whole interval is better by more than {threshold:.0%}"
    if fast <= low and high <= slow:
        return "SAME", f"the whole interval is within {threshold:.0%}"
    side = "worse" if high > slow else "better"
    if high > slow and low < fast:
        return "AMBIGUOUS", f"better or worse by more than {threshold:.0%}: more repeats"
    return "AMBIGUOUS", f"perhaps {side} by more than {threshold:.0%}, perhaps not: more repeats"
