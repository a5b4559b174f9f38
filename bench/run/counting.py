"""What each path declares of its minibatches: bytes, requests, operations; nothing here is timed.

Counting takes threads, memory and the CPU's caches, which a measured process needs for itself. So a
separate process draws each set once, or a part of it (``count_batches``), and queries all paths of
the workload about it in parallel. The result serves all repeats of a run. Other runs count anew: a
path's declarations are its code, a plug-in's too, and no file on disk would show a change.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.meters.base import Reading
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
#: Why a path that is still to be chosen has neither declared nor predicted values.
UNCHOSEN = "unknown: the training shows which data path it is; predict that one"
#: By stage the fields of a ``DataPath`` or ``TrainingCost``, and what the rows say of each.
DECLARED: dict[str, dict[str, dict[str, str]]] = tomllib.loads(
    Path(__file__).with_name("declared.toml").read_text(encoding="utf-8")
)
#: The row with the bytes of the requested rows: stage, metric, unit.
PAYLOAD = ("fetch", DECLARED["fetch"]["payload_bytes"]["metric"], "B")
_OF_PATH = "Strategy.data_paths over the epoch's minibatches"
_PAGES = {"line": LINE_BYTES, "page": PAGE_BYTES, "managed": MANAGED_PAGE_BYTES}


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
    epochs = Epochs(replace(first, device="cpu", rank=rank if world > 1 else -1), dataset)
    strategies = {_name(job.case): build(job.case.strategy, job.case.params) for job in jobs}
    declaring = {name: path for name, path in strategies.items() if path.role != "choice"}
    known = knowledge_of(workload, dataset, epochs, epochs.sampler.partitions)
    known = replace(known, ranks=Ranks(rank, world, world), file=file_of(dataset))
    for chosen in range(first.measure.epochs):
        seen, paths = _counted(epochs, chosen, declaring, known)
        few = f"; {len(seen.num_nodes)} of {seen.batches}, scaled" if seen.scale > 1 else ""
        common = list(set_facts(workload, dataset.spec, seen))
        rows = dict[str, Any](paths)
        for name in strategies:
            if not isinstance(path := paths.get(name), str):
                facts = [*(path_facts(path) if path else ()), *common]
                rows[name] = [(*what, source + few, why) for *what, source, why in facts]
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


def _own_model(workload: Workload) -> type:
    """Return the class of a workload's own model; for a built-in one, which is none, ``object``."""
    return object if workload.model in MODELS else own_model(workload.model)


def _counted(
    epochs: Epochs, chosen: int, strategies: Mapping[str, Strategy], known: Knowledge
) -> tuple[MinibatchSet, dict[str, DataPath | str]]:
    """Return the minibatches of a set, and its rows by each path, or why a path has none.

    The minibatches are drawn once, and each is dropped after all paths have counted it.
    """
    own, tallies = _own_model(epochs.workload), [epochs.sampler.tally()]
    if issubclass(own, TalliedModel):
        tallies.append(own.tally())
    seen = MinibatchSet(epochs.batches, tallies=[tally for tally in tallies if tally is not None])
    numbers = _numbers(epochs, strategies.values())
    ids = seen.counted(epochs.on_cpu(chosen, numbers))
    own_ids, *theirs = itertools.tee(ids, 1 + len(strategies))
    spec, ways = epochs.dataset.spec, []
    for strategy, of_path in zip(strategies.values(), theirs, strict=True):
        less, before = known.limited_to(strategy.needs), _before(epochs, chosen, strategy.lookahead)
        asks = Minibatches(of_path, spec.row_bytes, spec.num_nodes, less, before)
        ways.append(_until_it_fails(strategy, asks))
    _, *columns = zip(*itertools.zip_longest(own_ids, *ways), strict=True)
    if numbers is None:  # with partitions, epochs have different numbers of minibatches
        seen.batches = len(seen.num_nodes)
    paths_by_name: dict[str, DataPath | str] = {}
    for name, column in zip(strategies, columns, strict=True):
        failure = next((path for path in column if isinstance(path, str)), None)
        paths = (path for path in column if isinstance(path, DataPath))
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
    counts = {"minibatches": seen.batches, "seeds": nodes[0], "edges": sum(edges)}
    for metric, count in counts.items():
        yield "sample", metric, "1", count, "count of the epoch's minibatches", None
    for tally in seen.tallies:
        for counted in tally.counted(seen.scale):
            yield "sample", *counted, None
    source = "counted from the shapes of the minibatches (bench/run/training_cost.py)"
    # Every count is linear in nodes and edges, except the launches.
    sizes = spec.feature_dim, workload.hidden, spec.num_classes, nodes, edges
    if workload.model in COUNTED:
        cost = training_cost(workload.model, *sizes)
    elif issubclass(own := _own_model(workload), Counted):
        cost, source = own.cost(*sizes), f"{workload.model}.cost"
    else:
        yield "train", "operations", "1", None, source, UNCOUNTED
        return
    cost = replace(cost, launches=cost.launches * seen.batches)
    for name, about in DECLARED["train"].items():
        yield "train", about["metric"], about["unit"], getattr(cost, name), source, None


