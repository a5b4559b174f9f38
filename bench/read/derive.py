"""Derive from a run's frames what is never stored: medians, ratios, and their confidence.

Spread is stated as quartiles, because epoch times have a long tail to one side that a standard
deviation hides; ratios carry a 95 % interval over the repeats. Noisy repeats stay out if there
are quiet ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import BASES, SERIES, Key
from gatherbench.stats.interval import Interval, Logs, interval_of

STAGES = ("sample", "fetch", "train")
#: Parts of ``train`` if several ranks train together: the exchange of gradients once all have
#: entered, and the wait for the slowest.
WITHIN_TRAIN = ("all_reduce", "wait")
#: The names here of the meter's groups of threads (:mod:`gatherbench.bench.meters.threads`).
GROUPS = {
    "main": ["cpu_main_s"],
    "gather": ["cpu_gather_workers_s"],
    "sampler": ["cpu_sampler_workers_s"],
    "torch": ["cpu_torch_pool_s"],
    "rest": ["cpu_other_threads_s", "cpu_ended_threads_s", "cpu_meters_s"],
}
#: The share of an epoch below which a remainder is rounding: a predicted epoch is its stages' sum.
ROUNDING = 1e-9
#: Why a case has not been run, by whether the run is still going.
NOT_RUN = {
    True: "the run is still going",
    False: "the run was cut off; --resume completes it",
    None: "the run is still going or was cut off; --resume completes one that was",
}

#: An epoch is host-bound if issuing takes more than this share of it, and the GPU then has at most
#: this many steps left.
BOUND_SHARE, BOUND_STEPS = 2 / 3, 2.0
#: Roles of paths whose host work for a fetch is only issuing it: others may work meanwhile.
_ISSUED = ("zero_copy", "upper_bound", "no_fetch", "control")

# ---- epochs --------------------------------------------------------------------------------------


def spread(values: pd.Series[float]) -> pd.DataFrame:
    """Return ``median``, ``low`` and ``high`` (quartiles), ``min``, ``max``, ``count`` by series.

    It has a line per series, over repeats × epochs.
    """
    groups = values.dropna().groupby(SERIES)
    quartiles = groups.quantile(np.array([0.25, 0.75])).unstack()
    table = groups.agg(["median", "min", "max", "count"])
    table.insert(1, "low", quartiles.get(0.25))
    table.insert(2, "high", quartiles.get(0.75))
    return sort_series(table.reset_index())


def epoch_times(run: Run) -> pd.DataFrame:
    """Return seconds per epoch of each series, as :func:`spread`."""
    return spread(pd.concat([run.measured["epoch_s"], run.predicted["epoch_s"]]))


def stage_breakdown(run: Run) -> pd.DataFrame:
    """Return epoch times, with medians of each stage and of the remainder (``other``), seconds.

    Columns as :func:`spread`, and :data:`STAGES`, ``other``, and :data:`WITHIN_TRAIN`, which
    ``train`` includes. The remainder is that of each epoch, 0 if its stages overlap, as they can on
    a GPU: medians need not add up to the epoch's. A predicted epoch without stages is all
    ``other``.
    """
    names = {f"{stage}_s": stage for stage in ("epoch", *STAGES, *WITHIN_TRAIN)}
    both = pd.concat([of[[*names]] for of in (run.measured, run.predicted)]).rename(columns=names)
    parts = both[both["epoch"].notna()].fillna(0.0)
    whole = parts.pop("epoch")
    left = whole - parts[list(STAGES)].sum(axis=1)
    parts["other"] = left.where(left > ROUNDING * whole, 0.0)
    return epoch_times(run).join(parts.groupby(SERIES).median(), on=SERIES)


def cpu_seconds(run: Run) -> pd.DataFrame:
    """Return core-seconds per epoch of the process tree, as :func:`spread`, and its parts' medians.

    The parts are ``user`` and ``system``.
    """
    parts = run.measured[["cpu_user_s", "cpu_system_s"]].set_axis(["user", "system"], axis=1)
    medians = parts.groupby(SERIES).median()
    return spread(run.measured["cpu_s"]).join(medians, on=SERIES)


def thread_seconds(run: Run) -> pd.DataFrame:
    """Return core-seconds per epoch by group of threads: medians over repeats × epochs.

    Columns: :data:`SERIES`, one for each of :data:`GROUPS`, ``unused`` (the cores that the case may
    use, times the epoch, less its use), and ``median``, ``low`` and ``high``, the quartiles of
    the groups' sum. Empty if threads were not metered.
    """
    seen = run.measured
    groups = {name: seen[group].sum(axis=1, skipna=False) for name, group in GROUPS.items()}
    table = pd.DataFrame(groups, seen.index).dropna()
    used = table.sum(axis=1)
    table["unused"] = (seen["window_s"] * cores_of(run) - used).clip(lower=0)
    medians = table.groupby(SERIES).median().dropna().reset_index()
    return medians.merge(spread(used)[[*SERIES, "median", "low", "high"]], on=SERIES).pipe(
        sort_series
    )


def cores_of(run: Run) -> int:
    """Return how many cores cases may use: the least of all, the plan's threads, a bound node's."""
    limits = [int(run.env.get("cpu", {}).get("usable_cores") or 1)]
    if threads := run.plan["measure"].get("threads"):
        limits.append(int(threads))
    bound = set(run.ended["setup_numa_node"].dropna())
    processors = run.env.get("numa", {}).get("processors_by_node", {})
    limits += [int(count) for node, count in processors.items() if float(node) in bound]
    return min(limits)


# ---- ratios --------------------------------------------------------------------------------------


def repeat_logs(values: pd.Series[float], blocks: pd.Series[int] | None = None) -> dict[Key, Logs]:
    """Return the logarithm of each repeat's median, by series.

    Args:
        values: above 0, indexed by :data:`SERIES`, repeat and epoch. NaN are left out.
        blocks: for ratios: ``run.measured["block"]``, the process of each epoch (-1: a process for
            its case alone). Epochs of paths that took turns in one process are paired.
    """
    known = values.dropna()
    medians = known.groupby(CASE, sort=False).median()
    found: dict[Key, list[float]] = {}
    for (*series, _), log in zip(medians.index, np.log(medians), strict=True):
        found.setdefault(Key(*series), []).append(log)
    paired: dict[Key, dict[float, dict[int, float]]] = {key: {} for key in found}
    if blocks is not None:
        turns = blocks[blocks >= 0].reindex(known.index).dropna()
        logs = np.log(known[turns.index])
        for (*series, _, epoch), log, block in zip(turns.index, logs, turns, strict=True):
            paired[Key(*series)].setdefault(block, {})[epoch] = log
    return {key: Logs(logs, paired[key]) for key, logs in found.items()}


def epoch_logs(run: Run) -> dict[Key, Logs]:
    """Return :func:`repeat_logs` of the measured epochs, for ratios."""
    return repeat_logs(run.measured["epoch_s"], run.measured["block"])


def epoch_intervals(run: Run) -> dict[Key, Interval]:
    """Return seconds of an epoch of each measured series, with a 95 % interval over repeats."""
    logs = repeat_logs(run.measured["epoch_s"])
    return {key: interval_of((1, values)) for key, values in logs.items()}


def speedup_over(run: Run, strategy: str = "cpu_gather", variant: str = "naive") -> pd.DataFrame:
    """Return the reference's measured epoch over that of each series, on the same workload.

    Geometric means of the repeats' median epochs; of paths that took turns, of their blocks' ratios
    by process. ``low``, ``high``: the 95 % interval, NaN for one repeat
    (:func:`gatherbench.stats.interval.interval_of`). Over itself the ratio is 1 by definition.
    Columns: :data:`SERIES`, ``speedup``, ``low``, ``high``. A series without a reference is left
    out. Undecided ratios are included (:func:`gatherbench.bench.read.noise.no_ratio_over`).
    """
    logs, records = epoch_logs(run), list[tuple[object, ...]]()
    for key, mine in logs.items():
        reference = logs.get(key._replace(strategy=strategy, variant=variant))
        if reference is not None:
            found = interval_of((1, reference), (-1, mine)).ends
            records.append((*key, *((1.0,) * 3 if reference is mine else found)))
    return sort_series(pd.DataFrame(records, columns=[*SERIES, "speedup", "low", "high"]))


def reference_variant(run: Run) -> tuple[str, str] | None:
    """Return the reference of speed-ups: the paper's baseline, ``cpu_gather naive``.

    If a run lacks that, the first other strategy and variant with a CPU gather, or ``None``.
    """
    measured = run.measured.index[run.measured["epoch_s"].notna()]
    pairs = set(zip(*map(measured.get_level_values, ("strategy", "variant")), strict=True))
    return next(iter(gathers_among(pairs - set_aside(run))), None)


def gathers_among(series: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the strategies and variants whose rows the CPU gathers, the paper's baseline first."""
    from gatherbench.strategies.registry import role_of  # imports torch

    roles = {pair: role_of(*pair) for pair in series}
    found = [pair for pair, role in roles.items() if role in ("baseline", "conventional")]
    return sorted(found, key=lambda pair: (roles[pair] != "baseline", pair))


