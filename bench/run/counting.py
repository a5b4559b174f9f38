"""What each path declares of its minibatches: bytes, requests, operations; nothing here is timed.

Counting takes threads, memory and the CPU's caches, all of which a measured process needs for
itself. So a separate process draws each set once, or a part of it (``count_batches``), and queries
all paths of the workload about it in parallel. The result is in the run's folder and serves all
repeats; the link model predicts from it. Other runs count anew: a path's declarations are its code,
a plug-in's too, and no file on disk would show a change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.plan.doors import MODELS, own_model
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.models import TalliedModel
from gatherbench.bench.run.part import PartWriter, Record, read_part
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.table import file_of
from gatherbench.bench.run.training_cost import COUNTED, Counted, training_cost
from gatherbench.bench.sampling.epoch import knowledge_of
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.sampler import Tally
from gatherbench.datasets.dataset import DatasetSpec
from gatherbench.datasets.store import open_dataset
from gatherbench.kernels.order import LINE_BYTES, MANAGED_PAGE_BYTES, PAGE_BYTES
from gatherbench.outside import words_of
from gatherbench.strategies.base import Minibatches, Strategy
from gatherbench.strategies.data_path import DataPath, scaled, total
from gatherbench.strategies.knowledge import Knowledge, Ranks
from gatherbench.strategies.registry import build

#: A declared number, as JSON: stage, metric, unit, value, source, and why a value is missing.
Fact: TypeAlias = Sequence[Any]

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
#: Fields of a ``TrainingCost``, and the rows' metric and unit for each.
TRAINING_METRICS = {
    "operations": ("operations", "1"),
    "memory_bytes": ("gpu_memory", "B"),
    "launches": ("launches", "1"),
    "structure_bytes": ("structure", "B"),
}
_OF_PATH = "Strategy.data_paths over the epoch's minibatches"
_REQUESTS = (
    "request accounting over the epoch, less what a cache keeps of a row;"
    " the table begins at a page"
)
#: By kind of page visits, the pages that are meant.
_PLACES = {
    "gpu_page_visits": f"registered memory, lines of {LINE_BYTES >> 10} KiB, and of ids as given"
    f" pages of {PAGE_BYTES >> 10} KiB that a row reaches beyond its first",
    "managed_page_visits": f"managed memory, pages of {MANAGED_PAGE_BYTES >> 10} KiB",
}


def count_sets(jobs: Sequence[Job], out: PartWriter) -> None:
    """Count for all cases of a workload, one of each path, and write the result as the answer."""
    world, epochs = jobs[0].case.workload.gpus, jobs[0].measure.epochs
    ranks: list[Any] = [[] for _ in range(world)]
    for rank, counted in enumerate(ranks):
        for minibatch_set in _sets(jobs, rank):
            counted.append(minibatch_set)
            done = (rank + len(counted) / epochs) / world
            out.write("work", what="counting what its minibatches ask for", fraction=done)
    out.write("answer", ranks=ranks)


def _sets(jobs: Sequence[Job], rank: int) -> Iterator[dict[str, Any]]:
    """Yield for each set the sizes of its minibatches and the facts of each path, as for JSON."""
    first, dataset = jobs[0], open_dataset(jobs[0].dataset)
    workload, world = first.case.workload, first.case.workload.gpus
    own_job = replace(first, device="cpu", rank=rank if world > 1 else -1)
    epochs = Epochs(own_job, dataset)
    strategies = {_name(job.case): build(job.case.strategy, job.case.params) for job in jobs}
    parts = epochs.sampler.partitions
    known = knowledge_of(workload, dataset, epochs.measured_ids(), parts)
    known = replace(known, ranks=Ranks(rank, world, world), file=file_of(dataset))
    for chosen in range(first.measure.epochs):
        seen, paths = _counted(epochs, chosen, strategies, known)
        few = f"; {len(seen.num_nodes)} of {seen.batches}, scaled" if seen.scale > 1 else ""
        common = list(set_facts(workload, dataset.spec, seen))
        rows: dict[str, Any] = {}
        for name in strategies:
            path = paths.get(name)
            facts = [*(path_facts(path) if isinstance(path, DataPath) else ()), *common]
            described = [(*what, source + few, reason) for *what, source, reason in facts]
            rows[name] = path if isinstance(path, str) else described
        yield {"num_nodes": seen.num_nodes, "num_edges": seen.num_edges, "rows": rows}


@dataclass
class MinibatchSet:
    """The counts of the minibatches of one epoch.

    Attributes:
        batches: the epoch's number of minibatches; the counted ones represent all.
        num_nodes, num_edges: of each minibatch, a number for each layer.
        tallies: further counters, for the model or the sampler.
    """

    batches: int
    num_nodes: list[tuple[int, ...]] = field(default_factory=list)
    num_edges: list[list[int]] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)

    @property
    def scale(self) -> float:
        """Return the epoch's minibatches over those that were counted."""
        return self.batches / len(self.num_nodes)

    def counted(self, batches: Iterable[MiniBatch]) -> Iterator[Tensor]:
        """Count each of the minibatches and yield its ids."""
        for batch in batches:
            self.num_nodes.append(batch.num_nodes)
            self.num_edges.append([block.shape[1] for block in batch.edges])
            for tally in self.tallies:
                tally.add(batch)
            yield batch.input_ids


