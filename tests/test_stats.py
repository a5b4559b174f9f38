"""Intervals and verdicts: by hand, how often they cover or cry wolf, and what they miss."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from gatherbench.stats.interval import Interval, Logs, interval_of, ratio_of
from gatherbench.stats.judge import Judgement, judge, judge_exactly

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator], Array]
logs = st.lists(st.floats(-2, 2), min_size=1, max_size=8)


def compared(new: ArrayLike, base: ArrayLike, **more: Any) -> Judgement:
    return judge(ratio_of(new, base), **more)


# ---- intervals -----------------------------------------------------------------------------------


def test_of_one_series_it_is_students():
    """Mean 0.1, standard deviation 0.1, and t(2) at 97.5 % is 4.3027."""
    found = interval_of([0.0, 0.1, 0.2])
    reach = 4.3027 * 0.1 / math.sqrt(3)
    ends = [math.exp(0.1 + sign * reach) for sign in (0, -1, 1)]
    assert found.ends == pytest.approx(ends, rel=1e-4)
    assert found.repeats == 3
    assert found.half_width == pytest.approx(math.exp(reach) - 1, rel=1e-4)
    assert found.chance == pytest.approx(0.2254, abs=1e-4), "t = 1.732 with two degrees of freedom"


@pytest.mark.parametrize(
    ("one", "other", "variances", "t"),
    [
        # Welch: 2.16 degrees of freedom.
        ([0.0, 0.1, 0.2], [0.0, 0.0, 0.04, 0.04], (0.01 / 3, 0.0016 / 12), 4.0026),
        # Two repeats have one degree of freedom.
        ([0.0, 0.1], [0.0, 0.2], (0.005 / 2, 0.02 / 2), 12.706),
        ([0.0, 0.1], [0.0, 0.2] * 5, (0.005 / 2, 0.1 / 9 / 10), 12.706),
    ],
)
def test_of_a_ratio_it_is_welchs(one, other, variances, t):
    found = ratio_of(one, other)
    assert found.value == pytest.approx(math.exp(np.mean(one) - np.mean(other)))
    reach = t * math.sqrt(sum(variances))
    assert math.log(found.high / found.value) == pytest.approx(reach, rel=2e-3)
    assert math.log(found.value / found.low) == pytest.approx(reach, rel=2e-3)
    assert found.repeats == min(len(one), len(other))


def test_one_repeat_bounds_nothing_and_none_is_refused():
    found = ratio_of([0.3], [0.1, 0.2, 0.3])
    assert (found.low, found.high, found.repeats) == (0.0, math.inf, 1)
    assert found.ends == pytest.approx((math.exp(0.1), math.nan, math.nan), nan_ok=True)
    assert found.half_width == found.inverse.high == math.inf
    with pytest.raises(ValueError, match="no repeat"):
        ratio_of([0.1], [])


def test_equal_repeats_have_no_width():
    found = ratio_of([0.2] * 3, [0.1] * 3)
    assert found.low == pytest.approx(found.value) == found.high
    assert ratio_of([0.1] * 3, [0.1] * 3).chance == 1
    assert ratio_of([0.5] * 3, [0.25] * 3).chance == 0


# ---- paths that took turns -----------------------------------------------------------------------


def turns(*processes: Sequence[float], first: float = 1.0) -> Logs:
    """A path whose epochs these are, block by block of each process."""
    blocks = {first + p: dict(enumerate(of)) for p, of in enumerate(processes)}
    return Logs([float(np.median(of)) for of in processes], blocks)


#: The second process is slower by 2, and its second block by 0.4 more.
ONE = turns([1.0, 1.2], [3.0, 3.4])
OTHER = turns([0.9, 1.1], [2.7, 3.1])


def test_paths_that_took_turns_are_paired_within_their_blocks():
    """0.1 in both blocks of one process, 0.3 in those of the other: their mean is 0.2, and their
    standard error 0.1. With one degree of freedom t is 12.706."""
    found = ratio_of(ONE, OTHER)
    assert (found.value, found.repeats) == (pytest.approx(math.exp(0.2)), 2)
    assert math.log(found.high / found.value) == pytest.approx(1.2706, rel=1e-4)
    assert found.chance == pytest.approx(0.2952, abs=1e-4), "t = 2 with one degree of freedom"
    apart = ratio_of(list(ONE), list(OTHER))
    assert math.log(apart.high / apart.value) > 10, "processes are not 0.2 apart but 2"


def test_a_block_that_one_path_lacks_is_in_no_pair():
    """0.5 in the block that they share. The other one alone would have it 0.25."""
    assert ratio_of(turns([1.0, 9.0], [1.0]), turns([0.5], [0.5, 7.0])).value == pytest.approx(
        math.exp(0.5)
    )


def test_blocks_of_other_processes_are_no_pairs():
    """The same numbers of blocks, in processes of their own: Welch's interval, over medians."""
    elsewhere = turns([0.9, 1.1], [2.7, 3.1], first=10)
    assert ratio_of(ONE, elsewhere) == ratio_of(list(ONE), list(elsewhere))
    once = turns([0.9, 1.1], [2.7, 3.1], first=2)  # its first process is the second of the other
    assert ratio_of(ONE, once) == ratio_of(list(ONE), list(once))


