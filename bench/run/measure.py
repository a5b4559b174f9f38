"""A case: open the data path, prove it right, then train and record.

Nothing is timed before the fetched rows have been compared, bit for bit, with a plain gather, and
they are compared again until the case is over.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.machine.numa import Binding
from gatherbench.bench.plan.doors import is_relational
from gatherbench.bench.plan.plan import GPU_SAMPLING
from gatherbench.bench.run.check import (
    COMPARED,
    NO_SCORE,
    RowChecker,
    StaysOnHost,
    WrongRowsError,
    check_ready,
    check_rows,
    residency_row,
    threads_kept,
)
from gatherbench.bench.run.counting import Counts, constant_rows
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.loop import (
    UNWATCHED,
    CudaClock,
    EpochTimes,
    HostClock,
    Watch,
    run_epoch,
)
from gatherbench.bench.run.models import to_device
from gatherbench.bench.run.part import CHECK_STAGE, PartWriter
from gatherbench.bench.run.rows import SET, Row, RowMaker
from gatherbench.bench.run.session import Session
from gatherbench.bench.run.table import dropped
from gatherbench.bench.run.tuned import tuned_once
from gatherbench.bench.run.untimed import EnergyBlock, disk_roof, peak_of, row_of
from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.kernels.reference import reference_gather
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import COUNTS, SetupStep
from gatherbench.strategies.places import reads_managed
from gatherbench.strategies.registry import build

CLOCK = "time.perf_counter"
_ISSUED = f"{CLOCK} on the training thread, around what it issues of the stage"
_DRAWN = f"{CLOCK} on the training thread, for a minibatch that the GPU draws"
_LATENCY = (
    "the path's clock around each read, in bins of four to a doubling: percentiles at their upper"
    " edge, the mean of their middles"
)


class MeasuredCase(ExitStack):
    """A case in three phases: it opens and warms up, has its epochs one by one, and ends.

    Args:
        job: the case. out: the part that gets its rows.
        session: shared by the cases of the process.

    If other paths are open in the process (a job that is not ``alone``), anything that would
    affect them, or that they would affect, is omitted. Before timing and in the warm-up all
    rows are compared in the first repeat of a path, and in a case alone; else a few, as in epochs.

    All phases raise:
        WrongRowsError: the rows fetched differ from the table's, or the table is not where the
            strategy says. ``out`` has a row of the stage ``check`` that reports it, by which
            readers know to hide the measurements.
        Exception: another failure; earlier measurements are in ``out``.
    """

    def __init__(self, job: Job, out: PartWriter, session: Session) -> None:
        super().__init__()
        self.job, self._out, self._session = job, out, session
        self._device, self._make = session.device, job.rows
        self.strategy = build(job.case.strategy, job.case.params)
        self._epochs = 0
        #: Restores the state that is scored in the end.
        self._trained: Callable[[], None] | None = None

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> bool | None:
        if isinstance(error, WrongRowsError):
            columns = (CHECK_STAGE, error.metric, "1", error.source)
            self._out.row(self._make.missing(*columns, f"failed: {error}", "failed"))
        try:
            return super().__exit__(kind, error, where)
        finally:  # the host may have room for only one table
            for name in ("fetcher", "trainer", "_checker", "_truth"):
                vars(self).pop(name, None)

    @property
    def compared(self) -> int:
        """The number of rows that have been compared since it was opened."""
        return self._checker.rows

    def refused(self) -> Reason | None:
        """Return why the path cannot run here now, as far as is known before it is opened."""
        spec, on_gpu = self._session.dataset.spec, self._device.type == "cuda"
        workload = self.job.case.workload
        if is_relational(workload.model):
            if not spec.relations:
                return unsupported(f"the edges of {spec.name} have no kinds: prepare it anew")
            if on_gpu and self.job.measure.sampling in GPU_SAMPLING:
                return unsupported("kinds of edges are looked up on the host; sample there")
        if spec.hashed and "file" in self.strategy.needs:
            return unsupported(f"rows of {spec.name} are made in memory, and no disk holds them")
        if workload.step == "captured" and not on_gpu:
            return unsupported("only a GPU replays captured steps", 'take step = "issued"')
        reason = self.strategy.skip(self._device, spec.table_bytes)
        return reason or self._session.table_refusal(self.strategy)

    def open(self) -> str | None:
        """Open the path, check its rows and warm it up; return why it cannot run here."""
        self.enter_context(self.strategy.surroundings(self._device))
        self._session.binding  # noqa: B018 - gives torch its threads
        return self._open()

    @threads_kept("open")
    def _open(self) -> str | None:
        session, strategy, plan = self._session, self.strategy, self.job.measure
        if (skipped := self._skip_of_any_rank(self.refused())) is not None:
            return skipped
        loaded = session.table(strategy)
        # Again: the table has taken memory.
        again = strategy.skip(self._device, loaded.features.nbytes)
        if (skipped := self._skip_of_any_rank(again)) is not None:
            return skipped
        if "partitions" in session.known.missing(strategy.needs):
            remedy = "take a sampler that keeps to some: docs/guide.md, Tables on disk"
            return str(unsupported("minibatches keep to no partitions", remedy))
        known = session.known.limited_to(strategy.needs)
        self._truth, self._file = loaded.truth, known.file
        cached = dropped(self._file)
        managed = reads_managed(strategy)
        self._stays = StaysOnHost(self._device, loaded.features.nbytes) if managed else None
        begin = time.perf_counter()
        self.fetcher = self.enter_context(strategy.open(loaded.features, self._device, known))
        open_s, where = time.perf_counter() - begin, f"{CLOCK}; {loaded.where}"
        ok = partial(self._make.ok, "setup")
        self._out.row(ok("table_load_time", "s", loaded.load_s, where))
        self._out.row(ok("open_time", "s", open_s, CLOCK))
        self._out.row(ok("table", "B", loaded.features.nbytes, "tensor.nbytes"))
        self._out.row(binding_row(session.binding, self._make))
        self._steps = [*self.fetcher.setup]
        self._write_setup(self._steps)
        no_fetch = strategy.role == "no_fetch"
        self._checker = RowChecker(self._truth, self._device, no_fetch=no_fetch)
        everything = self.job.alone or (self.job.first and not self.job.start)
        typical = self._look_first(cached, everything=everything)
        self._counts = Counts([])
        if self.job.first:  # whose rows say what the path declares
            self._counts = Counts.of(self.job)
            self._counts.require(self.job)
            spec = session.dataset.spec
            self._out.rows(constant_rows(self.job, strategy, spec, known))
        self.trainer = session.trainer()
        self.callback(self.trainer.around.close)
        self._warm_up(typical, everything=everything)
        self._begin = self.trainer.kept()
        # What is scored between epochs takes energy, too.
        metered = not plan.eval_every_epoch and (self.job.alone or plan.energy)
        self._energy = EnergyBlock(session.gpu if metered else None, run_on=plan.energy)
        self._window = self.enter_context(ExitStack())
        if self.job.alone:
            self._window.enter_context(self._energy)
        return None

    def _skip_of_any_rank(self, own_reason: Reason | None) -> str | None:
        """Return why any rank skips the case: they skip it together."""
        reasons = self._session.group.gathered(own_reason and str(own_reason))
        return next((reason for reason in reasons if reason is not None), None)

    def _write_setup(self, steps: Iterable[SetupStep]) -> None:
        for step in steps:
            columns = ("setup", step.metric, step.unit)
            if step.value is None:
                self._out.row(self._make.missing(*columns, step.source, step.reason))
            else:
                self._out.row(self._make.ok(*columns, step.value, step.source))

    def _look_first(self, cached: Reason | None, *, everything: bool) -> MiniBatch:
        """Compare rows until each buffer has been used again, and see where the table lies.

        Returns:
            The first of the minibatches.
        """
        fetcher, checker = self.fetcher, self._checker
        batches = list(itertools.islice(self._session.epochs.warm_up(0), fetcher.lookahead + 2))

        def residency() -> None:
            if self._device.type == "cuda" or fetcher.residency():
                self._out.row(residency_row(fetcher, self._make, cached))

        compared = self._compared("before timing", len(batches), everything, residency)
        checked = check_rows(fetcher, compared, batches, group=self._session.group)
        if checker.no_fetch:
            check_ready(fetcher, batches[0].input_ids)
        self._out.row(self._make.ok(CHECK_STAGE, "batches", "1", checked, COMPARED))
        return batches[0]

    def _warm_up(self, typical: MiniBatch, *, everything: bool) -> None:
        """Run the epochs before the measured ones, and compare all of their rows, or a few.

        Args:
            typical: a minibatch for checks of the step, and for a path that tunes itself beside it.
        """
        session, epochs = self._session, self._session.epochs
        self._out.rows(session.group.rows(self._make))
        tuned = self._beside_training(typical)
        self._steps += tuned
        self._write_setup(tuned)
        for number in range(self.job.measure.warmup_epochs):
            with self._compared("in the warm-up", epochs.batches, everything) as watch:
                self._epoch(epochs.warm_up(number), watch)

    def _fetched(self, batch: MiniBatch) -> tuple[Tensor, MiniBatch]:
        """Return a minibatch and its rows on the device, without the path."""
        x = reference_gather(self._truth, batch.input_ids.cpu()).to(self._device)
        return x, to_device(batch, self._device)

    def _beside_training(self, typical: MiniBatch) -> list[SetupStep]:
        """Check the step; tune the path's choices while a copy trains; return what that found."""
        fetcher, session, device = self.fetcher, self._session, self._device
        fetched = partial(self._fetched, typical)
        ready = self.trainer.ready(self._make, fetched, session.model, first=self.job.first)
        self._out.rows(ready)
        if not fetcher.tunable:
            return []
        x, batch = fetched()
        with torch.random.fork_rng([device] if device.type == "cuda" else []):

            def tune() -> list[SetupStep]:
                spare = self.trainer.spare()
                spare.step(x, batch)  # a first step has work of its own, such as to capture
                ids = fetcher.to_fetch_device(typical.input_ids)
                return fetcher.tune(ids, lambda: spare.step(x, batch))

            return tuned_once(fetcher, self.job, session.group, tune)

    def _compared(
        self, when: str, batches: int, everything: bool, first: Callable[[], None] | None = None
    ) -> AbstractContextManager[Watch]:
        """Watch all rows of so many minibatches, or a few."""
        checker = self._checker
        return (
            checker.everything(when, first) if everything else checker.spots(batches, when, first)
        )

    def _epoch(self, batches: Iterator[MiniBatch], watch: Watch = UNWATCHED) -> EpochTimes:
        return run_epoch(batches, self.fetcher, self.trainer, watch, self._session.group)

    @threads_kept("epoch")
    def epoch(self, number: int, chosen: int | None = None) -> None:
        """Measure epoch ``number`` on the minibatches of set ``chosen``, by default the same.

        It begins with the state after the warm-up: so the loss of a set is the same for all paths,
        in whatever order they have it. If the model is scored after each epoch, it trains on.
        """
        plan, chosen = self.job.measure, number if chosen is None else chosen
        if not plan.eval_every_epoch:
            self._begin()
        self._measure(number, chosen)
        self._epochs += 1
        if plan.eval_every_epoch:
            self._score(number)
        elif chosen == plan.epochs - 1 and plan.eval_batches:
            self._trained = self.trainer.kept()

    def _measure(self, number: int, chosen: int) -> None:
        """Run an epoch with the meters open, and write the results."""
        case, out, epochs = self.job.case, self._out, self._session.epochs
        recorder = self._session.recorder
        before, slow = self.fetcher.counts(), self.fetcher.latencies()
        spots = self._checker.spots(epochs.batches, f"in epoch {number}")
        batches = epochs.measured(chosen)
        epochs.waited_s()  # discards the waits of epochs that are not measured
        self.trainer.around.counts()
        with spots as watch, recorder:
            times = self._epoch(batches, watch)
        source = "which epoch of the workload its minibatches were drawn for"
        out.row(self._make.ok(*SET, chosen, source, number))
        out.rows(self._time_rows(times, number))
        out.rows(self._counts.rows(self.job, chosen, number))
        for stage, seconds in times.stages.items():
            out.samples(case, number, stage, seconds)
        out.rows(self._path_rows(before, slow, number))
        for reading in recorder.readings:
            out.row(row_of(reading, self._make, "epoch", number))
            if reading.series:
                out.series(case, number, reading.metric, reading.unit, reading.series)

    def _time_rows(self, times: EpochTimes, epoch: int) -> Iterator[Row]:
        ok, on_gpu = partial(self._make.ok, epoch=epoch), self._device.type == "cuda"
        epochs, batches = self._session.epochs, len(times.losses)
        yield ok("epoch", "wall_time", "s", times.wall_s, CLOCK)
        clock = (CudaClock if on_gpu else HostClock).source
        for stage, seconds in times.stages.items():
            yield ok(stage, "wall_time", "s", sum(seconds), clock)
        yield ok("epoch", "minibatches", "1", batches, "count")
        no_fetch = self._checker.no_fetch
        payload = 0 if no_fetch else times.payload_rows * epochs.dataset.spec.row_bytes
        yield ok("fetch", "payload", "B", payload, "rows fetched × bytes of a row")
        loss, source = ("train", "loss", "1"), "mean cross entropy of the minibatches"
        if no_fetch:
            yield self._make.missing(*loss, source, NO_SCORE, epoch=epoch)
        else:
            yield ok(*loss, sum(times.losses) / batches, source)
        for stage, issue_s in times.issue_s.items():
            yield ok("host", f"issue_{stage}", "s", issue_s, _ISSUED)
        if on_gpu:
            if (waited_s := epochs.waited_s()) is not None:
                yield ok("host", "wait_sample", "s", waited_s, _DRAWN)
            source = f"{CLOCK}, the synchronisation that ends the epoch"
            yield ok("host", "drain", "s", times.drain_s, source)
        else:
            overhead = (times.wall_s - times.host_s) / batches
            source = "epoch wall time less its stages, per minibatch"
            yield ok("harness", "overhead", "s", overhead, source)

    def _path_rows(
        self, before: Mapping[str, float], slow: NDArray[np.int64] | None, epoch: int
    ) -> Iterator[Row]:
        """Yield the counts of path and step in an epoch that began with ``before`` and ``slow``."""
        for name, count in self.fetcher.counts().items():
            unit, source = COUNTS[name]
            yield self._make.ok("fetch", name, unit, count - before[name], source, epoch)
        around = self.trainer.around
        for name, count in around.counts().items():
            unit, source = around.columns[name]
            yield self._make.ok("around_step", name, unit, count, source, epoch)
        after = self.fetcher.latencies()
        if slow is not None and after is not None:
            for metric, seconds in latencies_of(after - slow):
                yield self._make.ok("fetch", metric, "s", seconds, _LATENCY, epoch)

    @threads_kept("finish")
    def finish(self) -> None:
        """Score the trained model and do all that is not timed; then close the path.

        The model is that of the warm-up and the last set, or of all epochs if each continues from
        the one before. A model with fewer epochs than the others' has no score.
        """
        plan, out, session = self.job.measure, self._out, self._session
        self._window.close()
        if self._epochs == plan.epochs:
            if self._trained is not None:
                self._trained()
            self._score(-1)
        epochs = session.epochs
        compared = self._compared("after the last epoch", len(epochs.first), self.job.alone)
        check_rows(self.fetcher, compared, epochs.first, self.trainer, session.group)
        self._write_setup(step for step in self.fetcher.setup if step not in self._steps)
        if self._stays is not None:
            out.row(self._stays.row(self._make))
        if plan.peak and self.job.first:
            step = partial(self.trainer.step, *self._fetched(epochs.first[0]))
            peak, source = peak_of(step, self._device)
            out.row(self._make.ok("train", "peak", "B", peak, source))
        if not self.job.alone:
            with self._energy:  # the measured epochs alternated with those of others
                pass
        further, gathered = lambda: self._epoch(epochs.further()), session.group.gathered
        out.rows(self._energy.rows(plan.epochs, further, self._make, gathered))
        out.row(self._make.ok(CHECK_STAGE, "rows", "1", self._checker.rows, COMPARED))
        self.close()
        file = self._file if session.group.world == 1 else None
        out.rows(disk_roof(file, self._make, self.job.case.repeat))

    def _score(self, epoch: int) -> None:
        """Write the share of test nodes, drawn from the seed, that the model classifies correctly.

        They see the whole graph, whatever part of it the workload's minibatches see.
        """
        workload, dataset = self.job.case.workload, self._session.dataset
        batches, rank = self.job.measure.eval_batches, self._session.group.rank
        # A split of your own may lack test nodes.
        if not batches or rank or not len(dataset.test_ids) or self._checker.no_fetch:
            return
        seeds = epoch_seeds(dataset.test_ids, workload.batch_size, workload.seed, 0, batches)
        sampler = NeighborSampler(dataset.indptr, dataset.indices, workload.fanouts)
        right = seen = 0
        for i, of_batch in enumerate(seeds):
            batch = sampler.sample(of_batch, batch_seed(workload.seed, -1, i))
            right += self.trainer.correct(*self._fetched(self._session.epochs.typed(batch)))
            seen += of_batch.numel()
        source = f"{seen} test nodes"
        self._out.row(self._make.ok("eval", "test_accuracy", "1", right / seen, source, epoch))


def latencies_of(counted: NDArray[np.int64]) -> Iterator[tuple[str, float]]:
    """Yield mean and percentiles of the counts of ``Fetcher.latencies``, s; nothing if empty."""
    total = np.cumsum(counted)
    if total[-1]:
        middles = 2 ** ((np.arange(len(counted)) - 0.5) / 4) * 1e-6
        yield "disk_latency_mean", float(counted @ middles / total[-1])
        for metric, share in {"disk_latency_median": 0.5, "disk_latency_99th": 0.99}.items():
            yield metric, 2 ** (int(np.searchsorted(total, share * total[-1])) / 4) * 1e-6


def binding_row(binding: Binding, make: RowMaker) -> Row:
    """Return the NUMA node that threads and memory are bound to."""
    if binding.node is None:
        reason = binding.reason or unsupported("not bound")
        return make.missing("setup", "numa_node", "1", "NUMA node of the GPU", reason)
    return make.ok("setup", "numa_node", "1", binding.node, binding.how)