def baseline(run: Run) -> tuple[str, str]:
    """Return :func:`reference_variant`, or the paper's if none was measured."""
    return reference_variant(run) or ("cpu_gather", "naive")


def set_aside(run: Run) -> set[tuple[str, str]]:
    """Return strategy and variant of the series that are unranked, by their role."""
    from gatherbench.strategies.base import UNRANKED  # imports torch
    from gatherbench.strategies.registry import get, variants

    found: set[tuple[str, str]] = set()
    for strategy in {case["strategy"] for case in run.plan["cases"]}:
        with contextlib.suppress(ValueError):  # of a package that is not installed here
            every = variants(get(strategy))
            found |= {(strategy, one.variant) for one in every if one.role in UNRANKED}
    return found


def limit_of(run: Run) -> tuple[str, str] | None:
    """Return strategy and variant of the path that fetches nothing; ``None``: the plan has none."""
    from gatherbench.strategies.registry import role_of  # imports torch

    named = ((case["strategy"], case["variant"]) for case in run.plan["cases"])
    return next((names for names in dict.fromkeys(named) if role_of(*names) == "no_fetch"), None)


def limits(run: Run, epochs: pd.DataFrame) -> dict[str, float]:
    """Return the no-fetch limit (s) of each workload with one, from a table with ``median``."""
    limit = limit_of(run)
    found = of_paths(epochs[epochs["basis"] == "measured"], lambda pair: pair == limit)
    return dict(zip(found["workload"], found["median"], strict=True))


