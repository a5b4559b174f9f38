"""Which order of the nodes pays: how many pages a minibatch's rows lie in, counted.

Rows of one set of minibatches are looked up in every order of the table, so that orders differ in
nothing but the layout. A page is what one translation of an address covers on the GPU:
:data:`PAGES` says where which size holds. How long a machine reads these rows in ascending order
is modelled from the same count.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.load import load_of
from gatherbench.bench.model.physics import gpu_reads
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.prepare import prepare
from gatherbench.bench.sampling.trace import InputIds, Trace
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.ordered import ORDERS, ranks
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.store import open_dataset
from gatherbench.kernels.order import MANAGED_PAGE_BYTES, PAGE_BYTES
from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy
from gatherbench.strategies.data_path import total

#: Bytes that one translation covers, by how the GPU comes to see host memory.
PAGES: Mapping[str, int] = MappingProxyType(
    {"registered": PAGE_BYTES, "managed": MANAGED_PAGE_BYTES}
)
GIVEN = "given"
#: Minibatches whose requests are counted for the model.
_MODELLED = 8


@dataclass(frozen=True, slots=True)
class OrderCount:
    """What the rows of an average minibatch touch in one order.

    Attributes:
        order: ``given``, or one of :data:`gatherbench.datasets.ordered.ORDERS`.
        found_s: seconds that it took to find the order, and none to lay anything out.
        pages: distinct pages of a minibatch, by :data:`PAGES`.
        fewest: as many as its rows would fill if they lay side by side.
        read: modelled seconds to read its rows in ascending order, in each of these memories.
    """

    order: str
    found_s: float
    pages: Mapping[str, float]
    fewest: Mapping[str, float]
    read: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True)
class OrderCounts:
    """The orders of a graph, on the minibatches of ``workload``; ``rows`` are those of one.

    ``profile`` names the machine of what is modelled.
    """

    workload: Workload
    batches: int
    rows: float
    row_bytes: int
    profile: str
    orders: tuple[OrderCount, ...]


def count_orders(
    workload: Workload, profile: LinkProfile, progress: Progress = silent
) -> OrderCounts:
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
        every = (one.numpy() for one in InputIds(trace))
        few = [trace.input_ids(i).numpy() for i in range(min(_MODELLED, len(trace)))]
        placed = [ids if place is None else place[ids] for ids in few]
        counts = _pages(every, place, data)
        found.append(OrderCount(name, seconds, *counts, _read(placed, data, profile)))
    rows = float(trace.num_nodes[:, -1].mean())
    row_bytes = data.spec.row_bytes
    return OrderCounts(workload, len(trace), rows, row_bytes, profile.name, tuple(found))


def _read(
    batches: Sequence[NDArray[np.int64]], data: GraphDataset, profile: LinkProfile
) -> dict[str, Estimate]:
    """Modelled seconds that the machine takes to read an average one of the minibatches, sorted."""
    found = {}
    for kind in PAGES:
        path = AlignedZeroCopy("sorted", kind)  # type: ignore[arg-type]
        ways = [path.data_path(torch.from_numpy(ids), data.spec.row_bytes) for ids in batches]
        load = load_of(total(ways), 1 / len(ways), table_bytes=float(data.spec.table_bytes))
        found[kind] = gpu_reads(load, profile).seconds
    return found


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
