"""Derive from a run's rows what is never stored: medians, ratios, rates, and how far to trust them.

Spread is stated as quartiles, because epoch times have a long tail to one side that a standard
deviation hides; ratios carry a 95 % interval over the repeats. Repeats beside which there was other
work stay out while there are quiet ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gatherbench.bench.read.once import once
from gatherbench.bench.read.tables import Processes, Run, process_at
from gatherbench.bench.run.rows import BASES, SERIES, Key
from gatherbench.stats.interval import Interval, Logs, interval_of

STAGES = ("sample", "fetch", "train")
#: Parts of ``train`` where several ranks train together: the exchange of gradients once all are
#: there, and the wait for the slowest.
WITHIN_TRAIN = ("all_reduce", "wait")

#: What epochs are based on: the others are no epochs.
EPOCHS = ("measured", "predicted")

#: Share of an epoch below which what its stages leave is rounding: a modelled epoch is their sum.
ROUNDING = 1e-9
#: Why a case has not been run, by whether the run is still going.
NOT_RUN = {
    True: "the run is still going",
    False: "the run was cut off; --resume completes it",
    None: "the run is still going or was cut off; --resume completes one that was",
}


def epoch_times(run: Run) -> pd.DataFrame:
    """Seconds per epoch of each series: median and quartiles over repeats × epochs.

    Columns: :data:`SERIES`, ``median``, ``low`` and ``high`` (the quartiles), ``min``, ``max``,
    ``count``. The same columns come from :func:`stage_times` and :func:`bandwidth`.
    """
    return spread(run.values("epoch", "wall_time", EPOCHS))


def stage_times(run: Run) -> dict[str, pd.DataFrame]:
    """Seconds per epoch that the loop spent in each stage, by stage, as :func:`epoch_times`."""
    return {stage: spread(run.values(stage, "wall_time", EPOCHS)) for stage in STAGES}


def stage_breakdown(run: Run) -> pd.DataFrame:
    """Epoch times, and beside them medians of each stage and of what is left (``other``), seconds.

    Columns as :func:`epoch_times`, and :data:`STAGES`, ``other``, and :data:`WITHIN_TRAIN`, which
    ``train`` holds. What is left is that of each epoch, none where its stages overlapped, as they
    can on a GPU: so the medians need not add up to the epoch's. A modelled epoch without stages is
    all ``other``.
    """
    values = epoch_times(run).set_index(SERIES)
    whole = run.values("epoch", "wall_time", EPOCHS)
    parts = {
        stage: run.values(stage, "wall_time", EPOCHS).reindex(whole.index).fillna(0.0)
        for stage in (*STAGES, *WITHIN_TRAIN)
    }
    left = whole - sum(parts[stage] for stage in STAGES)
    parts["other"] = left.where(left > ROUNDING * whole, 0.0)
    for stage, part in parts.items():
        values[stage] = part.groupby(SERIES).median()
    return values.reset_index()


def cpu_seconds(run: Run) -> pd.DataFrame:
    """Core-seconds per epoch of the process tree: spread of the total, and medians of its parts.

    Columns as :func:`epoch_times`, and ``user``, ``system``: the medians of the two parts.
    """
    user, system = (run.values("epoch", metric) for metric in ("cpu_user", "cpu_system"))
    total = spread(user + system).set_index(SERIES)
    for name, part in (("user", user), ("system", system)):
        # By the total's index, which pandas otherwise extends where it is empty.
        total[name] = part.groupby(SERIES).median().reindex(total.index)
    return total.reset_index()


def payload_rate(run: Run) -> pd.Series[float]:
    """Bytes of payload per second that the loop waited in the fetch stage, indexed as its values.

    For a strategy that fetches ahead this is no rate of any link: the wait it hides makes the
    quotient large.
    """
    return run.values("fetch", "payload") / run.values("fetch", "wall_time")


def bandwidth(run: Run) -> pd.DataFrame:
    """:func:`payload_rate` of each series, as :func:`epoch_times`."""
    return spread(payload_rate(run))


def reference_variant(run: Run) -> tuple[str, str] | None:
    """Strategy and variant that speed-ups refer to: the paper's baseline, ``cpu_gather naive``.

    Where a run has no such case, the first other that the CPU gathers for; else ``None``.
    """
    measured = run.values("epoch", "wall_time").dropna().index
    pairs = set(zip(*map(measured.get_level_values, ("strategy", "variant")), strict=True))
    return next(iter(gathers_among(pairs - set_aside(run))), None)


def gathers_among(series: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The strategies and variants whose rows the CPU gathers, the paper's baseline first."""
    from gatherbench.strategies.registry import role_of  # imports torch

    roles = {pair: role_of(*pair) for pair in series}
    found = [pair for pair, role in roles.items() if role in ("baseline", "conventional")]
    return sorted(found, key=lambda pair: (roles[pair] != "baseline", pair))


