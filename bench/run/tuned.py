"""Choices that a path tunes during training, kept for the other processes of the run.

If each process made a choice anew, from times that scatter, processes would differ: of four
processes of one path one gathered on 16 threads at 31 GB/s, the others on 6 and 8 at 17 to 22. So
it is made once on each machine, by the first case of a workload that needs it, and kept with the
run. A run that is resumed on another machine, or at another commit, makes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat, TypeAdapter

from gatherbench.bench.meters.base import UNITS
from gatherbench.bench.run.group import Alone
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.store import write_atomically
from gatherbench.outside import read_json
from gatherbench.strategies.base import Fetcher, SetupStep

#: By the question, the fields of steps, as :func:`_fields` gives them.
_FOUND = TypeAdapter(dict[str, list[tuple[str, str, FiniteFloat | None, str, str]]])
_WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError)


def tuned_once(
    fetcher: Fetcher, job: Job, group: Alone, tune: Callable[[], list[SetupStep]]
) -> list[SetupStep]:
    """Return the result of ``tune``, or an earlier process's; the path uses it from now on.

    Ranks of a machine follow the first of them. All tune if one has no result: steps of training
    are made together.
    """
    if not fetcher.tuning:
        return tune()
    file = job.tuned
    key = f"{job.case.workload.id}: {fetcher.tuning}"
    found = _kept(job).get(key)
    if all(group.gathered(found is not None)) and found is not None:
        with suppress(*_WRONG):  # the file may have been changed by others
            return fetcher.recall([SetupStep(*step) for step in found])
    tuned_steps = tune()
    local = group.ranks.local_world if group.ranks else 1
    first = group.rank // local * local
    steps = group.gathered([_fields(step) for step in tuned_steps])[first]
    if group.rank != first:
        return fetcher.recall([SetupStep(*step) for step in steps])
    if file is not None:
        kept = {**_kept(job), key: steps}
        write_atomically(file, json.dumps({**_made_by(job), "found": kept}, indent=1) + "\n")
    return tuned_steps


def _fields(step: SetupStep) -> list[Any]:
    return [step.metric, step.unit, step.value, step.source, step.reason]


def _made_by(job: Job) -> dict[str, str]:
    return {"machine": job.run.machine, "commit": job.run.commit}


def _kept(job: Job) -> dict[str, list[Any]]:
    """Return earlier processes' results, by question; empty for another machine or commit."""
    file: Path | None = job.tuned
    try:
        kept = read_json(file) if file else {}
        found = _FOUND.validate_python(kept["found"])
        known = all(unit in UNITS for steps in found.values() for _, unit, *_ in steps)
        return dict(found) if known and _made_by(job).items() <= kept.items() else {}
    except _WRONG:
        return {}
