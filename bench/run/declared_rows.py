"""What a case says of itself before it is measured: bytes, requests, operations.

Nothing here is timed. The rows are what the link model predicts from, so that a run's table is
enough to ask what another machine would do with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.plan.workload import MODELS, RELATIONAL, own_model
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.relational import pairs_of
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.training_cost import COUNTED, Counted, training_cost
from gatherbench.bench.sampling.snapshot import SnapshotSampler
from gatherbench.bench.sampling.trace import InputIds, Trace
from gatherbench.kernels.order import LINE_BYTES, MANAGED_PAGE_BYTES, PAGE_BYTES
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.data_path import DataPath, total
from gatherbench.strategies.knowledge import Knowledge

#: Why nothing is declared, and so nothing predicted, of another model.
UNCOUNTED = "operations are counted for sage, gat, and models of one's own that are Counted"
#: Why nobody declares what is read off the disk.
PAGE_CACHE = "not_applicable: the page cache decides what is read, and when"
#: Why nothing is declared, and so nothing predicted, of a path that is still to be chosen.
UNCHOSEN = "unknown: the training shows which data path it is; predict that one"
#: Fields of a ``DataPath`` that are summed over the trace, and the rows' metric for each.
PATH_METRICS = {
    "payload_bytes": "declared_payload",
    "cpu_read_bytes": "cpu_read",
    "cpu_write_bytes": "cpu_write",
    "copy_engine_bytes": "copy_engine",
    "engine_row_bytes": "copy_engine_rows",
    "pageable_bytes": "pageable",
    "gpu_link_read_bytes": "gpu_link_read",
    "gpu_memory_bytes": "gpu_memory_read",
    "peer_bytes": "peer_read",
    "disk_payload_bytes": "disk_payload",
}
#: Metric of the requests of one size in bytes.
_REQUESTS = "gpu_requests_{}_bytes"
#: Fields of a ``TrainingCost``, and the rows' metric and unit for each.
TRAINING_METRICS = {
    "operations": ("operations", "1"),
    "memory_bytes": ("gpu_memory", "B"),
    "launches": ("launches", "1"),
    "structure_bytes": ("structure", "B"),
}


def declared_rows(
    job: Job,
    epochs: Epochs,
    strategy: Strategy,
    knowledge: Knowledge,
    before: Iterable[Iterable[Tensor]],
) -> Iterator[Row]:
    """What the strategy says of an epoch's bytes, and what its training asks of a GPU.

    ``knowledge`` is what the path was opened with, ``before`` the ids it fetched before the epoch.
    """
    make, workload = replace(job.rows, basis="declared"), job.case.workload
    trace, spec = epochs.trace, epochs.dataset.spec
    ids = InputIds(trace)
    if strategy.role == "choice":
        what = ("fetch", PATH_METRICS["payload_bytes"], "B")
        yield make.missing(*what, "Strategy.data_paths over the trace", UNCHOSEN)
    else:
        table = spec.row_bytes, spec.num_nodes
        paths = strategy.data_paths(ids, *table, knowledge, before)
        yield from _path_rows(total(paths), make)
        on_gpu = strategy.gpu_table_bytes(spec.table_bytes, knowledge)
        yield make.ok("fetch", "gpu_table", "B", on_gpu, "Strategy.gpu_table_bytes")
        row, source = ("fetch", "row", "B"), "bytes of a row"
        yield make.ok(*row, spec.row_bytes, source)
        yield make.ok("fetch", "lookahead", "1", strategy.lookahead, "Strategy.lookahead")
        yield make.ok("fetch", "gpu_share", "1", strategy.gpu_share, "Strategy.gpu_share")
    yield make.ok("sample", "minibatches", "1", len(trace), "count of the trace")
    yield make.ok("sample", "seeds", "1", int(trace.num_nodes[:, 0].sum()), "count of the trace")
    yield make.ok("sample", "edges", "1", int(trace.num_edges.sum()), "count of the trace")
    yield from _structure_rows(job, epochs, make)
    if workload.model in RELATIONAL:
        pairs = sum(pairs_of(epochs.typed(batch)) for batch in trace)
        yield make.ok(
            "sample", "pairs", "1", pairs, "distinct sources and kinds of a block's edges"
        )
    source = "counted from the shapes of the trace's minibatches (bench/run/training_cost.py)"
    # Every count is linear in nodes and edges, but for the launches.
    nodes, edges = trace.num_nodes.sum(axis=0).tolist(), trace.num_edges.sum(axis=0).tolist()
    widths = (spec.feature_dim, workload.hidden, spec.num_classes)
    own = None if workload.model in MODELS else own_model(workload.model)
    if workload.model in COUNTED:
        cost = training_cost(workload.model, *widths, nodes, edges)
    elif own is not None and issubclass(own, Counted):
        cost, source = own.cost(*widths, nodes, edges), f"{workload.model}.cost"
    else:
        yield make.missing("train", "operations", "1", source, UNCOUNTED)
        return
    cost = replace(cost, launches=cost.launches * len(trace))
    for name, (metric, unit) in TRAINING_METRICS.items():
        yield make.ok("train", metric, unit, getattr(cost, name), source)


def requests_of(metrics: Iterable[str]) -> dict[int, str]:
    """Those of the metrics that count requests, by the bytes of one."""
    told = re.compile(_REQUESTS.format(r"(\d+)"))
    return {int(found[1]): found[0] for found in map(told.fullmatch, metrics) if found}


def _structure_rows(job: Job, epochs: Epochs, make: RowMaker) -> Iterator[Row]:
    """What drawing the trace saw of neighbour lists, and remembers of them."""
    if job.measure.sampling == "snapshot":
        seen = distinct_edges(epochs.trace, epochs.dataset.spec.num_nodes)
        source = "count of the trace: pairs of a node and a neighbour drawn for it, each once"
        yield make.ok("sample", "distinct_neighbours", "1", seen, source)
        cache = epochs.sampler.cache_bytes if isinstance(epochs.sampler, SnapshotSampler) else 0
        yield make.ok("sample", "structure_cache", "B", cache, "nbytes of the sampler's caches")


def distinct_edges(trace: Trace, num_nodes: int) -> int:
    """Pairs of a node and a neighbour that was drawn for it in any minibatch, each once."""
    seen: NDArray[np.int64] = np.empty(0, np.int64)
    for batch in trace:
        ids = batch.input_ids.numpy()
        pairs = [ids[one[1].numpy()] * num_nodes + ids[one[0].numpy()] for one in batch.edges]
        seen = np.unique(np.concatenate([seen, *pairs]))
    return len(seen)


def _path_rows(path: DataPath, make: RowMaker) -> Iterator[Row]:
    """Bytes and requests of an epoch's way from the table."""
    source = "Strategy.data_paths over the trace"
    for name, metric in PATH_METRICS.items():
        yield make.ok("fetch", metric, "B", getattr(path, name), source)
    reads = {"disk_read": ("B", path.disk_bytes), "disk_requests": ("1", path.disk_requests)}
    for metric, (unit, value) in reads.items():
        if value is None:
            yield make.missing("fetch", metric, unit, source, PAGE_CACHE)
        else:
            yield make.ok("fetch", metric, unit, value, source)
    if path.engine_copies:
        yield make.ok("fetch", "copy_engine_copies", "1", path.engine_copies, source)
    if path.gpu_requests is not None:
        source = "request accounting over the trace, less what a cache keeps of a row;"
        source += " the table begins at a page"
        for size, count in sorted(path.gpu_requests.items()):
            yield make.ok("fetch", _REQUESTS.format(size), "1", count, source)
    places = {
        "gpu_page_visits": (
            path.gpu_page_visits,
            f"registered memory, lines of {LINE_BYTES >> 10} KiB, and of ids as given pages of"
            f" {PAGE_BYTES >> 10} KiB that a row reaches beyond its first",
        ),
        "managed_page_visits": (
            path.managed_page_visits,
            f"managed memory, pages of {MANAGED_PAGE_BYTES >> 10} KiB",
        ),
    }
    for metric, (visits, place) in places.items():
        if visits is not None:
            source = f"count over the trace, in the order in which rows are read; {place}"
            yield make.ok("fetch", metric, "1", visits, source)
