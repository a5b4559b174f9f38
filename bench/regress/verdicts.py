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
NOT_THERE = "not there"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one benchmark; ``ratio`` is head over base, where both ran at all."""

    word: Literal["SAME", "FAST", "SLOW", "AMBIGUOUS", "NEW", "MISSING", "FAILED"]
    reason: str
    ratio: Interval | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The medians, s, of neighbouring blocks in a pair of processes: the base's and the head's.

    ``head_first`` holds for each whether the head's block came first.
    """

    base_s: list[float]
    head_s: list[float]
    head_first: list[bool]


@dataclass(slots=True, eq=False)
class Record:
    """The measurements of one benchmark; the errors say why a side has no times.

    ``rounds`` are those of a block, ``turns`` the blocks of each side in a pair (0: not run yet),
    ``pair_s`` the seconds that the last pair spent on it, including its tables and checks.
    """

    name: str
    base_error: str = ""
    head_error: str = ""
    group: str | None = None
    yardstick: bool = False
    rounds: int = 0
    turns: int = 0
    samples: list[Sample] = field(default_factory=list)
    pair_s: float = 0.0

    @property
    def test(self) -> str:
        """Its name without that of the file."""
        return self.name.rpartition("::")[2]

    @property
    def runs(self) -> bool:
        return not self.base_error and not self.head_error

    @property
    def ratio(self) -> Interval:
        """Head over base; a pair's ratio is the median over its neighbouring blocks."""
        logs = [np.median(np.log(s.head_s) - np.log(s.base_s)) for s in self.samples]
        return interval_of((1, [float(log) for log in logs]))

    @property
    def base_median_s(self) -> float:
        """The median over all pairs' blocks of the base's seconds per round; needs a pair."""
        return float(np.median([block for sample in self.samples for block in sample.base_s]))

    def verdict(self, family: int) -> Verdict:
        """Return the verdict on it as one of ``family``, without regard to yardsticks."""
        if self.head_error == NOT_THERE:
            return Verdict("MISSING", "not in this tree")
        if self.head_error:
            return Verdict("FAILED", self.head_error)
        if self.base_error:
            return Verdict("NEW", f"the base cannot run it: {self.base_error}")
        count = len(self.samples)
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
        (record.group, verdict.word): f"{record.test} ({verdict.ratio.value:.3f})"
        for record, verdict in judged
        if record.yardstick and verdict.ratio and verdict.word in ("SLOW", "FAST")
    }
    for number, (record, verdict) in enumerate(judged):
        if mark := moved.get((record.group, verdict.word)):
            doubt = f"but so is the yardstick {mark}"
            if record.yardstick:
                doubt = "and this is not our code: the two sides did not run alike"
            reason = f"{verdict.reason}, {doubt}"
            judged[number] = record, replace(verdict, word="AMBIGUOUS", reason=reason)
    return [verdict for _, verdict in judged]


def worth_more(records: Sequence[Record], left_s: float) -> list[Record]:
    """Return the benchmarks that the next pair of processes runs within ``left_s`` seconds.

    All run until each has ``MIN_PAIRS`` (none if time is short), then those not SAME, up to
    ``MOST_PAIRS``: that cannot raise a false alarm, and SLOW is judged only at the end. If time is
    short for those, the ones that differ most go on: one SLOW is worth more than many doubts.
    """
    runnable = [record for record in records if record.runs]
    if any(len(record.samples) < MIN_PAIRS for record in runnable):
        return runnable if cost_s(runnable) <= left_s else []
    chosen = [
        record
        for record in runnable
        if len(record.samples) < MOST_PAIRS and record.verdict(len(runnable)).word != "SAME"
    ]
    # By the least logarithm by which a ratio differs from 1 within its interval.
    chosen.sort(key=lambda r: max(math.log(r.ratio.low), -math.log(r.ratio.high)), reverse=True)
    while chosen and cost_s(chosen) > left_s:
        chosen.pop()
    return [record for record in records if record in chosen]


def cost_s(records: Sequence[Record]) -> float:
    """Estimate the seconds of a pair of processes for these, from the last pair."""
    return START_S + sum(record.pair_s for record in records)
