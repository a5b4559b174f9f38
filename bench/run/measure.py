"""A case: open the data path, prove it right, then train and record.

Nothing is timed before the fetched rows have been compared, bit for bit, with a plain gather, and
they are compared again until the case is over.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.plan.doors import is_relational
from gatherbench.bench.plan.plan import GPU_SAMPLING
from gatherbench.bench.run import check, loop
from gatherbench.bench.run.counting import constant_facts, declared_rows, facts_of
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.models import to_device
from gatherbench.bench.run.part import CHECK_STAGE, PartWriter
from gatherbench.bench.run.rows import SET, Row
from gatherbench.bench.run.session import Session
from gatherbench.bench.run.table import dropped
from gatherbench.bench.run.untimed import EnergyBlock, disk_roof, peak_of
from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.kernels.reference import reference_gather
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import COUNTS, SetupStep
from gatherbench.strategies.bounds import writes_rows
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

    If other paths are open in the process (a job that is not ``alone``), anything that would
    affect them, or that they would affect, is omitted. Before timing and in the warm-up all
    rows are compared in the first repeat of a path, and in a case alone; else a few, as in epochs.

    All phases raise:
        WrongRowsError: the rows fetched differ from the table's, or the table is not where the
            strategy says. A row of the stage ``check`` reports it, and readers hide the others.
    """

    def __init__(self, job: Job, out: PartWriter, session: Session) -> None:
        super().__init__()
        self.job, self._out, self._session = job, out, session
        self._device, self._make, self._ok = session.device, job.rows, job.rows.ok
        self.strategy = build(job.case.strategy, job.case.params)
        self._checks_all = job.alone or (job.first and not job.start)
        self._epochs = 0
        #: Restores the state that is scored in the end.
        self._trained: Callable[[], None] | None = None

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> bool | None:
        if isinstance(error, check.WrongRowsError):
            columns = (CHECK_STAGE, error.metric, "1", error.source)
            self._out.row(self._make.missing(*columns, f"failed: {error}", "failed"))
        try:
            return super().__exit__(kind, error, where)
        finally:  # the host may have room for only one table
            for name in ("fetcher", "trainer", "checker", "_truth"):
                vars(self).pop(name, None)

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

    @check.threads_kept("open")
    def _open(self) -> str | None:
        session, strategy, job, out = self._session, self.strategy, self.job, self._out
        if (skipped := self._skip_of_any_rank(self.refused())) is not None:
            return skipped
        table = session.table(strategy)
        # Again: the table has taken memory.
        reason = strategy.skip(self._device, table.features.nbytes)
        if reason is None and "partitions" in session.known.missing(strategy.needs):
            remedy = "take a sampler that keeps to some: docs/guide.md, Tables on disk"
            reason = unsupported("minibatches keep to no partitions", remedy)
        if (skipped := self._skip_of_any_rank(reason)) is not None:
            return skipped
        known = session.known.limited_to(strategy.needs)
        self._truth, self._file = table.truth, known.file
        cached = dropped(self._file)
        if reads_managed(strategy):
            self._beside_torch = check.memory_beside_torch(self._device)
        begin = time.perf_counter()
        self.fetcher = self.enter_context(strategy.open(table.features, self._device, known))
        opened = SetupStep("open_time", "s", time.perf_counter() - begin, CLOCK)
        loaded = SetupStep("table_load_time", "s", table.load_s, f"{CLOCK}; {table.where}")
        size = SetupStep("table", "B", table.features.nbytes, "tensor.nbytes")
        self._steps = [*self.fetcher.setup]
        self._write_setup([loaded, opened, size, bound(*session.binding), *self._steps])
        typical = self._check_first(cached)
        self._facts = facts_of(job) if job.first else []  # whose rows say what the path declares
        if job.first:
            constant = constant_facts(strategy, session.dataset.spec, known)
            out.rows(declared_rows(job, constant))
        self.trainer = session.trainer()
        self.callback(self.trainer.around.close)
        self._warm_up(typical)
        self._begin = self.trainer.kept()
        # What is scored between epochs takes energy, too.
        metered = not job.measure.eval_every_epoch and (job.alone or job.measure.energy)
        gpu = session.gpu if metered else None
        self._energy = EnergyBlock(gpu, run_on=job.measure.energy)
        self._window = self.enter_context(ExitStack())
        if job.alone:
            self._window.enter_context(self._energy)
        return None

    def _skip_of_any_rank(self, own_reason: Reason | None) -> str | None:
        """Return why any rank skips the case: they skip it together."""
        reasons = self._session.group.gathered(own_reason and str(own_reason))
        return next((reason for reason in reasons if reason is not None), None)

    def _write_setup(self, steps: Iterable[SetupStep]) -> None:
        self._out.rows(self._make.row("setup", step) for step in steps)

    def _check_first(self, cached: Reason | None) -> MiniBatch:
        """Compare rows until each buffer has been used again, and see where the table lies.

        Ranks begin together: an early one would bring pages into memory while another still drops
        them. Returns the first of the minibatches.
        """
        fetcher, no_fetch = self.fetcher, self.strategy.role == "no_fetch"
        self.checker = check.RowChecker(self._truth, self._device, no_fetch=no_fetch)
        batches = list(itertools.islice(self._session.epochs.warm_up(0), fetcher.lookahead + 2))

        def residency() -> None:
            if self._device.type == "cuda" or fetcher.residency():
                self._out.row(check.residency_row(fetcher, self._make, cached))

        few_of = None if self._checks_all else len(batches)
        with self.checker.watching("before timing", few_of, residency) as watch:
            group = self._session.group
            times = loop.run_epoch(batches, fetcher, lambda *_: torch.zeros(()), watch, group)
        if no_fetch and writes_rows(fetcher, fetcher.to_fetch_device(batches[0].input_ids)):
            raise check.WrongRowsError("no_fetch must fetch nothing, but a fetch of it writes rows")
        self._out.row(self._ok(CHECK_STAGE, "batches", "1", len(times.losses), check.COMPARED))
        return batches[0]

    def _warm_up(self, typical: MiniBatch) -> None:
        """Check the step and tune the path on a minibatch; run the epochs before the measured."""
        session, epochs, out = self._session, self._session.epochs, self._out
        out.rows(session.group.rows(self._make))
        fetched = partial(self._fetched, typical)
        out.rows(self.trainer.ready(self._make, fetched, session.model, first=self.job.first))
        tuned = self._tuned(typical) if self.fetcher.tunable else []
        self._steps += tuned
        self._write_setup(tuned)
        few_of = None if self._checks_all else epochs.batches
        for number in range(self.job.measure.warmup_epochs):
            with self.checker.watching("in the warm-up", few_of) as watch:
                self._epoch(epochs.warm_up(number), watch)

    def _fetched(self, batch: MiniBatch) -> tuple[Tensor, MiniBatch]:
        """Return a minibatch and its rows on the device, without the path."""
        x = reference_gather(self._truth, batch.input_ids.cpu()).to(self._device)
        return x, to_device(batch, self._device)

    def _tuned(self, typical: MiniBatch) -> list[SetupStep]:
        """Tune the path's choices while a copy of the model trains; return what that found."""
        x, batch = self._fetched(typical)

        def tune() -> list[SetupStep]:
            spare = self.trainer.spare()
            spare.step(x, batch)  # a first step has work of its own, such as to capture
            ids = self.fetcher.to_fetch_device(typical.input_ids)
            return self.fetcher.tune(ids, lambda: spare.step(x, batch))

        with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
            return self._session.tuned(self.fetcher, tune)

    def _epoch(
        self, batches: Iterator[MiniBatch], watch: loop.Watch = loop.UNWATCHED
    ) -> loop.EpochTimes:
        step, group = self.trainer.step, self._session.group
        return loop.run_epoch(batches, self.fetcher, step, watch, group)

    @check.threads_kept("epoch")
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
        out, epochs, recorder = self._out, self._session.epochs, self._session.recorder
        before, slow = self.fetcher.counts(), self.fetcher.latencies()
        spots = self.checker.watching(f"in epoch {number}", epochs.batches)
        batches = epochs.measured(chosen)
        self.trainer.around.counts()
        with spots as watch, recorder:
            times = self._epoch(batches, watch)
        source = "which epoch of the workload its minibatches were drawn for"
        out.row(self._ok(*SET, chosen, source, number))
        out.rows(self._time_rows(times, number))
        if self._facts:
            out.rows(declared_rows(self.job, self._facts[chosen], number))
        at = {**self.job.case.names, "epoch": number}
        for stage, seconds in times.stages.items():
            batch = list(range(len(seconds)))
            out.write("samples", **at, stage=stage, batch=batch, value_s=seconds)
        out.rows(self._path_rows(before, slow, number))
        for reading in recorder.readings:
            out.row(self._make.row("epoch", reading, number))
            if reading.series:
                times_s, values = zip(*reading.series, strict=True)
                what = {"metric": reading.metric, "unit": reading.unit}
                out.write("timeline", **at, **what, time_s=times_s, value=values)

    def _time_rows(self, times: loop.EpochTimes, epoch: int) -> Iterator[Row]:
        ok, on_gpu = partial(self._ok, epoch=epoch), self._device.type == "cuda"
        epochs, batches, no_fetch = self._session.epochs, len(times.losses), self.checker.no_fetch
        yield ok("epoch", "wall_time", "s", times.wall_s, CLOCK)
        clock = (loop.CudaClock if on_gpu else loop.HostClock).source
        for stage, seconds in times.stages.items():
            yield ok(stage, "wall_time", "s", sum(seconds), clock)
        yield ok("epoch", "minibatches", "1", batches, "count")
        payload = 0 if no_fetch else times.payload_rows * epochs.dataset.spec.row_bytes
        yield ok("fetch", "payload", "B", payload, "rows fetched × bytes of a row")
        loss, source = ("train", "loss", "1"), "mean cross entropy of the minibatches"
        if no_fetch:
            yield self._make.missing(*loss, source, check.NO_SCORE, epoch=epoch)
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
            overhead_s = times.wall_s - sum(sum(times.stages[stage]) for stage in loop.STAGES)
            source = "epoch wall time less its stages, per minibatch"
            yield ok("harness", "overhead", "s", overhead_s / batches, source)

    def _path_rows(
        self, before: Mapping[str, float], slow: NDArray[np.int64] | None, epoch: int
    ) -> Iterator[Row]:
        """Yield the counts of path and step in an epoch that began with ``before`` and ``slow``."""
        for name, count in self.fetcher.counts().items():
            unit, source = COUNTS[name]
            yield self._ok("fetch", name, unit, count - before[name], source, epoch)
        around = self.trainer.around
        for name, count in around.counts().items():
            unit, source = around.columns[name]
            yield self._ok("around_step", name, unit, count, source, epoch)
        after = self.fetcher.latencies()
        if slow is not None and after is not None:
            for metric, seconds in latencies_of(after - slow):
                yield self._ok("fetch", metric, "s", seconds, _LATENCY, epoch)

    @check.threads_kept("finish")
    def finish(self) -> None:
        """Score the trained model and do all that is not timed; then close the path.

        The model is that of the warm-up and the last set, or of all epochs if each continues from
        the one before. A model with fewer epochs than the others' has no score.
        """
        job, plan, out, session = self.job, self.job.measure, self._out, self._session
        self._window.close()
        if self._epochs == plan.epochs:
            if self._trained is not None:
                self._trained()
            self._score(-1)
        first, few_of = session.epochs.first, None if job.alone else len(session.epochs.first)
        with self.checker.watching("after the last epoch", few_of) as watch:
            self._epoch(iter(first), watch)
        self._write_setup(step for step in self.fetcher.setup if step not in self._steps)
        if reads_managed(self.strategy):
            grown = check.memory_beside_torch(self._device) - self._beside_torch
            out.row(check.growth_row(grown, session.dataset.spec.table_bytes, self._make))
        if plan.peak and job.first:
            step = partial(self.trainer.step, *self._fetched(first[0]))
            peak, source = peak_of(step, self._device)
            out.row(self._ok("train", "peak", "B", peak, source))
        if not job.alone:
            with self._energy:  # the measured epochs alternated with those of others
                pass
        further, gathered = lambda: self._epoch(session.epochs.further()), session.group.gathered
        out.rows(self._energy.rows(plan.epochs, further, self._make, gathered))
        out.row(self._ok(CHECK_STAGE, "rows", "1", self.checker.rows, check.COMPARED))
        self.close()
        file = self._file if session.group.world == 1 else None
        out.rows(disk_roof(file, self._make, job.case.repeat))

    def _score(self, epoch: int) -> None:
        """Write the share of test nodes, drawn from the seed, that the model classifies correctly.

        They see the whole graph, whatever part of it the workload's minibatches see.
        """
        workload, dataset = self.job.case.workload, self._session.dataset
        batches, rank = self.job.measure.eval_batches, self._session.group.rank
        # A split of your own may lack test nodes.
        if not batches or rank or not len(dataset.test_ids) or self.checker.no_fetch:
            return
        seeds = epoch_seeds(dataset.test_ids, workload.batch_size, workload.seed, 0)[:batches]
        sampler = NeighborSampler(dataset.indptr, dataset.indices, workload.fanouts)
        right = seen = 0
        for i, of_batch in enumerate(seeds):
            batch = sampler.sample(of_batch, batch_seed(workload.seed, -1, i))
            right += self.trainer.correct(*self._fetched(self._session.epochs.typed(batch)))
            seen += of_batch.numel()
        source = f"{seen} test nodes"
        self._out.row(self._ok("eval", "test_accuracy", "1", right / seen, source, epoch))


def latencies_of(counted: NDArray[np.int64]) -> Iterator[tuple[str, float]]:
    """Yield mean and percentiles of the counts of ``Fetcher.latencies``, s; nothing if empty."""
    total = np.cumsum(counted)
    if total[-1]:
        middles = 2 ** ((np.arange(len(counted)) - 0.5) / 4) * 1e-6
        yield "disk_latency_mean", float(counted @ middles / total[-1])
        for metric, share in {"disk_latency_median": 0.5, "disk_latency_99th": 0.99}.items():
            yield metric, 2 ** (int(np.searchsorted(total, share * total[-1])) / 4) * 1e-6


def bound(node: int | Reason, how: str) -> SetupStep:
    """Return the NUMA node that threads and memory are bound to."""
    if isinstance(node, Reason):
        return SetupStep("numa_node", "1", None, "NUMA node of the GPU", str(node))
    return SetupStep("numa_node", "1", node, how)