def _counted(
    epochs: Epochs, chosen: int, strategies: Mapping[str, Strategy], known: Knowledge
) -> tuple[MinibatchSet, dict[str, DataPath | str]]:
    """Return the minibatches of a set, and its rows by each path, or why a path has none.

    The minibatches are drawn once, and each is dropped after all paths have counted it.
    """
    own = None if epochs.workload.model in MODELS else own_model(epochs.workload.model)
    tallies = [epochs.sampler.tally()]
    if own is not None and issubclass(own, TalliedModel):
        tallies.append(own.tally())
    seen = MinibatchSet(epochs.batches, tallies=[tally for tally in tallies if tally is not None])
    declaring = {
        name: strategy for name, strategy in strategies.items() if strategy.role != "choice"
    }
    numbers = _numbers(epochs, declaring.values())
    ids = seen.counted(epochs.on_cpu(chosen, numbers))
    own_ids, *theirs = itertools.tee(ids, 1 + len(declaring))
    spec, ways = epochs.dataset.spec, []
    for strategy, of_path in zip(declaring.values(), theirs, strict=True):
        less, before = known.limited_to(strategy.needs), _before(epochs, chosen, strategy.lookahead)
        asks = Minibatches(of_path, spec.row_bytes, spec.num_nodes, less, before)
        ways.append(_until_it_fails(strategy, asks))
    paths_by_name: dict[str, DataPath | str] = {}
    _, *columns = zip(*itertools.zip_longest(own_ids, *ways), strict=True)
    if numbers is None:  # with partitions, epochs have different numbers of minibatches
        seen.batches = len(seen.num_nodes)
    for name, column in zip(declaring, columns, strict=True):
        paths = [path for path in column if isinstance(path, DataPath)]
        failure = next((path for path in column if isinstance(path, str)), None)
        paths_by_name[name] = failure or scaled(total(paths), seen.scale)
    return seen, paths_by_name


def _until_it_fails(strategy: Strategy, asks: Minibatches) -> Iterator[DataPath | str]:
    """Yield the path of each minibatch; a plug-in that fails affects only itself, and says why."""
    try:
        yield from strategy.data_paths(asks)
    except Exception as error:
        yield words_of(error)


