"""Run a plan: fresh processes, every outcome a row, nothing lost on the way.

Each case has a process of its own, or the cases of a repeat take turns in one
(:mod:`gatherbench.bench.run.turns`).

First come the cases that the plan asks for in any case, then those that ``further`` asks for, until
it asks for none.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatherbench.bench.meters.load import Load, Waiting
from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.agreement import fail_strays
from gatherbench.bench.run.fork_server import ForkServer
from gatherbench.bench.run.guards import only_one, terminate_as_interrupt
from gatherbench.bench.run.job import (
    CALIBRATION_KEY,
    DISK_FULL,
    AnyJob,
    Counting,
    Job,
    Preparation,
    Ready,
    SensorCheckJob,
    Turn,
    Turns,
    is_disk_full,
    read_choice,
)
from gatherbench.bench.run.launch import MachineLostError
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import (
    CALIBRATION_STAGE,
    CASE_METRIC,
    CASE_STAGE,
    CHECK_STAGE,
    CUT_OFF,
    NOT_PREPARED,
    CaseId,
    RunStore,
    StoreError,
    has_ended,
    key_of,
    read_part,
    rows_of,
    take_in_ranks,
    write_atomically,
)
from gatherbench.bench.sampling.prepare import state_of
from gatherbench.datasets.store import data_root
from gatherbench.outside import fresh, open_file, read_json

if TYPE_CHECKING:  # imports torch
    from gatherbench.bench.run.machines import Group

#: Of a folder that may be read only.
_NOT_OURS = (errno.EROFS, errno.EACCES, errno.EPERM)
CASE_CLOCK = "time.perf_counter"
#: Of a case that was cut off, whose rows were compared up to there.
COMPARED_EACH = "rows compared in each epoch; cut off before the comparison after the last"
#: Far longer than a calibration takes (half a minute): a driver that hangs costs no more than this.
CALIBRATION_S = 300.0
#: Of what a process printed, so much of the end has its last words.
_LOG_BYTES = 1 << 16
#: What is likely behind a signal.
_HINTS = {
    "SIGKILL": " (most likely out of memory)",
    "SIGBUS": " (most likely a mapped file that was cut short, or whose disk failed)",
}
WORKER = (sys.executable, "-m", "gatherbench.bench.run.worker")


#: A case with its number among those of the run.
_Numbered = tuple[int, Case]


class RunStopped(RuntimeError):  # noqa: N818 - not a fault of the program
    """The run cannot go on now; what was measured is safe, and it can be resumed."""


class TimeUp(Exception):  # noqa: N818 - not a fault of the program
    """The time for the whole run is used up."""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run's folder, and what is to be measured into it.

    Attributes:
        cases: in the order in which they are run; those that ``further`` added in an earlier go of
            the run are not among them.
        device: ``cpu`` or ``cuda``.
        commit, machine: what the rows say of the run.
        load: of the machine before anything began; ``None``: nobody looked.
        checked: an earlier run with this GPU, whose check of the sensors counts; ``None``: none.
        group: the processes of a launcher, of which this is the first; ``None``: it is alone.
    """

    store: RunStore
    cases: list[Case]
    measure: Measure
    device: str
    commit: str
    machine: str
    load: Load | None = None
    checked: RunStore | None = None
    group: Group | None = None

    @property
    def rows(self) -> RowMaker:
        """Makes the rows of the run."""
        backend = "cuda" if self.device == "cuda" else "host"
        return RowMaker(self.store.run_id, self.commit, self.machine, backend)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the runner tells of its work; the command line draws it."""

    preparing: Callable[[Workload, str, float], None] = lambda _w, _what, _f: None
    #: How many cases have ended, with the share that is done of those on their way; the total so
    #: far; and what is being measured.
    starting: Callable[[float, int, Case], None] = lambda _i, _n, _c: None
    #: How many have ended with this one. The rows are its own; the last one says how it ended, and
    #: after how long.
    ended: Callable[[int, int, Case, list[Row]], None] = lambda _i, _n, _c, _rows: None


_SILENT = Progress()


class Workers:
    """Processes of their own for pieces of work, one at a time.

    Args:
        folder: for what the one that runs prints.
        environment: of all of them.
        command: that forks them.
        until: by :func:`time.monotonic`: then all of them have had their time.

    Attributes:
        until: see there; it may be changed.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        command: tuple[str, ...] = WORKER,
        until: float = math.inf,
    ) -> None:
        # There is one at a time. Elsewhere than in the run's folder, kill -9 would leave them.
        self._log = folder / "job.log"
        self._server, self.until = ForkServer(command, environment), until

    def do(
        self, job: AnyJob, timeout_s: float = math.inf, look: Callable[[], None] | None = None
    ) -> str | None:
        """Have a process do the job; why it failed, in words.

        Args:
            look: called now and then; it may raise ``TimeoutError``.

        Raises:
            OSError: it found the disk full.
            TimeUp: all time was up before it ended.
        """
        log = fresh(self._log.absolute())
        by = min(time.monotonic() + timeout_s, self.until)
        try:
            code = self._server.run(job, log, by, look)
        except TimeoutError as late:
            self.check_time()
            return str(late) or _timed_out(timeout_s)
        return _death_of(code, log)

    def check_time(self) -> None:
        """Raise :class:`TimeUp` if it is."""
        if time.monotonic() >= self.until:
            raise TimeUp

    def close(self) -> None:
        """End the process that forks; the next job starts another."""
        self._server.close()


