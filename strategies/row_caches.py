"""Which rows a cache of a given number of rows holds: exact policies over the whole cache.

They decide for a cache in host memory, in front of a disk. No rows are moved here. The policies are
those of the literature:

- ``lru``: the least recently used row leaves.
- ``s3-fifo``: new rows enter a small queue, a tenth of the cache. Those used twice there move on to
  the main queue, the others leave, and are remembered for as long as the main queue is: who comes
  back then enters the main queue (Yang et al., SOSP 2023; a use counts up to 3).
- :class:`Belady` knows the minibatches that were announced.

One definition for all. Minibatch t = 0, 1, … goes through three steps:

1. Lookup of every position in the state that minibatch t - 1 has left. Rows are read from the slots
   that this finds.
2. The distinct ids, in the order of the positions where they first occur, are the requests of the
   published algorithm: a hit promotes, a miss evicts and inserts. (A row that was found in step 1
   may be evicted before its own turn; it then enters again.)
3. Rows that now lie in another slot than in step 1 are written there. All rows have been read by
   then, so a slot may go to another row although its old row was read in this minibatch.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray

RowPolicy = Literal["lru", "s3-fifo"]
#: Of S3-FIFO's cache the part that is its small queue, and the uses that move a row on.
SMALL_SHARE = 0.1
_MOVES_ON = 2
_MOST_USES = 3
# 2^64 / golden ratio, as a signed number (Knuth, The Art of Computer Programming 3, 6.4).
_FIBONACCI = 0x9E3779B97F4A7C15 - (1 << 64)

_jit = numba.njit(nogil=True, cache=True, boundscheck=False)


class _Rows:
    """Slots, the rows in them, and lists of slots.

    A list is a ring through a node of its own, behind which it begins: ``after`` leads from the
    newest slot to the oldest and ``before`` back. ``slot_of`` of a row that has none is negative.
    """

    def __init__(self, capacity: int, num_rows: int, lists: int, further: int = 0) -> None:
        nodes = capacity + further
        if not 0 <= capacity <= num_rows or nodes + lists >= 1 << 31:
            raise ValueError(f"capacity = {capacity}: expected 0 to {num_rows}, and below 2^30")
        #: Slots 0 to ``capacity - 1`` hold a row each.
        self.capacity = capacity
        self._slot_of = np.empty(num_rows, np.int32)
        self._key = np.empty(nodes, np.int64)
        self._before, self._after = np.empty((2, nodes + lists), np.int32)

    @property
    def state_bytes(self) -> int:
        """Memory of the bookkeeping itself, in bytes."""
        return sum(one.nbytes for one in vars(self).values() if isinstance(one, np.ndarray))

    def forget(self) -> None:
        """Hold nothing, as at the beginning."""
        self._slot_of.fill(-1)
        self._key.fill(-1)
        ends = np.arange(len(self._key), len(self._before), dtype=np.int32)
        self._before[ends] = self._after[ends] = ends

    def _put(self, which: int, first: int, count: int) -> None:
        """Make list ``which`` the nodes from ``first`` on."""
        if count:
            end = len(self._key) + which
            ring = np.append(end, np.arange(first, first + count))
            self._after[ring], self._before[ring] = np.roll(ring, -1), np.roll(ring, 1)


class RowCache(_Rows):
    """A cache without knowledge of what comes; one thread at a time may use it.

    Args:
        policy: see the head of this module.
        capacity: rows that there is room for.
        num_rows: of the table.

    Raises:
        ValueError: no such policy, or a capacity that is negative or above ``num_rows``.
    """

    def __init__(self, policy: RowPolicy, capacity: int, num_rows: int) -> None:
        if policy not in _DECIDE:
            raise ValueError(f"policy = {policy!r}: expected one of {', '.join(_DECIDE)}")
        self.policy = policy
        small = int(SMALL_SHARE * capacity)
        self._ghosts = capacity - small if policy == "s3-fifo" else 0
        super().__init__(capacity, num_rows, _LISTS, self._ghosts)
        self._uses = np.empty(capacity, np.uint8)
        #: Unused; rows in the small and in the main queue, and what the main queue may hold.
        self._numbers = np.array([0, 0, 0, capacity - small])
        self.forget()

    def forget(self) -> None:
        super().forget()
        self._uses.fill(0)
        self._numbers[:3] = 0
        self._put(_EMPTY if self.policy == "s3-fifo" else _QUEUE, 0, self.capacity)
        self._put(_GHOSTS, self.capacity, self._ghosts)

    def step(self, ids: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``scores.Kept.step``."""
        slots = np.maximum(self._slot_of[ids], -1).astype(np.int64)
        firsts = _firsts(ids)
        if self.capacity:
            state = self._slot_of, self._key, self._before, self._after
            _DECIDE[self.policy](ids[firsts], *state, self._uses, self._numbers)
        return slots, _fills(ids, firsts, slots, self._slot_of)


