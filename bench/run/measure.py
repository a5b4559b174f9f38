"""A case: open the data path, prove it right, then train and record.

Nothing is timed before the fetched rows have been compared, bit for bit, with a plain gather, and
they are compared again until the case is over.
"""

from __future__ import annotations

import itertools
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gatherbench.bench.machine.numa import Binding, bind_case
from gatherbench.bench.meters.nvml_device import GpuUnderTest
from gatherbench.bench.meters.recorder import Recorder
from gatherbench.bench.meters.registry import open_meters
from gatherbench.bench.plan.doors import is_relational
from gatherbench.bench.plan.plan import GPU_SAMPLING
from gatherbench.bench.run.captured import (
    CapturedTrainer,
    StepInputs,
    WrongStepError,
    difference,
    padding,
)
from gatherbench.bench.run.check import (
    COMPARED,
    NO_SCORE,
    RowChecker,
    StaysOnHost,
    WrongMemoryError,
    WrongRowsError,
    WrongThreadsError,
    check_ready,
    check_rows,
    residency_row,
)
from gatherbench.bench.run.counting import Counts
from gatherbench.bench.run.declared_rows import constant_rows
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.group import (
    ALONE,
    Alone,
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
from gatherbench.bench.run.nvtx import TRACE_BATCHES, Mark, unmarked, write_trace
from gatherbench.bench.run.part import CHECK_STAGE, PartWriter
from gatherbench.bench.run.rows import SET, Row, RowMaker
from gatherbench.bench.run.sensor_check import gpu_under_test
from gatherbench.bench.run.step_context import counted_rows, gradient_row, step_context
from gatherbench.bench.run.table import (
    Table,
    TableKind,
    dropped,
    file_of,
    load_table,
    table_kind,
    table_refusal,
)
from gatherbench.bench.run.tuned import tuned_once
from gatherbench.bench.run.untimed import EnergyBlock, disk_roof, peak_of, row_of
from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds
from gatherbench.bench.sampling.knowledge import knowledge_of
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.splitmix import derive
from gatherbench.bench.sampling.trace import KEPT, Trace
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.store import open_dataset
from gatherbench.kernels.reference import reference_gather
from gatherbench.kernels.table_file import TableFile
from gatherbench.outside import words_of
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import COUNTS, Fetcher, SetupStep, Strategy
from gatherbench.strategies.knowledge import Knowledge, Ranks
from gatherbench.strategies.places import reads_managed
from gatherbench.strategies.registry import build

P = ParamSpec("P")
R = TypeVar("R")

ISSUE_SOURCE = "time.perf_counter on the training thread, around what it issues of the stage"
LATENCY_SOURCE = (
    "the path's clock around each read, in bins of four to a doubling: percentiles at their upper"
    " edge, the mean of their middles"
)


class Session:
    """The things that all cases of a process share, each made at its first use.

    Args:
        job: any of theirs: they differ only in their paths.
        table: one that is already loaded.
        group: the processes that train together, of which this is one.
    """

    def __init__(self, job: Job, table: Table | None = None, group: Alone = ALONE) -> None:
        self._job, self.group = job, group
        #: By kind of memory; one that is dropped lives as long as a path reads it.
        self.tables = {} if table is None else {table.kind: table}

    @cached_property
    def binding(self) -> Binding:
        """Bind the process, with the plan's threads, and return where it is bound."""
        plan, part_of = self._job.measure, cores_of_rank(self.group)
        binding = bind_case(
            torch.device(self._job.device), plan.threads, plan.numa, part_of=part_of
        )
        torch.set_num_threads(_threads_of_torch(torch.device(self._job.device)))
        return binding

    @cached_property
    def dataset(self) -> GraphDataset:
        return open_dataset(self._job.dataset)

    @cached_property
    def epochs(self) -> Epochs:
        return Epochs(self._job, self.dataset, Trace.open(self._job.trace))

    @cached_property
    def labels(self) -> Tensor:
        """The labels, int64 ``[N]``, on the device."""
        return torch.from_numpy(np.array(self.dataset.labels)).to(self._job.device)

    @cached_property
    def inputs(self) -> StepInputs:
        """The inputs of captured steps, for the minibatches of all sets."""
        width, device = self.dataset.spec.feature_dim, torch.device(self._job.device)
        return StepInputs.of(*self.sizes, width, device)

    @cached_property
    def sizes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Nodes and edges of the measured minibatches; if they were not counted, of the trace."""
        trace = self.epochs.trace
        return Counts.of(self._job).sizes or (trace.num_nodes, trace.num_edges)

    @cached_property
    def known(self) -> Knowledge:
        """All information that a path may use."""
        ids = self.epochs.measured_ids()
        parts = self.epochs.sampler.partitions
        known = knowledge_of(self._job.case.workload, self.dataset, ids, parts)
        ranks = self.group.ranks or Ranks(0, 1, 1)
        return replace(known, ranks=ranks, file=file_of(self.dataset))

    @cached_property
    def gpu(self) -> GpuUnderTest | None:
        """The GPU whose meters are read; ``None`` without a GPU."""
        return gpu_under_test(torch.device(self._job.device), self._job.sensors)

    @cached_property
    def recorder(self) -> Recorder:
        return Recorder(open_meters(gpu=self.gpu, folder=self.dataset.folder))

    def kind(self, strategy: Strategy) -> TableKind:
        """Return the kind of memory in which the path's table is loaded."""
        job, device = self._job, torch.device(self._job.device)
        return table_kind(strategy, device, job.case.workload.gpus)

    def table(self, strategy: Strategy) -> Table:
        """Return the feature table where the path reads it, loaded once for all paths of a kind."""
        kind, device = self.kind(strategy), torch.device(self._job.device)
        if kind == "file":
            return load_table(self.dataset, kind)
        if kind not in self.tables:
            self.tables[kind] = load_table(self.dataset, kind, device)
        return self.tables[kind]

    def table_refusal(self, strategy: Strategy) -> Reason | None:
        """Return why the path's table cannot be loaded in addition to those that are loaded."""
        kind, job = self.kind(strategy), self._job
        size, processes = self.dataset.spec.table_bytes, job.case.workload.gpus
        if kind in self.tables:
            return None
        return table_refusal(kind, size, torch.device(job.device), processes)


def _phase(
    method: Callable[Concatenate[MeasuredCase, P], R],
) -> Callable[Concatenate[MeasuredCase, P], R]:
    """Make a method a phase of a case, in which the number of torch's threads must not change.

    torch, numba and other libraries share one OpenMP runtime, and the last setting of its threads
    wins: a call that only queries numba for a number gives torch all cores back. All rows are right
    then, and every time is wrong.
    """

    @wraps(method)
    def phase(self: MeasuredCase, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._ground.binding  # noqa: B018 - gives torch its threads
        given = torch.get_num_threads()
        try:
            result = method(self, *args, **kwargs)
        finally:
            found = torch.get_num_threads()
            if found != given:
                torch.set_num_threads(given)
        if found != given:
            raise WrongThreadsError(
                f"torch had {given} threads and now has {found}: a call in {method.__name__}()"
                " changed them (torch, numba and others share OpenMP's), and what is timed holds no"
                " more"
            )
        return result

    return phase


class MeasuredCase(ExitStack):
    """A case in three phases: it opens and warms up, has its epochs one by one, and ends.

    Args:
        session: shared by the cases of the process.

    If other paths are open in the process (a job that is not ``alone``), anything that would
    affect them, or that they would affect, is omitted. All rows are compared in the first repeat of
    a path, before timing and in the warm-up; in others a few, as in the timed epochs.

    All phases raise:
        WrongRowsError: the rows fetched differ from the table's. ``out`` has a row ``check.rows``
            that reports it, by which readers know to hide the measurements.
        WrongMemoryError: the table is not where the strategy says.
        Exception: another failure; earlier measurements are in ``out``.
    """

    #: Around its measured epochs if it is alone, else after them.
    _energy: EnergyBlock
    #: Restores the state after the warm-up.
    _begin: Callable[[], None]

    def __init__(self, job: Job, out: PartWriter, session: Session) -> None:
        super().__init__()
        self._job, self._out, self._ground, self._alone = job, out, session, job.alone
        self._device = torch.device(job.device)
        self.strategy = build(job.case.strategy, job.case.params)
        self._epochs = 0
        #: Restores the state that is scored in the end.
        self._trained: Callable[[], None] | None = None

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> bool | None:
        if isinstance(error, WrongRowsError | WrongMemoryError):
            what = (CHECK_STAGE, error.metric, "1", error.source)
            self._out.row(self._job.rows.missing(*what, f"failed: {error}", "failed"))
        return super().__exit__(kind, error, where)

    @property
    def compared(self) -> int:
        """The number of rows that have been compared since it was opened."""
        return self._training.checker.rows

    def refused(self) -> Reason | None:
        """Return why the path cannot run here now, as far as is known before it is opened."""
        spec, job = self._ground.dataset.spec, self._job
        size = spec.table_bytes
        if is_relational(job.case.workload.model):
            if not spec.relations:
                return unsupported(f"the edges of {spec.name} have no kinds: prepare it anew")
            if self._device.type == "cuda" and job.measure.sampling in GPU_SAMPLING:
                return unsupported("kinds of edges are looked up on the host; sample there")
        if spec.hashed and "file" in self.strategy.needs:
            return unsupported(f"rows of {spec.name} are made in memory, and no disk holds them")
        if job.case.workload.step == "captured" and self._device.type != "cuda":
            return unsupported("only a GPU replays captured steps", 'take step = "issued"')
        reason = self.strategy.skip(self._device, size)
        return reason or self._ground.table_refusal(self.strategy)

    def open(self) -> str | None:
        """Open the path, check its rows and warm it up; return why it cannot run here."""
        self.enter_context(self.strategy.surroundings(self._device))
        return self._open()

    @_phase
    def _open(self) -> str | None:
        job, out, session, strategy = self._job, self._out, self._ground, self.strategy
        device, group, plan = self._device, session.group, job.measure
        binding = session.binding
        if (skipped := _anybody(group, self.refused())) is not None:
            return skipped
        loaded = session.table(strategy)
        table = loaded.features
        # Again: the table has taken memory.
        if (skipped := _anybody(group, strategy.skip(device, table.nbytes))) is not None:
            return skipped
        if "partitions" in session.known.missing(strategy.needs):
            remedy = "take a sampler that keeps to some: docs/guide.md, Tables on disk"
            return str(unsupported("minibatches keep to no partitions", remedy))
        knowledge = session.known.limited_to(strategy.needs)
        cached = _cached(knowledge.file)
        make, clock = job.rows, "time.perf_counter"
        self._stays = StaysOnHost(device, table.nbytes) if reads_managed(strategy) else None
        begin = time.perf_counter()
        fetcher = self.enter_context(strategy.open(table, device, knowledge))
        open_s = time.perf_counter() - begin
        loading = loaded.load_s, f"{clock}; {loaded.where}"
        out.row(make.ok("setup", "table_load_time", "s", *loading))
        out.row(make.ok("setup", "open_time", "s", open_s, clock))
        out.row(make.ok("setup", "table", "B", table.nbytes, "tensor.nbytes"))
        out.row(_binding_row(binding, make))
        self._told = tuple(fetcher.setup)
        out.rows(_setup_rows(self._told, make))

        epochs, no_fetch = session.epochs, strategy.role == "no_fetch"
        checker = RowChecker(loaded.truth, device, no_fetch=no_fetch)
        first = fetcher.lookahead + 2
        looked_at = list(itertools.islice(epochs.warm_up(0), first))

        def residency() -> None:
            if device.type == "cuda" or fetcher.residency():
                out.row(residency_row(fetcher, make, cached))

        everything = self._alone or (job.first and not job.start)
        compare = checker.everything if everything else partial(checker.spots, len(looked_at))
        compared = compare("before timing", residency)
        checked = check_rows(fetcher, compared, looked_at, group=group)
        if checker.no_fetch:
            check_ready(fetcher, looked_at[0].input_ids)
        out.row(make.ok(CHECK_STAGE, "batches", "1", checked, COMPARED))
        counts = self._declared(knowledge)
        trainer = _trainer(job, session)
        self.callback(trainer.around.close)
        self._training = _Training(
            job, strategy, session, loaded.truth, fetcher, trainer, checker, counts, out
        )
        self._told += tuple(self._training.warm_up(looked_at[0], everything=everything))
        self._begin = trainer.kept()
        # What is scored between epochs takes energy, too.
        told = not plan.eval_every_epoch and (self._alone or plan.energy)
        self._energy = EnergyBlock(session.gpu if told else None, run_on=plan.energy)
        self._file = knowledge.file
        self._window = self.enter_context(ExitStack())
        if self._alone:
            self._window.enter_context(self._energy)
        return None

    def _declared(self, known: Knowledge) -> Counts:
        """Return the counts of the minibatches; the first repeat writes their rows."""
        job = self._job
        if not job.first:
            return Counts([])
        counts = Counts.of(job)
        counts.require(job)
        self._out.rows(constant_rows(job, self.strategy, self._ground.dataset.spec, known))
        return counts

    @_phase
    def epoch(self, number: int, mark: Mark, chosen: int | None = None) -> None:
        """Measure epoch ``number`` on the minibatches of set ``chosen``, by default the same.

        It begins with the state after the warm-up: so the loss of a set is the same for all paths,
        in whatever order they have it. If the model is scored after each epoch, it trains on.
        """
        plan, chosen = self._job.measure, number if chosen is None else chosen
        if not plan.eval_every_epoch:
            self._begin()
        self._training.measured_epoch(number, chosen, mark)
        self._epochs += 1
        if plan.eval_every_epoch:
            self._training.score(number)
        elif chosen == plan.epochs - 1 and plan.eval_batches:
            self._trained = self._training.trainer.kept()

    @_phase
    def finish(self) -> None:
        """Score the trained model and do all that is not timed; then close the path.

        The model is that of the warm-up and the last set, or of all epochs if each continues from
        the one before. A model with fewer epochs than the others' has no score.
        """
        training, job, out = self._training, self._job, self._out
        self._window.close()
        if self._epochs == job.measure.epochs:
            if self._trained is not None:
                self._trained()
            training.score(-1)
        training.look_again(everything=self._alone)
        later = (step for step in training.fetcher.setup if step not in self._told)
        out.rows(_setup_rows(later, job.rows))
        if self._stays is not None:
            out.row(self._stays.row(job.rows))
        if job.measure.peak and job.first:
            out.row(training.peak())
        if not self._alone:
            with self._energy:  # the measured epochs alternated with those of others
                pass
        training.energy_rows(self._energy)
        if job.traces is not None:
            out.row(training.traced(job.traces))
        out.row(job.rows.ok(CHECK_STAGE, "rows", "1", training.checker.rows, COMPARED))
        self.close()
        del self._training  # with the table, as the host may have room for only one
        file = self._file if self._ground.group.world == 1 else None
        out.rows(disk_roof(file, job.rows, job.case.repeat))


def _threads_of_torch(device: torch.device) -> int:
    """Return the plan's number of threads, whatever OMP_NUM_THREADS is; with a GPU, 1.

    Those of torch's pool continue to spin after each operation, on the cores that gather and
    sample: 5 to 11 of 16 do on the host of an H200.
    """
    return 1 if device.type == "cuda" else len(os.sched_getaffinity(0))


def _anybody(group: Alone, mine: Reason | None) -> str | None:
    """Return why any rank skips the case: they skip it together."""
    said = group.gathered(mine and str(mine))
    return next((reason for reason in said if reason is not None), None)


def _cached(file: TableFile | None) -> Reason | None:
    """Drop the file's pages from memory before a path opens it; return why some remain."""
    try:
        return dropped(file.path) if file else None
    except OSError as error:
        return Reason("no_permission", str(error))


def latencies_of(counted: NDArray[np.int64]) -> Iterator[tuple[str, float]]:
    """Yield mean and percentiles of the counts of ``Fetcher.latencies``, s; nothing if empty."""
    total = np.cumsum(counted)
    if total[-1]:
        middles = 2 ** ((np.arange(len(counted)) - 0.5) / 4) * 1e-6
        yield "disk_latency_mean", float(counted @ middles / total[-1])
        for metric, share in {"disk_latency_median": 0.5, "disk_latency_99th": 0.99}.items():
            yield metric, 2 ** (int(np.searchsorted(total, share * total[-1])) / 4) * 1e-6


def _binding_row(binding: Binding, make: RowMaker) -> Row:
    """Return the NUMA node that threads and memory are bound to."""
    if binding.node is None:
        reason = binding.reason or unsupported("not bound")
        return make.missing("setup", "numa_node", "1", "NUMA node of the GPU", reason)
    return make.ok("setup", "numa_node", "1", binding.node, binding.how)


def _setup_rows(steps: Iterable[SetupStep], make: RowMaker) -> Iterator[Row]:
    for step in steps:
        what = ("setup", step.metric, step.unit)
        if step.value is None:
            yield make.missing(*what, step.source, step.reason)
        else:
            yield make.ok(*what, step.value, step.source)


@dataclass(frozen=True, slots=True)
class _Training:
    """An open path and a model that is trained on its rows, shared by all epochs of a case."""

    job: Job
    strategy: Strategy
    session: Session
    truth: Tensor
    fetcher: Fetcher
    trainer: Trainer
    checker: RowChecker
    counts: Counts
    out: PartWriter

    @property
    def epochs(self) -> Epochs:
        return self.session.epochs

    @property
    def group(self) -> Alone:
        return self.session.group

    def warm_up(self, typical: MiniBatch, *, everything: bool) -> list[SetupStep]:
        """Run the epochs before the measured ones, and compare all of their rows, or a few.

        Args:
            typical: a minibatch for a path that tunes itself while training runs.

        Returns:
            The steps of tuning, whose rows are written.
        """
        plan, make, when = self.job.measure, self.job.rows, "in the warm-up"
        self.fetcher.expect(self.epochs.batches)
        self.out.rows(self.group.rows(make))
        if self.job.case.workload.around_step:
            self.out.row(self._gradient_row(typical))
        if isinstance(self.trainer, CapturedTrainer):
            self._captured_rows(self.trainer, typical)
        tuned = self._tuned(typical)
        self.out.rows(_setup_rows(tuned, make))
        for number in range(plan.warmup_epochs):
            watched = self._compared(when, self.epochs.batches, everything)
            with watched as watch:
                self._epoch(self.epochs.warm_up(number), unmarked, watch)
        return tuned

    def _gradient_row(self, batch: MiniBatch) -> Row:
        """Return a row that shows that the step's context leaves its gradients unchanged."""
        plain = _model(self.job, self.session)
        return gradient_row(self.job.rows, self.trainer, plain, *self._beside(batch))

    def _captured_rows(self, trainer: CapturedTrainer, batch: MiniBatch) -> None:
        """Capture the step; write its share of padding, and its gradient's difference.

        Raises:
            SystemExit: it cannot be captured. torch may be left in the capture, so other paths of
                the process get another one.
        """
        make = self.job.rows
        share = padding(self.session.sizes[1])
        source = "largest minibatch of each layer, over the mean"
        self.out.row(make.ok("train", "padding", "1", share, source))
        if self.job.first:
            x, on_device = self._beside(batch)
            source = "norm of the difference to the step issued, over its norm; no dropout"
            far = _or_end(partial(difference, trainer, x, on_device))
            self.out.row(make.ok(CHECK_STAGE, "gradient_difference", "1", far, source))
        _or_end(trainer.capture)

    def _beside(self, batch: MiniBatch) -> tuple[Tensor, MiniBatch]:
        """Return a minibatch and its rows on the device, fetched without the path."""
        x = reference_gather(self.truth, batch.input_ids.cpu()).to(self.fetcher.device)
        return x, to_device(batch, self.fetcher.device)

    def _compared(self, when: str, batches: int, everything: bool) -> AbstractContextManager[Watch]:
        """Watch all rows of so many minibatches, or a few."""
        return self.checker.everything(when) if everything else self.checker.spots(batches, when)

    def look_again(self, *, everything: bool) -> None:
        """Compare rows once more after the last epoch."""
        batches = min(KEPT, len(self.epochs.trace))
        last = map(self.epochs.typed, itertools.islice(self.epochs.trace, batches))
        compared = self._compared("after the last epoch", batches, everything)
        check_rows(self.fetcher, compared, last, self.trainer, self.group)

    def energy_rows(self, energy: EnergyBlock) -> None:
        """Write energy of the measured epochs, and run further ones if their window is short."""
        plan, make = self.job.measure, self.job.rows
        self.out.rows(energy.rows(plan.epochs, self._further_epoch, make, self.group.gathered))

    def _epoch(self, batches: Iterator[MiniBatch], mark: Mark, watch: Watch) -> EpochTimes:
        return run_epoch(batches, self.fetcher, self.trainer, mark, watch, self.group)

    def _further_epoch(self) -> None:
        self._epoch(self.epochs.further(), unmarked, UNWATCHED)

    def measured_epoch(self, number: int, chosen: int, mark: Mark) -> None:
        """Run it with the meters open, and write the results; ``chosen``: its minibatches."""
        case, out, recorder = self.job.case, self.out, self.session.recorder
        before, slow = self.fetcher.counts(), self.fetcher.latencies()
        spots = self.checker.spots(self.epochs.batches, f"in epoch {number}")
        batches = self.epochs.measured(chosen)
        self.epochs.waited_s()  # discards the waits of epochs that are not measured
        self.trainer.around.counts()
        with spots as watch, recorder:
            times = self._epoch(batches, mark, watch)
        source = "which epoch of the workload its minibatches were drawn for"
        out.row(self.job.rows.ok(*SET, chosen, source, number))
        out.rows(self._times(times, number))
        out.rows(self.counts.rows(self.job, chosen, number))
        for stage, seconds in times.stages.items():
            out.samples(case, number, stage, seconds)
        out.rows(self._counted(before, slow, number))
        out.rows(counted_rows(self.job.rows, self.trainer.around, number))
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
        no_fetch = self.checker.no_fetch
        payload, source = self._payload(times), "rows fetched × bytes of a row"
        yield ok("fetch", "payload", "B", 0 if no_fetch else payload, source, epoch)
        loss = ("train", "loss", "1"), "mean cross entropy of the minibatches"
        if no_fetch:
            yield self.job.rows.missing(*loss[0], loss[1], NO_SCORE, epoch=epoch)
        else:
            yield ok(*loss[0], sum(times.losses) / batches, loss[1], epoch)
        for stage, issue_s in times.issue_s.items():
            yield ok("host", f"issue_{stage}", "s", issue_s, ISSUE_SOURCE, epoch)
        if on_gpu and (waited_s := self.epochs.waited_s()) is not None:
            source = "time.perf_counter on the training thread, for a minibatch that the GPU draws"
            yield ok("host", "wait_sample", "s", waited_s, source, epoch)
        if on_gpu:
            source = "time.perf_counter, the synchronisation that ends the epoch"
            yield ok("host", "drain", "s", times.drain_s, source, epoch)
        else:
            overhead = (times.wall_s - times.host_s) / batches
            source = "epoch wall time less its stages, per minibatch"
            yield ok("harness", "overhead", "s", overhead, source, epoch)

    def _payload(self, times: EpochTimes) -> int:
        """Return the bytes of an epoch's fetched rows."""
        row_bytes = self.epochs.dataset.spec.row_bytes
        return times.payload_rows * row_bytes

    def _counted(
        self, before: Mapping[str, float], slow: NDArray[np.int64] | None, epoch: int
    ) -> Iterator[Row]:
        """Yield the path's own counts in an epoch that began with ``before`` and ``slow``."""
        for name, count in self.fetcher.counts().items():
            unit, source = COUNTS[name]
            yield self.job.rows.ok("fetch", name, unit, count - before[name], source, epoch)
        after = self.fetcher.latencies()
        if slow is not None and after is not None:
            for metric, seconds in latencies_of(after - slow):
                yield self.job.rows.ok("fetch", metric, "s", seconds, LATENCY_SOURCE, epoch)

    def score(self, epoch: int) -> None:
        """Write the share of test nodes, drawn from the seed, that the model classifies correctly.

        They see the whole graph, whatever part of it the workload's minibatches see.
        """
        workload, dataset = self.job.case.workload, self.epochs.dataset
        batches = self.job.measure.eval_batches
        # A split of your own may lack test nodes.
        if not batches or self.group.rank or not len(dataset.test_ids) or self.checker.no_fetch:
            return
        seeds = epoch_seeds(dataset.test_ids, workload.batch_size, workload.seed, 0, batches)
        sampler = NeighborSampler(dataset.indptr, dataset.indices, workload.fanouts)
        right = seen = 0
        for i, batch_seeds in enumerate(seeds):
            batch = self.epochs.typed(sampler.sample(batch_seeds, batch_seed(workload.seed, -1, i)))
            x = reference_gather(self.truth, batch.input_ids).to(self.trainer.device)
            right += self.trainer.correct(x, batch)
            seen += batch_seeds.numel()
        source = f"{seen} test nodes"
        self.out.row(self.job.rows.ok("eval", "test_accuracy", "1", right / seen, source, epoch))

    def peak(self) -> Row:
        """Return a row with a step's peak of memory, on the first minibatch."""
        batch = self.epochs.typed(self.epochs.trace[0])
        rows = reference_gather(self.truth, batch.input_ids)
        x, batch = rows.to(self.trainer.device), to_device(batch, self.trainer.device)
        peak, source = peak_of(lambda: self.trainer.step(x, batch), self.trainer.device)
        return self.job.rows.ok("train", "peak", "B", peak, source)

    def _tuned(self, batch: MiniBatch) -> list[SetupStep]:
        """Tune the path's training-dependent choices while a copy trains, then drop the copy."""
        fetcher, trainer = self.fetcher, self.trainer
        if not fetcher.tunable:
            return []
        ids, (x, on_device) = batch.input_ids, self._beside(batch)
        with torch.random.fork_rng([fetcher.device] if fetcher.device.type == "cuda" else []):

            def tune() -> list[SetupStep]:
                spare = trainer.spare()
                spare.step(x, on_device)  # a first step has work of its own, such as to capture
                return fetcher.tune(fetcher.to_fetch_device(ids), lambda: spare.step(x, on_device))

            return tuned_once(fetcher, self.job, self.group, tune)

    def traced(self, folder: Path) -> Row:
        """Trace an epoch that is not measured; the returned row has the trace's size or failure."""
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
            why = f"failed: {words_of(error)}"
            return self.job.rows.missing(*what, source, why, "failed")


def _or_end(captures: Callable[[], R]) -> R:
    """Return the result of a capture; if the capture itself fails, the process ends."""
    try:
        return captures()
    except WrongStepError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise SystemExit(1) from error


def _model(job: Job, session: Session) -> nn.Module:
    spec = session.dataset.spec
    sizes = spec.feature_dim, spec.num_classes, len(spec.relations)
    return build_model(job.case.workload, *sizes)


def _trainer(job: Job, session: Session) -> Trainer:
    """Return the workload's model, ready for training: all ranks begin with the same weights."""
    workload, labels, group = job.case.workload, session.labels, session.group
    model = _model(job, session)
    if workload.step == "captured":
        return CapturedTrainer(model, labels, labels.device, session.inputs)
    if group.rank:
        torch.manual_seed(derive(workload.seed, group.rank))  # each with a dropout of its own
    folder = job.dataset.parent / "around_step"
    around = step_context(workload.around_step, model, labels.device, folder)
    return Trainer(model, labels, labels.device, group, around)
