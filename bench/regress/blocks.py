"""Pairs of processes, block by block in turn: which benchmark runs when, and what the pairs say.

Processes differ by where their memory and threads happen to lie, and no number of rounds within one
process shows that. So one pair of processes follows another. Within a pair each benchmark runs in
many short blocks, the two sides in turn, in an order drawn anew each time. The median over ratios
of neighbouring blocks then holds neither a drift of the machine nor a burst of other work.

A pair gives one logarithm of a ratio, the head's time over the base's. The pairs are repeats,
judged by the rule of every verdict (:mod:`gatherbench.stats.judge`) as one family: fewer
than 5 % of the comparisons of equal code say SLOW of any of their benchmarks. SLOW and FAST become
AMBIGUOUS where a yardstick has moved in the same direction: a benchmark of the same group that runs
none of our code.
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

#: The smallest difference of a benchmark that matters, as a share: then 10 % more is found in 12
#: pairs of processes that differ by 2 % among themselves, every time (simulated, 20 benchmarks a
#: run). Whole runs in turn, five of each tree, find it in two of three on a quiet machine and one
#: of sixteen where the machine's speed changes by 5 % from minute to minute.
THRESHOLD = 0.05
#: Fewer pairs say too little of how much processes differ.
MIN_PAIRS = 6
#: By then a benchmark that cannot be judged is too noisy for this machine.
MOST_PAIRS = 16
#: How long a block takes at least, unless one round of it takes longer.
BLOCK_S = 0.004
#: Blocks of each side in a pair: as many as take so long together, in these bounds.
TURNS_S, FEWEST_TURNS, MOST_TURNS = 0.1, 7, 15
#: About what two processes take that import torch and collect.
START_S = 6.0
NOT_THERE = "not there"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one benchmark; ``ratio`` is of head to base, where both ran often enough."""

    word: Word
    reason: str
    ratio: Interval | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What a pair of processes found: medians of neighbouring blocks, s, the base's and the head's.

    ``head_first`` holds which of the two came first.
    """

    pair: int
    base_s: tuple[float, ...]
    head_s: tuple[float, ...]
    head_first: tuple[bool, ...]

    @property
    def log_ratio(self) -> float:
        """Of head to base: the median over neighbours."""
        return float(np.median(np.log(self.head_s) - np.log(self.base_s)))


@dataclass(slots=True, eq=False)
class Record:
    """What is known of one benchmark; the errors say why a side has no times."""

    name: str
    base_error: str = ""
    head_error: str = ""
    group: str | None = None
    yardstick: bool = False
    #: Of a block, and blocks of each side in a pair; not known before it has run.
    rounds: int = 0
    turns: int = 0
    samples: list[Sample] = field(default_factory=list)
    #: What the last pair took for it, seconds, with its tables and checks.
    pair_s: float = 0.0

    @property
    def test(self) -> str:
        """Its name without the file's."""
        return self.name.rpartition("::")[2]

    @property
    def runs(self) -> bool:
        return not self.base_error and not self.head_error

    @property
    def ratio(self) -> Interval:
        """Of head to base, each pair a repeat."""
        return interval_of((1, [sample.log_ratio for sample in self.samples]))

    @property
    def base_median_s(self) -> float:
        """Median over pairs of what a round took on the base; there must have been one."""
        return float(np.median([block for sample in self.samples for block in sample.base_s]))

    def one_sided(self) -> Verdict:
        """The verdict where a side has no times."""
        if self.head_error == NOT_THERE:
            return Verdict("MISSING", "not in this tree")
        if self.head_error:
            return Verdict("FAILED", self.head_error)
        return Verdict("NEW", f"the base cannot run it: {self.base_error}")


def judge_all(records: Sequence[Record], threshold: float = THRESHOLD) -> list[Verdict]:
    """A verdict each: by the rule where both sides ran, else which did not and why."""
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
    """The verdict on one benchmark of ``family``, whatever the yardsticks did."""
    count = len(record.samples)
    if count < MIN_PAIRS:
        ratio = record.ratio if count else None
        return Verdict("AMBIGUOUS", f"{count} of at least {MIN_PAIRS} pairs", ratio)
    found = judge_ratio(record.ratio, threshold=threshold, family=family)
    return Verdict(found.word, found.reason, found.interval)


def records_of(base: Side, head: Side, only: str = "") -> list[Record]:
    """The benchmarks of both sides that have ``only`` in their names.

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
    """A sample of every benchmark of ``records`` by one process of each side."""
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
            round_s = min(round_s, *side.block(1, 2))  # numba compiles in the untimed one
        if not record.turns:
            record.group = about["group"]
            record.yardstick = bool(about["extra_info"].get("yardstick", False))
            record.rounds = math.ceil(BLOCK_S / round_s)
            turns = math.ceil(TURNS_S / (round_s * record.rounds))
            record.turns = min(max(turns, FEWEST_TURNS), MOST_TURNS)
        # The caches are the other side's by now: one round untimed, unless a round is so long that
        # its own bytes soon replace them.
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
    """The benchmarks of the next pair of processes, for which ``left_s`` seconds are left.

    All until each has ``MIN_PAIRS``, then those that are not SAME: to stop there cannot raise a
    false alarm, and nothing stops at SLOW, which is judged at the end. Where time will not do for
    all of those, the ones that differ most go on: SLOW of one is worth more than doubt about many.
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
    """What a pair of processes will take for these, by what the last one took."""
    return START_S + sum(record.pair_s for record in records)


def _evidence(record: Record) -> float:
    """By how much the ratio differs from 1 at the least, as a logarithm."""
    return max(math.log(record.ratio.low), -math.log(record.ratio.high))
