"""Measure one case: open the data path, prove it right, then train and record.

Nothing is timed before the fetched rows have been compared, bit for bit, with a plain gather, and
they are compared again until the case is over.
"""

from __future__ import annotations

import copy
import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.machine.numa import Binding, bind_case, share_on_node
from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.meters.recorder import Recorder
from gatherbench.bench.meters.registry import open_meters
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.check import (
    COMPARED,
    LAST_BATCHES,
    Witness,
    WrongRowsError,
    check_rows,
    residency_row,
)
from gatherbench.bench.run.declared_rows import declared_rows
from gatherbench.bench.run.disk_roof import disk_roof
from gatherbench.bench.run.group import (
    ALONE,
    Alone,
    RanksDisagreeError,
    cores_of_rank,
)
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.loop import CudaClock, EpochTimes, HostClock, run_epoch
from gatherbench.bench.run.models import Trainer, build_model, to_device
from gatherbench.bench.run.nvtx import TRACE_BATCHES, Mark, nvtx_session, unmarked, write_trace
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.sensor_calibration import gpu_under_test
from gatherbench.bench.run.store import CHECK_STAGE, PartWriter
from gatherbench.bench.run.untimed import EnergyBlock, row_of, uvm_rows
from gatherbench.bench.sampling.epoch import StateSeeds, batch_seed, epoch_seeds, workload_seeds
from gatherbench.bench.sampling.knowledge import knowledge_of
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.splitmix import derive
from gatherbench.bench.sampling.state_sampler import sampler_of
from gatherbench.bench.sampling.trace import InputIds, Sampler, Trace
from gatherbench.bench.sampling.workers import drawn_ahead
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.store import open_dataset
from gatherbench.kernels.host_memory import available_bytes, resident_copy
from gatherbench.kernels.page_cache import drop_pages, mapped_table
from gatherbench.kernels.reference import reference_gather
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.base import COUNTS, Fetcher, SetupStep, Strategy
from gatherbench.strategies.knowledge import Ranks
from gatherbench.strategies.places import free_bytes
from gatherbench.strategies.registry import build

#: Share of the available memory up to which the table is brought into anonymous memory; a larger
#: one is read through its memory map.
RESIDENT_SHARE = 0.6
LATENCY_SOURCE = (
    "the path's clock around each read, in bins of four to a doubling: percentiles at their upper"
    " edge, the mean of their middles"
)


@dataclass(frozen=True, slots=True)
class Table:
    """The feature table ``[N, D]`` in host memory, in words where it lies, and how long it took.

    ``truth`` are the same rows for whoever compares. Of a table in a file it is a map of its own,
    since the kernel would read ahead of each row that is looked at.
    """

    features: Tensor
    truth: Tensor
    where: str
    load_s: float


def measure(
    job: Job, out: PartWriter, table: Table | None = None, group: Alone = ALONE
) -> str | None:
    """Measure the case and write its rows and samples to ``out`` as they are known.

    Args:
        table: where it has been loaded already.
        group: the processes that train together, of which this is one.

    Returns:
        Why the strategy cannot run here, or ``None`` when the case has been measured.

    Raises:
        WrongRowsError: the rows fetched differ from the table's. ``out`` has a row ``check.rows``
            that says so, by which readers know that what was measured is not to be shown.
        WrongMemoryError: the table does not lie where the strategy says.
        Exception: whatever went wrong; what was measured before is in ``out``.
    """
    strategy = build(job.case.strategy, job.case.params)
    with strategy.surroundings(torch.device(job.device)):
        try:
            return _measure(job, strategy, out, table, group)
        except WrongRowsError as error:
            reason = f"failed: {error}"
            out.row(job.rows.missing(CHECK_STAGE, "rows", "1", COMPARED, reason, "failed"))
            raise