class Belady(_Rows):
    """Keeps the rows that are needed soonest, as far as minibatches were announced.

    Belady (IBM Systems Journal 5(2), 1966) as Ginex uses it (Park et al., PVLDB 15(11), 2022), over
    a window that slides: minibatch t is decided with t + 1 to t + ``ahead`` known, and no more even
    if more were announced. Of the rows held and those of the minibatch the ``capacity`` stay that
    are asked for again soonest; a new row need not be taken in. Rows that are not asked for again
    within the window come behind those that are, the least recently used last. As long as the ids
    of a minibatch are distinct, as a sampler's are, no choice with the same knowledge of an epoch's
    whole rest has more hits.

    Of equal rows: one that is held stays rather than a new one; among those held, of the same next
    minibatch, the one leaves that was last found to be asked for then.

    :meth:`announce` may be called beside :meth:`step`, each by one thread. A minibatch that nobody
    announced, while no other is outstanding, is known from its own step on.

    Args:
        capacity, num_rows: as of :class:`RowCache`.
        ahead: the window, in minibatches.

    Raises:
        ValueError: as :class:`RowCache`, or a negative window.
    """

    def __init__(self, capacity: int, num_rows: int, ahead: int) -> None:
        if ahead < 0:
            raise ValueError(f"ahead = {ahead}: expected 0 or more minibatches")
        super().__init__(capacity, num_rows, ahead + 3)
        self.ahead = ahead
        #: Where in ``_next`` the last announced use of a row stands; counted from the beginning.
        self._last_use = np.empty(num_rows, np.int64)
        #: Last minibatch that asked for the row in a slot.
        self._asked = np.empty(capacity, np.int64)
        self._next = np.empty(1 << 10, np.int32)
        self.forget()

    def forget(self) -> None:
        """Hold nothing, and know of no announced minibatch."""
        super().forget()
        self._last_use.fill(-1)
        self._put(self.ahead + 2, 0, self.capacity)
        self._time = self._begin = self._end = 0
        self._sizes: deque[int] = deque()
        self._announced: deque[NDArray[np.int64]] = deque()

    def announce(self, ids: NDArray[np.integer[Any]]) -> None:
        """Say which rows the next minibatch will ask for that was not announced; keeps a copy."""
        self._announced.append(ids.astype(np.int64))

    def step(self, ids: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As :meth:`RowCache.step`.

        Raises:
            RuntimeError: another number of rows was announced for this minibatch.
        """
        if not self._sizes and not self._announced:
            self.announce(ids)
        while len(self._sizes) <= self.ahead and self._announced:
            self._learn(self._announced.popleft())
        slots, firsts = self._slot_of[ids].astype(np.int64), _firsts(ids)
        if len(firsts) != self._sizes[0]:
            raise RuntimeError(
                f"{self._sizes[0]} distinct rows were announced for this minibatch and"
                f" {len(firsts)} are asked for: announce minibatches in the order of submission"
            )
        if self.capacity:
            lists = self._slot_of, self._key, self._before, self._after
            window = self._next, self._begin, self._time, self.ahead
            _belady(ids[firsts], *lists, self._asked, *window)
        self._begin += self._sizes.popleft()
        self._time += 1
        return slots, _fills(ids, firsts, slots, self._slot_of)

    def _learn(self, ids: NDArray[np.int64]) -> None:
        """Link the uses of the next announced minibatch to the uses before them."""
        ids = ids[_firsts(ids)]
        size, room = self._end - self._begin, len(self._next)
        if size + len(ids) > room:
            window = self._next[np.arange(self._begin, self._end) % room]
            self._next = np.empty(1 << (size + len(ids)).bit_length(), np.int32)
            self._next[np.arange(self._begin, self._end) % len(self._next)] = window
        lists = self._slot_of, self._key, self._before, self._after
        when = self._time + len(self._sizes)
        _link(ids, *lists, self._last_use, self._next, self._begin, self._end, when, self.ahead)
        self._end += len(ids)
        self._sizes.append(len(ids))


@_jit
def _firsts(ids):  # type: ignore[no-untyped-def]
    """The positions at which an id occurs for the first time, ascending."""
    bits = 1
    while 1 << bits < 2 * len(ids):
        bits += 1
    mask = (1 << bits) - 1
    position_of = np.full(1 << bits, -1, np.int64)
    firsts, count = np.empty(len(ids), np.int64), 0
    for p, row in enumerate(ids):
        place = (np.int64(row) * _FIBONACCI >> 32) & mask
        while position_of[place] >= 0 and ids[position_of[place]] != row:
            place = (place + 1) & mask
        if position_of[place] < 0:
            position_of[place] = p
            firsts[count] = p
            count += 1
    return firsts[:count]


@_jit
def _fills(ids, firsts, slots, slot_of):  # type: ignore[no-untyped-def]
    """Step 3: at the first position of a row the slot that it lies in now and did not before."""
    fill = np.full(len(ids), -1, np.int64)
    for p in firsts:
        slot = slot_of[ids[p]]
        if slot >= 0 and slot != slots[p]:
            fill[p] = slot
    return fill


@_jit
def _move(node, end, before, after):  # type: ignore[no-untyped-def]
    """Make ``node`` the first of the list at ``end``."""
    before[after[node]], after[before[node]] = before[node], after[node]
    first = after[end]
    before[node], after[node] = end, first
    before[first] = after[end] = node


@_jit
def _take(slot, row, slot_of, key):  # type: ignore[no-untyped-def]
    """Give the slot to ``row``; whose it was has none."""
    if key[slot] >= 0:
        slot_of[key[slot]] = -1
    key[slot] = row
    slot_of[row] = slot


# Lists of a RowCache. But for S3-FIFO slots without a row stand at the end of the queue.
_QUEUE, _MAIN, _EMPTY, _GHOSTS = range(4)
_LISTS = 4


@_jit
def _lru(rows, slot_of, key, before, after, uses, numbers):  # type: ignore[no-untyped-def]
    queue = len(key)
    for row in rows:
        slot = slot_of[row]
        if slot < 0:
            slot = before[queue]
            _take(slot, row, slot_of, key)
        _move(slot, queue, before, after)


@_jit
def _s3_fifo(rows, slot_of, key, before, after, uses, numbers):  # type: ignore[no-untyped-def]
    """``slot_of`` of a row that is only remembered is -2 - its node in the list of those."""
    small, main, empty = len(key) + _QUEUE, len(key) + _MAIN, len(key) + _EMPTY
    ghosts = len(key) + _GHOSTS
    for row in rows:
        slot = slot_of[row]
        if slot >= 0:
            uses[slot] = min(uses[slot] + 1, _MOST_USES)
            continue
        remembered = slot < -1
        if remembered:
            ghost = -2 - slot
            key[ghost] = -1
            if before[ghosts] != ghost:  # to the end, where it is the next to be used again
                _move(ghost, before[ghosts], before, after)
        while after[empty] == empty:
            if numbers[2] > numbers[3] or numbers[1] == 0:
                _evict_main(slot_of, key, before, after, uses, numbers, main, empty)
            else:
                _evict_small(slot_of, key, before, after, uses, numbers, small, main, empty, ghosts)
        slot = after[empty]
        _take(slot, row, slot_of, key)
        uses[slot] = 0
        _move(slot, main if remembered else small, before, after)
        numbers[2 if remembered else 1] += 1


@_jit
def _evict_main(slot_of, key, before, after, uses, numbers, main, empty):  # type: ignore[no-untyped-def]
    slot = before[main]
    while uses[slot]:
        uses[slot] -= 1
        _move(slot, main, before, after)
        slot = before[main]
    slot_of[key[slot]] = -1
    key[slot] = -1
    _move(slot, empty, before, after)
    numbers[2] -= 1


@_jit
def _evict_small(slot_of, key, before, after, uses, numbers, small, main, empty, ghosts):  # type: ignore[no-untyped-def]
    """Row after row leaves the small queue until one of them leaves the cache."""
    while numbers[1]:
        slot = before[small]
        numbers[1] -= 1
        if uses[slot] >= _MOVES_ON:
            uses[slot] = 0
            _move(slot, main, before, after)
            numbers[2] += 1
            continue
        ghost, row = before[ghosts], key[slot]
        _take(ghost, row, slot_of, key)
        slot_of[row] = -2 - ghost
        _move(ghost, ghosts, before, after)
        key[slot] = -1
        _move(slot, empty, before, after)
        return


_DECIDE = {"lru": _lru, "s3-fifo": _s3_fifo}


# Lists of a Belady: one for each minibatch that a row may be asked for next, by its number modulo
# ahead + 1; then the rows that are not asked for again, and the slots without a row.


@_jit
def _link(ids, slot_of, key, before, after, last_use, following, begin, end, when, ahead):  # type: ignore[no-untyped-def]
    """Minibatch ``when`` is known to ask for ``ids``: uses from ``end`` on."""
    mask = len(following) - 1
    for i, row in enumerate(ids):
        if last_use[row] >= begin:
            following[last_use[row] & mask] = when
        elif slot_of[row] >= 0:
            _move(slot_of[row], len(key) + when % (ahead + 1), before, after)
        last_use[row] = end + i
        following[(end + i) & mask] = -1


@_jit
def _belady(rows, slot_of, key, before, after, asked, following, begin, time, ahead):  # type: ignore[no-untyped-def]
    mask, cycle = len(following) - 1, ahead + 1
    unknown, empty = len(key) + ahead + 1, len(key) + ahead + 2
    new = np.empty(len(rows), np.int64)
    missing = 0
    for i, row in enumerate(rows):
        slot, when = slot_of[row], following[(begin + i) & mask]
        if slot < 0:
            new[missing] = i
            missing += 1
            continue
        asked[slot] = time
        _move(slot, len(key) + when % cycle if when >= 0 else unknown, before, after)
    furthest = time + ahead
    for i in new[:missing]:
        row, when = rows[i], following[(begin + i) & mask]
        slot = after[empty]
        if slot == empty and before[unknown] != unknown:
            slot = before[unknown]
            if when < 0 and asked[slot] == time:
                continue  # no worse than this one
        elif slot == empty:
            if when < 0:
                continue
            while furthest > when and slot >= len(key):
                slot = after[len(key) + furthest % cycle]
                furthest -= slot >= len(key)
            if slot >= len(key):
                continue
        _take(slot, row, slot_of, key)
        asked[slot] = time
        _move(slot, len(key) + when % cycle if when >= 0 else unknown, before, after)