class Runner:
    """Runs the cases of a run's folder that are not in its table yet.

    Args:
        worker: the command that measures.
        budget_s: seconds after which the run ends as it is, for a later one to go on with; a case
            in flight is cut off. If it is not given, the plan's bounds the time in cases beyond the
            run's own alike.
        further: the cases to be measured next, beyond the run's, by the rows so far.

    Attributes:
        left: cases that have not been measured yet.
        unprepared: those among them whose dataset or minibatches could not be had.
        cut_off: cases that count with the blocks that they have, and may have more.
    """

    def __init__(
        self,
        task: PreparedRun,
        progress: Progress = _SILENT,
        worker: tuple[str, ...] = WORKER,
        budget_s: float | None = None,
        further: Callable[[list[Row]], list[Case]] = lambda _rows: [],
    ) -> None:
        group = task.group
        self._group = group if group is not None and group.launch.machines > 1 else None
        self.task, self.store, self.measure = task, task.store, task.measure
        self.progress, self.further = progress, further
        self.left, self.unprepared, self.cut_off = len(task.cases), 0, 0
        self._until = time.monotonic() + (math.inf if budget_s is None else budget_s)
        of_plan = self.measure.budget_s if budget_s is None else 0.0
        self._further_s = of_plan or math.inf  # that are left to cases beyond the run's own
        self._cases_s = math.inf  # that are left to cases now
        self._took: dict[tuple[str, str, str], float] = {}
        waiting = Waiting.of(self.store.env())
        self._workers = Workers(self.store.parts, waiting.environment(), worker, self._until)
        if self._group is not None:
            self._group.say("waiting", dict(waiting.variables))
        #: A new server once each series had its turn: see :mod:`gatherbench.bench.run.fork_server`.
        self._round = len({replace(case, repeat=0).id for case in task.cases})
        self._served = self._ended = 0
        self._sensors: SensorChoice | None = None
        self._rows: list[Row] = []
        self._ready: dict[Workload, Ready | str] = {}
        self._counts: dict[Workload, Path] = {}
        self._cases: dict[Workload, list[Case]] = {}
        for case in task.cases:
            self._cases.setdefault(case.workload, []).append(case)

    def run(self) -> int:
        """Run what is missing; the number of failed cases of the whole run.

        Raises:
            StoreError: another process runs this folder, it may not be written, or its table
                cannot be read.
            RunStopped: the disk is full.
            KeyboardInterrupt, Terminated: Ctrl-C, SIGTERM or SIGHUP; the case in flight has been
                stopped.
        """
        folder = self.store.folder
        with only_one(folder), terminate_as_interrupt(), _written_to(folder):
            with ExitStack() as end, contextlib.suppress(TimeUp):  # ``left`` says what is missing
                end.callback(self._end)
                self._run_missing()
            if not self.left:
                self.store.write_samples(finished=True)
            fail_strays(self.store)
            ended = (
                r for r in self.store.rows() if (r.stage, r.metric) == (CASE_STAGE, CASE_METRIC)
            )
            return sum(row.status == "failed" for row in ended)

    def _end(self) -> None:
        """Let the processes go, and keep the samples that there are."""
        self._workers.close()
        with contextlib.suppress(OSError):  # a full disk has its own message
            self.store.write_samples(finished=False)

    def _run_missing(self) -> None:
        done = self.store.recover()
        self._rows = self.store.rows()
        cases = [*self.task.cases, *self._begun(done)]
        least = set(map(key_of, self.task.cases))
        for row in self._rows:
            self._further_s -= self._took_s(row) * (key_of(row) not in least)
        self.left = sum(key_of(case) not in done for case in cases)
        total, self._ended = len(cases), len(cases) - self.left
        missing = [one for one in enumerate(cases, start=1) if key_of(one[1]) not in done]
        for group in self._groups(missing):
            self.left -= self._run(group, total, done)
        self._cases_s = self._further_s
        while not self.left and (more := self.further(self._rows)):
            begin, total = total + 1, total + len(more)
            for group in self._groups(list(enumerate(more, start=begin))):
                if self._run(group, total, done) < len(group):
                    return

    def _begun(self, done: set[CaseId]) -> list[Case]:
        """Further cases that a run which was killed had begun."""
        known = {*map(key_of, self.task.cases), *done}
        series = {key_of(case)[:3]: case for case in self.task.cases}
        repeats = range(2 * self.measure.max_repeats)
        further = (replace(case, repeat=one) for one in repeats for case in series.values())
        return [
            case for case in further if key_of(case) not in known and self.store.part(case).exists()
        ]

    def left_s(self) -> float:
        """Seconds that are left to the run."""
        return min(self._cases_s, self._until - time.monotonic())

    def _took_s(self, row: Row) -> float:
        """What a row says of a case's time, kept for the next case of its series; else 0."""
        if (row.stage, row.metric) != (CASE_STAGE, CASE_METRIC) or row.value is None:
            return 0.0
        self._took[key_of(row)[:3]] = row.value
        return row.value

    def _groups(self, cases: Iterable[_Numbered]) -> list[list[_Numbered]]:
        """Cases that are measured in one process: one, or those of a repeat that take turns."""
        groups: dict[object, list[_Numbered]] = {}
        for number, case in cases:
            turns = self.measure.together and takes_turns(case)
            key = (case.workload, case.repeat) if turns else number
            groups.setdefault(key, []).append((number, case))
        return list(groups.values())

    def _run(self, group: Sequence[_Numbered], total: int, done: set[CaseId]) -> int:
        """Measure cases in one process and fold what they found into the table.

        Returns:
            How many could be prepared, and had the time to end.
        """
        self._workers.check_time()
        if self.left_s() <= sum(self._took.get(key_of(case)[:3], 0.0) for _, case in group):
            # It would be cut off, as far as its earlier repeats tell. Where all paths of a workload
            # are in it, a repeat of another workload may fit and leave no path behind.
            if self.measure.together:
                return 0
            raise TimeUp
        self.store.parts.mkdir(exist_ok=True)
        if self._sensors is None:
            self._sensors = self._calibrated(done)
        jobs, unprepared = dict[int, Job](), dict[int, str]()
        for number, case in group:
            part = self.store.part(case)
            if part.exists() and has_ended(part):
                continue  # the runner was killed before it folded the part
            self.progress.starting(self._ended, total, case)
            job = self._job(case, part)
            if isinstance(job, Job):
                jobs[number] = job
            else:
                unprepared[number] = job
        failures: Mapping[int, str | None] = {}
        cut_off, stop = set[int](), None
        try:
            failures = self._measure(jobs, total) if jobs else {}
        except (TimeUp, KeyboardInterrupt) as error:
            stop = error
            cut_off = {n for n, job in jobs.items() if not _has_ended(job)}
        for number, case in group:
            part, source = self.store.part(case), CASE_CLOCK
            if number in cut_off:
                if not (part.exists() and self.store.keep_blocks(part)):
                    continue
                source = CUT_OFF
            failure = unprepared.get(number) or failures.get(number)
            source = NOT_PREPARED if number in unprepared else source
            rows = self._fold(part, self.task.rows.of(case), CASE_STAGE, failure, source)
            self._took_s(rows[-1])
            self._ended += 1
            self.progress.ended(self._ended, total, case, rows)
        if isinstance(stop, KeyboardInterrupt):
            raise stop
        self.cut_off += sum(self.store.part(case).exists() for n, case in group if n in cut_off)
        self.unprepared += len(unprepared)
        return len(group) - len(unprepared) - len(cut_off)

    def _job(self, case: Case, part: Path) -> Job | str:
        """What is to be done for the case, or why it cannot begin."""
        ready = self._prepare(case.workload)
        if isinstance(ready, str):
            return ready
        start = self.store.keep_blocks(part) if part.exists() else 0
        # One repeat of a strategy is enough to look at; the first may have failed.
        first = not start and key_of(case)[:3] not in self._took
        traced = self.measure.trace and first
        job = Job(
            case=case,
            measure=self.measure,
            device=self.task.device,
            run=self.task.rows,
            part=part.absolute(),
            traces=self.store.folder.absolute() / "traces" if traced else None,
            sensors=self._sensors,
            first=first,
            start=start,
            tuned=self.store.tuned_file.absolute(),
            **ready._asdict(),
        )
        return replace(job, counts=self._counted(job))

    def _measure(self, jobs: dict[int, Job], total: int) -> Mapping[int, str | None]:
        """Measure cases in a process; by number why they failed where their parts do not say."""
        alone = next(iter(jobs.values()))
        if self.measure.together and takes_turns(alone.case):
            return self._take_turns(jobs, total)
        try:
            alone = alone if self._group is None else self._group.begin(alone)
        except MachineLostError as lost:
            raise RunStopped(str(lost)) from lost
        except RuntimeError as refused:
            return dict.fromkeys(jobs, str(refused))
        try:
            return dict.fromkeys(jobs, self._done(alone, 1, self.measure.timeout_s))
        finally:
            if self._group is not None:
                self._group.ended()

    def _take_turns(self, jobs: dict[int, Job], total: int) -> dict[int, str]:
        """As :meth:`_measure`, of cases that take turns.

        Where the process dies, the case whose turn it was has failed. Another process goes on with
        those that had not ended, behind their last whole block.
        """
        failures = dict[int, str]()
        while jobs:
            now, until = self.store.parts.absolute() / "turn.json", time.monotonic() + self.left_s()
            turns = Turns(tuple(jobs.values()), now, until)
            turns.now.unlink(missing_ok=True)
            death = self._done(turns, len(jobs), look=self._watched(turns, total))
            left = [n for n, job in jobs.items() if not _has_ended(job)]
            active = [n for case, n in enumerate(jobs) if case == Turn.said(turns.now).case]
            # Nobody's turn, and nothing has come of it: another process would fare no better.
            lost = set(active) & set(left) or (set() if len(left) < len(jobs) else set(left))
            failures |= dict.fromkeys(lost, death or "ended without a word")
            jobs = {n: self._behind(jobs[n]) for n in left if n not in lost}
        return failures

    def _behind(self, job: Job) -> Job:
        """The job to go on with behind what a process left that has died."""
        start = self.store.keep_blocks(job.part) if job.part.exists() else 0
        return replace(job, start=start, first=job.first and not start)

    def _watched(self, turns: Turns, total: int) -> Callable[[], None]:
        """Tells whose turn it is, and raises ``TimeoutError`` where one has had too much time."""
        told, begin = (-1, 0.0), time.monotonic()

        def look() -> None:
            nonlocal told
            case, since, before_s, done = Turn.said(turns.now)
            case = case if case < len(turns.jobs) else -1
            if case == told[0] == -1:
                since = begin
            if case >= 0 and (case, done) != told:
                told = case, done
                so_far = self._ended + done * len(turns.jobs)
                self.progress.starting(so_far, total, turns.jobs[case].case)
            if before_s + time.monotonic() - since > self.measure.timeout_s:
                raise TimeoutError(_timed_out(self.measure.timeout_s))

        return look

    def _done(
        self,
        job: AnyJob,
        cases: int,
        timeout_s: float = math.inf,
        look: Callable[[], None] | None = None,
    ) -> str | None:
        """Have a process do so many cases; why it failed. Each round has a server of its own."""
        if self._served >= self._round:
            self._workers.close()
            self._served = 0
        self._served += cases
        begin = time.monotonic()
        self._workers.until = min(self._until, begin + self._cases_s)
        try:
            return self._workers.do(job, timeout_s, look)
        finally:
            self._workers.until = self._until
            self._cases_s -= time.monotonic() - begin

    def _calibrated(self, done: set[CaseId]) -> SensorChoice | None:
        """Which of the GPU's sensors the cases read; found out once a run. ``None``: no GPU."""
        if self.task.device != "cuda":
            return None
        sensors = self.store.sensors_file
        if CALIBRATION_KEY not in done and self.task.checked is not None:
            earlier = [row for row in self.task.checked.rows() if row.stage == CALIBRATION_STAGE]
            shutil.copyfile(self.task.checked.sensors_file, sensors)
            self.store.append([replace(row, run_id=self.store.run_id) for row in earlier])
            done.add(CALIBRATION_KEY)
        elif CALIBRATION_KEY not in done:
            part = self.store.parts.absolute() / "calibration.jsonl"
            job = SensorCheckJob(self.task.rows, part, sensors.absolute())
            first = self.task.cases[0].workload
            self.progress.preparing(first, "calibrating the GPU's sensors", 0.0)
            failure = self._workers.do(job, CALIBRATION_S)
            self._fold(part, job.rows, CALIBRATION_STAGE, failure)
            done.add(CALIBRATION_KEY)
        return read_choice(sensors)

    def _prepare(self, workload: Workload) -> Ready | str:
        """The workload's dataset and minibatches, or why they cannot be had.

        Done once a workload, and again where the dataset was imported anew between two cases.
        """
        known = self._ready.get(workload)
        stale = isinstance(known, Ready) and not known.trace.name.endswith(state_of(known.dataset))
        if known is None or stale:
            known = self._ready[workload] = self._prepare_now(workload)
        return known

    def _counted(self, job: Job) -> Path | None:
        """The file of what was counted of the minibatches of the job's workload, for all paths.

        Counted once a workload, before the first of its cases that needs it. Where that fails, rows
        say so.
        """
        workload = job.case.workload
        if not job.first and workload.step != "captured":
            return None
        into = self.store.parts.absolute() / f"counts-{len(self._counts)}.json"
        if workload not in self._counts:
            mine = (*self._cases[workload], job.case)
            paths = {key_of(case)[:3]: case for case in mine}
            counting = Counting(tuple(replace(job, case=case) for case in paths.values()), into)
            fresh(into)
            what = "counting what its minibatches ask for"
            look = lambda: self.progress.preparing(workload, what, counting.fraction)  # noqa: E731
            self._counts[workload] = into
            if (death := self._workers.do(counting, look=look)) is not None:
                into.write_text(json.dumps({"failed": death}) + "\n", encoding="utf-8")
        return self._counts[workload]

    def _prepare_now(self, workload: Workload) -> Ready | str:
        job = Preparation(workload, self.store.parts.absolute() / "prepared.json")
        fresh(job.answers)
        told: dict[str, Any] = {}

        def look() -> None:
            nonlocal told
            if (said := job.told()) != told and "what" in said:
                self.progress.preparing(workload, said["what"], said["fraction"])
                told = said

        try:
            found = job.made(self._workers.do(job, look=look))
        except OSError as error:
            said = f"no space left to prepare {workload.dataset}: {data_root()}"
            if not is_disk_full(error):
                raise
            raise RunStopped(said) from error
        if isinstance(found, str):
            return found
        return other_data(self.store.folder, workload, found.identity) or found

    def _fold(
        self, part: Path, make: RowMaker, stage: str, failure: str | None, source: str = CASE_CLOCK
    ) -> list[Row]:
        """Append a part's rows to the table, and a last one that says how its process ended."""
        if part.exists() and not has_ended(part):
            take_in_ranks(part)
        records = list(read_part(part)) if part.exists() else []
        lost: dict[str, Any] = {"status": "failed", "reason": failure}
        if source == CUT_OFF:
            lost = {"status": "ok", "wall_time_s": 0.0}
        end = next((r for r in records if r["kind"] == "end"), lost)
        what, rows = (stage, CASE_METRIC, "s"), list(map(make.own, rows_of(records)))
        if end["status"] == "ok":
            took_s = sum(r["wall_time_s"] for r in records if r["kind"] == "cut")
            last = make.ok(*what, took_s + end["wall_time_s"], source)
        else:
            reason = end["reason"] or "ended without a word"
            last = make.missing(*what, source, reason, end["status"])
        if source == CUT_OFF:
            seen = max(r["rows"] for r in records if r["kind"] == "block")
            rows.append(make.ok(CHECK_STAGE, "rows", "1", seen, COMPARED_EACH))
        rows.append(last)
        self.store.append(rows)
        self._rows += rows
        return rows