def test_one_process_has_a_ratio_and_no_interval():
    found = ratio_of(turns([1.5, 1.7, 1.6]), turns([1.0, 1.0]))
    assert (found.value, found.low, found.high) == (pytest.approx(math.exp(0.6)), 0, math.inf)
    assert found.inverse.high == math.inf
    assert judge(found).word == "AMBIGUOUS"


# ---- series of known truth -----------------------------------------------------------------------

#: Epochs of a process, and paths that are compared on one workload.
EPOCHS, RIVALS = 3, 5


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviations of the logarithm: between processes, and of the epochs within one.

    ``tail``: share of the processes that are slower by a tenth, as those are that some burst met.
    """

    between: float
    within: float
    tail: float = 0.0

    def draw(self, rng: np.random.Generator, repeats: int) -> Array:
        """The logarithm of each repeat's median epoch, of a series whose true one is 0."""
        levels = rng.normal(0, self.between, (repeats, 1))
        levels += math.log(1.1) * (rng.random((repeats, 1)) < self.tail)
        epochs = levels + rng.normal(0, self.within, (repeats, EPOCHS))
        medians: Array = np.median(epochs, axis=1)
        return medians


SPREADS = (
    Spread(0.01, 0.03),
    Spread(0.03, 0.01),
    Spread(0.055, 0.041),
    Spread(0.03, 0.01, tail=0.1),
)


def of_size(spread: Spread, repeats: int) -> Draw:
    """Series of so many repeats; with 0 they are measured until their interval is within 3 %."""

    def stopped(rng: np.random.Generator) -> Array:
        drawn = spread.draw(rng, 10)
        precise = (n for n in range(6, 10) if interval_of(drawn[:n]).half_width <= 0.03)
        return drawn[: next(precise, 10)]

    return (lambda rng: spread.draw(rng, repeats)) if repeats else stopped


def share_covered(ratios: Sequence[Interval]) -> float:
    """Of the intervals of a ratio of two equal series: how many hold 1."""
    return sum(ratio.low <= 1 <= ratio.high for ratio in ratios) / len(ratios)


@dataclass(frozen=True, slots=True)
class Side:
    """Standard deviations of the logarithm where paths take turns in one process: of what all paths
    share in a process, of a path in a process, which no number of blocks tells, and of one epoch.

    ``tail``: share of the epochs that are slower by a tenth.
    """

    process: float
    path: float
    epoch: float
    tail: float = 0.0

    def draw(self, rng: np.random.Generator, processes: int) -> list[Logs]:
        """Every epoch of two equally fast paths, in ten blocks of each process."""
        shape = (processes, 10, 2)
        logs = rng.normal(0, self.process, (processes, 1, 1))
        logs = logs + rng.normal(0, 0.03, (processes, 10, 1))
        logs = logs + rng.normal(0, self.path, (processes, 1, 2))
        logs = logs + rng.normal(0, self.epoch, shape)
        logs += math.log(1.1) * (rng.random(shape) < self.tail)
        return [turns(*logs[:, :, path].tolist()) for path in range(2)]


