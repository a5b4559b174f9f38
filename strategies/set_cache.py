"""Which rows of the feature table a set-associative cache in GPU memory holds, and where.

An id belongs to one set, and each set is a few slots ("ways") in which its row may lie: a lookup
reads one set, and what to evict is decided within it. HugeCTR's and WholeGraph's caches are of this
kind (https://github.com/NVIDIA-Merlin/HugeCTR, gpu_cache; https://github.com/rapidsai/wholegraph).
This module decides about slots and moves no rows.

There are two implementations of one definition, which the tests hold against each other:
:class:`SetCache` for the host, also to simulate a cache, and :class:`DeviceSetCache` in torch
operations, whose host never waits for the GPU. Minibatch t = 0, 1, … goes through four steps:

1. Lookup in the state that the minibatch before has left.
2. A way whose id occurs is *touched*, once however often it occurs: its last use is t, and for LFU
   its counter grows by one.
3. LFU ages: where a counter of a set is now ``COUNTER_MAX`` or more, the set's counters are halved
   (rounded down).
4. The distinct missing ids of a set, ascending, take its ways that were not touched: empty ways
   first, then for LRU by the last use, for LFU by the counter and then the last use, the smallest
   first, of equal ones the lower way. Their last use is t and their counter 1. Ids that find no way
   are not held.

A way's priority is one number, ``counter << TIME_BITS | last use`` (LRU counts nothing), and -1
where it is empty: the untouched way of the lowest priority is the next to be taken.
"""

from __future__ import annotations

from typing import Any, Literal

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Policy = Literal["lru", "lfu"]
#: Ways of a set: a warp looks at all of them at once.
WAYS = 32
#: What WholeGraph's counters of 14 bits hold.
COUNTER_MAX = (1 << 14) - 1
TIME_BITS = 48
#: A set and an id are sorted as one int64.
ID_BITS = 40
_TIME = (1 << TIME_BITS) - 1
_NEVER = (1 << 63) - 1
# 2^64 / golden ratio, as a signed number (Knuth, The Art of Computer Programming 3, 6.4).
_FIBONACCI = 0x9E3779B97F4A7C15 - (1 << 64)

_jit = numba.njit(nogil=True, cache=True, boundscheck=False)


def _set_of(ids: Any, sets: int) -> Any:
    """The set of each id, by multiplicative hashing in int64 that wraps: one id or a tensor."""
    return (ids * _FIBONACCI >> 32 & 0x7FFFFFFF) % sets


_set_of_id = _jit(_set_of)


