"""Measure one case: open the data path, prove it right, then train and record.

Nothing is timed before the fetched rows have been compared, bit for bit, with a plain gather, and
they are compared again until the case is over.
"""

from __future__ import annotations

import copy
import itertools
import os
import time
from collections.abc import Iterable, Iterator
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
    NO_SCORE,
    Witness,
    WrongRowsError,
    check_ready,
    check_rows,
    residency_row,
)
from gatherbench.bench.run.declared_rows import declared_rows
from gatherbench.bench.run.epochs import Epochs
from gatherbench.bench.run.group import (
    ALONE,
    Alone,
    RanksDisagreeError,
    cores_of_rank,
)
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.loop import (
    UNWATCHED,
    CudaClock,
    EpochTimes,
    HostClock,
    Watch,
    run_epoch,
)
from gatherbench.bench.run.models import Trainer, build_model, to_device
from gatherbench.bench.run.nvtx import TRACE_BATCHES, Mark, nvtx_session, unmarked, write_trace
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.sensor_calibration import gpu_under_test
from gatherbench.bench.run.store import CHECK_STAGE, PartWriter
from gatherbench.bench.run.table import Table, dropped, file_of, load_table
from gatherbench.bench.run.untimed import EnergyBlock, disk_roof, row_of, uvm_rows
from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds
from gatherbench.bench.sampling.knowledge import knowledge_of
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.splitmix import derive
from gatherbench.bench.sampling.trace import Trace
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.store import open_dataset
from gatherbench.kernels.reference import reference_gather
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.base import COUNTS, Fetcher, SetupStep, Strategy
from gatherbench.strategies.knowledge import Ranks
from gatherbench.strategies.places import free_bytes
from gatherbench.strategies.registry import build

ISSUE_SOURCE = "time.perf_counter on the training thread, around what it issues of the stage"
LATENCY_SOURCE = (
    "the path's clock around each read, in bins of four to a doubling: percentiles at their upper"
    " edge, the mean of their middles"
)


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
    torch.set_num_threads(_threads_of_torch(device))
    dataset = open_dataset(job.dataset)
    size = dataset.spec.table_bytes
    reason = strategy.skip(device, size) or _too_large(job, strategy, size)
    if (skipped := _anybody(group, reason)) is not None:
        return skipped
    if loaded is None or "file" in strategy.needs:
        loaded = load_table(dataset, on_disk="file" in strategy.needs)
    table = loaded.features
    # Again: the table has taken memory.
    if (skipped := _anybody(group, strategy.skip(device, table.nbytes))) is not None:
        return skipped
    epochs = Epochs(job, dataset, Trace.open(job.trace))
    ids, room = epochs.measured_ids(), free_bytes(device)
    known = knowledge_of(job.case.workload, dataset, ids, room)
    known = replace(known, ranks=group.ranks or Ranks(0, 1, 1), file=file_of(dataset))
    if "partitions" in known.missing(strategy.needs):
        return 'unsupported: the workload has no partitions; say some, such as "16/4 beta"'
    knowledge = known.limited_to(strategy.needs)
    cached = _cached(knowledge.file)
    make, clock = job.rows, "time.perf_counter"
    begin = time.perf_counter()
    with strategy.open(table, device, knowledge) as fetcher:
        open_s = time.perf_counter() - begin
        source = f"{clock}; {loaded.where}"
        out.row(make.ok("setup", "table_load_time", "s", loaded.load_s, source))
        out.row(make.ok("setup", "open_time", "s", open_s, clock))
        out.row(make.ok("setup", "table", "B", table.nbytes, "tensor.nbytes"))
        out.rows(_binding_rows(binding, table, make))
        out.rows(_setup_rows(fetcher.setup, make))

        witness = Witness(loaded.truth, device, floor=strategy.role == "floor")
        first = max(job.measure.check_batches, fetcher.lookahead + 2)
        looked_at = list(itertools.islice(epochs.warm_up(0), first))

        def residency() -> None:
            if device.type == "cuda" or fetcher.residency():
                out.row(residency_row(fetcher, make, cached))

        compared = witness.everything("before timing", residency)
        checked = check_rows(fetcher, compared, looked_at, group=group)
        if witness.floor:
            check_ready(fetcher, looked_at[0].input_ids)
        out.row(make.ok(CHECK_STAGE, "batches", "1", checked, COMPARED))
        if job.case.repeat == 0:
            before = [(one.input_ids.cpu() for one in looked_at), *epochs.warm_up_ids()]
            out.rows(declared_rows(job, epochs, strategy, knowledge, before))
        trainer = _trainer(job.case.workload, dataset, device, group)
        training = _Training(job, epochs, loaded.truth, fetcher, trainer, witness, group, out)
        training.run(looked_at[0])
        out.row(make.ok(CHECK_STAGE, "rows", "1", witness.rows, COMPARED))
    out.rows(disk_roof(knowledge.file if group.world == 1 else None, make, job.case.repeat))
    return None


