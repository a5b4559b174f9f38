"""Judge benchmarks by their pairs of processes, and choose those that need another pair.

A pair gives one logarithm of a ratio, the head's time over the base's. The pairs are repeats,
judged by the rule of every verdict (:mod:`gatherbench.stats.judge`) as one family: for equal code,
fewer than 5 % of comparisons call any of their benchmarks SLOW.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gatherbench.stats.interval import Interval, interval_of
from gatherbench.stats.judge import judge

#: The fewest pairs that show how much processes differ, and the most: a benchmark that is undecided
#: by then is too noisy for this machine. 12 pairs that differ by 2 % among themselves always find
#: 10 % more (simulated, 20 benchmarks a run). Five alternating whole runs of each tree find it in
#: two of three cases on an idle machine, in one of sixteen where its speed changes by 5 %.
MIN_PAIRS, MOST_PAIRS = 6, 16
#: About how many seconds two processes need to import torch and collect.
START_S = 6.0


@dataclass(slots=True, eq=False)
class Record:
    """The measurements of one benchmark, and the verdict; the errors say why a side has no times.

    ``rounds`` are those of a block, ``turns`` the blocks of each side in a pair (0: not run yet),
    ``pairs`` the medians, s, of the base's and the head's blocks for each pair of processes, turn
    by turn; ``pair_s`` the seconds that the last pair spent on it, with its tables and checks.
    ``word`` is SAME, FAST, SLOW, AMBIGUOUS, NEW (the base cannot run it) or FAILED.
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
    word: str = ""
    reason: str = ""
    ratio: Interval | None = None

    @property
    def runs(self) -> bool:
        return not self.base_error and not self.head_error

    def judge(self, family: int) -> None:
        """Set the verdict as one of ``family``, without regard to yardsticks."""
        # A pair's ratio is the median over its neighbouring blocks.
        logs = [float(np.median(np.log(head) - np.log(base))) for base, head in self.pairs]
        self.ratio = interval_of(logs) if self.runs and logs else None
        if self.base_error:
            self.word, self.reason = "NEW", f"the base cannot run it: {self.base_error}"
        elif self.head_error:
            self.word, self.reason = "FAILED", self.head_error
        elif self.ratio is None or len(logs) < MIN_PAIRS:
            self.word, self.reason = "AMBIGUOUS", f"{len(logs)} of at least {MIN_PAIRS} pairs"
        else:
            judged = judge(self.ratio, family=family)
            self.word, self.reason = judged.word, judged.reason


def judge_all(records: Sequence[Record]) -> None:
    """Set each record's verdict.

    SLOW and FAST become AMBIGUOUS where a yardstick has moved in the same direction: a benchmark of
    the same group that runs no code of gatherbench.
    """
    family = sum(record.runs for record in records)
    for record in records:
        record.judge(family)
    moved = {
        (record.group, record.word): f"the yardstick {record.name} ({record.ratio.value:.3f})"
        for record in records
        if record.yardstick and record.ratio and record.word in ("SLOW", "FAST")
    }
    for record in records:
        if yardstick := moved.get((record.group, record.word)):
            record.word = "AMBIGUOUS"
            record.reason += f", but the two sides did not run alike: so is {yardstick}"


def worth_more(records: Sequence[Record], left_s: float) -> list[Record]:
    """Return the judged benchmarks that the next pair of processes runs within ``left_s`` seconds.

    All run until each has ``MIN_PAIRS`` (none if time is short), then those not SAME, up to
    ``MOST_PAIRS``: that cannot raise a false alarm, and SLOW is judged only at the end. If time is
    short for those, the ones that differ most go on: one SLOW is worth more than many doubts.
    """

    def fit(records: Sequence[Record]) -> bool:
        return START_S + sum(record.pair_s for record in records) <= left_s

    def difference(record: Record) -> float:
        """Return the least logarithm by which the ratio differs from 1 within its interval."""
        ratio = record.ratio
        return max(math.log(ratio.low), -math.log(ratio.high)) if ratio else 0.0

    runnable = [record for record in records if record.runs]
    if any(len(record.pairs) < MIN_PAIRS for record in runnable):
        return runnable if fit(runnable) else []
    chosen = [r for r in runnable if len(r.pairs) < MOST_PAIRS and r.word != "SAME"]
    chosen.sort(key=difference, reverse=True)
    while chosen and not fit(chosen):
        chosen.pop()
    return [record for record in records if record in chosen]
