"""Choices that a path tunes during training, kept for the other processes of the run.

If each process made a choice anew, from times that scatter, processes would differ: of four
processes of one path one gathered on 16 threads at 31 GB/s, the others on 6 and 8 at 17 to 22. So
it is made once on each machine, by the first case of a workload that needs it, and kept with the
run. A run that is resumed on another machine, or at another commit, makes it anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from pydantic import TypeAdapter

from gatherbench.bench.run.group import Alone
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.store import write_atomically
from gatherbench.outside import read_bytes
from gatherbench.strategies.base import Fetcher, SetupStep

#: The kept file: steps by machine, commit, workload and question.
_KEPT = TypeAdapter(dict[str, list[SetupStep]])


def tuned_once(
    fetcher: Fetcher, job: Job, group: Alone, tune: Callable[[], list[SetupStep]]
) -> list[SetupStep]:
    """Return the result of ``tune``, or an earlier process's; the path uses it from now on.

    Ranks of a machine follow the first of them. All tune if one has no result: steps of training
    are made together.
    """
    if not fetcher.tuning:
        return tune()
    run, workload, kept = job.run, job.case.workload.id, _kept(job)
    key = f"{run.machine}, {run.commit}, {workload}: {fetcher.tuning}"
    if all(group.gathered(key in kept)):
        return fetcher.recall(kept[key])
    steps = tune()
    first = group.ranks.first if group.ranks else 0
    of_first = group.gathered([asdict(step) for step in steps])[first]
    if group.rank != first:
        return fetcher.recall([SetupStep(**step) for step in of_first])
    if job.tuned is not None:
        text = _KEPT.dump_json({**_kept(job), key: steps}, indent=1).decode()
        write_atomically(job.tuned, f"{text}\n")
    return steps


def _kept(job: Job) -> dict[str, list[SetupStep]]:
    """Return earlier processes' results; empty if the file is missing or damaged."""
    try:
        return _KEPT.validate_json(read_bytes(job.tuned)) if job.tuned else {}
    except (OSError, ValueError):
        return {}
