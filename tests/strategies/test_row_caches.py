"""Each policy against its published algorithm in plain Python, and Belady against every choice."""

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gatherbench.strategies.row_caches import RowCache, RowPolicy

Held = list[set[int]]


class Lru:
    """The newest row stands first."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.queue = capacity, list[int]()

    @property
    def held(self) -> set[int]:
        return set(self.queue)

    def request(self, row: int) -> None:
        if row in self.queue:
            self.queue.remove(row)
        elif len(self.queue) == self.capacity:
            self.queue.pop()
        self.queue.insert(0, row)


class S3Fifo:
    """Lists with the newest row first: small, main and ghost queue."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small, self.main, self.ghost = list[int](), list[int](), list[int]()
        self.uses = dict[int, int]()
        self.main_room = capacity - int(0.1 * capacity)

    @property
    def held(self) -> set[int]:
        return {*self.small, *self.main}

    def request(self, row: int) -> None:
        if row in self.held:
            self.uses[row] = min(3, self.uses[row] + 1)
            return
        into = self.main if row in self.ghost else self.small
        if row in self.ghost:
            self.ghost.remove(row)
        if len(self.held) == self.capacity:
            while not (self.evict_main() if self.main_is_next() else self.evict_small()):
                pass
        into.insert(0, row)
        self.uses[row] = 0

    def main_is_next(self) -> bool:
        return len(self.main) > self.main_room or not self.small

    def evict_main(self) -> bool:
        row = self.main.pop()
        if self.uses[row]:
            self.uses[row] -= 1
            self.main.insert(0, row)
            return self.evict_main()
        return True

    def evict_small(self) -> bool:
        while self.small:
            row = self.small.pop()
            if self.uses[row] < 2:
                self.ghost = [row, *self.ghost][: self.main_room]
                return True
            self.uses[row] = 0
            self.main.insert(0, row)
        return False


MODELS: dict[RowPolicy, Callable[[int], Any]] = {"lru": Lru, "s3-fifo": S3Fifo}


def modelled(model: Any, batches: Sequence[Sequence[int]]) -> Held:
    """What is held before each minibatch, and in the end."""
    found = [set(model.held)]
    for ids in batches:
        for row in dict.fromkeys(ids):
            model.request(row)
        found.append(set(model.held))
    return found


class Memory:
    """A cache and its rows, moved as a path does; it holds what it says, and each row once."""

    def __init__(self, cache: RowCache) -> None:
        self.cache, self.rows = cache, np.full(cache.capacity, -1)
        self.hits = 0

    def step(self, ids: Sequence[int]) -> None:
        rows = np.array(ids, np.int64)
        before = self.held
        slots, fill = self.cache.step(rows)
        assert [row in before for row in ids] == (slots >= 0).tolist()
        assert (self.rows[slots[slots >= 0]] == rows[slots >= 0]).all()
        new = fill >= 0
        assert np.unique(fill[new]).size == new.sum()
        assert all(p == ids.index(ids[p]) for p in np.flatnonzero(new))
        self.rows[fill[new]] = rows[new]
        assert len(self.held) == (self.rows >= 0).sum()
        self.hits += int((slots >= 0).sum())

    @property
    def held(self) -> set[int]:
        return set(self.rows[self.rows >= 0].tolist())

    def over(self, batches: Sequence[Sequence[int]]) -> Held:
        found = [self.held]
        for number, ids in enumerate(batches):
            if self.cache.policy == "belady":  # as far ahead as the loop announces
                ahead = self.cache.ahead
                for late in batches[number + ahead if number else 0 : number + ahead + 1]:
                    self.cache.announce(np.array(late, np.int64))
            self.step(ids)
            found.append(self.held)
        return found


ROWS = 60
BATCHES = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=40), max_size=12)
DISTINCT = st.lists(st.lists(st.integers(0, 8), max_size=5, unique=True), max_size=7)


