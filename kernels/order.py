"""Order the ids before a gather: in which order the table is read, and how often.

Ascending ids keep neighbouring rows together, and so pages and DRAM rows; on a large table that
gave DGL four times the bandwidth (DGL #6635). Distinct ids send no row twice over the link. Both
are plain torch operations, so the same code serves the host and the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gatherbench.kernels.host_memory import HUGE_PAGE

Order = Literal["given", "sorted", "unique"]
ORDERS: tuple[Order, ...] = ("given", "sorted", "unique")
#: Registered memory has pages of 4 KiB on the GPU, and a line of the page tables holds sixteen of
#: their entries: a visit moves to another line. That fits an H200's sorted gathers over 32 GiB
#: best. For managed memory on the host the driver maps blocks of 2 MiB, if each is in one piece.
PAGE_BYTES, LINE_BYTES, MANAGED_PAGE_BYTES = 4 << 10, 64 << 10, HUGE_PAGE


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """The rows to read, and their places in the batch."""

    ids: Tensor  #: ``[R]``, in the order of reading, with the dtype of the batch's ids
    out_rows: Tensor | None = None  #: int64 ``[R]``, the place of each in the batch; None: in order
    #: int64 ``[B]``, for each place of the batch the one of the ``R`` rows that belongs there;
    #: ``None``: the rows read are the batch.
    expand: Tensor | None = None


def read_order(ids: Tensor, order: str) -> ReadOrder:
    """Arrange a batch of ids (``[B]``, int32 or int64, on any device) in one of :data:`ORDERS`.

    ``sorted`` queues its work; ``unique`` needs the number of distinct ids, so on a GPU the host
    waits for the current stream.
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
    """Count how often rows ``ids`` (``[R]``, in reading order) move to other ``entry_bytes``, what
    an entry of the page table maps, or (the default) a line of them; the table begins on a page.

    Each visit may cost the GPU an address translation.
    """
    if not ids.numel():
        return 0
    entries = ids.long() * row_bytes // entry_bytes
    return 1 + int((entries[1:] != entries[:-1]).sum())


def straddles(ids: Tensor, row_bytes: int) -> int:
    """Count the pages of :data:`PAGE_BYTES` that rows ``ids`` (``[R]``) touch beyond their first.

    For ids as given, each costs an H200 as much as a visit: without them the model of rows of 400
    and 1412 B over 8 GiB is 10 and 11 % too fast. For sorted ids the second page lies on the line
    that has just been read: the model of rows of 1412 B over 32 GiB is right without them.
    """
    begin = ids.long() * row_bytes
    return int(((begin + row_bytes - 1) // PAGE_BYTES - begin // PAGE_BYTES).sum())
