"""What each launch policy costs on the link, row by row of a table or over row widths.

These are the numbers behind ``gatherbench requests`` and behind the figure of requests per row
against row width, which is the paper's argument for alignment as a picture. They are counted, not
measured: no GPU is needed, and the same input gives the same numbers everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gatherbench.kernels.grid import LINE_BYTES, GridPoint
from gatherbench.kernels.policies import POLICIES, Policy
from gatherbench.kernels.requests import RequestCounts, count_requests


@dataclass(frozen=True, slots=True)
class RequestRow:
    """The counts of one policy on one row width. Ratios are derived from ``counts`` when read."""

    policy: Policy
    point: GridPoint
    row_bytes: int
    counts: RequestCounts

    @property
    def requests_per_row(self) -> float:
        return self.counts.num_requests / self.counts.rows

    @property
    def mean_request_bytes(self) -> float:
        return self.counts.read_bytes / self.counts.num_requests

    @property
    def link_efficiency(self) -> float:
        """Wanted bytes over all bytes on the link, sectors' spare bytes and headers included."""
        return self.counts.rows * self.row_bytes / self.counts.link_bytes()


def uniform_ids(count: int = 1 << 18, num_rows: int = 2_449_029) -> npt.NDArray[np.int64]:
    """``count`` ids drawn uniformly, always the same: the batch when no trace is given.

    ``num_rows`` defaults to the nodes of ogbn-products (Open Graph Benchmark).
    """
    return np.random.default_rng(0).integers(0, num_rows, count)


def request_row(
    policy: Policy,
    row_bytes: int,
    item_bytes: int,
    ids: npt.NDArray[np.integer[Any]],
    *,
    table_address: int = 0,
    max_request: int = LINE_BYTES,
) -> RequestRow:
    """Count one policy on one batch; ``ids`` ``[B]`` in the order given to the policy.

    The policy's own padding and order of the ids are applied first.
    """
    point = policy.point(row_bytes, item_bytes, table_address=table_address)
    if policy.order_of(row_bytes) == "sorted":
        ids = np.sort(ids)
    counts = count_requests(
        point,
        ids,
        row_bytes,
        table_address,
        max_request,
        row_stride=policy.row_stride(row_bytes),
    )
    return RequestRow(policy, point, row_bytes, counts)


def request_table(
    dim: int,
    item_bytes: int,
    policies: Sequence[Policy] | None = None,
    ids: npt.NDArray[np.integer[Any]] | None = None,
    *,
    table_address: int = 0,
    max_request: int = LINE_BYTES,
) -> list[RequestRow]:
    """One row for each policy (all by default) on rows of ``dim`` elements of ``item_bytes``.

    Raises:
        ValueError: ``dim`` is below 1 or the batch is empty.
    """
    if dim < 1:
        raise ValueError(f"dim = {dim}: a row has at least one element")
    ids = uniform_ids() if ids is None else ids
    if ids.size == 0:
        raise ValueError("ids: an empty batch has no requests per row")
    return [
        request_row(
            p,
            dim * item_bytes,
            item_bytes,
            ids,
            table_address=table_address,
            max_request=max_request,
        )
        for p in (POLICIES.values() if policies is None else policies)
    ]


def requests_by_row_width(
    row_bytes: Iterable[int] = range(16, 2561, 16),
    item_bytes: int = 4,
    policies: Sequence[Policy] | None = None,
    *,
    max_request: int = LINE_BYTES,
) -> list[RequestRow]:
    """The figure's data: every policy at every row width, on :func:`uniform_ids`.

    ``row_bytes`` are multiples of ``item_bytes``.
    """
    ids = uniform_ids(1 << 14)
    return [
        row
        for width in row_bytes
        for row in request_table(
            width // item_bytes, item_bytes, policies, ids, max_request=max_request
        )
    ]
