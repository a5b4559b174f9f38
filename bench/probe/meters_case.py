"""One strategy under the GPU's meters: right rows first, then epochs, then energy."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from gatherbench.bench.machine.env import machine_slug
from gatherbench.bench.meters.clock import WallClockMeter
from gatherbench.bench.meters.gpu_choice import GpuUnderTest
from gatherbench.bench.meters.memory import MemoryMeter
from gatherbench.bench.meters.power import SHORTEST_ENERGY_WINDOW_S, GpuEnergyMeter
from gatherbench.bench.meters.recorder import Recorder
from gatherbench.bench.meters.registry import METERS, open_meters
from gatherbench.bench.meters.zeus import ZeusMeter
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.probe.meters_loop import Perceptron
from gatherbench.bench.run.calibration_job import run_maker
from gatherbench.bench.run.check import COMPARED, Witness, check_rows, residency_row
from gatherbench.bench.run.declared_rows import path_rows
from gatherbench.bench.run.energy_block import EnergyBlock
from gatherbench.bench.run.loop import STAGES, CudaClock, HostClock, run_epoch
from gatherbench.bench.run.reading_row import row_of
from gatherbench.bench.run.rows import HEADER, Row, RowMaker
from gatherbench.bench.run.store import CASE_METRIC, CASE_STAGE, RunStore, write_atomically
from gatherbench.bench.run.uvm_block import uvm_rows
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.strategies.base import Fetcher, SetupStep, Strategy
from gatherbench.strategies.registry import build, default_variants

EPOCHS = 3
CHECKED_BATCHES = 3
#: All but that of memory: what the calibration and earlier cases have left is in the process too.
METERS_READ = tuple(meter.name for meter in METERS if meter is not MemoryMeter)


@dataclass(slots=True)
class Session:
    """Where rows go and whose sensors are read.

    Attributes:
        store: the run's folder.
        device: where rows are fetched to.
        whole: makes rows that belong to no case.
        machine, commit: what the rows say.
        planned: makes the rows of each case that shall be measured.
        gpu: ``None`` until the calibration has chosen.
        series: what was polled, as :func:`gatherbench.bench.run.samples.write_timeline` takes it.
        shortest_s: of a window for energy.
        broken: label of the strategy after which CUDA answered no more; empty: none.
    """

    store: RunStore
    device: torch.device
    whole: RowMaker
    machine: str
    commit: str
    planned: list[RowMaker] = field(default_factory=list)
    gpu: GpuUnderTest | None = None
    series: list[dict[str, Any]] = field(default_factory=list)
    shortest_s: float = SHORTEST_ENERGY_WINDOW_S
    broken: str = ""

    @classmethod
    def open(cls, folder: Path, device: torch.device, env: Mapping[str, Any]) -> Self:
        """Begin a run in an empty folder."""
        store = RunStore(folder)
        machine = machine_slug(env)
        write_atomically(store.folder / "env.json", json.dumps(env, indent=2) + "\n")
        write_atomically(store.rows_file, ",".join(HEADER) + "\n")
        whole = run_maker(store.run_id, str(env["commit"]), machine)
        return cls(store, device, whole, machine, str(env["commit"]))

    def emit(self, row: Row) -> None:
        """A row onto the disk."""
        self.store.append([row])


@dataclass(frozen=True, slots=True)
class MeteredCase:
    """A strategy with its parameters."""

    strategy: Strategy

    @property
    def label(self) -> str:
        return f"{self.strategy.name} {self.strategy.variant}"

    def row_maker(self, session: Session, workload: Workload, repeat: int) -> RowMaker:
        """What all rows of the case share."""
        return RowMaker(
            session.store.run_id,
            session.commit,
            session.machine,
            "cuda" if session.device.type == "cuda" else "host",
            workload.id,
            workload.dataset,
            self.strategy.name,
            self.strategy.variant,
            repeat,
        )

    def measure(
        self,
        session: Session,
        table: Tensor,
        batches: Sequence[MiniBatch],
        workload: Workload,
        repeat: int,
    ) -> str:
        """Measure once; how it ended, in a word or with the reason."""
        make = self.row_maker(session, workload, repeat)
        begin = time.perf_counter()
        status, reason = "ok", self.strategy.skip(session.device, table.nbytes)
        if reason is not None:
            status = "skipped"
        else:
            try:
                if repeat == 0:
                    ids = [batch.input_ids for batch in batches]
                    row_bytes = table.nbytes // len(table)
                    declared = path_rows(self.strategy, ids, row_bytes, len(table), make)
                    session.store.append(list(declared))
                with self.strategy.open(table, session.device) as fetcher:
                    _run(session, fetcher, table, batches, workload, make)
            except Exception as error:  # whatever it is, the other strategies have their turn
                status, reason = "failed", f"{type(error).__name__}: {error}"
        what = (CASE_STAGE, CASE_METRIC, "s")
        if reason is None:
            seconds = time.perf_counter() - begin
            session.emit(make.ok(*what, seconds, "time.perf_counter"))
            return "ok"
        session.emit(make.missing(*what, "time.perf_counter", reason, status))
        return f"{status}: {reason}"


def cases() -> list[MeteredCase]:
    """What is measured in turns: the paper's baseline, and every strategy with its defaults."""
    return [MeteredCase(s) for s in (build("cpu_gather", {"mode": "naive"}), *default_variants())]


