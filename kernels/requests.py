"""Count the read requests that a gather sends over the link.

A GPU that reads host memory in place sends read requests over the link, and each carries a header
whatever its size. The number and size of a batch's requests follow from the addresses that the
lanes load; that is the paper's whole argument for alignment. This module turns addresses into
counts, for one batch or a whole trace, on any machine.

The rule:

1. The unit is the *warp instruction*: the loads that the 32 lanes of a warp make together. Their
   bytes are joined: a sector of 32 B that several lanes touch is fetched once (CUDA C++ Best
   Practices Guide, "Coalesced Access to Global Memory": as many 32-byte transactions as are
   necessary to service all of the threads of the warp).
2. Sectors belong to lines of 128 B. Consecutive sectors of a line that one instruction needs become
   one request; a request never crosses a line. (EMOGI, Min et al., PVLDB 14(2) 2020,
   section 3: zero-copy reads reach the link as requests of 32, 64, 96 and 128 B, and a misaligned
   warp splits into two.)
3. A run longer than ``max_request`` is cut into pieces of that size from its beginning. The papers
   observed 128 B; counters on newer GPUs suggest 64 B per read, so it is a parameter to measure,
   never an assumption.
4. Sectors of a row's last lines that are still in the first-level cache are not requested again by
   the row's next instruction. Data paths declare requests so; a kernel's loads are counted without.

The rule leaves out: a row that two warps read at the same time; the order and merging of requests
in the memory system; page tables; and the split of one wide load into quarter-warps, which might
turn one request into two when a line is shared between the quarters. It is exact for the kernel's
loads, and a model of the hardware's response.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gatherbench.kernels.grid import LINE_BYTES, SECTOR_BYTES, GridPoint
from gatherbench.kernels.policies import Policy

#: Bytes that a PCIe read completion carries besides its payload: 12 B of header and 8 B of framing
#: (Neugebauer et al., "Understanding PCIe performance for end host networking", SIGCOMM 2018).
COMPLETION_HEADER_BYTES = 20
_SECTORS_PER_LINE = LINE_BYTES // SECTOR_BYTES
#: Lines of its row that the first-level cache keeps for a warp: 128 KiB, the least of sm_80 and
#: later (CUDA C++ Programming Guide, "Compute Capabilities"), over 64 warps. A row's lines follow
#: each other, so no two share a set. For this package's policies all sizes from 4 on count equally.
KEPT_LINES = 16


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """The cost of a batch on the link."""

    rows: int  #: rows gathered, repeats included
    sectors: int  #: sectors of 32 B, counted once for each warp instruction that needs them
    lines: int  #: lines of 128 B, counted likewise
    requests: Mapping[int, int]  #: by size in bytes; every size up to the largest is a key

    @property
    def num_requests(self) -> int:
        return sum(self.requests.values())

    @property
    def requests_per_row(self) -> float:
        return self.num_requests / self.rows

    @property
    def read_bytes(self) -> int:
        """The payload on the link: whole sectors, unneeded bytes included."""
        return self.sectors * SECTOR_BYTES


def count_requests(
    point: GridPoint,
    ids: npt.NDArray[np.integer[Any]],
    row_bytes: int,
    table_address: int = 0,
    max_request: int = LINE_BYTES,
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
        max_request: the largest read request on the link: 32, 64, 96 or 128 B.
        row_stride: bytes from row to row where rows are padded; ``row_bytes`` if not given.
        kept_lines: lines of a row that a cache keeps between instructions: :data:`KEPT_LINES` to
            count requests on the link, 0 to count all loads of the kernel.

    Raises:
        ValueError: an id is negative, the batch is not one-dimensional, ``max_request`` is not a
            size of a request, or ``point`` cannot read such a table.
        TypeError: ids are not integers.
    """
    from gatherbench.kernels.request_histogram import mask_histogram

    stride = row_bytes if row_stride is None else row_stride
    point.check(row_bytes, stride, table_address)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"ids: expected integers, got {ids.dtype}")
    if ids.ndim != 1:
        raise ValueError(f"ids: expected shape [B], got {ids.shape}")
    if ids.size and ids.min() < 0:
        raise ValueError(f"ids: {ids.min()} is negative")
    masks = mask_histogram(point, ids, row_bytes, stride, table_address, kept_lines)
    return counts_of_masks(masks, ids.size, max_request)


def counts_of_masks(
    masks: npt.NDArray[np.integer[Any]], rows: int, max_request: int = LINE_BYTES
) -> RequestCounts:
    """Turn a histogram ``[16]`` of sector masks, one for each (instruction, line), into counts."""
    if max_request not in range(SECTOR_BYTES, LINE_BYTES + 1, SECTOR_BYTES):
        raise ValueError(f"max_request = {max_request}: expected 32, 64, 96 or 128 bytes")
    pieces = masks @ _requests_of_mask(max_request // SECTOR_BYTES)
    return RequestCounts(
        rows=rows,
        sectors=int(sum(int(masks[m]) * m.bit_count() for m in range(16))),
        lines=int(masks[1:].sum()),
        requests={SECTOR_BYTES * (i + 1): int(n) for i, n in enumerate(pieces)},
    )


@cache
def _requests_of_mask(largest: int) -> npt.NDArray[np.int64]:
    """Count each mask's requests of 1 to ``largest`` sectors: int64 ``[16, largest]``."""
    table = np.zeros((16, largest), np.int64)
    for mask in range(16):
        run = 0
        for sector in range(_SECTORS_PER_LINE + 1):
            if mask >> sector & 1:
                run += 1
            if run == largest or (run and not mask >> sector & 1):
                table[mask, run - 1] += 1
                run = 0
    return table


def uniform_ids(count: int = 1 << 18, num_rows: int = 2_449_029) -> npt.NDArray[np.int64]:
    """Draw ``count`` ids uniformly, always the same: the batch when no trace is given.

    ``num_rows`` defaults to the nodes of ogbn-products (Open Graph Benchmark).
    """
    return np.random.default_rng(0).integers(0, num_rows, count)


def request_row(
    policy: Policy, row_bytes: int, item_bytes: int, ids: npt.NDArray[np.integer[Any]]
) -> RequestCounts:
    """Count one policy on one batch, with its own padding and order of the ids ``[B]``."""
    if policy.order_of(row_bytes) == "sorted":
        ids = np.sort(ids)
    stride = policy.row_stride(row_bytes)
    return count_requests(policy.point(row_bytes, item_bytes), ids, row_bytes, row_stride=stride)