def baseline(run: Run) -> tuple[str, str]:
    """:func:`reference_variant`, or the paper's where none was measured."""
    return reference_variant(run) or ("cpu_gather", "naive")


def speedup_over(run: Run, strategy: str = "cpu_gather", variant: str = "naive") -> pd.DataFrame:
    """Epoch time of the reference over that of each series, on the same workload and backend.

    Geometric means over the repeats of each repeat's median epoch, with ``low`` and ``high``, the
    95 % interval (:func:`gatherbench.stats.interval.interval_of`); over itself the
    ratio is 1 by definition. One repeat has no interval: the bounds are NaN. Neither has a
    modelled epoch: they are its value. Columns: :data:`SERIES`, ``speedup``, ``low``, ``high``. A
    series whose reference is not there is left out. What decides nothing is given, too
    (:func:`gatherbench.bench.read.disturbance.no_ratio_over`).
    """
    logs = repeat_logs(run.values("epoch", "wall_time", EPOCHS), run.processes)
    given = {key: mine for key, mine in logs.items() if key[1:3] == (strategy, variant)}
    records: list[tuple[object, ...]] = []
    for key, mine in logs.items():
        reference = given.get(key._replace(strategy=strategy, variant=variant))
        if reference is None:
            continue
        found = interval_of((1, reference), (-1, mine))
        exact = (key.strategy, key.variant) == (strategy, variant) or key.basis == "predicted"
        records.append((*key, *((found.value,) * 3 if exact else found.ends)))
    return sort_series(pd.DataFrame(records, columns=[*SERIES, "speedup", "low", "high"]))


def epoch_intervals(run: Run) -> dict[Key, Interval]:
    """Seconds of an epoch of each measured series, with their 95 % interval over its repeats."""
    logs = repeat_logs(run.values("epoch", "wall_time"))
    return {key: interval_of((1, values)) for key, values in logs.items()}


def repeat_logs(values: pd.Series[float], processes: Processes | None = None) -> dict[Key, Logs]:
    """The logarithm of each repeat's median, by series.

    Args:
        values: above 0, indexed by :data:`SERIES`, repeat and epoch. NaN are left out.
        processes: :attr:`gatherbench.bench.read.tables.Run.processes`, for ratios: epochs of
            paths that took turns in one are paired.
    """
    known = values.dropna()
    medians = known.groupby([*SERIES, "repeat"], sort=False).median()
    found: dict[Key, list[float]] = {}
    for (*series, _), log in zip(medians.index, np.log(medians), strict=True):
        found.setdefault(Key(*series), []).append(log)
    blocks: dict[Key, dict[float, dict[int, float]]] = {key: {} for key in found}
    if processes:
        for (*series, repeat, epoch), log in zip(known.index, np.log(known), strict=True):
            key = Key(*series)
            process = process_at(processes, (*key[:3], repeat), epoch)
            if process is not None and key.basis == "measured":
                blocks[key].setdefault(process, {})[epoch] = log
    return {key: Logs(logs, blocks[key]) for key, logs in found.items()}


@once
def problems(run: Run) -> pd.DataFrame:
    """Cases without a measurement: failed, skipped, or not run (yet).

    Columns: ``workload``, ``strategy``, ``variant``, ``status`` (``failed``, ``skipped``,
    ``not run``), ``reason`` (of the first such repeat), ``repeats`` (how many), ``of`` (planned,
    and measured beyond the plan until the epoch was precise).
    """
    keys = ["workload", "strategy", "variant"]
    planned = pd.DataFrame(run.plan["cases"], columns=[*keys, "repeat"])
    ended = run.select(stage="case", metric="wall_time")
    cases = planned.merge(
        ended[[*keys, "repeat", "status", "reason"]], on=[*keys, "repeat"], how="outer"
    )
    not_run = cases["status"].isna()
    cases.loc[not_run, "status"] = "not run"
    cases.loc[not_run, "reason"] = NOT_RUN[run.going]
    cases["of"] = cases.groupby(keys)["repeat"].transform("count")
    bad = cases[cases["status"] != "ok"].sort_values("repeat")
    found = bad.groupby(keys, as_index=False).agg(
        status=("status", "first"),
        reason=("reason", "first"),
        repeats=("repeat", "count"),
        of=("of", "first"),
    )
    return sort_series(found)