def _measure(
    job: Job, strategy: Strategy, out: PartWriter, loaded: Table | None, group: Alone
) -> str | None:
    device = torch.device(job.device)
    if len(set(group.gathered((job.identity, job.run.commit)))) > 1:
        raise RanksDisagreeError("the ranks have other minibatches, or other code, than each other")
    plan, part_of = job.measure, cores_of_rank(group)
    binding = bind_case(device, plan.threads, plan.numa, part_of=part_of)
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # the plan's, whatever OMP_NUM_THREADS says
    dataset = open_dataset(job.dataset)
    size = dataset.spec.table_bytes
    reason = strategy.skip(device, size) or _too_large(job, strategy, size)
    if (skipped := _anybody(group, reason)) is not None:
        return skipped
    trace = Trace.open(job.trace)
    make = job.rows

    if loaded is None or "file" in strategy.needs:
        loaded = load_table(dataset, on_disk="file" in strategy.needs)
    table = loaded.features
    # Again: the table has taken memory.
    if (skipped := _anybody(group, strategy.skip(device, table.nbytes))) is not None:
        return skipped
    epochs = Epochs(job, dataset, trace)
    room = free_bytes(device)
    known = knowledge_of(job.case.workload, dataset, epochs.measured_ids(), room)
    known = replace(known, ranks=group.ranks or Ranks(0, 1, 1), file=file_of(dataset))
    if "partitions" in known.missing(strategy.needs):
        return 'unsupported: the workload has no partitions; say some, such as "16/4 beta"'
    knowledge = known.limited_to(strategy.needs)
    cached = _dropped(knowledge.file)
    begin = time.perf_counter()
    with strategy.open(table, device, knowledge) as fetcher:
        open_s = time.perf_counter() - begin
        clock = "time.perf_counter"
        source = f"{clock}; {loaded.where}"
        out.row(make.ok("setup", "table_load_time", "s", loaded.load_s, source))
        out.row(make.ok("setup", "open_time", "s", open_s, clock))
        out.row(make.ok("setup", "table", "B", table.nbytes, "tensor.nbytes"))
        out.rows(_binding_rows(binding, table, make))
        out.rows(_setup_rows(fetcher.setup, make))

        witness = Witness(loaded.truth, device)
        first = max(job.measure.check_batches, fetcher.lookahead + 2)
        looked_at = list(itertools.islice(epochs.warm_up(0), first))

        def residency() -> None:
            if device.type == "cuda" or fetcher.residency():
                out.row(residency_row(fetcher, make, cached))

        when = "before timing"
        checked = check_rows(fetcher, witness, looked_at, when, first=residency, group=group)
        out.row(make.ok(CHECK_STAGE, "batches", "1", checked, COMPARED))
        if job.case.repeat == 0:
            before = [(one.input_ids for one in looked_at), *epochs.warm_up_ids()]
            told = knowledge, before
            out.rows(declared_rows(job.case.workload, strategy, trace, dataset, make, *told))

        _train(job, dataset, loaded.truth, epochs, looked_at[0], fetcher, witness, make, out, group)
        out.row(make.ok(CHECK_STAGE, "rows", "1", witness.rows, COMPARED))
    out.rows(disk_roof(knowledge.file if group.world == 1 else None, make, job.case.repeat))
    return None


def _too_large(job: Job, strategy: Strategy, table_bytes: int) -> str | None:
    """Why a path cannot have the table in memory; through a map of the file it would be another."""
    if job.memory is None or "file" in strategy.needs or table_bytes <= job.memory.size:
        return None
    return (
        f"no_memory: its table of {table_bytes:,} B does not fit in the {job.memory.size:,} B that"
        " the case may take; the disk_ strategies read it off the disk"
    )


def _anybody(group: Alone, mine: str | None) -> str | None:
    """Why any rank skips the case: they skip it together."""
    return next((reason for reason in group.gathered(mine) if reason is not None), None)


def load_table(dataset: GraphDataset, *, shared: bool = False, on_disk: bool = False) -> Table:
    """The feature table ``[N, D]`` in host memory.

    In anonymous memory, where huge pages serve it, as long as it fits comfortably.

    Args:
        shared: forked processes shall register it: page-locking memory that a fork only shares
            for reading would copy it for each of them.
        on_disk: it stays there: the path reads the file.
    """
    begin = time.perf_counter()
    if not on_disk and dataset.spec.table_bytes < RESIDENT_SHARE * available_bytes():
        features = truth = resident_copy(dataset.features, shared=shared)
        where = f"copied into anonymous {'shared ' if shared else ''}memory"
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # read-only: torch warns, and nothing writes to it
            features = truth = torch.from_numpy(dataset.features)
        where = "memory-mapped file, paged in on demand"
        if (file := file_of(dataset)) is not None:
            truth = mapped_table(file, features.dtype, "random")
    return Table(features, truth, where, time.perf_counter() - begin)


def file_of(dataset: GraphDataset) -> TableFile | None:
    """Where the table's rows lie on disk."""
    mapped = dataset.features
    return TableFile.of(mapped) if isinstance(mapped, np.memmap) else None


