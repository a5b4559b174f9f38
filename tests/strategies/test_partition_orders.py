"""Orders of partitions: how many swaps, who meets, and which words make none."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gatherbench.strategies.partition_orders import Partitions, State, beta


def swaps(states: tuple[State, ...]) -> int:
    return sum(len({*new} - {*old}) for old, new in pairwise(states))


def by_formula(p: int, c: int) -> int:
    """Of BETA; (x + 1) x is even."""
    x = (p - c) // (c - 1)
    return (p - c) + (x + 1) * (p - c) - (x + 1) * x * (c - 1) // 2


def met(states: tuple[State, ...]) -> set[tuple[int, int]]:
    return {pair for state in states for pair in combinations(sorted(state), 2)}


sizes = st.integers(2, 24).flatmap(lambda p: st.tuples(st.just(p), st.integers(2, p)))


@pytest.mark.parametrize(
    ("p", "c", "count", "least"), [(16, 4, 42, 38), (32, 8, 78, 67), (128, 16, 588, 534)]
)
def test_beta_takes_the_published_number_of_swaps(p, c, count, least):
    assert by_formula(p, c) == swaps(Partitions(p, c, "beta").states()) == count
    assert -(-(p * (p - 1) - c * (c - 1)) // (2 * (c - 1))) == least


@given(sizes, st.integers(0, 5))
def test_beta_has_every_two_partitions_meet_by_single_swaps(size, seed):
    p, c = size
    states = Partitions(p, c, "beta", seed).states()
    assert met(states) == set(combinations(range(p), 2))
    assert all(len({*new} - {*old}) == 1 for old, new in pairwise(states))
    assert {len({*state}) for state in states} == {c}
    assert swaps(states) == by_formula(p, c)


def test_beta_by_hand():
    """0 stays while 2 and 3 pass; then 1, which has not met them, is there with both."""
    states = [{*state} for state in beta([0, 1, 2, 3], 2)]
    assert states == [{0, 1}, {0, 2}, {0, 3}, {1, 3}, {1, 2}, {3, 2}]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 5))
def test_comet_has_every_two_partitions_meet_by_groups(half, times, seed):
    c, p = 2 * half, half * (times + 1)
    states = Partitions(p, c, "comet", seed).states()
    assert met(states) == set(combinations(range(p), 2))
    assert all(len({*new} - {*old}) == half for old, new in pairwise(states))
    if times > 1:
        assert swaps(states) == half * by_formula(times + 1, 2)


@given(sizes)
def test_a_single_pass_brings_each_partition_once(size):
    p, c = size
    states = Partitions(p, c, "sequential").states()
    assert {part for state in states for part in state} == set(range(p))
    assert swaps(states) == p - c
    assert len(states) == -(-p // c)


def test_what_is_random_is_the_seeds():
    first, again, other = (Partitions(16, 4, "beta", seed).states() for seed in (1, 1, 2))
    assert first == again != other
    # A hash does not change: written down once.
    assert Partitions(8, 8, "beta", 0).states() == ((4, 0, 6, 7, 2, 1, 5, 3),)


@given(st.integers(1, 9), st.integers(1, 60))
def test_partitions_are_alike_in_size_and_hold_every_row_once(p, rows):
    assume(p <= rows)
    parts = Partitions(p, p, "sequential")
    bounds = parts.bounds(rows)
    assert (bounds[0], bounds[-1]) == (0, rows)
    assert set(np.diff(bounds)) <= {rows // p, -(-rows // p)}
    of = parts.of(np.arange(rows, dtype=np.int32), rows)
    assert of.tolist() == [k for k in range(p) for _ in range(bounds[k], bounds[k + 1])]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((16, 4, "bta"), "no order is called 'bta'; there are beta, comet, sequential"),
        ((4, 16, "beta"), "a buffer of 16 of 4 partitions: expected 1 to 4"),
        ((4, 0, "sequential"), "a buffer of 0 of 4 partitions: expected 1 to 4"),
        ((4, 1, "beta"), "a buffer of 1 is too small"),
        ((16, 3, "comet"), "3 must be even, and its half divide 16"),
        ((16, 6, "comet"), "6 must be even, and its half divide 16"),
    ],
)
def test_numbers_that_make_no_order_are_refused(numbers, said):
    with pytest.raises(ValueError, match=said):
        Partitions(*numbers)


def test_more_partitions_than_rows_are_refused():
    with pytest.raises(ValueError, match="a table of 15 rows has no 16 partitions: take fewer"):
        Partitions(16, 4, "beta").bounds(15)