# ---- the host, as it issues an epoch -------------------------------------------------------------


def host_bound(run: Run) -> frozenset[Key]:
    """Return the measured series with host-bound epochs: between two of them there is no verdict.

    A GPU runs its operations in order, and the host issues them call by call. If the GPU has almost
    nothing left to do when all is issued, and issuing took more than two thirds of the epoch, a
    faster path would change nothing, and the speed of issuing differs from process to process.
    """
    shares = issue_shares(run)
    return frozenset(Key(*one) for one in shares.loc[shares["bound"], SERIES].to_numpy())


def issue_shares(run: Run) -> pd.DataFrame:
    """Return issuing as shares of the measured epochs: medians over repeats and epochs.

    Columns: :data:`SERIES`, ``train`` and ``fetch`` (the host's time to issue them), ``draw``
    (minibatches, or to have a GPU do so; NaN if unknown), ``wait`` (for them), ``left``
    (the GPU's remaining time then), ``issued`` (draws, steps, and the fetches of paths that only
    issue them), and ``bound``, whether that bounds the epoch: never of a path that gathers on the
    CPU, as its gather is part of the host's work.
    """
    from gatherbench.strategies.registry import role_of  # imports torch

    names = {f"issue_{one}": one for one in ("train", "fetch", "left", "draw", "wait")}
    known = run.medians.rename(columns=names)[[*names.values(), "issue_steps_left"]]
    found = known.dropna(subset=["train", "fetch", "left"]).reset_index()
    pairs = zip(found["strategy"], found["variant"], strict=True)
    roles = pd.Series([role_of(*pair) for pair in pairs], found.index, dtype=object)
    found["issued"] = found["train"] + found["draw"].fillna(0.0)
    found["issued"] += found["fetch"].where(roles.isin(_ISSUED), 0.0)
    bound = (found["issued"] > BOUND_SHARE) & (found["issue_steps_left"] <= BOUND_STEPS)
    found["bound"] = bound & ~roles.isin(("baseline", "conventional"))
    return sort_series(found)


