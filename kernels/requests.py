"""Count the read requests that a gather sends over the link.

A GPU that reads host memory in place sends read requests over the link, and each carries a header
whatever its size. Their number and sizes follow from the addresses that the lanes load: that is the
paper's whole argument for alignment. This module turns addresses into counts, on any machine.

The rule:

1. The unit is the *warp instruction*: the loads that the 32 lanes of a warp make together. Their
   bytes are joined: a sector of 32 B that several lanes touch is fetched once (CUDA C++ Best
   Practices Guide, "Coalesced Access to Global Memory").
2. Sectors belong to lines of 128 B. Consecutive sectors of a line that one instruction needs become
   one request; a request never crosses a line. (EMOGI, Min et al., PVLDB 14(2) 2020,
   section 3: zero-copy reads reach the link as requests of 32, 64, 96 and 128 B, and a misaligned
   warp splits into two.)
3. Where a link reads less than a line at once, the model cuts the requests (``link.max_request``).
4. Sectors of a row's last lines that are still in the first-level cache are not requested again by
   the row's next instruction. Data paths declare requests so; a kernel's loads are counted without.

The rule leaves out: a row that two warps read at the same time; the order and merging of requests
in the memory system; page tables; and the split of one wide load into quarter-warps. It is exact
for the kernel's loads, and a model of the hardware's response.

The loops follow ``gather.cu`` lane for lane. They count (instruction, line) pairs by the mask of
the line's four sectors. In the row mapping, a row that shares no line with another row of its warp
costs what its address modulo 128 says: each such residue is computed once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from gatherbench.kernels.grid import LINE_BYTES, SECTOR_BYTES, SHIFTS, WARP_LANES, GridPoint
from gatherbench.kernels.policies import Policy

#: Lines of its row that the first-level cache keeps for a warp: 128 KiB, the least of sm_80 and
#: later (CUDA C++ Programming Guide, "Compute Capabilities"), over 64 warps. A row's lines follow
#: each other, so no two share a set. For this package's policies all sizes from 4 on count equally.
KEPT_LINES = 16
_IDLE, _CIRCULAR = SHIFTS.index("idle"), SHIFTS.index("circular")
_PER_TASK = 1 << 16

_jit = numba.njit(nogil=True, cache=True, boundscheck=False)


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """The cost of a batch on the link."""

    rows: int  #: rows gathered, repeats included
    requests: Mapping[int, int]  #: by size: 32, 64, 96 and 128 bytes

    @property
    def num_requests(self) -> int:
        return sum(self.requests.values())

    @property
    def requests_per_row(self) -> float:
        return self.num_requests / self.rows

    @property
    def sectors(self) -> int:
        """Sectors of 32 B, counted once for each warp instruction that needs them."""
        return sum(size // SECTOR_BYTES * n for size, n in self.requests.items())


def count_requests(
    point: GridPoint,
    ids: npt.NDArray[np.integer[Any]],
    row_bytes: int,
    table_address: int = 0,
    *,
    row_stride: int | None = None,
    kept_lines: int = 0,
) -> RequestCounts:
    """Count the requests of gathering rows ``ids`` with the kernel of ``point``.

    Neither table nor kernel is needed. The grid's cap, the block's size and the loads in flight do
    not change the count.

    Args:
        ids: ``[B]``, integers, in the order of the kernel's input.
        table_address: address of the table in bytes; only its value modulo 128 matters.
        row_stride: bytes from row to row where rows are padded; ``row_bytes`` if not given.
        kept_lines: lines of a row that a cache keeps between instructions: :data:`KEPT_LINES` to
            count requests on the link, 0 to count all loads of the kernel. It applies only to rows
            that share no line with others in an instruction, and not to the flat mapping.

    Raises:
        ValueError: an id is negative, the batch is not one-dimensional, or ``point`` cannot read
            such a table.
        TypeError: ids are not integers.
    """
    stride = row_bytes if row_stride is None else row_stride
    point.check(row_bytes, stride, table_address)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"ids: expected integers, got {ids.dtype}")
    if ids.ndim != 1:
        raise ValueError(f"ids: expected shape [B], got {ids.shape}")
    if ids.size and ids.min() < 0:
        raise ValueError(f"ids: {ids.min()} is negative")
    slots, lanes = point.slots(row_bytes), min(point.lanes or WARP_LANES, WARP_LANES)
    shape = (SHIFTS.index(point.shift), point.width, row_bytes // point.width, slots, lanes)
    job = (ids, stride, table_address % LINE_BYTES, *shape)
    work, number = _groups, -(-ids.size // (WARP_LANES // lanes))
    if point.flat:
        work, number = _flat, -(-ids.size * slots // WARP_LANES)

    def task(begin: int) -> npt.NDArray[np.int64]:
        counts = np.zeros(16 + LINE_BYTES, np.int64)  # by mask, then by residue
        work(begin, min(begin + _PER_TASK, number), counts, job)
        return counts

    begins, counts = range(0, number, _PER_TASK), np.zeros(16 + LINE_BYTES, np.int64)
    # Not numba's count of cores: reading it starts its OpenMP layer, which gives torch all back.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # starts no thread yet
        parts = pool.map(task, begins) if len(begins) > 1 else map(task, begins)
        counts = sum(parts, start=counts)
    kept, found = np.empty((2, kept_lines), np.int64), np.empty((2, WARP_LANES), np.int64)
    for residue in np.flatnonzero(counts[16:]):
        _together(np.array([residue]), counts[16 + residue], kept, found, counts, job)
    return counts_of_masks(counts[:16], ids.size)


def counts_of_masks(masks: npt.NDArray[np.integer[Any]], rows: int) -> RequestCounts:
    """Turn a histogram ``[16]`` of sector masks, one for each (instruction, line), into counts."""
    requests = dict.fromkeys(range(SECTOR_BYTES, LINE_BYTES + 1, SECTOR_BYTES), 0)
    for mask, count in enumerate(masks.tolist()):
        for run in filter(None, f"{mask:b}".split("0")):
            requests[SECTOR_BYTES * len(run)] += count
    return RequestCounts(rows, requests)


def uniform_ids(count: int = 1 << 18, num_rows: int = 2_449_029) -> npt.NDArray[np.int64]:
    """Draw ``count`` ids of ``num_rows`` (ogbn-products' nodes) uniformly, always the same."""
    return np.random.default_rng(0).integers(0, num_rows, count)


def request_row(
    policy: Policy, row_bytes: int, item_bytes: int, ids: npt.NDArray[np.integer[Any]]
) -> RequestCounts:
    """Count one policy on one batch, with its own padding and order of the ids ``[B]``."""
    if policy.order_of(row_bytes) == "sorted":
        ids = np.sort(ids)
    stride = policy.row_stride(row_bytes)
    return count_requests(policy.point(row_bytes, item_bytes), ids, row_bytes, row_stride=stride)


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
        if at < 0:
            at, n = n, n + 1
            found[0, at], found[1, at] = line, 0
        found[1, at] |= mask
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
    in ``counts[:16]`` by mask if they might."""
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
    """Count the instructions by which a warp reads the rows at ``address``, ``times`` times; of the
    last lines, as many as ``kept`` (lines and masks) has room for, sectors count once."""
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