def _dropped(file: TableFile | None) -> Reason | None:
    """Have no page of the file in memory when a path opens it; why there are some."""
    if file is None:
        return None
    try:
        left = drop_pages(file.path)
    except OSError as error:
        return Reason("no_permission", str(error))
    cause = f"{left} pages of {file.path} stay in memory: another process maps or locks them"
    return Reason("busy", cause, "end it") if left else None


def latencies_of(counted: NDArray[np.int64]) -> Iterator[tuple[str, float]]:
    """Mean and percentiles of what ``Fetcher.latencies`` counts, in seconds; none of none."""
    total = np.cumsum(counted)
    if total[-1]:
        middles = 2 ** ((np.arange(len(counted)) - 0.5) / 4) * 1e-6
        yield "disk_latency_mean", float(counted @ middles / total[-1])
        for metric, share in {"disk_latency_median": 0.5, "disk_latency_99th": 0.99}.items():
            yield metric, 2 ** (int(np.searchsorted(total, share * total[-1])) / 4) * 1e-6


def _binding_rows(binding: Binding, table: Tensor, make: RowMaker) -> Iterator[Row]:
    """The NUMA node that threads and memory are bound to, and what of the table lies there."""
    if binding.node is None:
        reason = binding.reason or Reason("unsupported", "not bound")
        yield make.missing("setup", "numa_node", "1", "NUMA node of the GPU", reason)
        return
    yield make.ok("setup", "numa_node", "1", binding.node, binding.how)
    share, source = share_on_node(table, binding.node), "move_pages, pages spread over the table"
    if isinstance(share, Reason):
        yield make.missing("setup", "table_on_node", "1", source, share)
    else:
        yield make.ok("setup", "table_on_node", "1", share, source)


def _setup_rows(steps: Iterable[SetupStep], make: RowMaker) -> Iterator[Row]:
    for step in steps:
        yield make.ok("setup", step.metric, step.unit, step.value, step.source)


def draws(
    workload: Workload, dataset: GraphDataset, epoch: int = 0, rank: int = 0
) -> Iterator[tuple[Tensor | StateSeeds, int]]:
    """What a rank's minibatches of an epoch are drawn from: the seed nodes and seed of each."""
    nodes = dataset.spec.num_nodes
    for i, seeds in enumerate(workload_seeds(workload, dataset.train_ids, epoch, rank, nodes)):
        yield seeds, batch_seed(workload.seed, epoch, i, rank, workload.world)


def live_batches(
    workload: Workload, dataset: GraphDataset, sampler: Sampler, epoch: int = 0, rank: int = 0
) -> Iterator[MiniBatch]:
    """An epoch's minibatches, drawn anew: of epoch 0 the trace's bytes, at the cost of sampling."""
    return itertools.starmap(sampler.sample, draws(workload, dataset, epoch, rank))


class Epochs:
    """The minibatches of each epoch of a case, the same ones or fresh ones as the plan says.

    Fresh ones are those of epoch 0, 1, … of the workload where they are measured, and of the
    epochs behind them in the warm-up and after the measurement.
    """

    def __init__(self, job: Job, dataset: GraphDataset, trace: Trace) -> None:
        self.plan, self.workload = job.measure, job.case.workload
        self.dataset, self.trace, self.rank = dataset, trace, max(job.rank, 0)
        graph = (dataset.indptr, dataset.indices)
        self.sampler = sampler_of(self.workload, *graph)
        self._drawing: Sampler = self.sampler
        if self.plan.sampling == "gpu":
            self._drawing = sampler_of(self.workload, *graph, torch.device(job.device))
        self._workers = [self.sampler.clone(threads=1) for _ in range(self.plan.sampler_workers)]
        self._further = itertools.count(self.plan.epochs + self.plan.warmup_epochs)

    def measured(self, number: int) -> Iterator[MiniBatch]:
        """Those of measured epoch ``number``."""
        if self.plan.sampling == "replay":
            read = [self.trace.__getitem__] * self.plan.sampler_workers
            return drawn_ahead(read, zip(range(len(self.trace)))) if read else iter(self.trace)
        return self._drawn(number, self._drawing)

    def warm_up(self, number: int) -> Iterator[MiniBatch]:
        """Those of warm-up epoch ``number``."""
        return self.measured(self.plan.epochs + number)

    def further(self) -> Iterator[MiniBatch]:
        """Those of one more epoch."""
        return self.measured(next(self._further))

    def measured_ids(self) -> Iterable[Tensor]:
        """Input ids of all that is measured, as often as wanted."""
        if self.plan.minibatches == "same":
            return InputIds(self.trace)
        return _Again(lambda: self._ids(0, self.plan.epochs))

    def warm_up_ids(self) -> Iterator[Iterator[Tensor]]:
        """Input ids of each epoch of the warm-up."""
        return (self._ids(self.plan.epochs + one, 1) for one in range(self.plan.warmup_epochs))

    def _ids(self, first: int, count: int) -> Iterator[Tensor]:
        for epoch in range(first, first + count):
            if self.plan.minibatches == "same":
                yield from InputIds(self.trace)
            else:
                yield from (batch.input_ids for batch in self._drawn(epoch, self.sampler))

    def _drawn(self, epoch: int, sampler: Sampler) -> Iterator[MiniBatch]:
        epoch = epoch if self.plan.minibatches == "fresh" else 0
        if self._workers:
            workers = [one.sample for one in self._workers]
            return drawn_ahead(workers, draws(self.workload, self.dataset, epoch, self.rank))
        return live_batches(self.workload, self.dataset, sampler, epoch, self.rank)


