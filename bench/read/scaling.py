"""Runs on several ranks: how their epochs scale, where that ends, and how far ranks differ.

Workloads that differ in their ranks alone are a *family*. Its numbers of ranks are compared by the
time for a seed node: a strong epoch has the same seeds whatever their number, but for those few of
a step that cannot be shared equally and are left out
(:func:`gatherbench.bench.sampling.epoch.rank_seeds`); a weak epoch that is cut to some minibatches
has as many times more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatherbench.bench.plan.workload import ranks_of
from gatherbench.bench.read.cpu import cores_of
from gatherbench.bench.read.derive import (
    WITHIN_TRAIN,
    baseline,
    ends_of,
    epoch_times,
    plan_order,
    quiet_speedups,
    reasons,
    repeat_logs,
    sort_by,
    sort_series,
    with_ends_of,
)
from gatherbench.bench.read.disturbance import disturbed_alone, no_ratio_over
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.stats.interval import Interval, interval_of
from gatherbench.stats.judge import THRESHOLD, Word, judge

#: Whether more ranks than these take less time for a seed; empty where no more were measured.
FASTER, NO_FASTER, OPEN = "faster", "no faster", "not decided"
#: Of each repeat.
Logs = NDArray[np.float64]
UNKNOWN_SEEDS = "its rows do not tell the seeds of an epoch"


#: Of :func:`scaling`, but for the speed-up.
COLUMNS = [
    *("family", *SERIES, "ranks", "seeds", *ends_of("epoch"), *ends_of("efficiency")),
    *("why", "cores", "cores_full", "more", "disturbed"),
]


@dataclass(frozen=True, slots=True)
class Family:
    """Workloads that differ in their ranks alone; those of one rank belong to both scalings.

    Attributes:
        name: in words.
        worlds: ranks by workload, ascending; no two alike.
    """

    name: str
    worlds: Mapping[str, int]

    @property
    def alone(self) -> str | None:
        """The workload of one rank."""
        return next((workload for workload, world in self.worlds.items() if world == 1), None)


def world(run: Run, workload: str) -> int:
    """Ranks that train it together."""
    return ranks_of(run.plan["workloads"][workload])


def families(run: Run) -> list[Family]:
    """The families of a run that hold several numbers of ranks, in the order of the plan."""
    found = []
    for name, members in run.alike(gpus=1, scaling="strong"):
        alone = [ident for ident in members if world(run, ident) == 1]
        several = [ident for ident in members if ident not in alone]
        for scaling in ("strong", "weak"):
            mine = [w for w in several if run.plan["workloads"][w]["scaling"] == scaling]
            worlds = sorted((world(run, ident), ident) for ident in [*alone, *mine])
            if mine and len(worlds) > 1:
                ordered = {ident: many for many, ident in worlds}
                found.append(Family(f"{name}, {scaling} scaling", ordered))
    return found


def seeds_an_epoch(run: Run) -> dict[str, float]:
    """Seed nodes of an epoch of all ranks together, by workload, as its cases counted them."""
    rows = run.select(stage="sample", metric="seeds", basis="declared", status="ok")
    return {str(w): float(v) for w, v in rows.groupby("workload")["value"].median().items()}


def scaling(run: Run) -> pd.DataFrame:
    """A line for each measured series of each family and number of ranks.

    Columns: ``family``, :data:`SERIES`, ``ranks``, ``seeds`` (of an epoch), ``epoch`` (s, median
    over repeats × epochs) with its quartiles ``epoch_low`` and ``epoch_high``, ``efficiency`` (time
    for a seed of one rank over that of these, and over their number; of one rank 1 by definition)
    with ``efficiency_low``, ``efficiency_high``, or ``why`` there is none, ``speedup`` over the
    run's ``cpu_gather`` on as many ranks with its interval, ``cores`` (busy by the case, of those
    it may use) with ``cores_full`` (the whole interval is within 5 % of all of them), ``more``
    (:data:`FASTER`, :data:`NO_FASTER` or :data:`OPEN`), ``disturbed`` (other work beside every
    repeat). Intervals of ratios are of 95 %, NaN with one repeat.
    """
    found, alone = families(run), disturbed_alone(run)
    logs = repeat_logs(run.values("epoch", "wall_time"))
    seeds, cores, costs = seeds_an_epoch(run), _cores_busy(run), dict[Key, Logs]()
    for key, values in logs.items():
        if seeds.get(key.workload):
            costs[key] = np.asarray(values) - math.log(seeds[key.workload])
    epochs = epoch_times(run).set_index(SERIES)[["median", "low", "high"]].T.to_dict("list")
    records: list[dict[str, object]] = []
    for family in found:
        mine = [key for key in logs if key.workload in family.worlds]
        for key in sorted(mine, key=lambda key: family.worlds[key.workload]):
            efficiency, why = _efficiency(run, family, key, logs, costs)
            busy = cores.get(key)
            more = [o for o in mine if o == key._replace(workload=o.workload)]
            more = [o for o in more if family.worlds[o.workload] > family.worlds[key.workload]]
            records.append(
                {
                    "family": family.name,
                    **key._asdict(),
                    "ranks": family.worlds[key.workload],
                    "seeds": seeds.get(key.workload),
                    **with_ends_of(epoch=epochs[tuple(key)], efficiency=efficiency),
                    "why": why,
                    "cores": busy and busy.value,
                    "cores_full": busy is not None and _all_of(busy, cores_of(run)),
                    "more": _more([_compared(o, key, costs, alone) for o in more]),
                    "disturbed": key in alone,
                }
            )
    table = pd.DataFrame(records, columns=COLUMNS)
    ends = {"low": "speedup_low", "high": "speedup_high"}
    ratios = quiet_speedups(run, *baseline(run)).rename(columns=ends)
    table = table.merge(ratios, on=SERIES, how="left")
    return sort_by(sort_series(table), "family", [family.name for family in found])


def _efficiency(
    run: Run, family: Family, key: Key, logs: Collection[Key], costs: Mapping[Key, Logs]
) -> tuple[tuple[float, float, float], str]:
    """Time for a seed of one rank over that of these, and over their number; or why there is none.

    ``costs``: the logarithm of that time, of each repeat.
    """
    ranks, one = family.worlds[key.workload], key._replace(workload=family.alone or "")
    if ranks == 1:
        return (1.0, 1.0, 1.0), ""  # by definition
    why = no_ratio_over(run, one)
    if family.alone is None:
        why = "one rank is not in the plan"
    elif one not in logs:
        why = f"one rank: {': '.join(reasons(run).get(one[:3], ('not in the plan',)))}"
    elif not why and not {one, key} <= costs.keys():
        why = UNKNOWN_SEEDS
    if why:
        return (math.nan, math.nan, math.nan), why
    return interval_of((1, costs[one] - math.log(ranks)), (-1, costs[key])).ends, ""


def _compared(other: Key, key: Key, costs: Mapping[Key, Logs], alone: Collection[Key]) -> Word:
    """The verdict on the time for a seed with other ranks."""
    if other in alone or key in alone or not {key, other} <= costs.keys():
        return "AMBIGUOUS"
    return judge(interval_of((1, costs[other]), (-1, costs[key]))).word


def _more(words: Collection[str]) -> str:
    """What the verdicts on each greater number of ranks come to."""
    if "FAST" in words:
        return FASTER
    return OPEN if "AMBIGUOUS" in words else NO_FASTER if words else ""


def _cores_busy(run: Run) -> dict[Key, Interval]:
    """Cores that the processes of a case were busy on, over its epochs' windows."""
    used = run.values("epoch", "cpu_user") + run.values("epoch", "cpu_system")
    busy = used / run.values("epoch", "window_time")
    return {key: interval_of((1, logs)) for key, logs in repeat_logs(busy[busy > 0]).items()}