def last_case() -> MeteredCase:
    """Managed memory: after all turns, since counting its faults leaves CUPTI in the process."""
    return MeteredCase(build("unified_zero_copy", {"memory": "managed"}))


def _run(
    session: Session,
    fetcher: Fetcher,
    table: Tensor,
    batches: Sequence[MiniBatch],
    workload: Workload,
    make: RowMaker,
) -> None:
    witness = Witness(table, session.device)
    checked = check_rows(fetcher, witness, batches[:CHECKED_BATCHES], "before timing")
    session.emit(make.ok("check", "batches", "1", checked, COMPARED))
    if session.device.type == "cuda":
        session.emit(residency_row(fetcher, make))
    for step in (*fetcher.setup, *_tuned(session, fetcher, table, batches[0], workload)):
        session.emit(make.ok("setup", step.metric, step.unit, step.value, step.source))
    trainer = Perceptron(session.device, workload.hidden)

    def one_epoch() -> None:
        run_epoch(batches, fetcher, trainer)

    one_epoch()  # warm-up
    recorder = Recorder(open_meters(METERS_READ, session.gpu))
    energy = EnergyBlock(session.gpu, session.shortest_s)
    clock = (CudaClock if session.device.type == "cuda" else HostClock).source
    rows: list[Row] = []  # written after the block: a disk that is waited for lets the GPU idle
    with energy:
        for number in range(EPOCHS):
            with recorder:
                times = run_epoch(batches, fetcher, trainer)
            timer = "time.perf_counter"
            rows.append(make.ok("epoch", "wall_time", "s", times.wall_s, timer, number))
            for stage in STAGES:
                seconds = sum(times.stages[stage])
                rows.append(make.ok(stage, "wall_time", "s", seconds, clock, number))
            payload = times.payload_rows * table.shape[1] * table.element_size()
            source = "rows fetched × bytes of a row"
            rows.append(make.ok("fetch", "payload", "B", payload, source, number))
            count = len(times.stages["fetch"])
            rows.append(make.ok("epoch", "minibatches", "1", count, "count of the loop", number))
            for reading in recorder.readings:
                rows.append(row_of(reading, make, "epoch", number))
                if reading.series:
                    session.series.append(_series(make, number, reading.metric, reading))
    session.store.append([*rows, *energy.rows(EPOCHS, one_epoch, make)])
    for row in uvm_rows(one_epoch, make, traced=False):
        session.emit(row)
    if session.gpu is not None and make.repeat == 0 and make.variant == "naive":
        _cross_check(session, session.gpu, one_epoch, make)


def _tuned(
    session: Session, fetcher: Fetcher, table: Tensor, batch: MiniBatch, workload: Workload
) -> list[SetupStep]:
    """Have the fetcher find what depends on the training: beside a model that is thrown away."""
    if not fetcher.tunable:
        return []
    x = table[batch.input_ids].to(session.device)
    spare = Perceptron(session.device, workload.hidden)
    ids = batch.input_ids.to(fetcher.ids_device)
    return fetcher.tune(ids, lambda: spare.step(x, batch))


def _series(make: RowMaker, epoch: int, metric: str, reading: Any) -> dict[str, Any]:
    return {
        "kind": "series",
        "workload": make.workload,
        "strategy": make.strategy,
        "variant": make.variant,
        "repeat": make.repeat,
        "epoch": epoch,
        "metric": metric,
        "unit": reading.unit,
        "points": list(reading.series),
    }


def _cross_check(session: Session, gpu: GpuUnderTest, one_epoch: Any, make: RowMaker) -> None:
    """One window read by zeus and by us at once."""
    zeus = ZeusMeter(session.device.index or 0)
    if zeus.probe() is not None:
        readings = zeus.stop()
    else:
        recorder = Recorder((zeus, GpuEnergyMeter(gpu), WallClockMeter()))
        with recorder:
            begin = time.monotonic()
            while time.monotonic() - begin < session.shortest_s:
                one_epoch()
        readings = list(recorder.readings)
    for reading in readings:
        session.emit(row_of(reading, make, "cross_check"))