@contextlib.contextmanager
def _written_to(folder: Path) -> Iterator[None]:
    """Say what is to be done where the run's folder cannot be written."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise RunStopped(f"no space left for {folder}") from error
        if error.errno in _NOT_OURS:
            raise StoreError(
                f"{folder}: cannot be written ({error}); make it writable, or copy it where you may"
                " write and resume the copy"
            ) from error
        raise


def other_data(folder: Path, workload: Workload, identity: str) -> str | None:
    """Why a run must not go on with this dataset: it began with another. Keeps the first.

    Args:
        folder: of the run.
        identity: of :func:`gatherbench.bench.sampling.prepare.identity`.

    Raises:
        StoreError: the run's ``data.json`` was damaged.
    """
    file = folder / "data.json"
    try:
        known = dict(read_json(file)) if file.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{file}: cannot be read ({error}); it says what the run began with: start a new run"
        ) from error
    if known.setdefault(workload.id, identity) != identity:
        return (
            f"{workload.dataset} is not what this run began with: it was imported or made anew"
            " since; start a new run, or import it as it was"
        )
    write_atomically(file, json.dumps(known, indent=2) + "\n")
    return None


def takes_turns(case: Case) -> bool:
    """Whether a case may share its process with others of its workload and repeat."""
    from gatherbench.strategies.knowledge import ALONE  # imports torch
    from gatherbench.strategies.registry import build

    if case.workload.gpus > 1:
        return False
    return not build(case.strategy, case.params).needs & ALONE


def _has_ended(job: Job) -> bool:
    """Whether the case's part says how it ended."""
    return job.part.exists() and has_ended(job.part)


def _timed_out(seconds: float) -> str:
    return f"timed out after {seconds:g} s"


def _death_of(code: int, log: Path) -> str | None:
    """Why a worker that said nothing died, in words; ``None`` if it ended well."""
    if code == 0:
        return None
    if code == DISK_FULL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with open_file(log) as file:  # its end: a process may have printed without end
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        lines = reversed(file.read().decode(errors="replace").splitlines())
    last = next((line.strip() for line in lines if line.strip()), "it printed nothing")
    if code < 0:
        known = {int(s): s.name for s in signal.Signals}
        name = known.get(-code, f"signal {-code}")
        return f"killed by {name}{_HINTS.get(name, '')}; last words: {last}"
    return f"exit status {code}; last words: {last}"