SIDES = (
    Side(0.16, 0.0, 0.08),
    Side(0.16, 0.02, 0.08),
    Side(0.055, 0.02, 0.041),
    Side(0.055, 0.02, 0.041, tail=0.1),
)


@pytest.mark.parametrize("side", SIDES, ids=repr)
def test_the_interval_of_paired_blocks_covers_the_truth(side):
    rng = np.random.default_rng(2)
    for processes in (3, 6):
        drawn = [ratio_of(*side.draw(rng, processes)) for _ in range(400)]
        assert share_covered(drawn) >= 0.92


def test_blocks_that_are_pooled_or_paired_across_processes_are_found_out():
    """Wrong on purpose: every block a repeat of its own, whatever its process; and blocks paired
    with those of another process, where what they share stays in the ratio."""
    rng, side = np.random.default_rng(3), Side(0.16, 0.04, 0.02)
    covered_by_pooled, wide = 0, []
    for _ in range(300):
        one, other = side.draw(rng, 4)
        a, b = (np.array([list(of.values()) for of in x.blocks.values()]) for x in (one, other))
        pooled = interval_of((a - b).ravel())
        covered_by_pooled += pooled.low <= 1 <= pooled.high
        across = interval_of((a - np.roll(b, 1, axis=0)).mean(axis=1))
        wide.append(across.half_width / ratio_of(one, other).half_width)
    assert covered_by_pooled / 300 < 0.7
    assert np.median(wide) > 3


@given(mine=logs, other=logs, shift=st.sampled_from([-14.0, 0.0, 28.0]))
def test_neither_direction_nor_unit_changes_a_verdict(mine, other, shift):
    there, back = ratio_of(np.add(mine, shift), np.add(other, shift)), ratio_of(other, mine)
    assert there.low <= there.value <= there.high
    inverse = there.inverse
    assert (inverse.low, inverse.value, inverse.high) == pytest.approx(
        (back.low, back.value, back.high), rel=1e-6
    )
    assert judge(back, more_is_better=True).word == judge(there).word
    if min(len(mine), len(other)) == 1:
        assert judge(there).word == "AMBIGUOUS"


@pytest.mark.parametrize("spread", SPREADS[::3], ids=repr)
@pytest.mark.parametrize(
    ("repeats", "least"), [((3, 3), 0.93), ((5, 10), 0.93), ((2, 10), 0.95), ((0, 0), 0.92)]
)
def test_it_covers_in_95_of_100_cases(spread, repeats, least):
    """1500 draws: 93 to 97 % are 3.5 standard errors from 95 %. 0 repeats: until it is precise."""
    rng, (mine, other) = np.random.default_rng(3), (of_size(spread, n) for n in repeats)
    share = share_covered([ratio_of(mine(rng), other(rng)) for _ in range(1500)])
    assert least <= share
    assert share <= 0.98 or 2 in repeats


@pytest.mark.parametrize("repeats", [2, 3, 0])
def test_equal_paths_have_no_winner(repeats):
    for spread in SPREADS:
        rng, draw, named = np.random.default_rng(6), of_size(spread, repeats), 0
        for _ in range(150):
            paths = sorted((draw(rng) for _ in range(RIVALS)), key=np.mean)
            named += all(compared(path, paths[0]).word == "SLOW" for path in paths[1:])
        assert named / 150 < 0.05


# ---- the one rule of verdicts --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "word", "side"),
    [
        (1.051, 1.3, "SLOW", ""),
        (1.049, 1.3, "AMBIGUOUS", "worse"),
        (0.8, 0.952, "FAST", ""),
        (0.8, 0.953, "AMBIGUOUS", "better"),
        (0.953, 1.049, "SAME", ""),
        (0.951, 1.049, "AMBIGUOUS", "better"),
        (0.953, 1.051, "AMBIGUOUS", "worse"),
        (0.5, 2.0, "AMBIGUOUS", "worse or better"),
    ],
)
def test_the_whole_interval_decides(low, high, word, side):
    """With a threshold of 5 % level is what lies within 1 / 1.05 = 0.9524 and 1.05."""
    ratio = Interval(math.sqrt(low * high), low, high, 6, 0.01)
    found = judge(ratio, threshold=0.05)
    assert found.word == word
    assert not side or found.reason.startswith(f"perhaps {side} by more than 5%")
    better = {"SLOW": "FAST", "FAST": "SLOW"}.get(word, word)
    assert judge(ratio, threshold=0.05, more_is_better=True).word == better
    beside = judge(ratio, threshold=0.05, busy="other work had 1.0 cores in A")
    assert beside.word == ("AMBIGUOUS" if word == "FAST" else word)
    told = "other work had 1.0 cores in A: run again on an idle machine" in beside.reason
    assert told == (word in ("FAST", "SLOW"))
    assert ("idle machine" in beside.reason) == (word in ("SLOW", "FAST"))


