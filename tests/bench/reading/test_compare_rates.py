"""How often a comparison cries wolf, and how often it misses one: counted on made-up runs.

A family is what `gatherbench compare` decides by: fourteen cases. Epochs scatter about their
process's own level, and processes about the case's, both with a long tail to the slow side.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.compare.judge import THRESHOLD, judge, judge_exactly

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


def run(
    rng: np.random.Generator, repeats: int, epochs: int, between: float, within: float
) -> pd.Series[float]:
    logs = rng.normal(0, between, (repeats, 1)) + rng.normal(0, within, (repeats, epochs))
    logs += rng.exponential(within / 2, (repeats, epochs))
    index = pd.MultiIndex.from_product([range(repeats), range(epochs)], names=["repeat", "epoch"])
    return pd.Series(np.exp(logs).ravel(), index)


def as_if_independent(values: pd.Series[float]) -> pd.Series[float]:
    """Every epoch a repeat of its own: what pooling the epochs amounts to."""
    index = pd.MultiIndex.from_product([range(len(values)), [0]], names=["repeat", "epoch"])
    return values.set_axis(index)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_runs_rarely_raise_an_alarm(shape: tuple[int, int, float, float]) -> None:
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(FAMILIES):
        words = {judge([(1, run(rng, *shape)), (-1, run(rng, *shape))]).word for _ in range(CASES)}
        alarms += "SLOW" in words
    assert alarms / FAMILIES <= 0.1


def test_the_threshold_is_the_same_ratio_either_way() -> None:
    base = run(np.random.default_rng(8), 3, 3, 0.0, 1e-6)
    new = base * (1 + THRESHOLD + 0.001)
    assert judge([(1, new), (-1, base)]).word == "SLOW"
    assert judge([(1, base), (-1, new)]).word == "FAST"
    near = base * (1 + THRESHOLD - 0.001)
    assert judge([(1, near), (-1, base)]).word == "SAME"
    assert judge([(1, base), (-1, near)]).word == "SAME"


def test_the_interval_is_one_of_95_percent() -> None:
    rng = np.random.default_rng(7)
    pairs = ([run(rng, 10, 1, 0.05, 0.0) for _ in "AB"] for _ in range(200))
    found = [judge([(1, new), (-1, base)]) for base, new in pairs]
    within = sum(one.low <= 1 <= one.high for one in found)
    assert 0.9 <= within / 200 < 1


def test_to_pool_the_epochs_would_raise_many() -> None:
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(FAMILIES):
        pairs = ([run(rng, 3, 10, 0.1, 0.02) for _ in "AB"] for _ in range(CASES))
        words = {judge([(1, as_if_independent(b)), (-1, as_if_independent(a))]).word
                 for a, b in pairs}  # fmt: skip
        alarms += "SLOW" in words
    assert alarms / FAMILIES > 0.5


@pytest.mark.parametrize(
    ("shape", "found"),
    [((3, 3, 0.003, 0.005), 0.99), ((3, 5, 0.005, 0.02), 0.9), ((5, 3, 0.01, 0.02), 0.8)],
    ids=str,
)
def test_a_tenth_more_is_found(shape: tuple[int, int, float, float], found: float) -> None:
    rng = np.random.default_rng(6)
    words = Counter(
        judge([(1, 1.1 * run(rng, *shape)), (-1, run(rng, *shape))]).word for _ in range(200)
    )
    assert words["SLOW"] / 200 >= found
    assert words["FAST"] == 0
    assert words["SAME"] == 0


def test_a_tenth_more_in_much_noise_is_not_called_the_same() -> None:
    rng = np.random.default_rng(7)
    shape = (3, 3, 0.1, 0.1)
    words = Counter(
        judge([(1, 1.1 * run(rng, *shape)), (-1, run(rng, *shape))]).word for _ in range(200)
    )
    assert words["SAME"] <= 2
    assert words["AMBIGUOUS"] >= 150


values = st.lists(st.floats(0.5, 2), min_size=3, max_size=3)
tables = st.lists(values, min_size=1, max_size=4).map(
    lambda rows: pd.Series(
        [x for row in rows for x in row],
        pd.MultiIndex.from_product([range(len(rows)), range(3)], names=["repeat", "epoch"]),
    )
)


@settings(max_examples=80, deadline=None)
@given(base=tables, new=tables, scale=st.sampled_from([1e-6, 3.0, 1e12]))
def test_a_verdict_says_what_its_interval_says(
    base: pd.Series[float], new: pd.Series[float], scale: float
) -> None:
    found = judge([(1, new), (-1, base)])
    assert found.low <= found.high
    if found.word == "SLOW":
        assert found.low > 1 + THRESHOLD
        assert found.ratio > 1
    if found.word == "FAST":
        assert found.high < 1 / (1 + THRESHOLD)
    if found.word == "SAME":
        assert 1 / (1 + THRESHOLD) <= found.low <= found.high <= 1 + THRESHOLD
    assert found.reason
    if min(base.index.levshape[0], new.index.levshape[0]) == 1:
        assert found.word == "AMBIGUOUS"
    # Neither the unit nor what is called better changes what is found.
    scaled = judge([(1, new * scale), (-1, base * scale)])
    assert scaled.ratio == pytest.approx(found.ratio)
    rate = judge([(1, 1 / new), (-1, 1 / base)], more_is_better=True)
    if rate.word in ("SLOW", "FAST") and found.word in ("SLOW", "FAST"):
        assert rate.word == found.word
    assert judge([(1, new), (-1, base)]) == found


def test_a_ratio_of_ratios_takes_out_what_a_machine_is_faster_by() -> None:
    rng = np.random.default_rng(8)
    shape = (5, 3, 0.002, 0.005)
    base, reference = run(rng, *shape), 2 * run(rng, *shape)
    new, other = 0.3 * run(rng, *shape), 0.6 * run(rng, *shape)
    assert judge([(1, new), (-1, base)]).word == "FAST"
    assert judge([(1, new), (-1, base), (-1, other), (1, reference)]).word == "SAME"
    assert judge([(1, 1.2 * new), (-1, base), (-1, other), (1, reference)]).word == "SLOW"


def test_other_work_and_a_lone_repeat_prove_nothing() -> None:
    rng = np.random.default_rng(9)
    one, two = run(rng, 3, 3, 0, 0.01), 2 * run(rng, 3, 3, 0, 0.01)
    busy = judge([(1, two), (-1, one)], busy="other work took 1.5 cores in B")
    assert busy.word == "AMBIGUOUS"
    assert "1.5 cores in B" in busy.reason
    lone = judge([(1, two.loc[[0]]), (-1, one)])
    assert lone.word == "AMBIGUOUS"
    assert "one repeat" in lone.reason


def test_a_rate_is_better_when_it_is_more() -> None:
    rng = np.random.default_rng(10)
    one, two = run(rng, 3, 3, 0, 0.01), 2 * run(rng, 3, 3, 0, 0.01)
    assert judge([(1, two), (-1, one)], more_is_better=True).word == "FAST"
    assert judge([(1, one), (-1, two)], more_is_better=True).word == "SLOW"
    assert judge([(1, one), (-1, two)]).word == "FAST"


def test_a_measured_zero_has_no_ratio() -> None:
    values = run(np.random.default_rng(11), 3, 3, 0, 0.01)
    found = judge([(1, values), (-1, values * 0)])
    assert found.word == "AMBIGUOUS"
    assert np.isnan(found.ratio)


@pytest.mark.parametrize(
    ("base", "new", "more", "word"),
    [
        (2.0, 2.0, False, "SAME"),
        (0.0, 0.0, False, "SAME"),
        (2.0, 2.0001, False, "SLOW"),
        (2.0, 1.9999, False, "FAST"),
        (2.0, 2.0001, True, "FAST"),
        (0.0, 5.0, False, "SLOW"),
        (5.0, 0.0, False, "FAST"),
    ],
)
def test_what_is_computed_is_compared_exactly(
    base: float, new: float, more: bool, word: str
) -> None:
    assert judge_exactly(base, new, more_is_better=more).word == word