# ---- what was not measured -----------------------------------------------------------------------


@lru_cache(maxsize=4)  # a run is read by many views
def problems(run: Run) -> pd.DataFrame:
    """Return the cases without a measurement: failed, skipped, or not run (yet).

    Columns: ``workload``, ``strategy``, ``variant``, ``status`` (``failed``, ``skipped``,
    ``not run``), ``reason`` (of the first such repeat), ``repeats`` (a number), ``of`` (planned,
    and measured beyond the plan until the epoch was precise).
    """
    keys = ["workload", "strategy", "variant"]
    planned = pd.DataFrame(run.plan["cases"], columns=[*keys, "repeat"])
    ended = run.ended.reset_index()[[*keys, "repeat", "status", "reason"]]
    cases = planned.merge(ended, on=[*keys, "repeat"], how="outer")
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
    """Return status and reason of each line of :func:`problems`, by workload, strategy, variant."""
    found = problems(run)[["workload", "strategy", "variant", "status", "reason"]]
    return {(w, s, v): (status, why) for w, s, v, status, why in found.itertuples(index=False)}


def reasons_of(run: Run, *columns: str) -> pd.DataFrame:
    """Return why numbers of whole cases are missing in these columns, the first column's first.

    Columns: those of :attr:`Run.reasons`.
    """
    reasons = run.reasons
    mine = reasons[
        reasons["column"].isin(columns) & (reasons["status"] != "ok") & (reasons["rank"] < 0)
    ]
    return sort_by(mine, "column", columns)


def unpredicted(run: Run) -> pd.DataFrame:
    """Return the predictions without an epoch, their ``machine``, and the ``reason``."""
    missing = run.predicted[run.predicted["epoch_s"].isna()].reset_index()
    why = reasons_of(run, "epoch_s").query("basis == 'predicted'")[[*SERIES[:3], "reason"]]
    why = why.drop_duplicates(SERIES[:3])
    return missing[[*SERIES, "machine"]].merge(why, on=SERIES[:3], how="left")


# ---- order, and columns of three -----------------------------------------------------------------


def sort_series(table: pd.DataFrame) -> pd.DataFrame:
    """Sort the table in the registry's order of its strategies, then by variant and basis.

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


def plan_order(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """Sort the table's workloads in the order of the run's plan, each as :func:`sort_series`."""
    return sort_by(sort_series(table), "workload", run.workloads)


def sort_by(table: pd.DataFrame, column: str, names: Sequence[str]) -> pd.DataFrame:
    """Sort the table in the order of a column's names; equal names keep their order."""
    place = {name: number for number, name in enumerate(names)}
    return table.sort_values(
        column, key=lambda named: named.map(place), kind="stable", ignore_index=True
    )


def of_paths(table: pd.DataFrame, wanted: Callable[[tuple[str, str]], bool]) -> pd.DataFrame:
    """Return the lines of a table whose strategy and variant are wanted."""
    pairs = zip(table["strategy"], table["variant"], strict=True)
    return table[pd.Series([wanted(pair) for pair in pairs], table.index, dtype=bool)]


def ends_of(name: str) -> list[str]:
    """Return the names of the columns of a value and of the ends of its interval."""
    return [name, f"{name}_low", f"{name}_high"]


def with_ends_of(**values: Sequence[float]) -> dict[str, float]:
    """Return each value and the ends of its interval by the columns of :func:`ends_of`."""
    return {
        column: one
        for name, three in values.items()
        for column, one in zip(ends_of(name), three, strict=True)
    }
