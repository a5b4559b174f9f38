"""Run a plan: a fresh process for each case, every outcome a row, nothing lost on the way.

First come the cases that the plan asks for in any case, then those that ``further`` asks for, until
it asks for none.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from gatherbench.bench.meters.gpu_choice import SensorChoice
from gatherbench.bench.plan.case import Case
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.agreement import fail_strays
from gatherbench.bench.run.calibration_job import (
    CALIBRATION_KEY,
    TIMEOUT_S,
    CalibrationJob,
    read_choice,
    run_maker,
)
from gatherbench.bench.run.deadline import Deadline, TimeUp
from gatherbench.bench.run.fork_server import Forked, ForkServer
from gatherbench.bench.run.guards import death_of, only_one, other_data, terminate_as_interrupt
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import (
    CALIBRATION_STAGE,
    CASE_METRIC,
    CASE_STAGE,
    NOT_PREPARED,
    Key,
    RunStore,
    StoreError,
    has_ended,
    key_of,
    read_part,
    rows_of,
)
from gatherbench.bench.run.worker import DISK_FULL, is_disk_full
from gatherbench.bench.sampling.prepare import state_of
from gatherbench.datasets.store import data_root

#: Of a folder that may be read only.
_NOT_OURS = (errno.EROFS, errno.EACCES, errno.EPERM)
#: How long a killed worker is waited for.
_KILL_S = 30.0
CASE_CLOCK = "time.perf_counter"
WORKER = (sys.executable, "-m", "gatherbench.bench.run.worker")


class RunStopped(RuntimeError):  # noqa: N818 - not a fault of the program
    """The run cannot go on now; what was measured is safe, and it can be resumed."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the runner tells of its work; the command line draws it."""

    preparing: Callable[[Workload, str, float], None] = lambda _w, _what, _f: None
    starting: Callable[[int, int, Case], None] = lambda _i, _n, _c: None
    #: Of the total so far. The rows are those of the case; the last one says how it ended, and
    #: after how long.
    ended: Callable[[int, int, Case, list[Row]], None] = lambda _i, _n, _c, _rows: None


