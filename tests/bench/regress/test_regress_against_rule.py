"""The rule over pairs: what it says, and how often it errs on a simulated machine."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from gatherbench.bench.regress.blocks import (
    MIN_PAIRS,
    MOST_PAIRS,
    Record,
    Sample,
    judge,
    judge_all,
    run_pair,
    worth_more,
)
from gatherbench.bench.regress.sides import BenchmarkError

Machine = Callable[[float], float]


def sampled(name: str, log_ratios: Iterable[float], group: str = "", **more: Any) -> Record:
    record = Record(name, turns=1, rounds=1, group=group, **{"pair_s": 1.0, **more})
    for pair, log_ratio in enumerate(log_ratios):
        record.samples.append(Sample(pair, (1.0,), (math.exp(log_ratio),), (False,)))
    return record


def test_too_few_pairs_decide_nothing() -> None:
    verdict = judge(sampled("x", [1.0] * (MIN_PAIRS - 1)), 1)
    assert (verdict.word, verdict.reason) == ("AMBIGUOUS", "5 of at least 6 pairs")
    assert judge(sampled("x", [1.0] * MIN_PAIRS), 1).word == "SLOW"


@pytest.mark.parametrize(
    ("ratio", "spread", "count", "family", "word"),
    [
        (1.0, 0.02, 6, 50, "SAME"),
        (1.0, 0.5, 16, 50, "AMBIGUOUS"),
        (1.05, 0.01, 6, 50, "SAME"),
        (1.2, 0.02, 6, 1, "SLOW"),
        (1.2, 0.02, 6, 50, "SLOW"),
        (1.2, 0.1, 6, 50, "AMBIGUOUS"),
        (1.0 / 1.2, 0.02, 12, 50, "FAST"),
        (1.1, 0.02, 12, 50, "AMBIGUOUS"),
    ],
)
def test_words(ratio: float, spread: float, count: int, family: int, word: str) -> None:
    centred = np.linspace(-spread, spread, count)
    verdict = judge(sampled("x", math.log(ratio) + centred), family)
    assert verdict.word == word, verdict.reason
    assert verdict.ratio == pytest.approx(ratio)


def test_a_yardstick_that_moves_the_same_way_takes_slow_back() -> None:
    slow, fast = [0.5] * 12, [-0.5] * 12
    ours, other = sampled("b.py::ours", slow, "gather"), sampled("b.py::else", slow, "other")
    for marks, word in ((slow, "AMBIGUOUS"), ([0.0] * 12, "SLOW"), (fast, "SLOW")):
        mark = sampled("b.py::torch", marks, "gather", yardstick=True)
        verdicts = judge_all([ours, mark, other])
        assert [verdicts[0].word, verdicts[2].word] == [word, "SLOW"]
    (moved,) = judge_all([sampled("b.py::torch", slow, "gather", yardstick=True)])
    assert moved.word == "AMBIGUOUS"
    assert "not our code" in moved.reason


class Clock:
    """Time on a simulated machine, whose ``speed`` stretches what runs on it."""

    def __init__(self, speed: Machine, seed: int) -> None:
        self.now_s, self.speed = 0.0, speed
        self.rng = np.random.default_rng(seed)


class Simulated:
    """A side whose rounds take ``cost_s``, and whose processes differ among themselves."""

    items, uncollected = ("x",), ()

    def __init__(self, clock: Clock, cost_s: float, process_spread: float = 0.02) -> None:
        self._clock = clock
        self._cost_s = cost_s * math.exp(clock.rng.normal(0, process_spread))
        self.fails = False

    def begin(self, name: str, after: str | None) -> dict[str, object]:
        return {"group": None, "extra_info": {}}

    def block(self, untimed: int, rounds: int) -> list[float]:
        if self.fails:
            raise BenchmarkError("it broke")
        times_s = []
        for _ in range(untimed + rounds):
            tail = self._clock.rng.lognormal(0, 0.1)
            seconds = self._cost_s * self._clock.speed(self._clock.now_s) * tail
            self._clock.now_s += seconds
            times_s.append(float(seconds))
        return times_s[untimed:]

    def end(self) -> None:
        self._clock.now_s += self._cost_s


def verdict_of(machine: Machine, head_s: float, seed: int, pairs: int = 12) -> str:
    clock, rng = Clock(machine, seed), random.Random(seed)

    @contextmanager
    def opened() -> Iterator[tuple[Any, Any]]:
        yield Simulated(clock, 0.010), Simulated(clock, head_s)

    record = Record("x", rounds=1, turns=9)
    for pair in range(pairs):
        run_pair(opened, [record], pair, rng)
    return judge(record, 50).word


MACHINES: dict[str, Machine] = {
    "steady": lambda now_s: 1.0,
    "drifts to half its speed": lambda now_s: 1 + now_s / 3,
    "a slow phase in the middle": lambda now_s: 1.7 if 0.8 < now_s < 1.6 else 1.0,
    "bursts": lambda now_s: 3.0 if math.sin(1000 * now_s) > 0.8 else 1.0,
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())
def test_what_slows_the_machine_down_is_not_blamed_on_the_code(machine: Machine) -> None:
    words = [verdict_of(machine, 0.010, seed) for seed in range(40)]
    assert not {"SLOW", "FAST"} & set(words)
    assert words.count("SAME") >= 15


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())
def test_a_quarter_more_is_found_all_the_same(machine: Machine) -> None:
    words = [verdict_of(machine, 0.0125, seed) for seed in range(20)]
    assert words.count("SLOW") >= 12
    assert "SAME" not in words
    assert "FAST" not in words


def test_one_run_after_the_other_would_have_blamed_the_code() -> None:
    """The machine of the slow phase fools a comparison that does not take turns."""
    clock = Clock(MACHINES["a slow phase in the middle"], 0)
    base, head = Simulated(clock, 0.010), Simulated(clock, 0.010)
    alone = np.median(base.block(0, 80)), np.median(head.block(0, 40))
    assert alone[1] / alone[0] > 1.3


def names(records: list[Record]) -> list[str]:
    return [record.name for record in records]


def test_all_go_on_until_each_has_enough_then_those_in_doubt() -> None:
    same = sampled("same", [0.0] * MIN_PAIRS)
    slow = sampled("slow", [0.3] * MIN_PAIRS)
    late = sampled("late", [0.0] * (MIN_PAIRS - 1))
    new = Record("new", base_error="not there")
    assert names(worth_more([same, slow, late, new], 1e3, 0.1)) == ["same", "slow", "late"]
    late.samples.append(late.samples[0])
    assert names(worth_more([same, slow, late, new], 1e3, 0.1)) == ["slow"]
    done = sampled("done", [0.3] * MOST_PAIRS)
    assert worth_more([same, done], 1e3, 0.1) == []


def test_too_little_time_for_all_goes_to_what_differs_most() -> None:
    rest = [sampled(f"same {number}", [0.0] * MIN_PAIRS) for number in range(48)]
    noisy = sampled("noisy", [-0.9, 0.9, -0.5, 0.5, -0.2, 0.2], pair_s=30)
    slow = sampled("slow", [0.3] * MIN_PAIRS, pair_s=1)
    assert names(worth_more([*rest, noisy, slow], 30.0, 0.1)) == ["slow"]
    assert names(worth_more([*rest, noisy, slow], 900.0, 0.1)) == ["noisy", "slow"]
    assert worth_more([*rest, noisy, slow], 5.0, 0.1) == []


def test_a_benchmark_that_breaks_later_is_named_by_its_side() -> None:
    clock = Clock(lambda now_s: 1.0, 0)
    base, head = Simulated(clock, 0.01), Simulated(clock, 0.01)
    head.fails = True

    @contextmanager
    def opened() -> Iterator[tuple[Any, Any]]:
        yield base, head

    record = Record("x", rounds=1, turns=3)
    run_pair(opened, [record], 1, random.Random(0))
    assert (record.base_error, record.head_error, record.samples) == ("", "it broke", [])
    assert record.one_sided().word == "FAILED"
