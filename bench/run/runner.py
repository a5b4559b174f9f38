"""Run a plan: fresh processes, every outcome a row, no data lost on the way.

The cases of a repeat are a block that takes turns in one process, or each is a block of its own
(:mod:`gatherbench.bench.run.block`). Those of the plan come first, then those that ``further``
returns, until it returns none.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import ValidationError

from gatherbench.bench.meters.load import Load, Waiting
from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.agreement import judged
from gatherbench.bench.run.engine import WORKER, Engine, TimeUp
from gatherbench.bench.run.frames import ENDED, Frames, frames_of, ids_in, write_columns
from gatherbench.bench.run.guards import RunStopped, only_one, terminate_as_interrupt
from gatherbench.bench.run.job import CHOICE, Block, Job, Ready, is_disk_full
from gatherbench.bench.run.part import (
    CASE_CLOCK,
    NOT_PREPARED,
    CaseId,
    PartWriter,
    Record,
    SoFar,
    StoreError,
    key_of,
    read_part,
    rows_of,
    take_in,
)
from gatherbench.bench.run.rows import RowMaker, table_of
from gatherbench.bench.run.store import RunStore, write_atomically
from gatherbench.bench.sampling.prepare import state_of
from gatherbench.datasets.store import data_root
from gatherbench.outside import read_bytes, read_json
from gatherbench.reason import Reason

if TYPE_CHECKING:  # imports torch
    from gatherbench.bench.run.machines import Group

#: Errors of a folder that may be read-only.
_NOT_OURS = (errno.EROFS, errno.EACCES, errno.EPERM)
#: Far longer than a calibration takes (half a minute): it limits the time of a hanging driver.
CALIBRATION_S = 300.0


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run's folder, and the cases to measure into it."""

    store: RunStore
    cases: list[Case]  # in order, without those that ``further`` added in an earlier start
    measure: Measure
    device: str  # cpu or cuda
    commit: str  # as the rows of the run name it, and the machine
    machine: str
    load: Load | None = None  # of the machine before the run; None: not measured
    group: Group | None = None  # of a launcher, whose first process this is; None: it is alone

    @property
    def rows(self) -> RowMaker:
        """Return the maker of the rows of the run."""
        backend = "cuda" if self.device == "cuda" else "host"
        return RowMaker(self.store.run_id, self.commit, self.machine, backend)


class News(NamedTuple):
    """What the runner does, for the command line to draw."""

    done: float  # ended cases, with the share that is done of those on their way
    total: int
    case: Case  # it is being measured, prepared, or has ended
    step: str = ""  # what is being prepared for its workload, and the share that is done
    fraction: float = 0.0
    status: str = ""  # how it ended, and why
    reason: str | None = None


