"""Which path has which minibatches in which block: laws that hold for every number of them."""

import random
from collections import Counter
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from gatherbench.bench.run.block import apart, latin_square

PATHS, SETS = st.integers(1, 20), st.integers(2, 20)


@given(PATHS, SETS)
def test_over_a_repeat_each_path_has_each_set_once_and_few_of_a_block_share_one(paths, sets):
    square = latin_square(paths, sets)
    assert len(square) == sets
    for of_path in zip(*square, strict=True):
        assert sorted(of_path) == list(range(sets))
    for block in square:
        assert len(block) == paths
        assert max(Counter(block).values()) == -(-paths // sets)


@given(PATHS, SETS)
def test_behind_each_group_all_paths_have_had_the_same_sets(paths, sets):
    """So a run whose time ends has favoured nobody by more than a part of a group."""
    square = latin_square(paths, sets)
    of_paths = list(zip(*square, strict=True))
    even = [n for n in range(1, sets + 1) if len({frozenset(of[:n]) for of in of_paths}) == 1]
    gaps = [later - earlier for earlier, later in pairwise([0, *even])]
    assert even[-1] == sets
    assert max(gaps) < max(2 * paths, 2) or paths > sets


def test_by_hand():
    """Three paths and seven sets: a square of four and one of three."""
    assert latin_square(3, 7) == [
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 0],
        [3, 0, 1],
        [4, 5, 6],
        [5, 6, 4],
        [6, 4, 5],
    ]
    assert latin_square(3, 2) == [[0, 1, 0], [1, 0, 1]]


@given(PATHS, SETS, st.integers(0, 1 << 30))
@example(20, 2, 0)
@example(3, 2, 0)
def test_no_neighbours_have_the_same_set_from_the_first_epoch_to_the_last(paths, sets, seed):
    draw, before, order = random.Random(seed), None, list[int]()
    for block in latin_square(paths, sets):
        of_path = dict(enumerate(block))
        found = apart(of_path, draw, before)
        assert sorted(found) == list(range(paths))
        order += [of_path[path] for path in found]
        before = order[-1]
    assert all(a != b for a, b in pairwise(order))


def test_where_those_that_are_left_share_a_set_they_follow_each_other():
    assert sorted(apart({"a": 0, "c": 0}, random.Random(0), 0)) == ["a", "c"]
    assert apart({"a": 0, "b": 1, "c": 0}, random.Random(0), 1)[1] == "b"
    assert apart({}, random.Random(0)) == []


def test_every_order_of_a_block_is_as_likely():
    """Else a path would always have the same neighbour, whose caches it finds."""
    draw = random.Random("0 tiny 0")
    count = Counter("".join(apart({"a": 0, "b": 1, "c": 2}, draw)) for _ in range(600))
    assert len(count) == 6
    assert all(abs(seen - 100) < 40 for seen in count.values()), "4 standard deviations"


def test_two_of_four_that_share_a_set_leave_every_other_order_open():
    """12 of the 24 orders have a and b apart; the rarest of them is drawn in one of 16."""
    draw = random.Random(0)
    seen = {"".join(apart({"a": 0, "b": 0, "c": 1, "d": 2}, draw)) for _ in range(600)}
    assert len(seen) == 12


def test_behind_an_epoch_of_its_set_a_path_is_not_the_first():
    draw = random.Random(0)
    count = Counter("".join(apart({"a": 0, "b": 1, "c": 2}, draw, 0)) for _ in range(400))
    assert set(count) == {"bac", "bca", "cab", "cba"}
    assert all(abs(seen - 100) < 40 for seen in count.values())


def test_one_draw_gives_one_order_so_a_block_can_be_run_again():
    sets = dict(enumerate(latin_square(5, 8)[3]))
    orders = [apart(sets, random.Random("0 tiny 0 3"), 2) for _ in range(2)]
    assert orders[0] == orders[1]
