"""Count a run's page visits anew, where what is counted has changed since it was measured.

    python -m tools.declare_anew RUN ...

The graph is generated and its minibatches are drawn again; a run of other minibatches is refused.
Everything else that a series declared of its path must come out exactly as it stands in the table:
only then its visits are written, else null and the reason. Run ``tools.model_errors`` and
``tools.gpu_results`` afterwards.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gatherbench.bench.plan.plan import ResolvedPlan
from gatherbench.bench.run.declared_rows import declared_rows
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.rows import HEADER, Row, RowMaker
from gatherbench.bench.run.store import CaseId, RunStore, key_of, to_csv, write_atomically
from gatherbench.bench.sampling.knowledge import knowledge_of
from gatherbench.bench.sampling.prepare import identity, prepare
from gatherbench.bench.sampling.trace import Trace
from gatherbench.datasets.store import open_dataset
from gatherbench.strategies.registry import build

VISITS = ("gpu_page_visits", "managed_page_visits")
AGAIN = "counted again later on the same minibatches"


def counted_again(job: Job) -> list[Row]:
    """What the path of a case declares now of the minibatches that it was measured on."""
    workload, dataset = job.case.workload, open_dataset(job.dataset)
    epochs = Epochs(job, dataset, Trace.open(job.trace))
    strategy = build(job.case.strategy, job.case.params)
    known = knowledge_of(workload, dataset, epochs.measured_ids()).limited_to(strategy.needs)
    return [*declared_rows(job, epochs, strategy, known, epochs.warm_up_ids())]


def visits(before: Sequence[Row], now: Sequence[Row]) -> list[Row]:
    """A case's declared page visits of ``now``; null where anything else came out otherwise.

    Args:
        before: the rows of the case, in whose coordinates, the commit among them, the new ones are.
        now: what it declares now.
    """
    counts = {(row.stage, row.metric): row for row in now}
    told = [row for row in before if row.basis == "declared" and row.stage != "train"]
    off = [
        f"{row.stage}.{row.metric}"
        for row in told
        if row.metric not in VISITS
        if (row.stage, row.metric) not in counts or counts[row.stage, row.metric].value != row.value
    ]
    why = f"failed: {', '.join(off)} came out otherwise when counted again" if off else None
    first = next(row for row in told if row.metric in VISITS)
    return [
        replace(
            first,
            metric=metric,
            value=None if off else counts["fetch", metric].value,
            source=f"{counts['fetch', metric].source}; {AGAIN}",
            status="failed" if off else "ok",
            reason=why,
        )
        for metric in VISITS
    ]


def declare_anew(folder: Path) -> None:
    """Write the run's table anew: page visits where they stood, all else as it is.

    Raises:
        SystemExit: its minibatches cannot be drawn again as they were.
    """
    store = RunStore.open(folder)
    plan, rows = ResolvedPlan.model_validate(store.plan()), store.rows()
    file = folder / "data.json"
    drawn = json.loads(file.read_bytes()) if file.exists() else {}
    make = RowMaker(rows[0].run_id, rows[0].commit, rows[0].machine, rows[0].backend)
    anew: dict[CaseId, list[Row]] = {}
    for case in plan.expanded():
        mine = [row for row in rows if key_of(row) == key_of(case)]
        if not any(row.metric in VISITS for row in mine):
            continue
        ready = prepare(case.workload)
        # The first part is of a file about the graph, which has got more fields; the second is
        # of every node and edge of the minibatches.
        was, is_now = drawn.get(case.workload.id, ""), identity(*ready)
        if was and was.partition("-")[2] != is_now.partition("-")[2]:
            sys.exit(f"{folder}: {case.workload.id} has other minibatches now")
        job = Job(case, plan.measure, "cpu", make, *ready, file)
        anew[key_of(case)] = found = visits(mine, counted_again(job))
        print(case.id, *(f"{row.metric} {row.reason or row.value}" for row in found), flush=True)
    kept: list[Row] = []
    for row in rows:  # a run that was counted again before has both
        here = row.metric in VISITS and row.basis == "declared"
        kept += anew.pop(key_of(row), []) if here else [row]
    write_atomically(store.rows_file, ",".join(HEADER) + "\n" + to_csv(kept))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        declare_anew(Path(name))
