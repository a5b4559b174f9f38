"""Sums of a 32-bit counter: exact where they can be, refused where they cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatherbench.bench.machine.pcie import UnknownLinkError, raw_rate
from gatherbench.bench.meters.nvml_device import Link
from gatherbench.bench.meters.pcie_link import (
    MODULUS,
    Count,
    CounterError,
    accumulate,
    most,
)

FAST = raw_rate(5, 16)


def test_a_link_is_judged_by_what_it_can_train_up_to() -> None:
    assert most(Link(1, 5, 16, 16)) == FAST  # idle: generation 1 now
    assert most(None) > FAST
    with pytest.raises(UnknownLinkError, match="generation 9"):
        most(Link(1, 9, 16, 16))  # taken for a slower one, a wrap would be missed


@given(
    start=st.integers(0, MODULUS - 1),
    steps=st.lists(st.tuples(st.floats(0.001, 0.067), st.floats(0, 1)), max_size=60),
)
def test_any_traffic_that_the_link_can_carry_is_summed_exactly(
    start: int, steps: list[tuple[float, float]]
) -> None:
    total, now, counts, sums = 0, 1e9, [Count(1e9, start)], [0]
    for gap_s, load in steps:
        total += int(gap_s * load * FAST)
        now += gap_s
        counts.append(Count(now, (start + total) % MODULUS))
        sums.append(total)
    assert [bytes_ for _, bytes_ in accumulate(counts, FAST)] == sums


def test_traffic_at_55_gb_per_s_needs_readings_within_the_wrap() -> None:
    moved = [int(t * 0.02 * 55e9) for t in range(50)]
    often = [Count(t * 0.02, m % MODULUS) for t, m in enumerate(moved)]
    assert accumulate(often, FAST)[-1][1] == moved[-1]
    with pytest.raises(CounterError, match="80 ms between two readings"):
        accumulate(often[::4], FAST)  # a plain difference would lose 4 GiB here and there


def test_readings_that_were_not_refreshed_are_left_out() -> None:
    counts = [Count(1.0, 5), Count(1.0, 5), Count(1.02, 9), Count(1.02, 9)]
    assert accumulate(counts, FAST) == [(1.0, 0), (1.02, 4)]


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ([], "never read"),
        ([Count(1.0, 0), Count(0.9, 1)], "backwards"),
        ([Count(1.0, 100), Count(1.01, 99)], "more than the link carries"),
        ([Count(1.0, 0), Count(1.5, 1)], "could wrap"),
    ],
)
def test_what_makes_no_sum_is_refused(counts: list[Count], why: str) -> None:
    with pytest.raises(CounterError, match=why):
        accumulate(counts, FAST)