@settings(deadline=None)  # the first minibatch compiles
@given(st.sampled_from(list(MODELS)), st.integers(0, 30), BATCHES)
@example("s3-fifo", 10, [[row // 2] for row in range(30)] + [[3], [3], [3], [9], [20]])
@example("lru", 2, [[1, 2], [3, 1]])  # 1 is read, evicted by 3, and enters again
def test_each_policy_holds_what_its_algorithm_holds(policy, capacity, batches):
    memory = Memory(RowCache(policy, capacity, ROWS))
    model = MODELS[policy](capacity) if capacity else Lru(0)
    expected = modelled(model, batches) if capacity else [set[int]()] * (len(batches) + 1)
    assert memory.over(batches) == expected


@functools.cache
def skewed() -> tuple[tuple[int, ...], ...]:
    """Minibatches in which low ids occur often, beside others that come once in a while."""
    draw = np.random.default_rng(7)
    return tuple(
        (*(ROWS * draw.random(12) ** 3).astype(int).tolist(), t * 7 % ROWS) for t in range(80)
    )


def test_a_window_by_hand():
    """Two rows, and two minibatches known ahead."""
    memory = Memory(RowCache("belady", 2, 9, 2))
    batches = [[1, 2], [3], [1], [4], [2], [4], [5], [6], [4], [5]]
    assert memory.over(batches)[1:] == [
        {1, 2},  # 1 is asked for again in minibatch 2, of 2 nobody knows
        {1, 3},  # nor of 3; but 2 was used longer ago
        {1, 3},
        {1, 4},  # 4 comes again; 3 was used longer ago than 1
        {2, 4},
        {2, 4},
        {4, 5},  # 4 comes again in 8
        {4, 5},  # 6 is not taken in: now 5 is announced too
        {4, 5},
        {4, 5},
    ]
    assert memory.hits == 4


def most_hits(batches: Sequence[Sequence[int]], capacity: int) -> int:
    """Of every choice of rows to hold after each minibatch."""
    best = {frozenset[int](): 0}
    for ids in batches:
        after = dict[frozenset[int], int]()
        for held, before in best.items():
            hits = before + sum(row in held for row in ids)
            for chosen in subsets(sorted({*held, *ids}), capacity):
                after[chosen] = max(after.get(chosen, 0), hits)
        best = after
    return max(best.values())


def subsets(rows: list[int], most: int) -> list[frozenset[int]]:
    if not rows or not most:
        return [frozenset()]
    without = subsets(rows[1:], most)
    return without + [one | {rows[0]} for one in subsets(rows[1:], most - 1)]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 3), DISTINCT)
def test_belady_has_as_many_hits_as_the_best_of_all_choices(capacity, batches):
    memory = Memory(RowCache("belady", capacity, 9, len(batches)))
    memory.over(batches)
    assert memory.hits == most_hits(batches, capacity)


def test_windows_of_any_size_decide_as_was_recorded():
    """The order among rows of equal worth, too; recorded where a model in plain Python agreed."""
    found = []
    for ahead, capacity in ((0, 20), (1, 20), (4, 10), (4, 30)):
        memory = Memory(RowCache("belady", capacity, ROWS, ahead))
        held = memory.over(skewed())
        found.append((memory.hits, zlib.crc32(str([sorted(rows) for rows in held]).encode())))
    assert found == [(573, 2404487272), (634, 1316497193), (631, 863576721), (810, 1750385318)]


def test_what_nobody_announced_is_known_when_it_comes():
    memory = Memory(RowCache("belady", 2, 9, 3))
    for ids in ([1, 2], [2], [3]):
        memory.step(ids)
    assert memory.held == {2, 3}


def test_other_rows_than_were_announced_are_refused():
    cache = RowCache("belady", 2, 9, 1)
    cache.announce(np.array([1, 2]))
    with pytest.raises(RuntimeError, match="2 distinct rows were announced and 1 are asked for"):
        cache.step(np.array([1, 1]))


@pytest.mark.parametrize("policy", get_args(RowPolicy))
def test_what_was_forgotten_leaves_no_trace(policy):
    cache, again = (RowCache(policy, 15, ROWS, 5) for _ in range(2))
    memory = Memory(cache)
    memory.over(skewed())
    cache.announce(np.array([1]))
    cache.drop_caches()
    memory.rows.fill(-1)
    assert memory.over(skewed()) == Memory(again).over(skewed())


def test_state_by_hand():
    """A row of the table has 4 B, and 8 B more for Belady; a slot 20 B, and a ghost 16 B."""
    both = 100 * 4 + 10 * (8 + 3 * 4) + 3 * 8
    assert RowCache("lru", 10, 100).state_bytes == both + 3 * 8
    assert RowCache("s3-fifo", 10, 100).state_bytes == both + 9 * 16 + 3 * 8
    belady = RowCache("belady", 10, 100, 7)
    assert belady.state_bytes == both + 100 * 8 + 10 * 8
    belady.step(np.arange(5))
    assert belady.state_bytes == both + 100 * 8 + 10 * 8 + 8 * 5 * 4, "uses of the window"


def test_what_makes_no_cache_is_refused():
    with pytest.raises(ValueError, match="policy = 'fifo': expected one of lru, s3-fifo, belady"):
        RowCache("fifo", 10, 100)  # type: ignore[arg-type]
    for capacity in (-1, 101):
        with pytest.raises(ValueError, match=f"capacity = {capacity}: expected 0 to 100"):
            RowCache("belady", capacity, 100, 10)
