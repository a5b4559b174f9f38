"""Count the sector masks of a whole trace, for the request accounting.

A warp instruction touches some lines of 128 B, and in each line some of its four sectors. This
module counts (instruction, line) pairs by that four-bit mask; sectors, lines and requests follow
from it (``requests.py``). It follows ``gather.cu`` lane for lane, and the tests compare it with the
loads of the kernel when it runs on the host.

In the row mapping one fact makes it fast: a row that shares no line with another row of its warp
costs what its address modulo 128 says. Such rows are counted by that residue, and each residue is
computed once. All other instructions are computed one by one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from gatherbench.kernels.grid import LINE_BYTES, SHIFTS, WARP_LANES, GridPoint
from gatherbench.kernels.host_gather import available_cores

_NONE, _IDLE, _CIRCULAR = (SHIFTS.index(s) for s in ("none", "idle", "circular"))
_PER_TASK = 1 << 16

_jit = numba.njit(nogil=True, cache=True, boundscheck=False)


def mask_histogram(
    point: GridPoint,
    ids: npt.NDArray[np.integer[Any]],
    row_bytes: int,
    stride: int,
    base: int,
    kept_lines: int = 0,
) -> npt.NDArray[np.int64]:
    """Count the (instruction, line) pairs of a batch by sector mask: int64 ``[16]``.

    The arguments are those of ``count_requests``. ``kept_lines`` applies only to rows that share no
    line with others in an instruction; in the flat mapping any row may, so it is ignored there.
    """
    slots, lanes = point.slots(row_bytes), min(point.lanes or WARP_LANES, WARP_LANES)
    shape = (SHIFTS.index(point.shift), point.width, row_bytes // point.width, slots, lanes)
    job = (ids, stride, base % LINE_BYTES, *shape)
    work, count = _groups, -(-ids.size // (WARP_LANES // lanes))
    if point.flat:
        work, count = _flat, -(-ids.size * slots // WARP_LANES)

    def task(begin: int) -> npt.NDArray[np.int64]:
        counts = np.zeros(16 + LINE_BYTES, np.int64)  # by mask, then by residue
        work(begin, min(begin + _PER_TASK, count), counts, job)
        return counts

    begins, counts = range(0, count, _PER_TASK), np.zeros(16 + LINE_BYTES, np.int64)
    if len(begins) < 2:
        counts = sum(map(task, begins), start=counts)
    else:
        # Not numba's count: reading it starts its OpenMP layer, which gives torch all cores back.
        with ThreadPoolExecutor(available_cores()) as pool:
            counts = sum(pool.map(task, begins), start=counts)
    kept, found = np.empty((2, kept_lines), np.int64), np.empty((2, WARP_LANES), np.int64)
    for residue in np.flatnonzero(counts[16:]):
        _together(np.array([residue]), counts[16 + residue], kept, found, counts, job)
    return counts[:16]


@_jit
def _touch(begin, end, found, n):  # type: ignore[no-untyped-def]
    """Add the bytes ``[begin, end)`` to the ``n`` lines and masks that an instruction touches;
    return their new number."""
    for line in range(begin >> 7, ((end - 1) >> 7) + 1):
        first = max(begin - (line << 7), 0) >> 5
        last = min(end - 1 - (line << 7), 127) >> 5
        mask = (2 << last) - (1 << first)
        at = n - 1
        while at >= 0 and found[0, at] != line:
            at -= 1
        if at >= 0:
            found[1, at] |= mask
        else:
            found[0, n], found[1, n] = line, mask
            n += 1
    return n


@_jit
def _touch_slots(begin, end, address, phase, job, found, n):  # type: ignore[no-untyped-def]
    """Add the slots ``[begin, end)`` of the row at ``address``, as ``open_row`` and ``unit_of`` of
    gather.cu place them; ``phase`` is 0 in the row mapping."""
    _ids, _stride, _base, shift, width, units, _slots, _lanes = job
    if shift == _IDLE:
        offset = (address & 127) // width
        begin, end = max(begin - offset, 0), end - offset
    elif shift == _CIRCULAR:
        offset = ((phase - address) & 127) // width
        offset = offset if offset < units else 0
        begin, end = begin + offset, min(end, units) + offset
        wrapped = max(begin, units) - units
        if wrapped < end - units:
            n = _touch(address + wrapped * width, address + (end - units) * width, found, n)
    end = min(end, units)
    if begin < end:
        n = _touch(address + begin * width, address + end * width, found, n)
    return n


@_jit
def _groups(begin, end, counts, job):  # type: ignore[no-untyped-def]
    """Count rows that a warp reads together: in ``counts[16:]`` by residue if they share no line,
    in ``counts[:16]`` by mask if they might.
    """
    ids, stride, base, _shift, width, units, _slots, lanes = job
    teams, reach = max(1, 32 // lanes), units * width + 127
    address, kept = np.empty(teams, np.int64), np.empty((2, 0), np.int64)
    found = np.empty((2, 32), np.int64)  # each of the 32 loads lies in one line
    for group in range(begin, end):
        first = group * teams
        rows = min(teams, ids.size - first)
        shared = False
        for t in range(rows):
            address[t] = base + np.int64(ids[first + t]) * stride
            for u in range(t):
                shared |= abs(address[t] - address[u]) < reach
        if shared:
            _together(address[:rows], 1, kept, found, counts, job)
        else:
            for t in range(rows):
                counts[16 + (address[t] & 127)] += 1


@_jit
def _together(address, times, kept, found, counts, job):  # type: ignore[no-untyped-def]
    """Count the instructions by which a warp reads the rows at ``address``, ``times`` times.

    Sectors of the last lines, as many as ``kept`` (lines and masks) has room for, count once.
    """
    slots, lanes, kept_lines, added = job[6], job[7], kept.shape[1], 0
    kept[0] = -1
    for slot in range(0, slots, lanes):
        n = 0
        for t in range(address.size):
            n = _touch_slots(slot, slot + lanes, address[t], 0, job, found, n)
        for i in range(n):
            wanted = found[1, i]
            if kept_lines > 0:
                at = 0
                while at < kept_lines and kept[0, at] != found[0, i]:
                    at += 1
                if at == kept_lines:  # the oldest line leaves
                    at, added = added % kept_lines, added + 1
                    kept[0, at], kept[1, at] = found[0, i], 0
                wanted &= ~kept[1, at]
                kept[1, at] |= found[1, i]
            counts[wanted] += times


@_jit
def _flat(begin, end, counts, job):  # type: ignore[no-untyped-def]
    """Count the instructions ``[begin, end)`` of the flat mapping, which may span rows."""
    ids, stride, base, _shift, width, units, slots, _lanes = job
    found = np.empty((2, 32), np.int64)
    for index in range(begin, end):
        item, last = index * 32, min(index * 32 + 32, ids.size * slots)
        n = 0
        while item < last:
            p = item // slots
            slot = item - p * slots
            stop = min(slots, slot + last - item)
            address = base + np.int64(ids[p]) * stride
            n = _touch_slots(slot, stop, address, p * units * width, job, found, n)
            item += stop - slot
        for i in range(n):
            counts[found[1, i]] += 1
