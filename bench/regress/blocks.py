"""Run pairs of processes in alternating blocks: which benchmark runs when, and the verdicts.

Processes differ by where their memory and threads happen to lie, and no number of rounds within one
process shows that. So one pair of processes follows another. Within a pair each benchmark runs in
many short blocks that alternate between the sides, in an order drawn anew each time. The median
ratio of neighbouring blocks then excludes drifts of the machine and bursts of other work.

A pair gives one logarithm of a ratio, the head's time over the base's. The pairs are repeats,
judged by the rule of every verdict (:mod:`gatherbench.stats.judge`) as one family: for equal code,
fewer than 5 % of comparisons call any of their benchmarks SLOW. SLOW and FAST become AMBIGUOUS
where a yardstick has moved in the same direction: a benchmark of the same group that runs no code
of gatherbench.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from gatherbench.bench.regress.sides import BenchmarkError, Side, SideError
from gatherbench.stats.interval import Interval, interval_of
from gatherbench.stats.judge import judge as judge_ratio

Word = Literal["SAME", "FAST", "SLOW", "AMBIGUOUS", "NEW", "MISSING", "FAILED"]

#: The smallest difference that matters, as a share. With it, 12 pairs of processes that differ by
#: 2 % among themselves always find 10 % more (simulated, 20 benchmarks a run). Five alternating
#: whole runs of each tree find it in two of three cases on an idle machine, and in one of sixteen
#: where the machine's speed changes by 5 % from minute to minute.
THRESHOLD = 0.05
#: The fewest pairs that show how much processes differ.
MIN_PAIRS = 6
#: The most pairs: a benchmark that is undecided by then is too noisy for this machine.
MOST_PAIRS = 16
#: Seconds that a block lasts at least.
BLOCK_S = 0.004
#: Seconds that a side's blocks in a pair last together, and bounds on their number.
TURNS_S, FEWEST_TURNS, MOST_TURNS = 0.1, 7, 15
#: About how many seconds two processes need to import torch and collect.
START_S = 6.0
NOT_THERE = "not there"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one benchmark; ``ratio`` is head over base, where both ran at all."""

    word: Word
    reason: str
    ratio: Interval | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The medians, s, of neighbouring blocks in a pair of processes: the base's and the head's.

    ``head_first`` holds for each whether the head's block came first.
    """

    pair: int
    base_s: tuple[float, ...]
    head_s: tuple[float, ...]
    head_first: tuple[bool, ...]

    @property
    def log_ratio(self) -> float:
        """The median over neighbours of the logarithm of head over base."""
        return float(np.median(np.log(self.head_s) - np.log(self.base_s)))


@dataclass(slots=True, eq=False)
class Record:
    """The measurements of one benchmark; the errors say why a side has no times."""

    name: str
    base_error: str = ""
    head_error: str = ""
    group: str | None = None
    yardstick: bool = False
    #: Rounds of a block, and blocks of each side in a pair; 0 before it has run.
    rounds: int = 0
    turns: int = 0
    samples: list[Sample] = field(default_factory=list)
    #: Seconds that the last pair spent on it, including its tables and checks.
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
        """Head over base, with each pair as a repeat."""
        return interval_of((1, [sample.log_ratio for sample in self.samples]))

    @property
    def base_median_s(self) -> float:
        """The median over all pairs' blocks of the base's seconds per round; needs a pair."""
        return float(np.median([block for sample in self.samples for block in sample.base_s]))

    def one_sided(self) -> Verdict:
        """Return the verdict where a side has no times."""
        if self.head_error == NOT_THERE:
            return Verdict("MISSING", "not in this tree")
        if self.head_error:
            return Verdict("FAILED", self.head_error)
        return Verdict("NEW", f"the base cannot run it: {self.base_error}")


def judge_all(records: Sequence[Record], threshold: float = THRESHOLD) -> list[Verdict]:
    """Return a verdict each: by the rule where both sides ran, else by which failed and why."""
    family = sum(record.runs for record in records)
    verdicts = [judge(r, family, threshold) if r.runs else r.one_sided() for r in records]
    both = list(zip(records, verdicts, strict=True))
    moved: dict[tuple[str | None, str], str] = {
        (r.group, v.word): f"{r.test} ({r.ratio.value:.3f})"
        for r, v in both
        if r.yardstick and v.word in ("SLOW", "FAST")
    }
    for number, (record, verdict) in enumerate(both):
        if record.runs and (mark := moved.get((record.group, verdict.word), "")):
            why = "and this is not our code: the two sides did not run alike"
            if not record.yardstick:
                why = f"but so is the yardstick {mark}"
            reason = f"{verdict.reason}, {why}"
            verdicts[number] = replace(verdict, word="AMBIGUOUS", reason=reason)
    return verdicts


def judge(record: Record, family: int, threshold: float = THRESHOLD) -> Verdict:
    """Return the verdict on one benchmark of ``family``, without regard to yardsticks."""
    count = len(record.samples)
    if count < MIN_PAIRS:
        ratio = record.ratio if count else None
        return Verdict("AMBIGUOUS", f"{count} of at least {MIN_PAIRS} pairs", ratio)
    found = judge_ratio(record.ratio, threshold=threshold, family=family)
    return Verdict(found.word, found.reason, found.interval)


def records_of(base: Side, head: Side, only: str = "") -> list[Record]:
    """Return the benchmarks of both sides that have ``only`` in their names.

    Raises:
        SideError: one of the head's files cannot be read.
    """
    if head.uncollected:
        raise SideError("this tree's benchmarks cannot be read: " + "; ".join(head.uncollected))
    records = []
    for name in dict.fromkeys((*head.items, *base.items)):
        if only not in name:
            continue
        record = Record(name)
        if name not in head.items:
            record.head_error = NOT_THERE
        if name not in base.items:
            module = name.partition("::")[0]
            unread = (why for why in base.uncollected if why.startswith(module))
            record.base_error = next(unread, NOT_THERE)
        records.append(record)
    return records


def run_pair(
    base: Side,
    head: Side,
    records: Sequence[Record],
    pair: int,
    rng: random.Random,
) -> None:
    """Add a sample to each benchmark of ``records``, by one process of each side."""
    for number, record in enumerate(records):
        begin = time.monotonic()
        after = records[number + 1].name if number + 1 < len(records) else None
        _sample(base, head, record, after, pair, rng)
        record.pair_s = time.monotonic() - begin


def _sample(
    base: Side, head: Side, record: Record, after: str | None, pair: int, rng: random.Random
) -> None:
    """Add a sample to ``record``, or the error that a side ended with."""
    blocks: dict[Side, list[float]] = {base: [], head: []}
    begun: list[Side] = []
    heads_first, round_s = [], math.inf
    side = base
    try:
        for side in (base, head):
            about = side.begin(record.name, after)
            begun.append(side)
            round_s = min(round_s, *side.block(1, 2))  # numba compiles in the untimed round
        if not record.turns:
            record.group = about["group"]
            record.yardstick = bool(about["extra_info"].get("yardstick", False))
            record.rounds = math.ceil(BLOCK_S / round_s)
            turns = math.ceil(TURNS_S / (round_s * record.rounds))
            record.turns = min(max(turns, FEWEST_TURNS), MOST_TURNS)
        # The caches hold the other side's data by now, so one round is untimed; a block of a single
        # round is so long that its own bytes soon replace them.
        untimed = int(record.rounds > 1)
        for _ in range(record.turns):
            heads_first.append(rng.random() < 0.5)
            for side in (head, base) if heads_first[-1] else (base, head):
                blocks[side].append(float(np.median(side.block(untimed, record.rounds))))
        for side in (base, head):
            begun.remove(side)
            side.end()
    except BenchmarkError as error:
        if side is base:
            record.base_error = str(error)
        else:
            record.head_error = str(error)
        for other in begun:
            if other is not side:
                with suppress(BenchmarkError):
                    other.end()
        return
    record.samples.append(
        Sample(pair, tuple(blocks[base]), tuple(blocks[head]), tuple(heads_first))
    )


def worth_more(
    records: Sequence[Record], left_s: float, threshold: float = THRESHOLD
) -> list[Record]:
    """Return the benchmarks that the next pair of processes runs within ``left_s`` seconds.

    All run until each has ``MIN_PAIRS`` (none if time is short), then those not SAME, up to
    ``MOST_PAIRS``: that cannot raise a false alarm, and SLOW is judged only at the end. If time is
    short for those, the ones that differ most go on: one SLOW is worth more than many doubts.
    """
    runnable = [record for record in records if record.runs]
    if any(len(record.samples) < MIN_PAIRS for record in runnable):
        return runnable if cost_s(runnable) <= left_s else []
    family = len(runnable)
    doubtful = [r for r in runnable if judge(r, family, threshold).word != "SAME"]
    chosen = [record for record in doubtful if len(record.samples) < MOST_PAIRS]
    chosen.sort(key=_evidence, reverse=True)
    while chosen and cost_s(chosen) > left_s:
        chosen.pop()
    return [record for record in records if record in chosen]


def cost_s(records: Sequence[Record]) -> float:
    """Estimate the seconds of a pair of processes for these, from the last pair."""
    return START_S + sum(record.pair_s for record in records)


def _evidence(record: Record) -> float:
    """Return the least logarithm by which the ratio differs from 1, within its interval."""
    return max(math.log(record.ratio.low), -math.log(record.ratio.high))