def path_facts(path: DataPath) -> Iterator[Fact]:
    """Yield bytes and requests of an epoch's path from the table."""
    pages = {name: size >> 10 for name, size in _PAGES.items()}
    for name, about in DECLARED["fetch"].items():
        value, metric, why = getattr(path, name), about["metric"], about.get("why")
        source = about.get("source", _OF_PATH).format(**pages)
        if isinstance(value, Mapping):  # requests, by size
            for size, count in sorted(value.items()):
                yield "fetch", metric.replace("N", str(size)), about["unit"], count, source, None
        elif name == "engine_copies" and not value:
            continue
        elif value is not None or why:
            yield "fetch", metric, about["unit"], value, source, why


def constant_facts(strategy: Strategy, spec: DatasetSpec, known: Knowledge) -> list[Fact]:
    """Return what a path declares that no minibatch changes; ``known``: what it opened with."""
    if strategy.role == "choice":
        return [(*PAYLOAD, None, _OF_PATH, UNCHOSEN)]
    share = strategy.data_path(torch.empty(0, dtype=torch.int64), spec.row_bytes).gpu_share
    kept = strategy.kept_bytes(spec.table_bytes, known)
    return [
        ("fetch", "row", "B", spec.row_bytes, "bytes of a row"),
        ("fetch", "gpu_table", "B", kept, "Strategy.kept_bytes"),
        ("fetch", "lookahead", "1", strategy.lookahead, "Strategy.lookahead"),
        ("fetch", "gpu_share", "1", share, "DataPath.gpu_share"),
    ]


def _name(case: Case) -> str:
    return f"{case.strategy} {case.variant}"


def _counted_sets(job: Job) -> list[dict[str, Any]] | str:
    """Return what was counted for a job, or for its rank, by set; or why nothing was."""
    answer: Record = {}
    for record in read_part(job.counts) if job.counts else ():
        if record["kind"] == "answer":
            answer |= record
    if "ranks" not in answer:
        return str(answer.get("uncounted", "its process ended without a word"))
    return list(answer["ranks"][max(job.rank, 0)])


def sizes_of(job: Job) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return nodes and edges of the minibatches of all sets: int64 ``[batches, layers]``."""
    if isinstance(sets := _counted_sets(job), str):
        return None
    nodes, edges = (
        np.concatenate([np.array(of_set[name], np.int64) for of_set in sets])
        for name in ("num_nodes", "num_edges")
    )
    return nodes, edges


def facts_of(job: Job) -> list[list[Fact]]:
    """Return what a job's path declares, by set; nothing if its minibatches were not to be counted.

    Raises:
        RuntimeError: the path could not describe how the rows of a set travel.
    """
    if job.counts is None:
        return []
    if isinstance(sets := _counted_sets(job), str):
        why = f"failed: what its minibatches ask for was not counted: {sets}"
        return [[(*PAYLOAD, None, _OF_PATH, why)]] * job.measure.epochs
    facts = [of_set["rows"][_name(job.case)] for of_set in sets]
    if failed := [why for why in facts if isinstance(why, str)]:
        raise RuntimeError(f"what it declares could not be counted: {failed[0]}")
    return facts


def declared_rows(job: Job, facts: Iterable[Fact], epoch: int = -1) -> list[Row]:
    """Return the rows of what a path declares of an epoch, or of all."""
    make = replace(job.rows, basis="declared")
    return [make.row(stage, Reading(*fact), epoch) for stage, *fact in facts]