class Runner:
    """Runs the cases of a run's folder that have not ended in it yet.

    Args:
        worker: the command that measures.
        budget_s: seconds after which the run ends as it is, for a later one to continue; a case
            in flight is cut off. By default the plan's budget limits the time in further cases.
        further: returns the next cases to measure, beyond the run's, from the tables so far.

    Attributes:
        left, unprepared: how many cases are still to be measured, or could not be prepared.
    """

    def __init__(
        self,
        task: PreparedRun,
        tell: Callable[[News], None] = lambda _news: None,
        worker: tuple[str, ...] = WORKER,
        budget_s: float | None = None,
        further: Callable[[Frames], list[Case]] = lambda _frames: [],
    ) -> None:
        group = task.group
        self._group = group if group is not None and group.launch.machines > 1 else None
        self.task, self.store, self.measure = task, task.store, task.measure
        self._tell, self._further = tell, further
        self.left, self.unprepared = len(task.cases), 0
        self._until = time.monotonic() + (math.inf if budget_s is None else budget_s)
        self._cases_s = math.inf  # time left for cases now
        self._took: dict[tuple[str, str, str], float] = {}
        waiting = Waiting.of(self.store.env())
        self.engine = Engine(self.store.parts, waiting.environment(), worker)
        if self._group is not None:
            self._group.say("waiting", dict(waiting.variables))
        #: A new server after a turn of each series: :mod:`gatherbench.bench.run.worker`.
        self._round = len({key_of(case)[:3] for case in task.cases})
        self._served = self._ended = self._total = 0
        self._turn: str | None = None  # the id of the case that works in the process
        self._sensors: SensorChoice | None = None
        self._cases: dict[CaseId, SoFar] = {}  # from the parts
        self._frames = frames_of(())
        self._ready: dict[Workload, Ready | str] = {}
        self._asks = itertools.count()

    def run(self) -> int:
        """Run the missing cases; return the number of failed cases of the whole run.

        Raises:
            StoreError: another process runs this folder, or it cannot be read or written.
            RunStopped: the disk is full.
            KeyboardInterrupt, Terminated: Ctrl-C, SIGTERM or SIGHUP ended the case in flight.
        """
        folder = self.store.folder
        with only_one(folder), terminate_as_interrupt(), _written_to(folder):
            # Ctrl-C leaves the parts to the reader, as a kill does: to write tables takes a second.
            # When the time is up, ``left`` counts the missing.
            with closing(self.engine), contextlib.suppress(TimeUp):
                self._run_missing()
            frames = judged(self._frames)
            self.store.end(frames, finished=not self.left)
            return int((frames.cases["status"] == "failed").sum())

    def _run_missing(self) -> None:
        self._cases, self._frames = self.store.so_far(), self.store.frames()
        for key, so_far in list(self._cases.items()):
            if so_far.ended is not None and so_far.ended.source == NOT_PREPARED:  # is tried again
                so_far.ended = None
                if not so_far.blocks:
                    del self._cases[key]
                    self._frames = self._frames.without([key])
        begun = [key for key, so_far in self._cases.items() if so_far.ended is None]
        ends = self._frames.without(begun).cases.query("basis == 'measured' and status == status")
        ended = dict(zip(ids_in(ends), ends.get(ENDED.name, []), strict=True))
        cases = {key_of(case): case for case in self.task.cases}
        of_plan = self.measure.budget_s if math.isinf(self._until) else 0.0
        further_s = of_plan or math.inf  # time left for cases beyond the run's own
        for key, seconds in ended.items():
            if not math.isnan(seconds):
                self._took[key[:3]] = seconds
                further_s -= seconds * (key not in cases)
        series = {key[:3]: case for key, case in cases.items()}
        for key in sorted(begun, key=lambda key: key[3]):  # some are of further cases
            if key[:3] in series:
                cases.setdefault(key, replace(series[key[:3]], repeat=key[3]))
        missing = [case for key, case in cases.items() if key not in ended]
        self._total, self.left = len(cases), len(missing)
        self._ended = self._total - self.left
        # A folder that cannot be written shows here, before anything is measured.
        write_columns(self.store.folder, self._frames.columns)
        for group in self._groups(missing):
            self.left -= self._run(group)
        self._cases_s = further_s
        while not self.left and (more := self._further(self._frames)):
            self._total += len(more)
            for group in self._groups(more):
                if self._run(group) < len(group):
                    return

    def _groups(self, cases: Iterable[Case]) -> list[list[Case]]:
        """Group cases by process: one case, or those of a repeat that take turns."""
        groups = defaultdict[object, list[Case]](list)
        for case in cases:
            groups[key_of(case) if self._alone(case) else (case.workload, case.repeat)].append(case)
        return list(groups.values())

    def _alone(self, case: Case) -> bool:
        return not (self.measure.together and takes_turns(case))

    def _left_s(self) -> float:
        return min(self._cases_s, self._until - time.monotonic())

    def _run(self, group: Sequence[Case]) -> int:
        """Measure cases in one process; return how many were prepared, and had the time to end."""
        keys = [key_of(case) for case in group]
        if self._left_s() <= sum(self._took.get(key[:3], 0.0) for key in keys):
            # It would be cut off, judging by its earlier repeats. If all paths of a workload are
            # in it, a repeat of another workload may fit and is complete.
            if self.measure.together:
                return 0
            raise TimeUp
        if self._sensors is None:
            self._sensors = self._calibrated()
        part, stop = self.store.new_part(), None
        for case in group:
            self._tell(News(self._ended, self._total, case))
        ready = self._prepared(group)
        try:
            if isinstance(ready, str):
                self._end_all(group, part, ready, NOT_PREPARED)
                self.unprepared += len(group)
            else:
                self._measure(group, ready, part)
        except (TimeUp, KeyboardInterrupt) as error:
            stop = error
        begun = {key: self._cases[key] for key in keys if key in self._cases}
        rows = [row for so_far in begun.values() for row in so_far.rows]
        self._frames = frames_of(rows, self._frames.without(begun))
        for case in group:
            if (so_far := begun.get(key_of(case))) is not None:
                if so_far.ended is not None and so_far.ended.value is not None:
                    self._took[key_of(case)[:3]] = so_far.ended.value
                self._ended += 1
                end, news = so_far.rows[-1], News(self._ended, self._total, case)
                self._tell(news._replace(status=end.status, reason=end.reason))
        if isinstance(stop, KeyboardInterrupt):
            raise stop
        if isinstance(ready, str):
            return 0
        return sum(so_far.ended is not None for so_far in begun.values())

    def _job(self, case: Case, part: Path, ready: Ready) -> Job:
        """Return the job of a case: what is left of it behind its whole blocks."""
        key, task = key_of(case), self.task
        so_far = self._cases.get(key, SoFar())
        job = Job(
            case,
            self.measure,
            task.device,
            task.rows,
            part=part,
            alone=self._alone(case),
            sensors=self._sensors,
            # Checking one repeat of a strategy is enough; the first may have failed.
            first=key[:3] not in self._took,
            start=so_far.blocks,
            spent_s=so_far.spent_s,
            tuned=self.store.tuned_file.absolute(),
            **ready._asdict(),
        )
        return job if job.counted else replace(job, counts=None)

    def _asked(self, do: Literal["check", "prepare"], cases: Iterable[Case]) -> Block:
        """Return a block that measures nothing."""
        part = self.store.parts.absolute() / f"{do}{next(self._asks)}.jsonl"
        nothing = Ready(Path(), "")
        return Block(do, tuple(self._job(case, part, nothing) for case in cases), self._until)

    def _measure(self, cases: Sequence[Case], ready: Ready, part: Path) -> None:
        """Measure cases in a process, until each of them has an end.

        If the process dies, the case whose turn it was has failed. Another process continues with
        those that had not ended, after their last whole block.
        """
        while cases:
            try:
                death = self._measured([self._job(case, part, ready) for case in cases])
            finally:
                if part.exists():
                    take_in(self._cases, part)
            left = [c for c in cases if self._cases.get(key_of(c), SoFar()).ended is None]
            lost = [case for case in left if case.id == self._turn]
            if len(left) == len(cases):  # nobody's turn, and no result: another would fail alike
                lost = lost or left
            if lost:
                self._end_all(lost, part, death or "ended without a word")
            cases, part = [case for case in left if case not in lost], self.store.new_part()

    def _end_all(
        self, cases: Iterable[Case], part: Path, reason: str, source: str = CASE_CLOCK
    ) -> None:
        """Record as failed the cases whose process could not do so."""
        with closing(PartWriter(part)) as out:
            for case in cases:
                out.end(self.task.rows.of(case), "failed", reason, 0.0, source)
        take_in(self._cases, part)

    def _measured(self, jobs: Sequence[Job]) -> str | None:
        """Measure in a process; return why it failed."""
        if self._served >= self._round:
            self.engine.close()
            self._served = 0
        self._served += len(jobs)
        self._turn, hear, begin = None, self._hear([job.case for job in jobs]), time.monotonic()
        until = begin + self._left_s()
        try:
            if self._group is not None and jobs[0].case.workload.gpus > 1:
                job = self._group.begin(jobs[0])
                if isinstance(job, str):
                    return job
                jobs = [job]
            block = Block("measure", tuple(jobs), until)
            return self.engine.run(block, self.measure.timeout_s, hear)
        finally:
            self._cases_s -= time.monotonic() - begin

    def _hear(self, cases: Sequence[Case]) -> Callable[[Record], None]:
        """Return what tells of a process's progress, and keeps whose turn it is."""
        by_id = {case.id: case for case in cases}

        def hear(record: Record) -> None:
            if record["kind"] == "turn":
                self._turn = record["case"]
                if self._turn in by_id:
                    done = self._ended + record["done"] * len(cases)
                    self._tell(News(done, self._total, by_id[self._turn]))
            elif record["kind"] == "work":
                work = str(record["what"]), float(record["fraction"])
                self._tell(News(self._ended, self._total, cases[0], *work))

        return hear

    def _calibrated(self) -> SensorChoice | None:
        """Return the GPU's sensors that the cases read, found once per run; ``None``: no GPU."""
        store, case = self.store, self.task.cases[0]
        if self.task.device != "cuda":
            return None
        if not store.calibration_file.exists():
            self._tell(News(0, self._total, case, "calibrating the GPU's sensors"))
            block = self._asked("check", [case])
            answer = self.engine.ask(block, CALIBRATION_S)
            choice = _no_choice(str(answer.get("failed")))
            if "choice" in answer:
                choice = CHOICE.validate_python(answer["choice"])
            else:
                with closing(PartWriter(block.part)) as out:
                    out.end(self.task.rows, "failed", str(answer["failed"]), 0.0)
            records = list(read_part(block.part))
            write_atomically(store.sensors_file, CHOICE.dump_json(choice, indent=2).decode() + "\n")
            store.keep_calibration(table_of([*rows_of(records), rows_of(records, "end")[-1]]))
        try:
            return CHOICE.validate_json(read_bytes(store.sensors_file))
        except (OSError, ValidationError) as error:
            return _no_choice(str(error).partition("\n")[0])

    def _prepared(self, group: Sequence[Case]) -> Ready | str:
        """Return the dataset and minibatches of the cases' workload, or why they are unavailable.

        Done once per workload, and again if the dataset was imported anew between two cases.
        """
        workload = group[0].workload
        ready = self._ready.get(workload)
        stale = isinstance(ready, Ready) and not ready.identity.startswith(state_of(ready.dataset))
        if ready is None or stale:
            cases = [case for case in self.task.cases if case.workload == workload]
            paths = {key_of(case)[:3]: case for case in [*cases, *group]}
            try:
                block = self._asked("prepare", paths.values())
                ready = self.engine.prepare(block, self._hear(group))
            except OSError as error:
                if not is_disk_full(error):
                    raise
                why = f"no space left to prepare {workload.dataset}: {data_root()}"
                raise RunStopped(why) from error
            if isinstance(ready, Ready):
                ready = other_data(self.store.folder, workload, ready.identity) or ready
            self._ready[workload] = ready
        return ready


def _no_choice(why: str) -> SensorChoice:
    return SensorChoice(None, Reason("failed", f"the calibration left no choice ({why})"))


@contextlib.contextmanager
def _written_to(folder: Path) -> Iterator[None]:
    """Name the remedy if the run's folder cannot be written."""
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
    """Return why a run must stop: it began with another dataset. The first call records it.

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
    """Return whether a case may share its process with others of its workload and repeat."""
    from gatherbench.strategies.knowledge import ALONE  # imports torch
    from gatherbench.strategies.registry import build

    if case.workload.gpus > 1:
        return False
    return not build(case.strategy, case.params).needs & ALONE
