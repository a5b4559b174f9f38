"""Decide which rows a cache of a given size holds, by exact policies over the whole cache.

The cache lies in host memory, in front of a disk; this module moves no rows. The policies:

- ``lru``: the least recently used row leaves.
- ``s3-fifo``: new rows enter a small queue, a tenth of the cache. Those used twice there move on to
  the main queue, the others leave and are remembered for as many rows as the main queue holds. A
  remembered row that returns enters the main queue (Yang et al., SOSP 2023; uses count up to 3).
- ``belady``: the row leaves whose next use is last (Belady, IBM Systems Journal 5(2), 1966), as far
  as minibatches were announced (Ginex: Park et al., PVLDB 15(11), 2022): minibatch t is decided
  with t + 1 to t + ``ahead`` known, even if more were announced. Rows that none of them uses leave
  first, the least recently used one before the others. On a tie a held row stays in preference to
  a new one, and among held rows the one leaves whose next use became known last. No choice that
  knows the rest of the epoch has more hits, if the ids of a minibatch are distinct.

A minibatch is looked up in the state that the previous one has left, and read from these slots.
Then its distinct ids, by first occurrence (``belady``: hits before misses), are the requests of the
published algorithm: a hit promotes, a miss evicts and inserts. (A row that was found may be evicted
before its own turn, and then enters again.) Rows whose slot has changed are then written there.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal, NamedTuple, get_args

import numba
import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer[Any]]
RowPolicy = Literal["lru", "s3-fifo", "belady"]
#: S3-FIFO: the small queue's part of the cache, and the uses that move a row on to the main queue.
SMALL_SHARE = 0.1
_MOVES_ON, _MOST_USES = 2, 3
# Lists: rows that S3-FIFO remembers; a queue: S3-FIFO's small one, or Belady's rows without a known
# next use; S3-FIFO's main queue, or the first of Belady's lists, one for each next minibatch.
_GHOSTS, _QUEUE, _MAIN = range(3)

_jit = numba.njit(nogil=True, cache=True, boundscheck=False)
_inlined = numba.njit(inline="always")  # passing the state would take longer than the work


class _State(NamedTuple):
    """Slots and lists of slots. A list is a ring through a node of its own, newest slot first."""

    slot_of: NDArray[np.int32]  #: The slot of each row; -1: none; a remembered row: -2 - its node.
    row_of: NDArray[np.int64]  #: The row of each slot, then of each node of a remembered row.
    before: NDArray[np.int32]  #: For each slot, remembered row and list: the next newer one,
    after: NDArray[np.int32]  #: and the next older one.
    mark: NDArray[np.int32]  #: For each slot: S3-FIFO's uses, or the minibatch of the last use.
    counts: NDArray[np.int64]  #: Slots in use; slots in the small queue; how many it should have.


class RowCache:
    """A cache of ``capacity`` rows, empty at first; ``ahead`` is Belady's window, in minibatches.
    One thread at a time may use it; another may announce."""

    def __init__(self, policy: RowPolicy, capacity: int, num_rows: int, ahead: int = 0) -> None:
        if policy not in (policies := get_args(RowPolicy)):
            raise ValueError(f"policy = {policy!r}: expected one of {', '.join(policies)}")
        if not 0 <= capacity <= num_rows or capacity >= 1 << 30:
            raise ValueError(f"capacity = {capacity}: expected 0 to {num_rows}, and below 2^30")
        self.policy, self.capacity, self.ahead = policy, capacity, ahead
        small = int(SMALL_SHARE * capacity)
        nodes = capacity + (capacity - small if policy == "s3-fifo" else 0)
        before, after = np.empty((2, nodes + _MAIN + ahead + 1), np.int32)
        slot_of, row_of = np.empty(num_rows, np.int32), np.empty(nodes, np.int64)
        mark, counts = np.empty(capacity, np.int32), np.array([0, 0, small])
        self._state = _State(slot_of, row_of, before, after, mark, counts)
        #: Belady: the last announced use of each row, as minibatch * 2^32 + position; and for each
        #: position of a minibatch in the window the next minibatch that uses its row.
        self._last_use = np.empty(num_rows if policy == "belady" else 0, np.int64)
        self._next = np.empty((ahead + 1, 0), np.int32)
        self.drop_caches()

    @property
    def state_bytes(self) -> int:
        """The memory of the bookkeeping itself, in bytes."""
        return sum(array.nbytes for array in (*self._state, self._last_use, self._next))

    def drop_caches(self) -> None:
        """Empty the cache, and drop all announcements."""
        state, nodes = self._state, len(self._state.row_of)
        for numbers in (state.slot_of, state.row_of, state.mark, self._last_use):
            numbers.fill(-1)
        state.counts[:2] = 0
        state.before[:] = state.after[:] = np.arange(len(state.before))
        ghosts = np.arange(self.capacity, nodes + 1)  # and the node of their list
        state.after[ghosts], state.before[ghosts] = np.roll(ghosts, -1), np.roll(ghosts, 1)
        self._time = 0
        self._sizes: deque[int] = deque()  # sizes of the minibatches in the window
        self._announced: deque[NDArray[np.int64]] = deque()  # later minibatches

    def announce(self, ids: Ids) -> None:
        """Announce the rows of the next minibatch after those already announced; keep a copy."""
        self._announced.append(ids.astype(np.int64))

    def step(self, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Look up and update the cache for a minibatch, as ``scores.Placed.step``.

        For Belady it is announced now if no announcement is left; if another number of rows was
        announced for it, that is a ``RuntimeError``.
        """
        slot_of, firsts = self._state.slot_of, _firsts(ids)
        slots = np.maximum(slot_of[ids], -1).astype(np.int64)
        rows, following = ids[firsts].astype(np.int64), np.full(len(firsts), -2, np.int32)
        if self.policy == "belady":
            following = self._following(rows)
            order = np.argsort(slots[firsts] < 0, kind="stable")
            rows, following, firsts = rows[order], following[order], firsts[order]
        if self.capacity:
            decide = _s3_fifo if self.policy == "s3-fifo" else _by_use
            decide(rows, following, self._state, self._time, self.ahead + 1)
        self._time += 1
        now, fill = slot_of[rows], np.full(len(ids), -1, np.int64)
        fill[firsts] = np.where(now == slots[firsts], -1, np.maximum(now, -1))
        return slots, fill

    def _following(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return for each row of this minibatch the next minibatch known to use it, or -1."""
        if not self._sizes and not self._announced:
            self.announce(rows)
        while len(self._sizes) <= self.ahead and self._announced:
            ids = self._announced.popleft()
            ids, when = ids[_firsts(ids)], self._time + len(self._sizes)
            if (more := len(ids) - self._next.shape[1]) > 0:
                self._next = np.pad(self._next, ((0, 0), (0, more)))
            _link(ids, self._next, self._last_use, self._state, self._time, when)
            self._sizes.append(len(ids))
        if len(rows) != self._sizes[0]:
            text = f"{self._sizes[0]} distinct rows were announced and {len(rows)} are asked for"
            raise RuntimeError(f"{text}: announce minibatches in the order of submission")
        return self._next[self._time % len(self._next), : self._sizes.popleft()]


def _firsts(ids: Ids) -> NDArray[np.int64]:
    ordered = np.sort(ids)
    if (ordered[1:] > ordered[:-1]).all():  # a sampler's ids are distinct
        return np.arange(len(ids))
    return np.sort(np.unique(ids, return_index=True)[1])


@_jit
def _link(ids, following, last_use, state, time, when):  # type: ignore[no-untyped-def]
    cycle, soon = len(following), len(state.row_of) + _MAIN
    for position, row in enumerate(ids):
        last = last_use[row] >> 32
        if last >= time:
            following[last % cycle, last_use[row] & 0xFFFFFFFF] = when
        elif state.slot_of[row] >= 0:
            _move(state.slot_of[row], soon + when % cycle, state)
        last_use[row] = when << 32 | position
        following[when % cycle, position] = -1


@_inlined
def _move(node, end, state):  # type: ignore[no-untyped-def]
    """Make ``node`` the first of the list at ``end``."""
    before, after = state.before, state.after
    before[after[node]], after[before[node]] = before[node], after[node]
    first = after[end]
    before[node], after[node] = end, first
    before[first] = after[end] = node


@_inlined
def _take(slot, row, state):  # type: ignore[no-untyped-def]
    if slot == state.counts[0]:
        state.counts[0] += 1
    elif state.slot_of[state.row_of[slot]] == slot:  # unless S3-FIFO remembers that row
        state.slot_of[state.row_of[slot]] = -1
    state.row_of[slot] = row
    state.slot_of[row] = slot


@_jit
def _s3_fifo(rows, following, state, time, cycle):  # type: ignore[no-untyped-def]
    slot_of, row_of, before, _, uses, counts = state
    ghosts, small, main = len(row_of) + _GHOSTS, len(row_of) + _QUEUE, len(row_of) + _MAIN
    for row in rows:
        if slot_of[row] >= 0:
            uses[slot_of[row]] = min(uses[slot_of[row]] + 1, _MOST_USES)
            continue
        remembered = slot_of[row] < -1
        if remembered:
            ghost = -2 - slot_of[row]
            row_of[ghost] = -1
            if before[ghosts] != ghost:  # to the end: its node is reused next
                _move(ghost, before[ghosts], state)
        slot, from_small = counts[0], counts[1] >= counts[2]
        while slot == len(uses):  # until one leaves, from the small queue if it has any
            from_small = from_small and counts[1] > 0
            slot = before[small if from_small else main]
            counts[1] -= from_small
            if uses[slot] >= (_MOVES_ON if from_small else 1):
                uses[slot] = 0 if from_small else uses[slot] - 1
                _move(slot, main, state)
                slot = len(uses)
            elif from_small:
                ghost = before[ghosts]
                if row_of[ghost] >= 0:
                    slot_of[row_of[ghost]] = -1
                row_of[ghost] = row_of[slot]
                slot_of[row_of[slot]] = -2 - ghost
                _move(ghost, ghosts, state)
        _take(slot, row, state)
        uses[slot] = 0
        _move(slot, main if remembered else small, state)
        counts[1] += not remembered


@_jit
def _by_use(rows, following, state, time, cycle):  # type: ignore[no-untyped-def]
    """Apply Belady's policy if ``following`` is at least -1, and LRU if it is less."""
    slot_of, row_of, before, after, last_use, counts = state
    unknown, soon, furthest = len(row_of) + _QUEUE, len(row_of) + _MAIN, time + cycle - 1
    for i, row in enumerate(rows):
        slot, when = slot_of[row], following[i]
        if slot < 0:
            slot = counts[0] if counts[0] < len(last_use) else before[unknown]
            if slot == unknown:
                while furthest > when >= 0 and after[soon + furthest % cycle] > unknown:
                    furthest -= 1
                if when < 0 or furthest <= when:
                    continue
                slot = after[soon + furthest % cycle]
            elif when == -1 and last_use[slot] == time:
                continue  # no worse than this one
            _take(slot, row, state)
        last_use[slot] = time
        _move(slot, unknown if when < 0 else soon + when % cycle, state)
