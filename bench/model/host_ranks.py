"""Ranks on a host: what their epoch should take, from that of one rank in the same run.

On a host a rank is a process, and all ranks share the machine's cores. The model knows two bounds
and takes the longer one: each rank does one in W of the work (as one rank that has all cores would
do it), and all of the work's core-seconds have to fit on the cores. Work is counted as declared,
since smaller minibatches share fewer neighbours: drawing by edges, fetching by bytes of rows,
training by operations, the loop's own cost by minibatches. What ranks send each other, and wait
for each other, is left out. Core-seconds hold torch's threads that spin beside the gather, of which
more ranks with fewer threads each have fewer: that bound may then be too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from gatherbench.bench.model.predict import KEYS, declared_facts
from gatherbench.bench.plan.workload import ranks_of
from gatherbench.bench.read.disturbance import disturbed_alone
from gatherbench.bench.read.epochs import cpu_seconds, epoch_times, plan_order, stage_breakdown
from gatherbench.bench.read.ranks import families, world
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import Key

COLUMNS = (
    *(*KEYS, "ranks", "measured_s", "modelled_s", "error", "bound", "basis", "reason"),
    "disturbed",
)
#: What each part of an epoch grows with, as a declared ``stage.metric``.
WORK = {
    "sample": "sample.edges",
    "fetch": "fetch.declared_payload",
    "train": "train.operations",
    "other": "sample.minibatches",
}


def host_ranks(run: Run) -> pd.DataFrame:
    """A line for each series of several ranks that was measured on a host, in the plan's order.

    Columns: :data:`COLUMNS`: how many ``ranks``, the median ``measured_s`` of an epoch, what is
    expected (``modelled_s``, whose ``basis`` is predicted), ``error`` (expected over measured, less
    1), ``bound`` (``ranks``: each rank's share of the work; ``cores``: core-seconds), and
    ``reason``, why nothing is expected, or nothing; ``disturbed``: other work beside every repeat
    of the series, or of that of one rank.
    """
    measured = epoch_times(run).query("backend == 'host' and basis == 'measured'")
    alone = {_key(row): row for row in stage_breakdown(run).to_dict("records") if _on_host(row)}
    cores_s = {_key(row): row["median"] for row in cpu_seconds(run).to_dict("records")}
    work, noisy = declared_facts(run), disturbed_alone(run)
    alone_of = {name: family.alone for family in families(run) for name in family.worlds}
    records: list[tuple[Any, ...]] = []
    for row in measured.to_dict("records"):
        key = _key(row)
        ranks = world(run, key[0])
        if ranks == 1:
            continue
        one = (alone_of.get(key[0]) or "", *key[1:])
        seconds, bound, reason = float("nan"), "", _missing(run, key, one, alone, cores_s)
        if not reason:
            before, after = work.get(one, {}), work.get(key, {})
            seconds, bound = epoch_of_ranks(
                _stages_s(alone[one]),
                {stage: _more(before, after, metric) for stage, metric in WORK.items()},
                cores_s[one],
                ranks,
                _cores(run),
            )
        error = seconds / row["median"] - 1
        beside = any(Key(*series, "host", "measured") in noisy for series in (key, one))
        said = (row["median"], seconds, error, bound, "predicted", reason, beside)
        records.append((*key, ranks, *said))
    return plan_order(run, pd.DataFrame(records, columns=list(COLUMNS)))


def epoch_of_ranks(
    stages_s: Mapping[str, float],
    more_work: Mapping[str, float],
    core_s: float,
    ranks: int,
    cores: float,
) -> tuple[float, str]:
    """Seconds of an epoch of ``ranks`` that share ``cores``, and which bound it is.

    Args:
        stages_s: of an epoch of one rank that has all cores; they add up to it.
        more_work: how many times as much of each stage all ranks together have to do.
        core_s: core-seconds of that epoch.
    """
    epoch_s = sum(stages_s.values())
    work_s = sum(more_work[stage] * seconds for stage, seconds in stages_s.items())
    by_ranks, by_cores = work_s / ranks, core_s * work_s / epoch_s / cores
    return (by_ranks, "ranks") if by_ranks >= by_cores else (by_cores, "cores")


def _key(row: Mapping[Any, Any]) -> tuple[str, str, str]:
    return row["workload"], row["strategy"], row["variant"]


def _stages_s(row: Mapping[Any, Any]) -> dict[str, float]:
    """Medians of the stages, and what they leave of the median epoch."""
    stages = {stage: row[stage] for stage in WORK if stage != "other"}
    return {**stages, "other": max(row["median"] - sum(stages.values()), 0.0)}


def _on_host(row: Mapping[Any, Any]) -> bool:
    return bool(row["backend"] == "host" and row["basis"] == "measured")


def _more(before: Mapping[str, float], after: Mapping[str, float], metric: str) -> float:
    """How many times as much there is of it; of what is not counted, as many times the edges."""
    for name in (metric, WORK["sample"]):
        if before.get(name) and after.get(name):
            return after[name] / before[name]
    return 1.0


def _missing(
    run: Run,
    key: tuple[str, str, str],
    one: tuple[str, str, str],
    alone: Mapping[tuple[str, str, str], Any],
    cores_s: Mapping[tuple[str, str, str], float],
) -> str:
    """Why nothing can be predicted; empty where it can."""
    if ranks_of(run.plan["workloads"][key[0]])[1] > 1:
        return "several machines: whether they share their cores is not known"
    if not one[0]:
        return "the plan has no workload of one rank that is otherwise alike"
    if one not in alone:
        return "not measured with one rank"
    if one not in cores_s:
        return "no core-seconds with one rank"
    return "" if _cores(run) else "the cores of the machine are not known"


def _cores(run: Run) -> float:
    """That a case may use, divided among its ranks; 0 where it is not known."""
    return float(run.plan["measure"].get("threads") or run.env["cpu"].get("usable_cores") or 0)