def reasons(run: Run) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Status and reason of each line of :func:`problems`, by workload, strategy and variant."""
    found = problems(run)[["workload", "strategy", "variant", "status", "reason"]]
    return {(w, s, v): (status, why) for w, s, v, status, why in found.itertuples(index=False)}


def sort_series(table: pd.DataFrame) -> pd.DataFrame:
    """The table in the registry's order of its strategies, then by variant and basis.

    A strategy that is not registered comes last.
    """
    from gatherbench.strategies.registry import STRATEGIES  # imports torch

    rank = {strategy.name: i for i, strategy in enumerate(STRATEGIES)}
    bases = {name: i for i, name in enumerate(BASES)}
    order = table.assign(_rank=[rank.get(s, len(rank)) for s in table["strategy"]], _basis=0)
    if "basis" in table:
        order["_basis"] = [bases.get(basis, -1) for basis in table["basis"]]
    ordered = order.sort_values(["_rank", "strategy", "variant", "_basis"], kind="stable")
    return ordered.drop(columns=["_rank", "_basis"]).reset_index(drop=True)


def set_aside(run: Run) -> set[tuple[str, str]]:
    """Strategy and variant of the series that nobody would train with, by their role."""
    from gatherbench.strategies.base import UNRANKED  # imports torch
    from gatherbench.strategies.registry import get, variants

    found: set[tuple[str, str]] = set()
    for strategy in {case["strategy"] for case in run.plan["cases"]}:
        with contextlib.suppress(ValueError):  # of a package that is not installed here
            every = variants(get(strategy))
            found |= {(strategy, one.variant) for one in every if one.role in UNRANKED}
    return found


def ends_of(name: str) -> list[str]:
    """The columns of a value and of the ends of its interval."""
    return [name, f"{name}_low", f"{name}_high"]


def with_ends_of(**values: Sequence[float]) -> dict[str, float]:
    """By these columns, of each value its own and those of its ends."""
    return {
        column: one
        for name, three in values.items()
        for column, one in zip(ends_of(name), three, strict=True)
    }


def ends_in(line: Mapping[Hashable, Any], name: str) -> tuple[float, float, float]:
    """What a line has in these columns."""
    value, low, high = (float(line[column]) for column in ends_of(name))
    return value, low, high


def of_paths(table: pd.DataFrame, wanted: Callable[[tuple[str, str]], bool]) -> pd.DataFrame:
    """The lines of a table of which strategy and variant are wanted."""
    pairs = zip(table["strategy"], table["variant"], strict=True)
    return table[pd.Series([wanted(pair) for pair in pairs], table.index, dtype=bool)]


def plan_order(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """The table's workloads in the order of the run's plan, each as :func:`sort_series` has it."""
    return sort_by(sort_series(table), "workload", run.workloads)


def sort_by(table: pd.DataFrame, column: str, names: Sequence[str]) -> pd.DataFrame:
    """The table in the order in which the names of a column stand; of one name as it was."""
    place = {name: number for number, name in enumerate(names)}
    return table.sort_values(
        column, key=lambda named: named.map(place), kind="stable", ignore_index=True
    )


def declared(run: Run) -> pd.DataFrame:
    """What cases say of the fetches of an epoch: medians, a column for each metric.

    Index: :data:`SERIES` without the basis.
    """
    rows = run.select(stage="fetch", basis="declared", status="ok")
    return rows.pivot_table("value", SERIES[:4], "metric", "median")


def spread(values: pd.Series[float]) -> pd.DataFrame:
    """Median, quartiles and the rest of :func:`epoch_times`'s columns, by series."""
    groups = values.dropna().groupby(SERIES)
    quartiles = groups.quantile(np.array([0.25, 0.75])).unstack()
    table = groups.agg(["median", "min", "max", "count"])
    table.insert(1, "low", quartiles.get(0.25))
    table.insert(2, "high", quartiles.get(0.75))
    return sort_series(table.reset_index())