@dataclass(frozen=True, slots=True)
class _Again:
    """An iterable that begins anew each time."""

    begin: Callable[[], Iterator[Tensor]]

    def __iter__(self) -> Iterator[Tensor]:
        return self.begin()


def _train(
    job: Job,
    dataset: GraphDataset,
    table: Tensor,
    epochs: Epochs,
    typical: MiniBatch,
    fetcher: Fetcher,
    witness: Witness,
    make: RowMaker,
    out: PartWriter,
    group: Alone,
) -> None:
    """Warm-up epochs, measured epochs, and the score of the trained model."""
    plan, case = job.measure, job.case
    trainer = _trainer(case.workload, dataset, fetcher.device, group)
    out.rows(group.rows(make))
    gpu = gpu_under_test(fetcher.device, job.sensors)
    recorder = Recorder(open_meters(gpu=gpu, folder=dataset.folder))
    # What is scored between epochs takes energy, too.
    energy = EnergyBlock(None if plan.eval_every_epoch else gpu, run_on=plan.energy)

    def evaluate(epoch: int) -> None:
        if plan.eval_batches and group.rank == 0:
            right, seen = score(case.workload, dataset, table, trainer, plan.eval_batches)
            if seen:
                source = f"{seen} test nodes"
                out.row(make.ok("eval", "test_accuracy", "1", right / seen, source, epoch))

    out.rows(_setup_rows(_tuned(fetcher, trainer, typical, table), make))

    for number in range(plan.warmup_epochs):
        with witness.everything("in the warm-up") as watch:
            run_epoch(epochs.warm_up(number), fetcher, trainer, unmarked, watch, group)
    with nvtx_session(plan.nvtx) as mark, energy:
        for number in range(plan.epochs):
            before, slow = fetcher.counts(), fetcher.latencies()
            spots = witness.spots(f"in epoch {number}", len(epochs.trace))
            with spots as watch, recorder:
                times = run_epoch(epochs.measured(number), fetcher, trainer, mark, watch, group)
            _write_epoch(job, times, dataset.spec.row_bytes, number, make, out)
            out.rows(_counted_rows(fetcher, before, slow, number, make))
            for reading in recorder.readings:
                out.row(row_of(reading, make, "epoch", number))
                if reading.series:
                    out.series(case, number, reading.metric, reading.unit, reading.series)
            if plan.eval_every_epoch:
                evaluate(number)
    evaluate(-1)

    last = itertools.islice(epochs.trace, LAST_BATCHES)
    check_rows(fetcher, witness, last, "after the last epoch", trainer, group=group)

    def one_epoch() -> None:
        run_epoch(epochs.further(), fetcher, trainer, group=group)

    out.rows(energy.rows(plan.epochs, one_epoch, make, group.gathered))
    out.rows(uvm_rows(one_epoch, make, traced=job.traces is not None))
    if job.traces is not None:
        of_rank = f".rank{group.rank}" if group.world > 1 else ""
        path = job.traces / f"{case.id}{of_rank}.json.gz"

        def traced(mark: Mark) -> None:
            run_epoch(itertools.islice(epochs.further(), TRACE_BATCHES), fetcher, trainer, mark)

        out.row(_traced(traced, path, fetcher.device, make))


