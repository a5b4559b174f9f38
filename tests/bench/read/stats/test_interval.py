"""Intervals against numbers worked out by hand, and how often they cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatherbench.bench.read.stats.coverage import (
    SPREADS,
    Spread,
    covered,
    of_size,
    sole_winners,
    stopped,
)
from gatherbench.bench.read.stats.interval import interval_of

logs = st.lists(st.floats(-2, 2), min_size=1, max_size=8)


def test_of_one_series_it_is_students() -> None:
    """Mean 0.1, standard deviation 0.1, and t(2) at 97.5 % is 4.3027."""
    found = interval_of((1, [0.0, 0.1, 0.2]))
    reach = 4.3027 * 0.1 / math.sqrt(3)
    assert found.value == pytest.approx(math.exp(0.1))
    assert found.low == pytest.approx(math.exp(0.1 - reach), rel=1e-4)
    assert found.high == pytest.approx(math.exp(0.1 + reach), rel=1e-4)
    assert found.repeats == 3
    assert found.half_width == pytest.approx(math.exp(reach) - 1, rel=1e-4)
    assert found.chance == pytest.approx(0.2254, abs=1e-4), "t = 1.732 with two degrees of freedom"


def test_of_a_ratio_it_is_welchs() -> None:
    """Variances of the means 0.01 / 3 and 0.0004 / 4: 2.12 degrees of freedom."""
    found = interval_of((1, [0.0, 0.1, 0.2]), (-1, [0.0, 0.0, 0.04, 0.04]))
    variances = 0.01 / 3, (4 * 0.02**2 / 3) / 4
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 2 + variances[1] ** 2 / 3)
    assert freedom == pytest.approx(2.16, abs=0.01)
    reach = 4.0026 * math.sqrt(sum(variances))  # t(2.16) at 97.5 %
    assert found.value == pytest.approx(math.exp(0.1 - 0.02))
    assert math.log(found.high / found.value) == pytest.approx(reach, rel=2e-3)
    assert math.log(found.value / found.low) == pytest.approx(reach, rel=2e-3)
    assert found.repeats == 3


def test_two_repeats_have_one_degree_of_freedom() -> None:
    """t(1) at 97.5 % is 12.706; the means have variances of 0.005 / 2 and 0.02 / 2."""
    found = interval_of((1, [0.0, 0.1]), (-1, [0.0, 0.2]))
    reach = 12.706 * math.sqrt(0.005 / 2 + 0.02 / 2)
    assert math.log(found.high / found.value) == pytest.approx(reach, rel=1e-4)
    several = interval_of((1, [0.0, 0.1]), (-1, [0.0, 0.2] * 5))
    assert math.log(several.high / several.value) > 12.7 * math.sqrt(0.005 / 2)


def test_one_repeat_bounds_nothing() -> None:
    found = interval_of((1, [0.3]), (-1, [0.1, 0.2, 0.3]))
    assert (found.low, found.high, found.repeats) == (0.0, math.inf, 1)
    assert found.value == pytest.approx(math.exp(0.1))
    assert found.half_width == math.inf
    assert found.inverse.high == math.inf


def test_equal_repeats_have_no_width() -> None:
    found = interval_of((1, [0.2, 0.2, 0.2]), (-1, [0.1, 0.1, 0.1]))
    assert found.low == pytest.approx(found.value) == found.high
    assert interval_of((1, [0.1] * 3), (-1, [0.1] * 3)).chance == 1
    assert interval_of((1, [0.5] * 3), (-1, [0.25] * 3)).chance == 0


def test_nothing_has_no_interval() -> None:
    with pytest.raises(ValueError, match="no repeat"):
        interval_of((1, [0.1]), (-1, []))


@given(mine=logs, other=logs)
def test_a_ratio_the_other_way_round_is_its_inverse(mine: list[float], other: list[float]) -> None:
    there, back = interval_of((1, mine), (-1, other)), interval_of((1, other), (-1, mine))
    assert there.low <= there.value <= there.high
    for one, two in zip(
        (there.inverse.low, there.inverse.value, there.inverse.high),
        (back.low, back.value, back.high),
        strict=True,
    ):
        assert one == pytest.approx(two, rel=1e-9)


@pytest.mark.parametrize("spread", SPREADS, ids=str)
@pytest.mark.parametrize("repeats", [(3, 3), (6, 6), (5, 10)], ids=str)
def test_it_covers_in_95_of_100_cases(spread: Spread, repeats: tuple[int, int]) -> None:
    """1500 draws: 93 to 97 % are 3.5 standard errors from 95 %."""
    sizes = [of_size(spread, n) for n in repeats]
    share = covered(np.random.default_rng(3), *sizes, 1500)
    assert 0.93 <= share <= 0.98


@pytest.mark.parametrize("other", [SPREADS[0], Spread(0.165, 0.041)], ids=str)
def test_two_repeats_cover_at_least_as_often(other: Spread) -> None:
    for repeats in ((2, 2), (2, 10), (10, 2)):
        sizes = of_size(SPREADS[0], repeats[0]), of_size(other, repeats[1])
        assert covered(np.random.default_rng(4), *sizes, 400) >= 0.95


@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_to_stop_when_it_is_precise_costs_little_coverage(spread: Spread) -> None:
    until = of_size(spread, 0)
    assert covered(np.random.default_rng(5), until, until, 1200) >= 0.92


def test_a_series_is_measured_until_it_is_precise() -> None:
    steady, wild = Spread(0.001, 0.001), Spread(0.3, 0.01)
    assert len(stopped(np.random.default_rng(1), steady)) == 6
    assert len(stopped(np.random.default_rng(1), wild)) == 10


@pytest.mark.parametrize("repeats", [2, 3, 6, 0], ids=str)
def test_equal_paths_have_no_winner(repeats: int) -> None:
    for spread in SPREADS:
        assert sole_winners(np.random.default_rng(6), spread, repeats, 150) < 0.05