@pytest.mark.parametrize(
    ("low", "high", "repeats", "word"),
    [
        (1.3, 1.4, 2, "SLOW"),  # two repeats may decide, one may not
        (1.3, 1.4, 1, "AMBIGUOUS"),
        (0.8, 1.25, 6, "SAME"),  # an end on the threshold: 4 / 5 and 5 / 4 are exact
        (1.25, 2.0, 6, "AMBIGUOUS"),
        (0.5, 0.8, 6, "AMBIGUOUS"),
    ],
)
def test_two_repeats_decide_and_an_end_on_the_threshold_is_within(low, high, repeats, word):
    assert judge(Interval(1.0, low, high, repeats, 0.01), threshold=0.25).word == word


def test_one_of_many_has_to_be_surer():
    ratio = Interval(1.2, 1.06, 1.36, 6, chance=0.01)
    assert judge(ratio, family=5).word == "SLOW"  # 5 × 0.01 is the chance that is allowed
    several = judge(ratio, family=6)
    assert (several.word, several.reason[:8]) == ("AMBIGUOUS", "one of 6")


def alarms(spread: Spread, *, pooled: bool) -> float:
    """Share of families of 14 equal pairs in which one looks slower."""
    rng, found = np.random.default_rng(5), 0

    def draw() -> ArrayLike:
        medians = spread.draw(rng, 3)  # pooled: every epoch a repeat of its own
        return np.repeat(medians, 10) + rng.normal(0, 0.02, 30) if pooled else medians

    for _ in range(40):
        found += "SLOW" in {compared(draw(), draw(), family=14).word for _ in range(14)}
    return found / 40


def test_equal_runs_rarely_raise_an_alarm():
    assert alarms(Spread(0.01, 0.02), pooled=False) <= 0.05
    assert alarms(Spread(0.3, 0.1), pooled=False) <= 0.05
    assert alarms(Spread(0.1, 0.02), pooled=True) > 0.5, "to pool the epochs would"


@pytest.mark.parametrize(
    ("spread", "repeats", "slow", "same"),
    [
        (Spread(0.003, 0.005), 3, (0.99, 1), 0),
        (Spread(0.01, 0.02), 6, (0.8, 1), 0),
        (Spread(0.1, 0.1), 3, (0, 0.25), 0.01),
    ],
    ids=repr,
)
def test_a_tenth_more_is_found_or_not_decided(spread, repeats, slow, same):
    rng = np.random.default_rng(6)
    tenth = math.log(1.1)
    words = [
        compared(spread.draw(rng, repeats) + tenth, spread.draw(rng, repeats)).word
        for _ in range(200)
    ]
    assert slow[0] <= words.count("SLOW") / 200 <= slow[1]
    assert words.count("SAME") / 200 <= same


def test_of_computed_values_any_difference_beyond_rounding_counts_in_its_direction():
    words = {
        (new, better): judge_exactly(2.0, new, more_is_better=better).word
        for new in (1.9, 2.0, 2.0 * (1 + 1e-12), 2.001)
        for better in (False, True)
    }
    assert words == {
        (1.9, False): "FAST", (2.0, False): "SAME", (2.0 * (1 + 1e-12), False): "SAME",
        (1.9, True): "SLOW", (2.0, True): "SAME", (2.0 * (1 + 1e-12), True): "SAME",
        (2.001, False): "SLOW", (2.001, True): "FAST",
    }  # fmt: skip
    assert judge_exactly(2.0, 3.0).interval == Interval(1.5, 1.5, 1.5, 1)
    assert math.isnan(judge_exactly(0.0, 1.0).interval.value)
