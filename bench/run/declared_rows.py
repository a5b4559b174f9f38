"""Declared rows of an epoch, not measured: bytes, requests, operations of its minibatches.

Nothing here is timed. The link model predicts from these rows, so a run's table suffices to predict
the same run on another machine. They are counted for each set of minibatches, in a process of
their own (:mod:`gatherbench.bench.run.counting`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch

from gatherbench.bench.plan.doors import MODELS, own_model
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.models import TalliedModel
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.training_cost import COUNTED, Counted, training_cost
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.sampler import Tally
from gatherbench.datasets.dataset import DatasetSpec
from gatherbench.kernels.order import LINE_BYTES, MANAGED_PAGE_BYTES, PAGE_BYTES
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.knowledge import Knowledge

#: Why another model has neither declared nor predicted values.
UNCOUNTED = "operations are counted for sage, gat, and models of one's own that are Counted"
#: Why reads of the disk are not declared.
PAGE_CACHE = "not_applicable: the page cache decides what is read, and when"
#: Why a path that is still to be chosen has neither declared nor predicted values.
UNCHOSEN = "unknown: the training shows which data path it is; predict that one"
#: Fields of a ``DataPath`` that are summed over an epoch, and the rows' metric for each.
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
#: The row with the bytes of the requested rows: stage, metric, unit.
PAYLOAD = ("fetch", PATH_METRICS["payload_bytes"], "B")
#: The metric of the requests of one size in bytes.
_REQUESTS = "gpu_requests_{}_bytes"
#: Fields of a ``TrainingCost``, and the rows' metric and unit for each.
TRAINING_METRICS = {
    "operations": ("operations", "1"),
    "memory_bytes": ("gpu_memory", "B"),
    "launches": ("launches", "1"),
    "structure_bytes": ("structure", "B"),
}


@dataclass
class MinibatchSet:
    """The counts of the minibatches of one epoch.

    Attributes:
        batches: the epoch's number of minibatches; the counted ones represent all.
        num_nodes, num_edges: of each layer, as those of
            :class:`~gatherbench.bench.sampling.trace.Trace`.
        tallies: further counters, for the model or the sampler.
    """

    batches: int
    num_nodes: list[tuple[int, ...]] = field(default_factory=list)
    num_edges: list[list[int]] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)

    @classmethod
    def of(cls, epochs: Epochs) -> Self:
        """Prepare the counts of an epoch, which has no counted minibatch so far."""
        tallies, model = [epochs.sampler.tally()], epochs.workload.model
        if model not in MODELS and issubclass(own := own_model(model), TalliedModel):
            tallies.append(own.tally())
        return cls(epochs.batches, tallies=[one for one in tallies if one is not None])

    @property
    def scale(self) -> float:
        """Return the epoch's minibatches over those that were counted."""
        return self.batches / len(self.num_nodes)

    def add(self, batch: MiniBatch) -> None:
        """Count one more minibatch."""
        self.num_nodes.append(batch.num_nodes)
        self.num_edges.append([block.shape[1] for block in batch.edges])
        for tally in self.tallies:
            tally.add(batch)


def constant_rows(job: Job, strategy: Strategy, spec: DatasetSpec, known: Knowledge) -> list[Row]:
    """Return a path's rows that no minibatch changes; ``known``: the knowledge it opened with."""
    make = replace(job.rows, basis="declared")
    if strategy.role == "choice":
        source = "Strategy.data_paths over the minibatches"
        return [make.missing(*PAYLOAD, source, UNCHOSEN)]
    on_gpu = strategy.kept_bytes(spec.table_bytes, known)
    share = strategy.data_path(torch.empty(0, dtype=torch.int64), spec.row_bytes).gpu_share
    return [
        make.ok("fetch", "row", "B", spec.row_bytes, "bytes of a row"),
        make.ok("fetch", "gpu_table", "B", on_gpu, "Strategy.kept_bytes"),
        make.ok("fetch", "lookahead", "1", strategy.lookahead, "Strategy.lookahead"),
        make.ok("fetch", "gpu_share", "1", share, "DataPath.gpu_share"),
    ]


def set_rows(epochs: Epochs, chosen: int, seen: MinibatchSet, make: RowMaker) -> Iterator[Row]:
    """Yield the demands of set ``chosen`` on sampling and training, the same for all paths."""
    workload, spec = epochs.workload, epochs.dataset.spec
    nodes, edges = (np.array(of, np.int64) for of in (seen.num_nodes, seen.num_edges))
    nodes, edges = (np.rint(of.sum(axis=0) * seen.scale).astype(np.int64) for of in (nodes, edges))
    source = "count of the epoch's minibatches"
    yield make.ok("sample", "minibatches", "1", seen.batches, source)
    yield make.ok("sample", "seeds", "1", int(nodes[0]), source)
    yield make.ok("sample", "edges", "1", int(edges.sum()), source)
    for tally in seen.tallies:
        for counted in tally.counted(seen.scale):
            yield make.ok("sample", *counted)
    source = "counted from the shapes of the minibatches (bench/run/training_cost.py)"
    # Every count is linear in nodes and edges, except the launches.
    shapes = nodes.tolist(), edges.tolist()
    widths = (spec.feature_dim, workload.hidden, spec.num_classes)
    own = None if workload.model in MODELS else own_model(workload.model)
    if workload.model in COUNTED:
        cost = training_cost(workload.model, *widths, *shapes)
    elif own is not None and issubclass(own, Counted):
        cost, source = own.cost(*widths, *shapes), f"{workload.model}.cost"
    else:
        yield make.missing("train", "operations", "1", source, UNCOUNTED)
        return
    cost = replace(cost, launches=cost.launches * seen.batches)
    for name, (metric, unit) in TRAINING_METRICS.items():
        yield make.ok("train", metric, unit, getattr(cost, name), source)


def requests_of(metrics: Iterable[str]) -> dict[int, str]:
    """Return the metrics that count requests, by the bytes of one request."""
    told = re.compile(_REQUESTS.format(r"(\d+)"))
    return {int(found[1]): found[0] for found in map(told.fullmatch, metrics) if found}


def path_rows(path: DataPath, make: RowMaker) -> Iterator[Row]:
    """Yield bytes and requests of an epoch's path from the table."""
    source = "Strategy.data_paths over the epoch's minibatches"
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
        source = "request accounting over the epoch, less what a cache keeps of a row;"
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
            source = f"count over the epoch, in the order in which rows are read; {place}"
            yield make.ok("fetch", metric, "1", visits, source)