def _numbers(epochs: Epochs, strategies: Iterable[Strategy]) -> list[int] | None:
    """Return the numbers of the minibatches that all paths count; ``None``: each is counted."""
    few, batches, workload = epochs.plan.count_batches, epochs.batches, epochs.workload
    depend = workload.step == "captured" or bool(workload.sampler)
    if depend or not 0 < few < batches or any("file" in strategy.needs for strategy in strategies):
        return None
    return [part * batches // few for part in range(few)]


def _before(epochs: Epochs, chosen: int, lookahead: int) -> Iterator[Iterator[Tensor]]:
    """Yield the ids that a path fetches before a set, by epoch, if its case has a process alone."""
    plan = epochs.plan
    yield itertools.islice(epochs.ids(plan.epochs), lookahead + 2)
    for number in (*range(plan.epochs, plan.epochs + plan.warmup_epochs), *range(chosen)):
        yield epochs.ids(number)


def set_facts(workload: Workload, spec: DatasetSpec, seen: MinibatchSet) -> Iterator[Fact]:
    """Yield the demands of a set on sampling and training, the same for all paths."""
    nodes, edges = (
        np.rint(np.array(of, np.int64).sum(axis=0) * seen.scale).astype(np.int64).tolist()
        for of in (seen.num_nodes, seen.num_edges)
    )
    source = "count of the epoch's minibatches"
    for metric, count in {
        "minibatches": seen.batches,
        "seeds": nodes[0],
        "edges": sum(edges),
    }.items():
        yield "sample", metric, "1", count, source, None
    for tally in seen.tallies:
        for counted in tally.counted(seen.scale):
            yield "sample", *counted, None
    source = "counted from the shapes of the minibatches (bench/run/training_cost.py)"
    # Every count is linear in nodes and edges, except the launches.
    sizes = spec.feature_dim, workload.hidden, spec.num_classes, nodes, edges
    own = None if workload.model in MODELS else own_model(workload.model)
    if workload.model in COUNTED:
        cost = training_cost(workload.model, *sizes)
    elif own is not None and issubclass(own, Counted):
        cost, source = own.cost(*sizes), f"{workload.model}.cost"
    else:
        yield "train", "operations", "1", None, source, UNCOUNTED
        return
    cost = replace(cost, launches=cost.launches * seen.batches)
    for name, (metric, unit) in TRAINING_METRICS.items():
        yield "train", metric, unit, getattr(cost, name), source, None


def path_facts(path: DataPath) -> Iterator[Fact]:
    """Yield bytes and requests of an epoch's path from the table."""
    for name, metric in PATH_METRICS.items():
        yield "fetch", metric, "B", getattr(path, name), _OF_PATH, None
    yield "fetch", "disk_read", "B", path.disk_bytes, _OF_PATH, PAGE_CACHE
    yield "fetch", "disk_requests", "1", path.disk_requests, _OF_PATH, PAGE_CACHE
    if path.engine_copies:
        yield "fetch", "copy_engine_copies", "1", path.engine_copies, _OF_PATH, None
    for size, count in sorted((path.gpu_requests or {}).items()):
        yield "fetch", f"gpu_requests_{size}_bytes", "1", count, _REQUESTS, None
    for metric, place in _PLACES.items():
        if (visits := getattr(path, metric)) is not None:
            source = f"count over the epoch, in the order in which rows are read; {place}"
            yield "fetch", metric, "1", visits, source, None


def constant_rows(job: Job, strategy: Strategy, spec: DatasetSpec, known: Knowledge) -> list[Row]:
    """Return a path's rows that no minibatch changes; ``known``: the knowledge it opened with."""
    make = replace(job.rows, basis="declared")
    if strategy.role == "choice":
        return [make.missing(*PAYLOAD, _OF_PATH, UNCHOSEN)]
    on_gpu = strategy.kept_bytes(spec.table_bytes, known)
    share = strategy.data_path(torch.empty(0, dtype=torch.int64), spec.row_bytes).gpu_share
    return [
        make.ok("fetch", "row", "B", spec.row_bytes, "bytes of a row"),
        make.ok("fetch", "gpu_table", "B", on_gpu, "Strategy.kept_bytes"),
        make.ok("fetch", "lookahead", "1", strategy.lookahead, "Strategy.lookahead"),
        make.ok("fetch", "gpu_share", "1", share, "DataPath.gpu_share"),
    ]


def _name(case: Case) -> str:
    return f"{case.strategy} {case.variant}"


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a case, or of its rank, by set; empty without a file, or for a ``reason``."""

    sets: list[dict[str, Any]]
    reason: str | None = None

    @classmethod
    def of(cls, job: Job) -> Self:
        """Return the counts in the job's file."""
        if job.counts is None:
            return cls([])
        answer: Record = {}
        for record in read_part(job.counts):
            if record["kind"] == "answer":
                answer |= record
        if "ranks" not in answer:
            why = answer.get("uncounted", "its process ended without a word")
            return cls([], f"failed: what its minibatches ask for was not counted: {why}")
        return cls(answer["ranks"][max(job.rank, 0)])

    @property
    def sizes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return nodes and edges of the minibatches of all sets: int64 ``[batches, layers]``."""
        if not self.sets:
            return None
        nodes, edges = (
            np.array(
                [line for minibatch_set in self.sets for line in minibatch_set[name]], np.int64
            )
            for name in ("num_nodes", "num_edges")
        )
        return nodes, edges

    def require(self, job: Job) -> None:
        """
        Raises:
            RuntimeError: the path could not describe how the rows of a set travel.
        """
        for minibatch_set in self.sets:
            if isinstance(why := minibatch_set["rows"][_name(job.case)], str):
                raise RuntimeError(f"what it declares could not be counted: {why}")

    def rows(self, job: Job, chosen: int, epoch: int) -> Iterator[Row]:
        """Yield the rows of measured epoch ``epoch``, which has set ``chosen``."""
        make = replace(job.rows, basis="declared")
        if self.reason is not None:
            yield make.missing(*PAYLOAD, _OF_PATH, self.reason, epoch=epoch)
        facts = self.sets[chosen]["rows"][_name(job.case)] if self.sets else ()
        for stage, metric, unit, value, source, reason in facts:
            if value is None:
                yield make.missing(stage, metric, unit, source, reason, epoch=epoch)
            else:
                yield make.ok(stage, metric, unit, value, source, epoch)
