"""A process of a run that is led by another process.

The first one on each further machine starts that machine's ranks of each case.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.engine import Engine
from gatherbench.bench.run.guards import terminate_as_interrupt
from gatherbench.bench.run.job import Block, Job, Ready
from gatherbench.bench.run.machines import JOB, Group, say, send_parts
from gatherbench.bench.run.part import ranks_folder, read_part, rows_of
from gatherbench.outside import fresh

#: The most time for ranks to end after those of the first machine.
_END_S = 10.0


def follow(group: Group) -> int:
    """Follow the first process's instructions until the run ends; return its status.

    Raises:
        LaunchError: the first process is gone.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP.
    """
    launch = group.launch
    with terminate_as_interrupt():
        if launch.machine and not launch.local_rank:
            folder = Path(tempfile.mkdtemp(prefix="gatherbench-"))
            try:
                _serve(group, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        return group.wait()


def _serve(group: Group, folder: Path) -> None:
    waiting = group.hear(group.store, "waiting")
    if waiting is None:
        return
    machine = _Machine(group, folder, Waiting(waiting).environment())
    number = 0
    try:
        while (said := group.hear(group.of_case(number), "job")) is not None:
            machine.do(number, JOB.validate_python(said))
            number += 1
    finally:
        machine.engine.close()


class _Machine:
    """A further machine, with its processes and its data."""

    def __init__(self, group: Group, folder: Path, environment: Mapping[str, str]) -> None:
        self.engine = Engine(folder, environment)
        self._group, self._folder = group, folder
        self._ready: dict[Workload, Ready | str] = {}
        self._ended = 0.0

    def do(self, number: int, job: Job) -> None:
        """Do this machine's part of a case, from its preparation until its rows have been sent."""
        meeting, store = self._group.meeting(number), self._group.of_case(number)
        say(store, f"here{meeting.machine}", True)
        mine = self._prepared(job)
        say(store, f"ready{meeting.machine}", mine if isinstance(mine, str) else None)
        if isinstance(mine, str) or not self._group.hear(store, "go"):
            return
        mine = replace(mine, meeting=meeting)
        death = self._done(mine, store)
        if not self._group.over:
            send_parts(mine, death)
        shutil.rmtree(ranks_folder(mine.part), ignore_errors=True)

    def _prepared(self, job: Job) -> Job | str:
        """Return the job with this machine's files, or why it cannot begin."""
        workload, counts = job.case.workload, self._folder / "counts.jsonl"
        if workload not in self._ready:
            asked = replace(job, part=self._folder / "prepared.jsonl")
            self._ready[workload] = self.engine.prepare(
                Block("prepare", (asked,)), look=self._end_with_the_run
            )
        ready = self._ready[workload]
        if isinstance(ready, str):
            return ready
        mine = replace(job, tuned=self._folder / "tuned.json", traces=None, **ready._asdict())
        if job.counts is not None:
            asked = replace(mine, part=counts)
            found = self.engine.ask(Block("count", (asked,)), look=self._end_with_the_run)
            if "failed" in found:
                return f"its minibatches could not be counted: {found['failed']}"
            mine = replace(mine, counts=counts)
        return replace(mine, part=fresh(self._folder / "case.jsonl"))

    def _done(self, job: Job, case: Store) -> str | None:
        """Run the ranks; return why they failed."""
        self._ended = 0.0

        def look() -> None:
            self._end_with_the_run()
            if case.check(["ended"]):
                self._ended = self._ended or time.monotonic()
                if time.monotonic() - self._ended > _END_S:
                    raise TimeoutError("it hung when the first machine's ranks had ended")

        death = self.engine.run(Block("measure", (job,)), job.measure.timeout_s, look=look)
        if death is None:
            ends = rows_of(read_part(job.part), "end")
            death = ends[0].reason if ends else "ended without a word"
        return death

    def _end_with_the_run(self) -> None:
        if self._group.over:
            raise TimeoutError("the run has ended")
