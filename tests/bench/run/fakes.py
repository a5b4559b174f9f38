"""A runner of a worker that misbehaves as it is told, and its cases; a case measured for real."""

import sys
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.part import PartWriter, read_part, rows_of
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.runner import PreparedRun, Runner
from gatherbench.bench.run.store import RunStore
from gatherbench.datasets.store import DatasetError
from gatherbench.outside import fresh

FAKE = (sys.executable, str(Path(__file__).parent / "fake_worker.py"))
WORKLOAD = Workload("tiny")


def cases(*variants: str, workload: Workload = WORKLOAD) -> list[Case]:
    """A case each; what its worker does is in its variant (``fake_worker.py``)."""
    return [Case(workload, "cpu_gather", v, {}, i) for i, v in enumerate(variants)]


def runner(
    store: RunStore,
    wanted: list[Case],
    timeout_s: float = 200,
    device: str = "cpu",
    together: bool = False,
    **more: Any,
) -> Runner:
    measure = Measure(repeats=1, timeout_s=timeout_s, together=together)
    run = PreparedRun(store, wanted, measure, device, "abc", "box")
    return Runner(run, worker=FAKE, **more)


#: Of paths that take turns in blocks.
PATHS, BLOCKS = ("blocks a", "blocks b", "blocks c"), 4


def repeat(number: int = 0) -> list[Case]:
    return [replace(case, repeat=number) for case in cases(*PATHS)]


def go(store: RunStore, wanted: list[Case], **more: Any) -> Runner:
    measure = Measure(repeats=1, epochs=BLOCKS, together=True)
    return Runner(PreparedRun(store, wanted, measure, "cpu", "abc", "box"), worker=FAKE, **more)


def measured(job: Job) -> list[Row]:
    """The rows of a case that can run here, measured in this process."""
    assert skipped(job) is None
    return rows_of(read_part(job.part))


def counted(*jobs: Job) -> list[Job]:
    """The jobs, of one workload, with what was counted of its minibatches, in this process."""
    from gatherbench.bench.run.counting import count_sets  # brings torch, which takes its time

    into = fresh(jobs[0].part.with_suffix(".counts"))
    with closing(PartWriter(into)) as out:
        count_sets(jobs, out)
    return [replace(job, counts=into) for job in jobs]


def skipped(job: Job, table: Any = None, group: Any = None) -> str | None:
    """Why a case cannot run here, alone; ``None``: it has been measured."""
    from gatherbench.bench.run.group import ALONE  # brings torch, which takes its time
    from gatherbench.bench.run.measure import MeasuredCase
    from gatherbench.bench.run.session import Session

    if job.counts is None and group is None:
        with suppress(DatasetError):  # of a case that is refused
            (job,) = counted(job)
    job, session = replace(job, alone=True), Session(job, table, group or ALONE)
    with closing(PartWriter(fresh(job.part))) as out, MeasuredCase(job, out, session) as case:
        if (why := case.open()) is None:
            for number in range(job.measure.epochs):
                case.epoch(number)
            case.finish()
    return why
