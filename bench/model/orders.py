"""Which order of the nodes pays: how many pages a minibatch's rows lie in, counted.

Rows of one set of minibatches are looked up in every order of the table, so that orders differ in
nothing but the layout. A page is what one translation of an address covers on the GPU:
:data:`PAGES` says where which size holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.prepare import prepare
from gatherbench.bench.sampling.trace import InputIds, Trace
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.ordered import ORDERS, ranks
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.store import open_dataset
from gatherbench.kernels.host_memory import HUGE_PAGE
from gatherbench.kernels.order import PAGE_BYTES

#: Bytes that one translation covers, by how the GPU comes to see host memory.
PAGES: Mapping[str, int] = MappingProxyType({"registered": PAGE_BYTES, "managed": HUGE_PAGE})
GIVEN = "given"


@dataclass(frozen=True, slots=True)
class OrderCount:
    """What the rows of an average minibatch touch in one order.

    Attributes:
        order: ``given``, or one of :data:`gatherbench.datasets.ordered.ORDERS`.
        found_s: seconds that it took to find the order, and none to lay anything out.
        pages: distinct pages of a minibatch, by :data:`PAGES`.
        fewest: as many as its rows would fill if they lay side by side.
    """

    order: str
    found_s: float
    pages: Mapping[str, float]
    fewest: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class OrderCounts:
    """The orders of a graph, on the minibatches of ``workload``; ``rows`` are those of one."""

    workload: Workload
    batches: int
    rows: float
    row_bytes: int
    orders: tuple[OrderCount, ...]


def count_orders(workload: Workload, progress: Progress = silent) -> OrderCounts:
    """Draw the workload's minibatches, where they are not there yet, and count in every order.

    Raises:
        DatasetError, TraceError: dataset or minibatches cannot be had.
    """
    folder, minibatches = prepare(workload, progress)
    data, trace = open_dataset(folder), Trace.open(minibatches)
    found = []
    for name in (GIVEN, *ORDERS):
        progress(f"order: {name}", 0.0)
        begin = time.perf_counter()
        place = None if name == GIVEN else ranks(ORDERS[name](data))
        seconds = 0.0 if place is None else time.perf_counter() - begin
        ids = (one.numpy() for one in InputIds(trace))
        found.append(OrderCount(name, seconds, *_pages(ids, place, data)))
    rows = float(trace.num_nodes[:, -1].mean())
    return OrderCounts(workload, len(trace), rows, data.spec.row_bytes, tuple(found))


def _pages(
    batches: Iterable[NDArray[np.int64]], place: NDArray[np.int64] | None, data: GraphDataset
) -> tuple[dict[str, float], dict[str, float]]:
    """Distinct pages of a minibatch on average, and the fewest that could hold its rows."""
    row_bytes = data.spec.row_bytes
    pages: dict[str, list[int]] = {kind: [] for kind in PAGES}
    fewest: dict[str, list[int]] = {kind: [] for kind in PAGES}
    for ids in batches:
        rows = np.sort(ids if place is None else place[ids])
        for kind, size in PAGES.items():
            pages[kind].append(distinct_pages(rows, row_bytes, size))
            fewest[kind].append(-(-len(np.unique(rows)) * row_bytes // size))
    return (
        {kind: float(np.mean(counts)) for kind, counts in pages.items()},
        {kind: float(np.mean(counts)) for kind, counts in fewest.items()},
    )


def distinct_pages(rows: NDArray[np.int64], row_bytes: int, page_bytes: int) -> int:
    """Pages that ascending ``rows`` of a table lie in that begins on a page; int64 ``[B]``.

    A row that crosses into a page touches that one, too.
    """
    if not len(rows):
        return 0
    first = rows * row_bytes // page_bytes
    last = (rows * row_bytes + row_bytes - 1) // page_bytes
    before = np.concatenate([[-1], last[:-1]])  # ascending: whatever was touched ends there
    return int((last - np.maximum(first - 1, before)).clip(min=0).sum())
