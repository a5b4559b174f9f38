"""The pass over the ids before a gather: in which order the table is read, and how often.

Ascending ids keep neighbouring rows together, and so pages and DRAM rows; on a large table that
gave DGL four times the bandwidth (DGL #6635). Distinct ids save the link every repeat. Both are
plain torch operations, so the same code serves the host and the GPU. They return what the gather
kernel takes: ids to read, and the output row of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gatherbench.kernels.host_memory import HUGE_PAGE

Order = Literal["given", "sorted", "unique"]
ORDERS: tuple[Order, ...] = ("given", "sorted", "unique")
#: Registered memory has pages of 4 KiB on the GPU, whose entries fill a line of the page tables by
#: sixteen: such a line is what it goes on to. That explains sorted gathers best that an H200 made
#: over 32 GiB. Of managed memory on the host the driver maps blocks of 2 MiB, where it has each in
#: one piece.
PAGE_BYTES, LINE_BYTES, MANAGED_PAGE_BYTES = 4 << 10, 64 << 10, HUGE_PAGE


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """What to read, and where it belongs.

    Attributes:
        ids: ``[R]`` rows of the table in the order in which they are read, dtype of the batch's.
        out_rows: int64 ``[R]``, the place of each in the batch, or ``None``: in order.
        expand: int64 ``[B]``, for each place of the batch which of the ``R`` rows read stands
            there; or ``None``, where the rows read are the batch.
    """

    ids: Tensor
    out_rows: Tensor | None = None
    expand: Tensor | None = None


def read_order(ids: Tensor, order: str) -> ReadOrder:
    """Arrange a batch of ids (``[B]``, int32 or int64, on any device).

    ``sorted`` queues its work; ``unique`` has to know how many there are, so on a GPU the host
    waits for the current stream.

    Raises:
        ValueError: ``order`` is none of :data:`ORDERS`.
    """
    if order == "given":
        return ReadOrder(ids)
    if order == "sorted":
        ascending, places = torch.sort(ids)
        return ReadOrder(ascending, out_rows=places)
    if order == "unique":
        distinct, inverse = torch.unique(ids, return_inverse=True)
        return ReadOrder(distinct, expand=inverse)
    raise ValueError(f"order = {order!r}: expected one of {', '.join(ORDERS)}")


def page_visits(ids: Tensor, row_bytes: int, entry_bytes: int = LINE_BYTES) -> int:
    """How often rows ``ids`` (``[R]``, in the order in which they are read) move to another entry.

    Rows of ``row_bytes`` bytes in a table that begins on a page, of which an entry maps
    ``entry_bytes``. Each visit may cost the GPU a translation of the address: random ids make one
    with nearly every row, ascending ones one for each entry.
    """
    if not ids.numel():
        return 0
    entries = ids.long() * row_bytes // entry_bytes
    return 1 + int((entries[1:] != entries[:-1]).sum())


def straddles(ids: Tensor, row_bytes: int) -> int:
    """How many pages of :data:`PAGE_BYTES` rows ``ids`` (``[R]``) reach beyond their first.

    Of ids as given an H200 takes as long for each as for a visit: over 8 GiB, rows of 400 and
    1412 B came out 10 and 11 % too fast without. Of sorted ones, whose second page lies on the line
    that has just been read, rows of 1412 B over 32 GiB come out right without them.
    """
    begin = ids.long() * row_bytes
    return int(((begin + row_bytes - 1) // PAGE_BYTES - begin // PAGE_BYTES).sum())