def _threads_of_torch(device: torch.device) -> int:
    """The plan's, whatever OMP_NUM_THREADS says; beside a GPU one.

    Those of torch's pool go on spinning after each operation, on the cores of those that gather and
    sample: 5 to 11 of 16 did beside an H200.
    """
    return 1 if device.type == "cuda" else len(os.sched_getaffinity(0))


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


def _cached(file: TableFile | None) -> Reason | None:
    """Have no page of the file in memory when a path opens it; why there are some."""
    try:
        return dropped(file.path) if file else None
    except OSError as error:
        return Reason("no_permission", str(error))


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
        what = ("setup", step.metric, step.unit)
        if step.value is None:
            yield make.missing(*what, step.source, step.reason)
        else:
            yield make.ok(*what, step.value, step.source)


@dataclass(frozen=True, slots=True)
class _Training:
    """An open path and a model that is trained on its rows: what all epochs of a case share."""

    job: Job
    epochs: Epochs
    truth: Tensor
    fetcher: Fetcher
    trainer: Trainer
    witness: Witness
    group: Alone
    out: PartWriter

    def run(self, typical: MiniBatch) -> None:
        """Warm-up and measured epochs, the score of the trained model, and all that is not timed.

        Args:
            typical: a minibatch for a path that tunes itself beside the training.
        """
        plan, make, out = self.job.measure, self.job.rows, self.out
        out.rows(self.group.rows(make))
        gpu = gpu_under_test(self.fetcher.device, self.job.sensors)
        recorder = Recorder(open_meters(gpu=gpu, folder=self.epochs.dataset.folder))
        # What is scored between epochs takes energy, too.
        energy = EnergyBlock(None if plan.eval_every_epoch else gpu, run_on=plan.energy)
        out.rows(_setup_rows(self._tuned(typical), make))
        for number in range(plan.warmup_epochs):
            with self.witness.everything("in the warm-up") as watch:
                self._epoch(self.epochs.warm_up(number), unmarked, watch)
        with nvtx_session(plan.nvtx) as mark, energy:
            for number in range(plan.epochs):
                self._measured_epoch(number, recorder, mark)
                if plan.eval_every_epoch:
                    self._score(number)
        self._score(-1)
        last = itertools.islice(self.epochs.trace, LAST_BATCHES)
        compared = self.witness.everything("after the last epoch")
        check_rows(self.fetcher, compared, last, self.trainer, self.group)
        out.rows(energy.rows(plan.epochs, self._further_epoch, make, self.group.gathered))
        out.rows(uvm_rows(self._further_epoch, make, traced=self.job.traces is not None))
        if self.job.traces is not None:
            out.row(self._traced(self.job.traces))

    def _epoch(self, batches: Iterator[MiniBatch], mark: Mark, watch: Watch) -> EpochTimes:
        return run_epoch(batches, self.fetcher, self.trainer, mark, watch, self.group)

    def _further_epoch(self) -> None:
        self._epoch(self.epochs.further(), unmarked, UNWATCHED)

    def _measured_epoch(self, number: int, recorder: Recorder, mark: Mark) -> None:
        """Run it with the meters open, and write what it took."""
        case, out = self.job.case, self.out
        before, slow = self.fetcher.counts(), self.fetcher.latencies()
        spots = self.witness.spots(f"in epoch {number}", len(self.epochs.trace))
        batches = self.epochs.measured(number)
        with spots as watch, recorder:
            times = self._epoch(batches, mark, watch)
        out.rows(self._times(times, number))
        for stage, seconds in times.stages.items():
            out.samples(case, number, stage, seconds)
        out.rows(self._counted(before, slow, number))
        for reading in recorder.readings:
            out.row(row_of(reading, self.job.rows, "epoch", number))
            if reading.series:
                out.series(case, number, reading.metric, reading.unit, reading.series)

    def _times(self, times: EpochTimes, epoch: int) -> Iterator[Row]:
        ok, on_gpu = self.job.rows.ok, self.job.device == "cuda"
        yield ok("epoch", "wall_time", "s", times.wall_s, "time.perf_counter", epoch)
        clock = (CudaClock if on_gpu else HostClock).source
        for stage, seconds in times.stages.items():
            yield ok(stage, "wall_time", "s", sum(seconds), clock, epoch)
        batches = len(times.losses)
        yield ok("epoch", "minibatches", "1", batches, "count", epoch)
        floor = self.witness.floor
        payload = 0 if floor else times.payload_rows * self.epochs.dataset.spec.row_bytes
        yield ok("fetch", "payload", "B", payload, "rows fetched × bytes of a row", epoch)
        loss = ("train", "loss", "1"), "mean cross entropy of the minibatches"
        if floor:
            yield self.job.rows.missing(*loss[0], loss[1], NO_SCORE, epoch=epoch)
        else:
            yield ok(*loss[0], sum(times.losses) / batches, loss[1], epoch)
        for stage, issue_s in times.issue_s.items():
            yield ok("host", f"issue_{stage}", "s", issue_s, ISSUE_SOURCE, epoch)
        if on_gpu:
            source = "time.perf_counter, the synchronisation that ends the epoch"
            yield ok("host", "drain", "s", times.drain_s, source, epoch)
        else:
            overhead = (times.wall_s - times.host_s) / batches
            source = "epoch wall time less its stages, per minibatch"
            yield ok("harness", "overhead", "s", overhead, source, epoch)

    def _counted(
        self, before: dict[str, int], slow: NDArray[np.int64] | None, epoch: int
    ) -> Iterator[Row]:
        """What the path itself counted in an epoch that began with ``before`` and ``slow``."""
        for name, count in self.fetcher.counts().items():
            unit, source = COUNTS[name]
            yield self.job.rows.ok("fetch", name, unit, count - before[name], source, epoch)
        after = self.fetcher.latencies()
        if slow is not None and after is not None:
            for metric, seconds in latencies_of(after - slow):
                yield self.job.rows.ok("fetch", metric, "s", seconds, LATENCY_SOURCE, epoch)

    def _score(self, epoch: int) -> None:
        """Write which share of test nodes the model classifies rightly: drawn from the seed.

        They see the whole graph, whatever the workload's minibatches see of it.
        """
        workload, dataset = self.job.case.workload, self.epochs.dataset
        batches = self.job.measure.eval_batches
        # A split of one's own need not have any test nodes.
        if not batches or self.group.rank or not len(dataset.test_ids) or self.witness.floor:
            return
        seeds = epoch_seeds(dataset.test_ids, workload.batch_size, workload.seed, 0, batches)
        sampler = NeighborSampler(dataset.indptr, dataset.indices, workload.fanouts)
        right = seen = 0
        for i, batch_seeds in enumerate(seeds):
            batch = sampler.sample(batch_seeds, batch_seed(workload.seed, -1, i))
            x = reference_gather(self.truth, batch.input_ids).to(self.trainer.device)
            right += self.trainer.correct(x, batch)
            seen += batch_seeds.numel()
        source = f"{seen} test nodes"
        self.out.row(self.job.rows.ok("eval", "test_accuracy", "1", right / seen, source, epoch))

    def _tuned(self, batch: MiniBatch) -> list[SetupStep]:
        """Have the path find what depends on the training: beside a copy, then thrown away."""
        fetcher, trainer = self.fetcher, self.trainer
        if not fetcher.tunable:
            return []
        ids, on_device = batch.input_ids, to_device(batch, fetcher.device)
        x = reference_gather(self.truth, ids.cpu()).to(fetcher.device)
        with torch.random.fork_rng([fetcher.device] if fetcher.device.type == "cuda" else []):
            spare = Trainer(copy.deepcopy(trainer.model), trainer.labels, fetcher.device)
            return fetcher.tune(fetcher.taken(ids), lambda: spare.step(x, on_device))

    def _traced(self, folder: Path) -> Row:
        """Trace an epoch that nothing else measures; its row says what became of it."""
        of_rank = f".rank{self.group.rank}" if self.group.world > 1 else ""
        path = folder / f"{self.job.case.id}{of_rank}.json.gz"

        def epoch(mark: Mark) -> None:
            few = itertools.islice(self.epochs.further(), TRACE_BATCHES)
            run_epoch(few, self.fetcher, self.trainer, mark)

        what = ("harness", "trace", "B")
        source = f"torch.profiler, traces/{path.name}, at most {TRACE_BATCHES} minibatches"
        try:
            return self.job.rows.ok(*what, write_trace(epoch, path, self.fetcher.device), source)
        except Exception as error:  # a profiler that fails must not cost what was measured
            why = f"failed: {type(error).__name__}: {error}"
            return self.job.rows.missing(*what, source, why, "failed")


def _trainer(
    workload: Workload, dataset: GraphDataset, device: torch.device, group: Alone
) -> Trainer:
    """The workload's model, ready to be trained: all ranks begin with the same weights."""
    model = build_model(workload, dataset.spec.feature_dim, dataset.spec.num_classes)
    labels = torch.from_numpy(np.array(dataset.labels))
    if group.rank:
        torch.manual_seed(derive(workload.seed, group.rank))  # each with a dropout of its own
    return Trainer(model, labels, device, group)
