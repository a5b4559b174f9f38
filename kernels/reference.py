"""The reference gather for every kernel and every strategy, and the comparison with it.

It is as plain as a gather can be: it only has to be right. The comparison is by bytes: a NaN equals
itself only if its payload survived, and -0.0 differs from 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def reference_gather(table: Tensor, ids: Tensor) -> Tensor:
    """Gather rows ``ids`` (``[B]``, int32 or int64) of ``table`` ``[N, D]`` to a new ``[B, D]``."""
    rows = table.new_empty((ids.numel(), table.shape[1]))
    if ids.numel():
        torch.index_select(byte_rows(table), 0, ids, out=byte_rows(rows))
    return rows


def byte_rows(table: Tensor) -> Tensor:
    """View ``table`` ``[N, D]`` of any dtype as uint8 ``[N, row bytes]``, without a copy."""
    return table.view(torch.uint8)


def same_bytes(a: Tensor, b: Tensor, numbers: Sequence[int] | None = None) -> str | None:
    """Compare ``[B, D]`` tensors on any devices byte for byte; return ``None`` if they are equal.

    Otherwise return a sentence that names the difference: dtype, shape, or the first row and column
    that differ and the number of such rows. ``numbers`` name the rows: by default 0, 1, 2, ...
    """
    if a.dtype != b.dtype:
        return f"dtype {a.dtype} is not {b.dtype}"
    if a.shape != b.shape:
        return f"shape {tuple(a.shape)} is not {tuple(b.shape)}"
    if a.numel() == 0:
        return None
    a, b = a.detach().cpu().contiguous(), b.detach().cpu().contiguous()
    if torch.equal(byte_rows(a), byte_rows(b)):
        return None
    differs = (byte_rows(a) != byte_rows(b)).view(*a.shape, a.element_size()).any(dim=2)
    row, column = (int(x) for x in differs.nonzero()[0])
    number = numbers[row] if numbers else row
    return (
        f"row {number}, column {column}: {a[row, column].item()!r} is not "
        f"{b[row, column].item()!r} ({int(differs.any(dim=1).sum())} of {a.shape[0]} rows differ)"
    )
