"""The one rule of verdicts: what it says of an interval, how often it cries wolf, what it misses.

A family is what `gatherbench compare` decides by: fourteen cases. Epochs scatter about their
process's own level, and processes about the case's, both with a long tail to the slow side.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from gatherbench.bench.read.stats.interval import Interval, interval_of
from gatherbench.bench.read.stats.judge import Judgement, judge, judge_exactly

CASES = 14
FAMILIES = 40
#: Repeats, epochs, scatter of processes and of epochs (standard deviations of the logarithm).
SHAPES = [
    (2, 3, 0.01, 0.02),
    (2, 3, 0.10, 0.10),
    (3, 2, 0.005, 0.01),
    (3, 3, 0.03, 0.05),
    (3, 3, 0.30, 0.10),
    (5, 5, 0.10, 0.30),
]


Array = NDArray[np.float64]


def run(
    rng: np.random.Generator, repeats: int, epochs: int, between: float, within: float
) -> Array:
    """The logarithm of each repeat's median epoch."""
    logs = rng.normal(0, between, (repeats, 1)) + rng.normal(0, within, (repeats, epochs))
    logs += rng.exponential(within / 2, (repeats, epochs))
    return np.median(logs, axis=1)


def pooled(rng: np.random.Generator, repeats: int, epochs: int, between: float) -> Array:
    """Every epoch a repeat of its own: what pooling the epochs amounts to."""
    return (rng.normal(0, between, (repeats, 1)) + rng.normal(0, 0.02, (repeats, epochs))).ravel()


def compared(new: ArrayLike, base: ArrayLike, **more: Any) -> Judgement:
    return judge(interval_of((1, new), (-1, base)), **more)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.051, 1.3, "SLOW"),
        (1.049, 1.3, "AMBIGUOUS"),
        (0.8, 0.952, "FAST"),
        (0.8, 0.953, "AMBIGUOUS"),
        (0.953, 1.049, "SAME"),
        (0.951, 1.049, "AMBIGUOUS"),
        (0.953, 1.051, "AMBIGUOUS"),
        (0.5, 2.0, "AMBIGUOUS"),
    ],
)
def test_the_whole_interval_decides(low: float, high: float, word: str) -> None:
    """With a threshold of 5 % level is what lies within 1 / 1.05 = 0.9524 and 1.05."""
    ratio = Interval(math.sqrt(low * high), low, high, 6, 0.01)
    assert judge(ratio, threshold=0.05).word == word
    better = {"SLOW": "FAST", "FAST": "SLOW"}.get(word, word)
    assert judge(ratio, threshold=0.05, more_is_better=True).word == better
    beside = judge(ratio, threshold=0.05, busy="other work had 1.0 cores in A")
    assert beside.word == ("AMBIGUOUS" if word in ("SLOW", "FAST") else word)
    assert ("idle machine" in beside.reason) == (word in ("SLOW", "FAST"))


def test_one_of_many_has_to_be_surer() -> None:
    ratio = Interval(1.2, 1.06, 1.36, 6, chance=0.01)
    assert judge(ratio, family=5).word == "SLOW"
    several = judge(ratio, family=6)
    assert (several.word, several.reason[:8]) == ("AMBIGUOUS", "one of 6")


@pytest.mark.parametrize(
    ("low", "high", "side"),
    [(0.99, 1.2, "worse"), (0.8, 1.01, "better"), (0.8, 1.2, "worse or better")],
)
def test_what_is_not_decided_says_on_which_side(low: float, high: float, side: str) -> None:
    assert judge(Interval(1.0, low, high, 6)).reason.startswith(f"perhaps {side} by more than 5%")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_runs_rarely_raise_an_alarm(shape: tuple[int, int, float, float]) -> None:
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(FAMILIES):
        pairs = ([run(rng, *shape) for _ in "AB"] for _ in range(CASES))
        alarms += "SLOW" in {compared(new, base, family=CASES).word for base, new in pairs}
    assert alarms / FAMILIES <= 0.05


def test_to_pool_the_epochs_would_raise_many() -> None:
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(FAMILIES):
        pairs = ([pooled(rng, 3, 10, 0.1) for _ in "AB"] for _ in range(CASES))
        alarms += "SLOW" in {compared(new, base, family=CASES).word for base, new in pairs}
    assert alarms / FAMILIES > 0.5


@pytest.mark.parametrize(
    ("shape", "found"),
    [((3, 3, 0.003, 0.005), 0.99), ((3, 5, 0.005, 0.02), 0.8), ((6, 3, 0.01, 0.02), 0.8)],
    ids=str,
)
def test_a_tenth_more_is_found(shape: tuple[int, int, float, float], found: float) -> None:
    rng = np.random.default_rng(6)
    words = Counter(
        compared(run(rng, *shape) + math.log(1.1), run(rng, *shape)).word for _ in range(200)
    )
    assert words["SLOW"] / 200 >= found
    assert words["FAST"] == 0
    assert words["SAME"] == 0


def test_a_tenth_more_in_much_noise_is_not_called_the_same() -> None:
    rng = np.random.default_rng(7)
    shape = (3, 3, 0.1, 0.1)
    words = Counter(
        compared(run(rng, *shape) + math.log(1.1), run(rng, *shape)).word for _ in range(200)
    )
    assert words["SAME"] <= 2
    assert words["AMBIGUOUS"] >= 150


values = st.lists(st.floats(-1, 1), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(base=values, new=values, shift=st.sampled_from([-14.0, 1.1, 28.0]))
def test_neither_the_unit_nor_the_word_for_better_changes_a_verdict(
    base: list[float], new: list[float], shift: float
) -> None:
    found = compared(new, base)
    assert found.reason
    if min(len(base), len(new)) == 1:
        assert found.word == "AMBIGUOUS"
    scaled = compared(np.add(new, shift), np.add(base, shift))
    assert scaled.interval.value == pytest.approx(found.interval.value)
    rate = compared(np.negative(new), np.negative(base), more_is_better=True)
    assert rate.word == found.word


def test_a_ratio_of_ratios_takes_out_what_a_machine_is_faster_by() -> None:
    rng = np.random.default_rng(8)
    shape = (5, 3, 0.002, 0.005)
    base, reference = run(rng, *shape), run(rng, *shape) + math.log(2)
    new, other = run(rng, *shape) + math.log(0.3), run(rng, *shape) + math.log(0.6)

    def over(new: Array) -> str:
        return judge(interval_of((1, new), (-1, base), (-1, other), (1, reference))).word

    assert compared(new, base).word == "FAST"
    assert over(new) == "SAME"
    assert over(new + math.log(1.2)) == "SLOW"


def test_what_is_computed_differs_beyond_rounding_alone() -> None:
    assert judge_exactly(3.0, 3.0 * (1 + 1e-12)).word == "SAME"
    assert judge_exactly(3.0, 3.001).word == "SLOW"
    assert judge_exactly(3.0, 3.001, more_is_better=True).word == "FAST"
    assert judge_exactly(2.0, 3.0).interval == Interval(1.5, 1.5, 1.5, 1)
    assert math.isnan(judge_exactly(0.0, 1.0).interval.value)
