"""Bytes, requests and operations of every set of minibatches, counted before anything is measured.

Counting takes threads, memory and the CPU's caches, all of which a measured process needs for
itself. So a separate process draws each set once, or a part of it (``count_batches``), and queries
all paths of the workload about it in parallel. The result is in the run's folder and serves all
repeats. Other runs count anew: a path's declarations are its code, a plug-in's too, and no file on
disk would show a change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.plan.workload import Case
from gatherbench.bench.run.declared_rows import PAYLOAD, MinibatchSet, path_rows, set_rows
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.part import PartWriter, read_part
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.table import file_of
from gatherbench.bench.sampling.knowledge import knowledge_of
from gatherbench.bench.sampling.prepare import rank_trace
from gatherbench.bench.sampling.trace import Trace
from gatherbench.datasets.dataset import DatasetSpec
from gatherbench.datasets.store import open_dataset
from gatherbench.outside import words_of
from gatherbench.strategies.base import Minibatches, Strategy
from gatherbench.strategies.data_path import DataPath, scaled, total
from gatherbench.strategies.knowledge import Knowledge, Ranks
from gatherbench.strategies.registry import build

#: The keys of a row that differ within a case.
_FIELDS = ("stage", "metric", "unit", "value", "source", "status", "reason")


def count_sets(jobs: Sequence[Job], out: PartWriter) -> None:
    """Count for all cases of a workload, one of each path, and write the result as the answer."""
    world, plan = jobs[0].case.workload.gpus, jobs[0].measure
    ranks: list[Any] = []
    for rank in range(world):
        found: list[Any] = []
        for counted in _sets(jobs, rank):
            found.append(counted)
            done = (rank + len(found) / plan.epochs) / world
            out.write("work", what="counting what its minibatches ask for", fraction=done)
        ranks.append(found)
    out.write("answer", ranks=ranks)


def _sets(jobs: Sequence[Job], rank: int) -> Iterator[dict[str, Any]]:
    """Yield for each set the sizes of its minibatches and the rows of each path, as for JSON."""
    first, world = jobs[0], jobs[0].case.workload.gpus
    workload, dataset = first.case.workload, open_dataset(first.dataset)
    trace = first.trace if world == 1 else rank_trace(first.trace, rank)
    mine = replace(first, device="cpu", rank=rank if world > 1 else -1)
    epochs = Epochs(mine, dataset, Trace.open(trace))
    strategies = {_name(one.case): build(one.case.strategy, one.case.params) for one in jobs}
    asked = [one for one in strategies.values() if one.role != "choice"]
    parts = epochs.sampler.partitions
    known = knowledge_of(workload, dataset, epochs.measured_ids(), parts)
    known = replace(known, ranks=Ranks(rank, world, world), file=file_of(dataset))
    make = replace(first.run, basis="declared")  # the rows of a case have its own names
    for chosen in range(first.measure.epochs):
        seen, paths = _counted(epochs, chosen, asked, known)
        plain = partial(_plain, seen=seen)
        common = [plain(row) for row in set_rows(epochs, chosen, seen, make)]
        own = {id(one): paths[number] for number, one in enumerate(asked)}
        rows: dict[str, Any] = {}
        for name, strategy in strategies.items():
            path = own.get(id(strategy))
            if isinstance(path, str):
                rows[name] = path
            else:
                way = [] if path is None else [plain(row) for row in path_rows(path, make)]
                rows[name] = [*way, *common]
        yield {"num_nodes": seen.num_nodes, "num_edges": seen.num_edges, "rows": rows}


def _counted(
    epochs: Epochs, chosen: int, strategies: Sequence[Strategy], known: Knowledge
) -> tuple[MinibatchSet, list[DataPath | str]]:
    """Return the minibatches of a set, and its rows by each path, or why a path has none.

    They are drawn once, and each is dropped after all paths have counted it.
    """
    seen, spec = MinibatchSet.of(epochs), epochs.dataset.spec
    numbers = _chosen(epochs, strategies)

    def ids() -> Iterator[Tensor]:
        for batch in epochs.on_cpu(chosen, numbers):
            seen.add(batch)
            yield batch.input_ids

    mine, *theirs = itertools.tee(ids(), 1 + len(strategies))
    found: list[DataPath | str] = []
    ways = list[_Way]()
    for strategy in strategies:
        less = known.limited_to(strategy.needs)
        before = _Before(epochs, chosen, strategy.lookahead)
        ways.append(_Way(_asked(strategy, theirs.pop(0), spec, less, before)))
    for _ in mine:
        for way in ways:
            way.advance(1)
    for way in ways:
        way.advance(None)
        found.append(way.failure or scaled(total(way.paths), seen.scale))
    return seen, found


def _chosen(epochs: Epochs, strategies: Sequence[Strategy]) -> list[int] | None:
    """Return the numbers of the minibatches that all paths count; ``None``: each is counted."""
    few, all_of_them = epochs.plan.count_batches, epochs.batches
    workload = epochs.workload
    depend = workload.step == "captured" or bool(workload.sampler)
    if depend or not 0 < few < all_of_them or any("file" in one.needs for one in strategies):
        return None
    return [one * all_of_them // few for one in range(few)]


class _Way:
    """The data path of the minibatches counted so far by one path."""

    def __init__(self, asked: Iterator[DataPath]) -> None:
        self.paths, self.failure, self._asked = list[DataPath](), "", asked

    def advance(self, count: int | None) -> None:
        """Count so many more, or the rest; a plug-in that fails affects only itself."""
        try:
            self.paths += itertools.islice(self._asked, count)
        except Exception as error:
            self.failure = words_of(error)


def _asked(
    strategy: Strategy,
    ids: Iterable[Tensor],
    spec: DatasetSpec,
    known: Knowledge,
    before: Iterable[Iterable[Tensor]],
) -> Iterator[DataPath]:
    """Yield the data path of the minibatches; the first one starts the query."""
    yield from strategy.data_paths(Minibatches(ids, spec.row_bytes, spec.num_nodes, known, before))


@dataclass(frozen=True, slots=True)
class _Before:
    """The rows that a path fetches before a set, by epoch, if its case has a process alone."""

    epochs: Epochs
    chosen: int
    lookahead: int

    def __iter__(self) -> Iterator[Iterator[Tensor]]:
        plan = self.epochs.plan
        first = self.lookahead + 2
        yield itertools.islice(self.epochs.ids(plan.epochs), first)
        for number in (*range(plan.epochs, plan.epochs + plan.warmup_epochs), *range(self.chosen)):
            yield self.epochs.ids(number)


def _name(case: Case) -> str:
    return f"{case.strategy} {case.variant}"


def _plain(row: Row, seen: MinibatchSet) -> list[Any]:
    if (counted := len(seen.num_nodes)) < seen.batches:
        row = replace(row, source=f"{row.source}; {counted} of {seen.batches}, scaled")
    return [getattr(row, name) for name in _FIELDS]


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a case, or of its rank; empty without a file.

    Attributes:
        sets: by set, as they were written.
        reason: why counts are missing.
    """

    sets: list[dict[str, Any]]
    reason: str | None = None

    @classmethod
    def of(cls, job: Job) -> Self:
        if job.counts is None:
            return cls([])
        found = next((one for one in read_part(job.counts) if one["kind"] == "answer"), {})
        if "ranks" not in found:
            why = found.get("failed", "its process ended without a word")
            return cls([], f"failed: what its minibatches ask for was not counted: {why}")
        return cls(found["ranks"][max(job.rank, 0)])

    @property
    def sizes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return nodes and edges of the minibatches of all sets, as :class:`Trace` does for one."""
        if not self.sets:
            return None
        nodes, edges = (
            np.array([line for one in self.sets for line in one[name]], np.int64)
            for name in ("num_nodes", "num_edges")
        )
        return nodes, edges

    def require(self, job: Job) -> None:
        """
        Raises:
            RuntimeError: the path could not describe how the rows of a set travel.
        """
        for one in self.sets:
            if isinstance(found := one["rows"][_name(job.case)], str):
                raise RuntimeError(f"what it declares could not be counted: {found}")

    def rows(self, job: Job, chosen: int, epoch: int) -> Iterator[Row]:
        """Yield the rows of measured epoch ``epoch``, which has set ``chosen``."""
        make = replace(job.rows, basis="declared")
        if self.reason is not None:
            source = "Strategy.data_paths over the epoch's minibatches"
            yield make.missing(*PAYLOAD, source, self.reason, epoch=epoch)
        found = self.sets[chosen]["rows"][_name(job.case)] if self.sets else ()
        for stage, metric, unit, value, source, status, reason in found:
            if value is None:
                yield make.missing(stage, metric, unit, source, reason, status, epoch)
            else:
                yield make.ok(stage, metric, unit, value, source, epoch)
