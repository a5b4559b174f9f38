"""Judge benchmarks by their pairs of processes, and choose those that need another pair.

A pair gives one logarithm of a ratio, the head's time over the base's. The pairs are repeats,
judged by the rule of every verdict (:mod:`gatherbench.stats.judge`) as one family: for equal code,
fewer than 5 % of comparisons call any of their benchmarks SLOW. SLOW and FAST become AMBIGUOUS
where a yardstick has moved in the same direction: a benchmark of the same group that runs no code
of gatherbench.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from gatherbench.stats.interval import Interval, interval_of
from gatherbench.stats.judge import judge

#: The fewest pairs that show how much processes differ, and the most: a benchmark that is undecided
#: by then is too noisy for this machine. With 5 % as the smallest difference that matters, 12 pairs
#: that differ by 2 % among themselves always find 10 % more (simulated, 20 benchmarks a run). Five
#: alternating whole runs of each tree find it in two of three cases on an idle machine, and in one
#: of sixteen where the machine's speed changes by 5 % from minute to minute.
MIN_PAIRS, MOST_PAIRS = 6, 16
#: About how many seconds two processes need to import torch and collect.
START_S = 6.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one benchmark; ``ratio`` is head over base, where both ran at all."""

    word: Literal["SAME", "FAST", "SLOW", "AMBIGUOUS", "NEW", "FAILED"]
    reason: str
    ratio: Interval | None = None


@dataclass(slots=True, eq=False)
class Record:
    """The measurements of one benchmark; the errors say why a side has no times.

    ``rounds`` are those of a block, ``turns`` the blocks of each side in a pair (0: not run yet),
    ``pairs`` the medians, s, of the base's and the head's blocks for each pair of processes, turn
    by turn; ``pair_s`` the seconds that the last pair spent on it, with its tables and checks.
    """

    name: str
    base_error: str = ""
    head_error: str = ""
    group: str | None = None
    yardstick: bool = False
    rounds: int = 0
    turns: int = 0
    pairs: list[tuple[list[float], list[float]]] = field(default_factory=list)
    pair_s: float = 0.0

    @property
    def runs(self) -> bool:
        return not self.base_error and not self.head_error

    @property
    def ratio(self) -> Interval:
        """Head over base; a pair's ratio is the median over its neighbouring blocks."""
        return interval_of([float(np.median(np.log(h) - np.log(b))) for b, h in self.pairs])

    def verdict(self, family: int) -> Verdict:
        """Return the verdict on it as one of ``family``, without regard to yardsticks."""
        if self.base_error:
            return Verdict("NEW", f"the base cannot run it: {self.base_error}")
        if self.head_error:
            return Verdict("FAILED", self.head_error)
        count = len(self.pairs)
        if count < MIN_PAIRS:
            ratio = self.ratio if count else None
            return Verdict("AMBIGUOUS", f"{count} of at least {MIN_PAIRS} pairs", ratio)
        judged = judge(self.ratio, family=family)
        return Verdict(judged.word, judged.reason, judged.interval)


def judge_all(records: Sequence[Record]) -> list[Verdict]:
    """Return a verdict for each record: by the rule if both sides ran, else by who failed."""
    family = sum(record.runs for record in records)
    judged = [(record, record.verdict(family)) for record in records]
    moved: dict[tuple[str | None, str], str] = {
        (record.group, verdict.word): f"{record.name} ({verdict.ratio.value:.3f})"
        for record, verdict in judged
        if record.yardstick and verdict.ratio and verdict.word in ("SLOW", "FAST")
    }
    return [
        replace(
            verdict,
            word="AMBIGUOUS",
            reason=f"{verdict.reason}, but the two sides did not run alike: so is the yardstick"
            f" {moved[record.group, verdict.word]}",
        )
        if (record.group, verdict.word) in moved
        else verdict
        for record, verdict in judged
    ]


def worth_more(records: Sequence[Record], left_s: float) -> list[Record]:
    """Return the benchmarks that the next pair of processes runs within ``left_s`` seconds.

    All run until each has ``MIN_PAIRS`` (none if time is short), then those not SAME, up to
    ``MOST_PAIRS``: that cannot raise a false alarm, and SLOW is judged only at the end. If time is
    short for those, the ones that differ most go on: one SLOW is worth more than many doubts.
    """
    runnable = [record for record in records if record.runs]
    if any(len(record.pairs) < MIN_PAIRS for record in runnable):
        return runnable if _cost_s(runnable) <= left_s else []
    chosen = [
        record
        for record in runnable
        if len(record.pairs) < MOST_PAIRS and record.verdict(len(runnable)).word != "SAME"
    ]
    # By the least logarithm by which a ratio differs from 1 within its interval.
    chosen.sort(key=lambda r: max(math.log(r.ratio.low), -math.log(r.ratio.high)), reverse=True)
    while chosen and _cost_s(chosen) > left_s:
        chosen.pop()
    return [record for record in records if record in chosen]


def _cost_s(records: Sequence[Record]) -> float:
    return START_S + sum(record.pair_s for record in records)