def _all_of(busy: Interval, cores: int) -> bool:
    """Whether that many cores were busy, or no more than 5 % fewer: the whole interval tells."""
    return busy.repeats > 1 and busy.low / cores > 1 / (1 + THRESHOLD)


# ---- from rank to rank ---------------------------------------------------------------------------

#: What is observed of a rank, and the name of its column.
_OF_RANKS = {
    "epoch.wall_time": "epoch",
    **{f"{stage}.wall_time": stage for stage in WITHIN_TRAIN},
    "epoch.cpu_user": "user",
    "epoch.cpu_system": "system",
}
_EPOCH = [*SERIES, "repeat", "epoch_number"]


def by_rank(run: Run) -> pd.DataFrame:
    """A line for each rank of each series: medians over repeats × epochs.

    Columns: :data:`SERIES`, ``ranks`` (of all), ``rank``, ``epoch``, ``wait``, ``all_reduce`` (s),
    ``wait_share``, ``all_reduce_share`` (of the rank's epoch), ``cpu`` (core-seconds).
    """
    single = _ranks(run)
    for stage in WITHIN_TRAIN:
        single[f"{stage}_share"] = single[stage] / single["epoch"]
    medians = single.drop(columns=["repeat", "epoch_number"]).groupby([*SERIES, "rank"]).median()
    return _with_ranks(run, medians.reset_index())


def over_ranks(run: Run) -> pd.DataFrame:
    """How far the ranks of each series are apart: medians over repeats × epochs.

    Columns: :data:`SERIES`, ``ranks``, ``slowest``, ``fastest`` (s, of an epoch), ``apart`` (the
    slowest over the fastest), ``wait``, ``all_reduce`` (s, means over the ranks), ``wait_share``,
    ``all_reduce_share`` (of the ranks' mean epoch), ``cpu_least``, ``cpu_most`` (core-seconds of
    the rank that used least, and most).
    """
    epochs = _ranks(run).groupby(_EPOCH)
    mean, least, most = epochs.mean(), epochs.min(), epochs.max()
    table = pd.DataFrame({"slowest": most["epoch"], "fastest": least["epoch"]})
    table["apart"] = table["slowest"] / table["fastest"]
    for stage in WITHIN_TRAIN:
        table[stage], table[f"{stage}_share"] = mean[stage], mean[stage] / mean["epoch"]
    table["cpu_least"], table["cpu_most"] = least["cpu"], most["cpu"]
    return _with_ranks(run, table.groupby(SERIES).median().reset_index())


def _ranks(run: Run) -> pd.DataFrame:
    """A line for each rank in each epoch of the repeats that count."""
    counted = run.rows.loc[run.rows["used"], [*SERIES, "repeat"]].drop_duplicates()
    rows = run.ranks[(run.ranks["status"] == "ok") & (run.ranks["epoch"] >= 0)]
    rows = rows.merge(counted, on=[*SERIES, "repeat"]).rename(columns={"epoch": "epoch_number"})
    rows = rows.assign(what=rows["stage"] + "." + rows["metric"])
    rows = rows[rows["what"].isin(_OF_RANKS)]
    table = rows.pivot(index=[*_EPOCH, "rank"], columns="what", values="value")
    table = table.reindex(columns=list(_OF_RANKS)).rename(columns=_OF_RANKS).astype(float)
    table["cpu"] = table.pop("user") + table.pop("system")
    return table.reset_index()


def _with_ranks(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """With the number of all ranks, in the order of the plan."""
    table.insert(len(SERIES), "ranks", [world(run, w) for w in table["workload"]])
    return plan_order(run, table)
