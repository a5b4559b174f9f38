"""The row cache against its definition in plain Python, and against minibatches worked by hand."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gatherbench.strategies import set_cache
from gatherbench.strategies.set_cache import DeviceSetCache, Policy, SetCache

CPU = torch.device("cpu")
POLICIES = ("lru", "lfu")
Decisions = list[tuple[list[int], list[int]]]


@dataclass
class Way:
    key: int | None = None
    last: int = -1
    uses: int = 0


class Reference:
    """The definition, way by way."""

    def __init__(self, capacity: int, policy: str, counter_max: int = 1 << 62) -> None:
        self.policy, self.counter_max, self.time = policy, counter_max, -1
        self.sets = [
            [Way() for _ in range(min(32, capacity))] for _ in range(max(1, capacity // 32))
        ]

    def order(self, way: Way) -> tuple[bool, int, int]:
        return way.key is not None, way.uses if self.policy == "lfu" else 0, way.last

    def step(self, ids: list[int]) -> tuple[list[int], list[int]]:
        self.time += 1
        ways = [way for one in self.sets for way in one]
        slot_of = {way.key: slot for slot, way in enumerate(ways) if way.key is not None}
        for way in ways:
            if way.key in set(ids):
                way.last, way.uses = self.time, way.uses + 1
        for one in self.sets:
            if any(way.uses >= self.counter_max for way in one):
                for way in one:
                    way.uses //= 2
        filled = {}
        for number, one in enumerate(self.sets):
            missing = sorted(
                i
                for i in set(ids) - slot_of.keys()
                if (i * 0x9E3779B97F4A7C15 >> 32 & 0x7FFFFFFF) % len(self.sets) == number
            )
            free = sorted((way for way in one if way.last != self.time), key=self.order)
            for key, way in zip(missing, free, strict=False):
                way.key, way.last, way.uses = key, self.time, 1
                filled[ids.index(key)] = number * len(one) + one.index(way)
        return [slot_of.get(i, -1) for i in ids], [filled.get(p, -1) for p in range(len(ids))]


def on_host(cache: SetCache, batches: Iterable[list[int]], dtype: Any = np.int64) -> Decisions:
    steps = (cache.step(np.array(ids, dtype)) for ids in batches)
    return [(slots.tolist(), fill.tolist()) for slots, fill in steps]


def on_device(
    cache: DeviceSetCache, batches: Iterable[list[int]], dtype: Any = torch.int64
) -> Decisions:
    steps = (cache.step(torch.tensor(ids, dtype=dtype)) for ids in batches)
    return [(slots.tolist(), fill.tolist()) for slots, fill in steps]


def by_hand(capacity: int, policy: Policy, *steps: tuple[list[int], list[int], list[int]]) -> None:
    """Both implementations and the reference decide as written: ids, slots, fill."""
    batches = [ids for ids, _, _ in steps]
    expected = [(slots, fill) for _, slots, fill in steps]
    reference = Reference(capacity, policy, set_cache.COUNTER_MAX)
    assert [reference.step(ids) for ids in batches] == expected
    assert on_host(SetCache(capacity, policy), batches) == expected
    assert on_device(DeviceSetCache(capacity, policy, CPU), batches) == expected


FOUR_WAYS = (
    ([7, 3, 7], [-1, -1, -1], [1, 0, -1]),  # ascending ids take ascending ways; the first 7 fills
    ([3, 9], [0, -1], [-1, 2]),
    ([], [], []),
    ([5, 7], [-1, 1], [3, -1]),  # now 3 and 9 were last used in 1, 7 and 5 in 3
)


def test_lru_takes_what_was_not_used_for_longest_and_nothing_that_was_just_read():
    by_hand(
        4,
        "lru",
        *FOUR_WAYS,
        ([8, 1], [-1, -1], [2, 0]),  # 1 takes the place of 3, 8 that of 9
        ([6, 8, 2, 4, 1, 8], [-1, 2, -1, -1, 0, 2], [-1, -1, 1, 3, -1, -1]),  # no way is left for 6
        ([1, 2, 4, 8], [0, 1, 3, 2], [-1, -1, -1, -1]),
        ([1, 3], [0, -1], [-1, 1]),
    )


def test_lfu_takes_what_was_used_least():
    by_hand(
        4,
        "lfu",
        *FOUR_WAYS,  # 3 and 7 were used twice; 7 in one minibatch counts once
        ([8, 1], [-1, -1], [3, 2]),
        ([8, 8, 8], [3, 3, 3], [-1, -1, -1]),  # 8 twice, and last
        ([2], [-1], [2]),
        ([4, 2], [-1, 2], [0, -1]),  # of 3, 7 and 8, used twice each, 3 longest ago
    )


def test_lfu_halves_the_counters_of_a_set_after_touching_and_before_evicting(monkeypatch):
    monkeypatch.setattr(set_cache, "COUNTER_MAX", 4)
    by_hand(
        3,
        "lfu",
        ([1, 2], [-1, -1], [0, 1]),
        ([2, 1], [1, 0], [-1, -1]),
        ([1], [0], [-1]),
        ([1, 3], [0, -1], [-1, 2]),  # the fourth use of 1: now 1 counts two, 2 one, and 3 one
        ([4], [-1], [1]),  # of 2 and 3 the one used longer ago; without ageing 3
    )


BATCHES = st.lists(st.lists(st.integers(0, 150), max_size=90), max_size=12)


@settings(deadline=None)  # the first minibatch compiles
@given(
    st.sampled_from([0, 1, 5, 32, 33, 64, 96]),
    st.sampled_from(POLICIES),
    st.sampled_from([2, 3, set_cache.COUNTER_MAX]),
    st.sampled_from(["int32", "int64"]),
    BATCHES,
)
@example(5, "lfu", 3, "int64", [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1, 2], [1, 9], [], [8, 7, 4, 3]])
def test_both_decide_as_the_definition(capacity, policy, counter_max, dtype, batches):
    reference = Reference(capacity, policy, counter_max)
    expected = [reference.step(ids) for ids in batches]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(set_cache, "COUNTER_MAX", counter_max)
        host, device = SetCache(capacity, policy), DeviceSetCache(capacity, policy, CPU)
    assert on_host(host, batches, np.dtype(dtype)) == expected
    assert on_device(device, batches, getattr(torch, dtype)) == expected


def test_the_host_never_waits_for_the_device():
    """A tensor on ``meta`` has no values: whoever asks for one, or for a size that depends on
    values, gets an error.
    """
    meta = torch.device("meta")
    ids = torch.empty(100, dtype=torch.int32, device=meta)
    with pytest.raises(NotImplementedError):
        ids[ids > 0]
    for slots in DeviceSetCache(640, "lfu", meta).step(ids):
        assert (slots.shape, slots.dtype, slots.device) == ((100,), torch.int64, meta)


def test_the_state_is_16_bytes_a_slot():
    assert SetCache(640, "lru").state_bytes == 640 * 16
    assert DeviceSetCache(640, "lru", CPU).state_bytes == (640 + 32) * 16
    assert SetCache(0, "lru").state_bytes == 0


def test_what_makes_no_cache_is_refused():
    with pytest.raises(ValueError, match="policy = 'fifo': expected lru or lfu"):
        SetCache(10, "fifo")  # type: ignore[arg-type]
    for capacity in (-1, 1 << 28):
        with pytest.raises(ValueError, match=f"capacity = {capacity}: expected 0 to 2"):
            DeviceSetCache(capacity, "lru", CPU)
