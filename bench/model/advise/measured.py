"""What ``results/`` already knows of a question: epochs that this machine's GPU has run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from gatherbench.bench.model.advise.question import Question
from gatherbench.bench.read.disturbance import disturbed
from gatherbench.bench.read.epochs import epoch_times
from gatherbench.bench.read.tables import Run, RunError, load_run
from gatherbench.bench.run.rows import SERIES

#: Fields of a workload that decide its epoch; seeds draw other minibatches of the same kind.
_SAME = ("dataset", "scale", "model", "hidden", "fanouts", "batch_size")

#: Ends the source of an epoch that was disturbed.
BESIDE = ", beside other work"


def measured_epochs(
    question: Question, results: Path, machine: str
) -> dict[tuple[str, str], tuple[float, str]]:
    """(strategy, variant) → median seconds of an epoch on a GPU, and the run that says so.

    Of several runs on this machine the newest that has a case counts, but one beside which there
    was other work only where there is no other; all have to get their
    minibatches (``sampling``) as the newest of them does, since that is part of an epoch. Epochs
    that were cut short do not count, nor does what was measured in host memory: it is no GPU's
    time. Runs that cannot be read are passed over.
    """
    found: dict[tuple[str, str], tuple[float, str]] = {}
    if not question.graph.name or (question.gpus, question.machines) != (1, 1):
        return found
    agreed = ""
    for run in _runs(results / machine):
        sampling = str(run.plan["measure"].get("sampling", "live"))
        if agreed not in ("", sampling):
            continue
        workloads = [name for name in run.workloads if _same(question, run.plan["workloads"][name])]
        times = epoch_times(run).query("backend == 'cuda' and basis == 'measured'")
        beside = disturbed(run).groupby(SERIES).groups
        for row in times[times["workload"].isin(workloads)].to_dict("records"):
            key = (str(row["strategy"]), str(row["variant"]))
            said = f"measured: {run.run_id}, median of {row['count']} epochs, sampling {sampling}"
            if tuple(row[name] for name in SERIES) in beside:
                said += BESIDE
            agreed = sampling
            if key not in found or (found[key][1].endswith(BESIDE) and not said.endswith(BESIDE)):
                found[key] = (float(row["median"]), said)
    return found


def _runs(folder: Path) -> Iterator[Run]:
    """The runs of a machine, the newest first."""
    for table in sorted(folder.glob("*/rows.csv"), reverse=True):
        try:
            yield load_run(table.parent)
        except RunError:
            continue


def _same(question: Question, workload: dict[str, object]) -> bool:
    asked = asdict(question.workload())
    asked["fanouts"] = list(question.fanouts)
    return not workload.get("max_batches") and all(workload.get(n) == asked[n] for n in _SAME)