class Runner:
    """Runs the cases of a run's folder that are not in its table yet.

    Args:
        store: the run's folder.
        cases: in the order in which they are run; those that were added in an earlier go of the
            run are added again by ``further``.
        measure: the plan's ``[measure]`` table.
        device: ``cpu`` or ``cuda``.
        commit, machine: what the rows say of the run.
        worker: the command that measures (tests give one that knows wrong strategies).
        budget_s: seconds after which the run ends as it is, for a later one to go on with; a case
            in flight is cut off. ``None``: as long as it takes.
        further: the case to be measured next, beyond ``cases``, by the rows so far; ``None``: there
            is none.

    Attributes:
        left: cases that have not been measured yet.
        unprepared: those among them whose dataset or minibatches could not be had.
    """

    def __init__(
        self,
        store: RunStore,
        cases: list[Case],
        measure: Measure,
        device: str,
        commit: str,
        machine: str,
        progress: Progress | None = None,
        worker: tuple[str, ...] = WORKER,
        budget_s: float | None = None,
        further: Callable[[list[Row]], Case | None] = lambda _rows: None,
    ) -> None:
        self.store, self.cases, self.measure, self.further = store, cases, measure, further
        self.device, self.commit, self.machine = device, commit, machine
        self.progress = progress or Progress()
        self.worker = worker
        self.left, self.unprepared = len(cases), 0
        self._deadline = Deadline(budget_s)
        self._server = ForkServer(worker)
        #: A new server once each series had its turn: see :mod:`gatherbench.bench.run.fork_server`.
        self._round = len({replace(case, repeat=0).id for case in cases})
        self._served = 0
        self._sensors: SensorChoice | None = None
        self._ready: dict[Workload, tuple[Path, Path] | str] = {}

    def run(self) -> int:
        """Run what is missing; the number of failed cases of the whole run.

        Raises:
            StoreError: another process runs this folder, it may not be written, or its table
                cannot be read.
            RunStopped: the disk is full.
            KeyboardInterrupt, Terminated: Ctrl-C, SIGTERM; the case in flight has been stopped.
        """
        with only_one(self.store.folder), terminate_as_interrupt():
            try:
                try:
                    self._run_missing()
                except TimeUp:
                    pass  # ``left`` says what was not measured
                finally:
                    self._server.close()
                    with contextlib.suppress(OSError):  # a full disk has its own message
                        self.store.write_samples(finished=False)
                if not self.left:
                    self.store.write_samples(finished=True)
                fail_strays(self.store)
            except OSError as error:
                if is_disk_full(error):
                    raise RunStopped(f"no space left for {self.store.folder}") from error
                if error.errno in _NOT_OURS:
                    raise StoreError(
                        f"{self.store.folder}: cannot be written ({error}); make it writable, or"
                        " copy it where you may write and resume the copy"
                    ) from error
                raise
            return sum(
                r.status == "failed"
                for r in self.store.rows()
                if (r.stage, r.metric) == (CASE_STAGE, CASE_METRIC)
            )

    def _run_missing(self) -> None:
        done = self.store.recover()
        self.left = sum(key_of(case) not in done for case in self.cases)
        total = len(self.cases)
        for number, case in enumerate(self.cases, start=1):
            if key_of(case) not in done:
                self.left -= self._run(number, total, case, done)
        while not self.left and (more := self.further(self.store.rows())) is not None:
            total += 1
            if not self._run(total, total, more, done):
                return

    def _run(self, number: int, total: int, case: Case, done: set[Key]) -> bool:
        """Measure one case and fold what it found into the table; whether it could be prepared."""
        self._deadline.check()
        self.store.parts.mkdir(exist_ok=True)
        if self._sensors is None:
            self._sensors = self._calibrated(done)
        part = self.store.part(case)
        if part.exists() and not has_ended(part):
            self.store.set_aside(part)
        source, failure = CASE_CLOCK, None
        if not part.exists():  # else the runner was killed before it folded the part
            self.progress.starting(number, total, case)
            ready = self._prepare(case.workload)
            if isinstance(ready, str):
                source, failure = NOT_PREPARED, ready
            else:
                failure = self._measure(case, part, *ready)
        rows = self._fold(case, part, failure, source)
        self.unprepared += source == NOT_PREPARED
        self.progress.ended(number, total, case, rows)
        return source != NOT_PREPARED

    def _measure(self, case: Case, part: Path, dataset: Path, trace: Path) -> str | None:
        """Measure the case in a process of its own; why it failed if the part does not say."""
        job = Job(
            case,
            self.measure.model_dump(),
            self.device,
            self.store.run_id,
            self.commit,
            self.machine,
            dataset,
            trace,
            part.absolute(),
            traces=self._traces_of(case),
            nvtx=self.measure.nvtx,
            sensors=self._sensors,
        )
        return self._work("measure", job, self.measure.timeout_s)

    def _work(self, verb: str, job: Job | CalibrationJob, timeout_s: float) -> str | None:
        """Have a process of its own do the job; why it failed if its part does not say."""
        job.dump(self.store.job)
        self.store.log.write_bytes(b"")
        if self._served >= self._round:
            self._server.close()
            self._served = 0
        self._served += 1
        process = self._server.start(verb, self.store.job.absolute(), self.store.log.absolute())
        with self._watched(process):
            try:
                code = process.wait(self._deadline.within(timeout_s))
            except subprocess.TimeoutExpired:
                self._deadline.check()
                return f"timed out after {timeout_s:g} s"
        return death_of(code, self.store.log.read_text(errors="replace"))

    def _calibrated(self, done: set[Key]) -> SensorChoice | None:
        """Which of the GPU's sensors the cases read; found out once a run. ``None``: no GPU."""
        if self.device != "cuda":
            return None
        make = run_maker(self.store.run_id, self.commit, self.machine)
        sensors = self.store.sensors_file
        if CALIBRATION_KEY not in done:
            part = self.store.parts / "calibration.jsonl"
            job = CalibrationJob(
                run_id=self.store.run_id,
                commit=self.commit,
                machine=self.machine,
                part=part.absolute(),
                choice=sensors.absolute(),
                copies_mib=tuple(self.measure.known_copies),
            )
            self.progress.preparing(self.cases[0].workload, "calibrating the GPU's sensors", 0.0)
            failure = self._work("calibrate", job, TIMEOUT_S)
            self._append(part, make, CALIBRATION_STAGE, failure)
            done.add(CALIBRATION_KEY)
        return read_choice(sensors)

    def _traces_of(self, case: Case) -> Path | None:
        """Where the case's trace goes; one repeat of a strategy is enough to look at."""
        wanted = self.measure.trace and case.repeat == 0
        return self.store.folder.absolute() / "traces" if wanted else None

    def _prepare(self, workload: Workload) -> tuple[Path, Path] | str:
        """The folders of dataset and trace, or why they cannot be had.

        Done once a workload, and again where the dataset was imported anew between two cases.
        """
        ready = self._ready.get(workload)
        if isinstance(ready, tuple) and not ready[1].name.endswith(state_of(ready[0])):
            ready = None
        if ready is None:
            ready = self._ready[workload] = self._prepare_now(workload)
        return ready

    def _prepare_now(self, workload: Workload) -> tuple[Path, Path] | str:
        self.store.job.write_text(json.dumps(asdict(workload)), encoding="utf-8")
        answer: dict[str, Any] = {}
        with (
            self.store.log.open("w+") as log,
            self._process("prepare", stdout=subprocess.PIPE, stderr=log) as process,
        ):
            for line in process.stdout or ():
                if not line.startswith("{"):
                    continue  # a library that prints
                answer = json.loads(line)
                if "what" in answer:
                    self.progress.preparing(workload, answer["what"], answer["fraction"])
            code = process.wait()
            log.seek(0)
            if code == DISK_FULL:
                raise RunStopped(f"no space left to prepare {workload.dataset}: {data_root()}")
            death = death_of(code, log.read())
        if "dataset" not in answer:
            return f"{workload.dataset} could not be prepared: {answer.get('error') or death}"
        changed = other_data(self.store.folder, workload, answer["identity"])
        return changed or (Path(answer["dataset"]), Path(answer["trace"]))

    @contextlib.contextmanager
    def _process(
        self, verb: str, stdout: int | IO[str], stderr: IO[str]
    ) -> Iterator[subprocess.Popen[str]]:
        """A worker that does not outlive the block."""
        command = [*self.worker, verb, str(self.store.job.absolute()), str(os.getpid())]
        process = subprocess.Popen(
            command, stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL, text=True
        )
        try:
            with self._watched(process):
                yield process
        finally:
            if process.stdout:
                process.stdout.close()

    @contextlib.contextmanager
    def _watched(self, process: subprocess.Popen[str] | Forked) -> Iterator[None]:
        """Whatever ends the block, or the run's deadline, ends the process."""
        try:
            with self._deadline.over(process):
                yield
        finally:
            if process.poll() is None:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # a hung driver holds it
                    process.wait(_KILL_S)

    def _fold(self, case: Case, part: Path, failure: str | None, source: str) -> list[Row]:
        """Append what the case measured and how it ended to the table."""
        make = RowMaker(
            self.store.run_id,
            self.commit,
            self.machine,
            "cuda" if self.device == "cuda" else "host",
            case.workload.id,
            case.workload.dataset,
            case.strategy,
            case.variant,
            case.repeat,
        )
        return self._append(part, make, CASE_STAGE, failure, source)

    def _append(
        self, part: Path, make: RowMaker, stage: str, failure: str | None, source: str = CASE_CLOCK
    ) -> list[Row]:
        """Append a part's rows, and a last one that says how its process ended."""
        records = list(read_part(part)) if part.exists() else []
        end = next((r for r in records if r["kind"] == "end"), None)
        if end is None:
            end = {"status": "failed", "reason": failure, "wall_time_s": 0.0}
        what = (stage, CASE_METRIC, "s")
        if end["status"] == "ok":
            last = make.ok(*what, end["wall_time_s"], source)
        else:
            reason = end["reason"] or "ended without a word"
            last = make.missing(*what, source, reason, end["status"])
        rows = [*rows_of(records), last]
        self.store.append(rows)
        return rows