class _Sets:
    """What both implementations are made with and hold.

    Args:
        capacity: rows that there is room for. From :data:`WAYS` on it is rounded down to whole
            sets; fewer are one set of so many ways. A cache of 0 rows holds nothing.
        policy: what is evicted first: ``lru`` the least recently, ``lfu`` the least often used.

    Raises:
        ValueError: no such policy, or a capacity outside 0 to 2^28 - 1.
    """

    def __init__(self, capacity: int, policy: Policy) -> None:
        if policy not in ("lru", "lfu"):
            raise ValueError(f"policy = {policy!r}: expected lru or lfu")
        if not 0 <= capacity < WAYS << 63 - ID_BITS:
            raise ValueError(f"capacity = {capacity}: expected 0 to 2^28 - 1 rows")
        self._sets, self._ways = max(1, capacity // WAYS), min(WAYS, capacity)
        #: Slots 0 to ``capacity - 1`` hold a row each: ``set * ways + way``.
        self.capacity = self._sets * self._ways
        self.policy = policy
        self._uses = int(policy == "lfu")
        self._counter_max = COUNTER_MAX
        self._time = 0
        self._keys: Any
        self._priority: Any

    @property
    def state_bytes(self) -> int:
        """Memory of the bookkeeping itself, in bytes: 16 a slot (a device has a spare set too)."""
        return int(self._keys.nbytes + self._priority.nbytes)


class SetCache(_Sets):
    """The cache's bookkeeping on the host; one thread at a time may use it."""

    def __init__(self, capacity: int, policy: Policy) -> None:
        super().__init__(capacity, policy)
        self._keys = np.full((self._sets, self._ways), -1, np.int64)
        self._priority = np.full((self._sets, self._ways), -1, np.int64)

    def step(self, ids: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``scores.Kept.step``; ids are below 2^40."""
        ids = ids.astype(np.int64, copy=False)
        slots, fill = np.full(ids.size, -1), np.full(ids.size, -1)
        time, self._time = self._time, self._time + 1
        if self.capacity:
            state = self._keys, self._priority, time, self._uses
            missing, places = _look_up(ids, slots, *state, self._counter_max)
            order = np.argsort(missing, kind="stable")
            _insert(missing, places, order, fill, *state)
        return slots, fill


@_jit
def _look_up(ids, slots, keys, priority, time, uses, counter_max):  # type: ignore[no-untyped-def]
    """Steps 1 to 3. Returns the misses as ``set << ID_BITS | id``, and their positions."""
    sets, ways = keys.shape
    missing, places, misses = np.empty_like(ids), np.empty_like(ids), 0
    ages = False
    for p, key in enumerate(ids):
        s = _set_of_id(key, sets)
        way = -1
        for w in range(ways):  # without a break the compiler compares several at once
            way = w if keys[s, w] == key else way
        if way < 0:
            missing[misses], places[misses] = s << ID_BITS | key, p
            misses += 1
            continue
        slots[p] = s * ways + way
        if priority[s, way] & _TIME != time:
            counter = (priority[s, way] >> TIME_BITS) + uses
            priority[s, way] = counter << TIME_BITS | time
            ages |= counter >= counter_max
    if ages:
        for slot in slots:
            if slot >= 0 and priority[slot // ways, slot % ways] >> TIME_BITS >= counter_max:
                for w in range(ways):
                    old = priority[slot // ways, w]
                    priority[slot // ways, w] = old >> TIME_BITS + 1 << TIME_BITS | old & _TIME
    return missing[:misses], places[:misses]


@_jit
def _insert(missing, places, order, fill, keys, priority, time, uses):  # type: ignore[no-untyped-def]
    """Step 4, for the misses in ascending ``order``."""
    ways = keys.shape[1]
    before = -1
    for i in order:
        if missing[i] == before:
            continue
        before = missing[i]
        s = before >> ID_BITS
        way, lowest = -1, _NEVER
        for w in range(ways):
            if priority[s, w] < lowest and priority[s, w] & _TIME != time:
                way, lowest = w, priority[s, w]
        if way >= 0:
            keys[s, way] = before & (1 << ID_BITS) - 1
            priority[s, way] = uses << TIME_BITS | time
            fill[places[i]] = s * ways + way


class DeviceSetCache(_Sets):
    """The cache's bookkeeping on a torch device.

    Every size follows from B, so nothing is copied to the host. What has nothing to write writes
    to a spare set at the end, which no id belongs to: elsewhere no two writes meet.
    """

    def __init__(self, capacity: int, policy: Policy, device: torch.device) -> None:
        super().__init__(capacity, policy)
        shape = self._sets + 1, self._ways
        self._keys = torch.full(shape, -1, dtype=torch.int64, device=device)
        self._priority = torch.full(shape, -1, dtype=torch.int64, device=device)

    def step(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`SetCache.step`, for a tensor on the cache's device; queues its work."""
        ids = ids.long()
        time, self._time = self._time, self._time + 1
        if not self.capacity or not ids.numel():
            return torch.full_like(ids, -1), torch.full_like(ids, -1)
        keys, priority = self._keys.view(-1), self._priority.view(-1)
        sets = _set_of(ids, self._sets)
        all_ways = torch.arange(self._ways, device=ids.device)
        held = self._keys[sets] == ids[:, None]
        slots = torch.where(held, sets[:, None] * self._ways + all_ways, -1).amax(1)

        # By set, and within it by id: ``first`` begins an id, ``opens`` a set.
        together, order = torch.sort(sets << ID_BITS | ids, stable=True)
        sets, slot = sets[order], slots[order]
        first, opens = _begins(together), _begins(sets)

        touched = torch.where(first & (slot >= 0), slot, self.capacity)
        counter = (priority[touched] >> TIME_BITS) + self._uses
        priority.scatter_(0, touched, counter << TIME_BITS | time)

        # Each set of the minibatch once; the spare set makes up their number.
        group, groups = opens.cumsum(0) - 1, min(ids.numel(), self._sets)
        visited = torch.full((groups + 1,), self._sets, device=ids.device)
        visited = visited.scatter_(0, torch.where(opens, group, groups), sets)[:-1]
        old = self._priority[visited]
        ages = (old >> TIME_BITS >= self._counter_max).any(1, keepdim=True)
        old = torch.where(ages, old >> TIME_BITS + 1 << TIME_BITS | old & _TIME, old)
        self._priority[visited] = old

        # The n-th missing id of a set takes the n-th of its ways.
        value, way = old.masked_fill(old & _TIME == time, _NEVER).sort(dim=1, stable=True)
        missing = first & (slot < 0)
        before = missing.cumsum(0) - missing.long()
        n = before - torch.where(opens, before, 0).cummax(0).values
        turn = group, n.clamp(max=self._ways - 1)
        taken = missing & (n < self._ways) & (value[turn] < _NEVER)
        into = torch.where(taken, sets * self._ways + way[turn], self.capacity)
        keys.scatter_(0, into, ids[order])
        priority.scatter_(0, into, self._uses << TIME_BITS | time)
        return slots, torch.empty_like(ids).scatter_(0, order, torch.where(taken, into, -1))


def _begins(values: Tensor) -> Tensor:
    """Where a value of ``[B]`` differs from the one before it, and at 0."""
    return values.diff(prepend=values[:1] - 1) != 0