def _counted_rows(
    fetcher: Fetcher,
    before: dict[str, int],
    slow: NDArray[np.int64] | None,
    epoch: int,
    make: RowMaker,
) -> Iterator[Row]:
    """What the path itself counted in an epoch that began with ``before`` and ``slow``."""
    for name, count in fetcher.counts().items():
        unit, source = COUNTS[name]
        yield make.ok("fetch", name, unit, count - before[name], source, epoch)
    after = fetcher.latencies()
    if slow is not None and after is not None:
        for metric, seconds in latencies_of(after - slow):
            yield make.ok("fetch", metric, "s", seconds, LATENCY_SOURCE, epoch)


def _trainer(
    workload: Workload, dataset: GraphDataset, device: torch.device, group: Alone
) -> Trainer:
    """The workload's model, ready to be trained: all ranks begin with the same weights."""
    model = build_model(workload, dataset.spec.feature_dim, dataset.spec.num_classes)
    labels = torch.from_numpy(np.array(dataset.labels))
    if group.rank:
        torch.manual_seed(derive(workload.seed, group.rank))  # each with a dropout of its own
    return Trainer(model, labels, device, group)


def score(
    workload: Workload,
    dataset: GraphDataset,
    table: Tensor,
    trainer: Trainer,
    batches: int,
) -> tuple[int, int]:
    """Test nodes classified rightly, and how many were looked at; drawn from the seed.

    They see the whole graph, whatever the workload's minibatches see of it.
    """
    if not len(dataset.test_ids):  # a split of one's own need not have any
        return 0, 0
    seeds = epoch_seeds(dataset.test_ids, workload.batch_size, workload.seed, 0, batches)
    sampler = NeighborSampler(dataset.indptr, dataset.indices, workload.fanouts)
    right = seen = 0
    for i, batch_seeds in enumerate(seeds):
        batch = sampler.sample(batch_seeds, batch_seed(workload.seed, -1, i))
        x = reference_gather(table, batch.input_ids).to(trainer.device)
        right += trainer.correct(x, batch)
        seen += batch_seeds.numel()
    return right, seen


def _tuned(fetcher: Fetcher, trainer: Trainer, batch: MiniBatch, table: Tensor) -> list[SetupStep]:
    """Have the fetcher find what depends on the training: beside a copy of it, then thrown away."""
    if not fetcher.tunable:
        return []
    ids = batch.input_ids
    x = reference_gather(table, ids).to(fetcher.device)
    on_device = to_device(batch, fetcher.device)
    with torch.random.fork_rng(devices=[fetcher.device] if fetcher.device.type == "cuda" else []):
        spare = Trainer(copy.deepcopy(trainer.model), trainer.labels, fetcher.device)
        return fetcher.tune(ids.to(fetcher.ids_device), lambda: spare.step(x, on_device))


def _traced(epoch: Callable[[Mark], None], path: Path, device: torch.device, make: RowMaker) -> Row:
    """Write the trace of an epoch that nothing else measures; its row says what became of it."""
    what = ("harness", "trace", "B")
    source = f"torch.profiler, traces/{path.name}, at most {TRACE_BATCHES} minibatches"
    try:
        return make.ok(*what, write_trace(epoch, path, device), source)
    except Exception as error:  # a profiler that fails must not cost what was measured
        return make.missing(*what, source, f"failed: {type(error).__name__}: {error}", "failed")


def _write_epoch(
    job: Job, times: EpochTimes, row_bytes: int, epoch: int, make: RowMaker, out: PartWriter
) -> None:
    clock = (CudaClock if job.device == "cuda" else HostClock).source
    out.row(make.ok("epoch", "wall_time", "s", times.wall_s, "time.perf_counter", epoch))
    for stage, seconds in times.stages.items():
        out.row(make.ok(stage, "wall_time", "s", sum(seconds), clock, epoch))
        out.samples(job.case, epoch, stage, seconds)
    batches = len(times.losses)
    out.row(make.ok("epoch", "minibatches", "1", batches, "count", epoch))
    payload = times.payload_rows * row_bytes
    out.row(make.ok("fetch", "payload", "B", payload, "rows fetched × bytes of a row", epoch))
    loss = sum(times.losses) / batches
    out.row(make.ok("train", "loss", "1", loss, "mean cross entropy of the minibatches", epoch))
    if job.device != "cuda":
        overhead = (times.wall_s - times.host_s) / batches
        source = "epoch wall time less its stages, per minibatch"
        out.row(make.ok("harness", "overhead", "s", overhead, source, epoch))
