"""The comparison of two trees: from pairs of times to a ratio, its interval, a verdict.

A pair is one process of each tree. They run block by block in turn, in random order, so that what
slows the machine down slows both. A pair gives the logarithm of one ratio, the head's time over the
base's. Pairs are repeats, judged by the rule of every verdict
(:mod:`gatherbench.bench.read.stats.judge`) as one family: of comparisons of equal code fewer than
5 % say SLOW of any of their benchmarks. A yardstick is a benchmark that runs none of our code.
Where it has moved in the same direction, SLOW and FAST of its group become AMBIGUOUS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gatherbench.bench.read.stats.interval import interval_of
from gatherbench.bench.read.stats.judge import judge as judge_ratio

Word = Literal["SAME", "FAST", "SLOW", "AMBIGUOUS", "NEW", "MISSING", "FAILED"]

#: The smallest difference of a benchmark that matters, as a share.
THRESHOLD = 0.10
#: Fewer pairs say too little of how much processes differ.
MIN_PAIRS = 6


@dataclass(frozen=True, slots=True)
class Pairs:
    """One benchmark: the log-ratio of head to base of each pair of processes."""

    name: str
    log_ratios: tuple[float, ...]
    group: str | None = None
    yardstick: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one benchmark; ``low`` and ``high`` bound the ratio of head to base."""

    name: str
    word: Word
    reason: str
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan


def judge(pairs: Pairs, family: int, threshold: float = THRESHOLD) -> Verdict:
    """The verdict on one benchmark of ``family``."""
    count = len(pairs.log_ratios)
    if count < MIN_PAIRS:
        return Verdict(pairs.name, "AMBIGUOUS", f"{count} of at least {MIN_PAIRS} pairs")
    ratio = interval_of((1, pairs.log_ratios))
    found = judge_ratio(ratio, threshold=threshold, family=family)
    return Verdict(pairs.name, found.word, found.reason, ratio.value, ratio.low, ratio.high)


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
