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

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from gatherbench.kernels.grid import LINE_BYTES, SHIFTS, WARP_LANES, GridPoint
from gatherbench.kernels.host_gather import available_cores

_NONE, _IDLE, _CIRCULAR = (SHIFTS.index(s) for s in ("none", "idle", "circular"))
#: Room for the lines of one warp instruction: each of its 32 loads lies in one line.
_MAX_LINES = WARP_LANES
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

    Args:
        ids: ``[B]`` row ids in the order of the kernel's input.
        row_bytes, stride: bytes of a row and from row to row.
        base: address of the table (only its value modulo 128 matters).
        kept_lines: lines that a cache keeps from one instruction of a row to the next ones; their
            sectors are counted once. It applies only to rows that share no line with others in an
            instruction; in the flat mapping any row may, so it is ignored there.
    """
    slots, lanes = point.slots(row_bytes), min(point.lanes or WARP_LANES, WARP_LANES)
    shape = (SHIFTS.index(point.shift), point.width, row_bytes // point.width, slots, lanes)
    job = (ids, stride, base % LINE_BYTES, *shape)
    if point.flat:
        return _over_tasks(_flat, job, -(-ids.size * slots // WARP_LANES))[:16]
    counts = _over_tasks(_groups, job, -(-ids.size // (WARP_LANES // lanes)))
    _rows_apart(counts, *shape, kept_lines)
    return counts[:16]


def _over_tasks(
    work: Callable[..., None], job: tuple[Any, ...], count: int
) -> npt.NDArray[np.int64]:
    """Sum ``work(begin, end, counts, job)`` over ``range(count)`` in tasks, on every core.

    The result is int64 ``[16 + 128]``: counts by mask, then by residue.
    """

    def task(begin: int) -> npt.NDArray[np.int64]:
        counts = np.zeros(16 + LINE_BYTES, np.int64)
        work(begin, min(begin + _PER_TASK, count), counts, job)
        return counts

    begins, none = range(0, count, _PER_TASK), np.zeros(16 + LINE_BYTES, np.int64)
    if len(begins) < 2:
        return sum(map(task, begins), start=none)
    # Not numba's count: reading it starts its OpenMP layer, which gives torch all cores back.
    with ThreadPoolExecutor(available_cores()) as pool:
        return sum(pool.map(task, begins), start=none)


@_jit
def _touch(begin, end, lines, masks, n):  # type: ignore[no-untyped-def]
    """Add the bytes ``[begin, end)`` to the lines of an instruction; return their new number."""
    for line in range(begin >> 7, ((end - 1) >> 7) + 1):
        first = max(begin - (line << 7), 0) >> 5
        last = min(end - 1 - (line << 7), 127) >> 5
        mask = (2 << last) - (1 << first)
        at = n - 1
        while at >= 0 and lines[at] != line:
            at -= 1
        if at >= 0:
            masks[at] |= mask
        else:
            lines[n], masks[n] = line, mask
            n += 1
    return n


@_jit
def _touch_slots(begin, end, address, offset, shift, width, units, lines, masks, n):  # type: ignore[no-untyped-def]
    """Add the slots ``[begin, end)`` of the row at ``address``, like ``unit_of`` in gather.cu."""
    if shift == _IDLE:
        begin, end = max(begin - offset, 0), min(end - offset, units)
    elif shift == _CIRCULAR:
        begin, end = begin + offset, min(end, units) + offset
        if end > units:
            wrapped = max(begin, units) - units
            if wrapped < end - units:
                n = _touch(
                    address + wrapped * width, address + (end - units) * width, lines, masks, n
                )
            end = units
    else:
        end = min(end, units)
    if begin < end:
        n = _touch(address + begin * width, address + end * width, lines, masks, n)
    return n


@_jit
def _offset(address, phase, shift, width, units):  # type: ignore[no-untyped-def]
    """Compute ``Row.shift`` of gather.cu; ``phase`` is 0 in the row mapping."""
    if shift == _IDLE:
        return (address & 127) // width
    if shift == _CIRCULAR:
        offset = ((phase - address) & 127) // width
        return offset if offset < units else 0
    return 0


@_jit
def _groups(begin, end, counts, job):  # type: ignore[no-untyped-def]
    """Count rows that a warp reads together: in ``counts[16:]`` by residue if they share no line,
    in ``counts[:16]`` by mask if they might.
    """
    ids, stride, base, shift, width, units, slots, lanes = job
    lines, masks = np.empty(_MAX_LINES, np.int64), np.empty(_MAX_LINES, np.int64)
    teams, reach = max(1, 32 // lanes), units * width + 127
    address, offset = np.empty(teams, np.int64), np.empty(teams, np.int64)
    for group in range(begin, end):
        first = group * teams
        rows = min(teams, ids.size - first)
        shared = False
        for t in range(rows):
            address[t] = base + np.int64(ids[first + t]) * stride
            for u in range(t):
                shared |= abs(address[t] - address[u]) < reach
        if not shared:
            for t in range(rows):
                counts[16 + (address[t] & 127)] += 1
            continue
        for t in range(rows):
            offset[t] = _offset(address[t], 0, shift, width, units)
        for slot in range(0, slots, lanes):
            n = 0
            for t in range(rows):
                n = _touch_slots(
                    slot, slot + lanes, address[t], offset[t], shift, width, units, lines, masks, n
                )
            for i in range(n):
                counts[masks[i]] += 1


@_jit
def _flat(begin, end, counts, job):  # type: ignore[no-untyped-def]
    """Count the instructions ``[begin, end)`` of the flat mapping, which may span rows."""
    ids, stride, base, shift, width, units, slots, _lanes = job
    lines, masks = np.empty(_MAX_LINES, np.int64), np.empty(_MAX_LINES, np.int64)
    for index in range(begin, end):
        item, last = index * 32, min(index * 32 + 32, ids.size * slots)
        n = 0
        while item < last:
            p = item // slots
            slot = item - p * slots
            stop = min(slots, slot + last - item)
            address = base + np.int64(ids[p]) * stride
            offset = _offset(address, p * units * width, shift, width, units)
            n = _touch_slots(slot, stop, address, offset, shift, width, units, lines, masks, n)
            item += stop - slot
        for i in range(n):
            counts[masks[i]] += 1


@_jit
def _rows_apart(counts, shift, width, units, slots, lanes, kept_lines):  # type: ignore[no-untyped-def]
    """Count the instructions of the ``counts[16 + residue]`` rows at each residue.

    Sectors of the last ``kept_lines`` lines of a row are counted once.
    """
    kept, kept_masks = np.empty(kept_lines, np.int64), np.empty(kept_lines, np.int64)
    lines, masks = np.empty(_MAX_LINES, np.int64), np.empty(_MAX_LINES, np.int64)
    for residue in range(LINE_BYTES):
        if counts[16 + residue] == 0:
            continue
        offset, added = _offset(residue, 0, shift, width, units), 0
        kept[:] = -1
        for slot in range(0, slots, lanes):
            stop = min(slots, slot + lanes)
            n = _touch_slots(slot, stop, residue, offset, shift, width, units, lines, masks, 0)
            for i in range(n):
                wanted = masks[i]
                if kept_lines > 0:
                    at = 0
                    while at < kept_lines and kept[at] != lines[i]:
                        at += 1
                    if at == kept_lines:  # the oldest line leaves
                        at, added = added % kept_lines, added + 1
                        kept[at], kept_masks[at] = lines[i], 0
                    wanted &= ~kept_masks[at]
                    kept_masks[at] |= masks[i]
                counts[wanted] += counts[16 + residue]
