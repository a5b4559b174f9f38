"""Derive from a run's frames what is never stored: medians, ratios, and their confidence.

Spread is stated as quartiles, because epoch times have a long tail to one side that a standard
deviation hides; ratios carry a 95 % interval over the repeats. Noisy repeats stay out if there
are quiet ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from gatherbench.bench.read.noise import modelled_from_noisy
from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import BASES, SERIES, Key
from gatherbench.stats.interval import Interval, Logs, interval_of, ratio_of

STAGES = ("sample", "fetch", "train")
#: Parts of ``train`` if several ranks train together: the exchange of gradients once all have
#: entered, and the wait for the slowest.
WITHIN_TRAIN = ("all_reduce", "wait")
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
_GATHERS = ("baseline", "conventional")
_PATH = SERIES[:3]

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
    both = pd.concat([basis[[*names]] for basis in (run.measured, run.predicted)]).rename(
        columns=names
    )
    parts = both[both["epoch"].notna()].fillna(0.0)
    whole = parts.pop("epoch")
    left = whole - parts[list(STAGES)].sum(axis=1)
    parts["other"] = left.where(left > ROUNDING * whole, 0.0)
    return epoch_times(run).join(parts.groupby(SERIES).median(), on=SERIES)


def cpu_seconds(run: Run) -> pd.DataFrame:
    """Return core-seconds per epoch of the process tree, as :func:`spread`, and its parts' medians.

    The parts are ``user`` and ``system``.
    """
    parts = run.medians[["cpu_user_s", "cpu_system_s"]].set_axis(["user", "system"], axis=1)
    return spread(run.measured["cpu_s"]).join(parts, on=SERIES)


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
    by_series: dict[Key, list[float]] = {}
    for (*series, _), log in zip(medians.index, np.log(medians), strict=True):
        by_series.setdefault(Key(*series), []).append(log)
    paired: dict[Key, dict[float, dict[int, float]]] = {key: {} for key in by_series}
    if blocks is not None:
        turns = blocks[blocks >= 0].reindex(known.index).dropna()
        logs = np.log(known[turns.index])
        for (*series, _, epoch), log, block in zip(turns.index, logs, turns, strict=True):
            paired[Key(*series)].setdefault(block, {})[epoch] = log
    return {key: Logs(logs, paired[key]) for key, logs in by_series.items()}


def epoch_logs(run: Run) -> dict[Key, Logs]:
    """Return :func:`repeat_logs` of the measured epochs, for ratios."""
    return repeat_logs(run.measured["epoch_s"], run.measured["block"])


def epoch_intervals(run: Run) -> dict[Key, Interval]:
    """Return seconds of an epoch of each measured series, with a 95 % interval over repeats."""
    logs = repeat_logs(run.measured["epoch_s"])
    return {key: interval_of(values) for key, values in logs.items()}


def speedup_over(run: Run, strategy: str = "cpu_gather", variant: str = "naive") -> pd.DataFrame:
    """Return the reference's measured epoch over that of each series, on the same workload.

    Geometric means of the repeats' median epochs; of paths that took turns, of their blocks' ratios
    by process. ``low``, ``high``: the 95 % interval, NaN for one repeat
    (:func:`gatherbench.stats.interval.ratio_of`). Over itself the ratio is 1 by definition.
    Columns: :data:`SERIES`, ``speedup``, ``low``, ``high``. A series without a reference is left
    out. Undecided ratios are included (:func:`gatherbench.bench.read.noise.no_ratio_over`).
    """
    logs, lines = epoch_logs(run), list[tuple[object, ...]]()
    for key, own in logs.items():
        reference = logs.get(key._replace(strategy=strategy, variant=variant))
        if reference is not None:
            ratio = ratio_of(reference, own).ends
            lines.append((*key, *((1.0,) * 3 if reference is own else ratio)))
    return sort_series(pd.DataFrame(lines, columns=[*SERIES, "speedup", "low", "high"]))


def reference_variant(run: Run) -> tuple[str, str] | None:
    """Return the reference of speed-ups: the paper's baseline, ``cpu_gather naive``.

    If a run lacks that, the first other strategy and variant with a CPU gather, or ``None``.
    """
    measured = run.measured.index[run.measured["epoch_s"].notna()]
    paths = zip(*map(measured.get_level_values, ("strategy", "variant")), strict=True)
    return next(iter(gathers_among(set(paths))), None)


def gathers_among(series: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the strategies and variants whose rows the CPU gathers, the paper's baseline first."""
    from gatherbench.strategies.registry import role_of  # imports torch

    roles = {pair: role_of(*pair) for pair in series}
    gathers = [pair for pair, role in roles.items() if role in _GATHERS]
    return sorted(gathers, key=lambda pair: (roles[pair] != "baseline", pair))


def baseline(run: Run) -> tuple[str, str]:
    """Return :func:`reference_variant`, or the paper's if none was measured."""
    return reference_variant(run) or ("cpu_gather", "naive")


def limits(epochs: pd.DataFrame) -> dict[str, float]:
    """Return the measured no-fetch limit of each workload with one, from a table with ``median``,
    s.
    """
    from gatherbench.strategies.registry import role_of  # imports torch

    measured = epochs[epochs["basis"] == "measured"]
    lines = of_paths(measured, lambda pair: role_of(*pair) == "no_fetch")
    return dict(zip(lines["workload"], lines["median"], strict=True))


def predictions(run: Run) -> pd.DataFrame:
    """Return a line per predicted series.

    Columns: :data:`SERIES`, ``median`` (the epoch, s), ``fetch``, ``train`` (s), and ``speedup``
    over the baseline, NaN for series that borrow times from noisy ones.
    """
    names = {"epoch_s": "median", "fetch_s": "fetch", "train_s": "train"}
    known = run.predicted.rename(columns=names).dropna(subset="median")
    table = sort_series(known.reset_index()[[*SERIES, *names.values()]])
    noisy = modelled_from_noisy(run)
    quiet = table.loc[[Key(*key) not in noisy for key in table[SERIES].to_numpy()]]
    base = of_paths(quiet, lambda path: path == baseline(run)).set_index("workload")["median"]
    return table.assign(speedup=quiet["workload"].map(base).astype(float) / quiet["median"])


def speedups(run: Run) -> pd.DataFrame:
    """Return :func:`speedup_over` the baseline, then predictions'.

    These have no interval: both ends are the ratio.
    """
    measured = speedup_over(run, *baseline(run))
    modelled = predictions(run)[[*SERIES, "speedup"]].dropna()
    modelled["low"] = modelled["high"] = modelled["speedup"]
    tables = [table for table in (measured, modelled) if len(table)]
    return sort_series(pd.concat(tables)) if tables else measured


# ---- the host, as it issues an epoch -------------------------------------------------------------


def host_bound(run: Run) -> frozenset[Key]:
    """Return the measured series with host-bound epochs: between two of them there is no verdict.

    A GPU runs its operations in order, and the host issues them call by call. If the GPU has almost
    nothing left to do when all is issued, and issuing took more than two thirds of the epoch, a
    faster path would change nothing, and the speed of issuing differs from process to process.
    """
    shares = issue_shares(run)
    return frozenset(Key(*series) for series in shares.loc[shares["bound"], SERIES].to_numpy())


def issue_shares(run: Run) -> pd.DataFrame:
    """Return issuing as shares of the measured epochs: medians over repeats and epochs.

    Columns: :data:`SERIES`, ``train`` and ``fetch`` (the host's time to issue them), ``draw``
    (minibatches, or to have a GPU do so; NaN if unknown), ``wait`` (for them), ``left``
    (the GPU's remaining time then), ``issued`` (draws, steps, and the fetches of paths that only
    issue them), and ``bound``, whether that bounds the epoch: never of a path that gathers on the
    CPU, as its gather is part of the host's work.
    """
    from gatherbench.strategies.registry import role_of  # imports torch

    names = {f"issue_{part}": part for part in ("train", "fetch", "left", "draw", "wait")}
    known = run.medians.rename(columns=names)[[*names.values(), "issue_steps_left"]]
    timed = known.dropna(subset=["train", "fetch", "left"]).reset_index()
    roles = pd.Series([role_of(*path) for path in timed[SERIES[1:3]].to_numpy()], timed.index, str)
    timed["issued"] = timed["train"] + timed["draw"].fillna(0.0)
    timed["issued"] += timed["fetch"].where(roles.isin(_ISSUED), 0.0)
    bound = (timed["issued"] > BOUND_SHARE) & (timed["issue_steps_left"] <= BOUND_STEPS)
    return sort_series(timed.assign(bound=bound & ~roles.isin(_GATHERS)))


# ---- what was not measured -----------------------------------------------------------------------


@lru_cache(maxsize=4)  # a run is read by many views
def problems(run: Run) -> pd.DataFrame:
    """Return the cases without a measurement: failed, skipped, or not run (yet).

    Columns: ``workload``, ``strategy``, ``variant``, ``status`` (``failed``, ``skipped``,
    ``not run``), ``reason`` (of the first such repeat), ``repeats`` (a number), ``of`` (planned,
    and measured beyond the plan until the epoch was precise).
    """
    keys = [*_PATH, "repeat"]
    planned = pd.DataFrame(run.plan["cases"], columns=keys)
    cases = planned.merge(run.ended.reset_index()[[*keys, "status", "reason"]], "outer", keys)
    not_run = cases["status"].isna()
    cases.loc[not_run, ["status", "reason"]] = ["not run", NOT_RUN[run.going]]
    cases["of"] = cases.groupby(_PATH)["repeat"].transform("count")
    bad = cases[cases["status"] != "ok"].sort_values("repeat").groupby(_PATH, as_index=False)
    how = {"status": "first", "reason": "first", "repeat": "count", "of": "first"}
    return sort_series(bad.agg(how).rename(columns={"repeat": "repeats"}))


def reasons(run: Run) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Return status and reason of each line of :func:`problems`, by workload, strategy, variant."""
    lines = problems(run)[[*_PATH, "status", "reason"]]
    return {(w, s, v): (status, why) for w, s, v, status, why in lines.itertuples(index=False)}


def reasons_of(run: Run, *columns: str) -> pd.DataFrame:
    """Return why numbers of whole cases are missing in these columns, the first column's first.

    Columns: those of :attr:`Run.reasons`.
    """
    why = run.reasons
    why = why[why["column"].isin(columns) & (why["status"] != "ok") & (why["rank"] < 0)]
    return sort_by(why, "column", columns)


def unpredicted(run: Run) -> pd.DataFrame:
    """Return the predictions without an epoch, their ``machine``, and the ``reason``."""
    missing = run.predicted[run.predicted["epoch_s"].isna()].reset_index()
    why = reasons_of(run, "epoch_s").query("basis == 'predicted'")[[*_PATH, "reason"]]
    return missing[[*SERIES, "machine"]].merge(why.drop_duplicates(_PATH), on=_PATH, how="left")


# ---- order, and columns of three -----------------------------------------------------------------


def sort_series(table: pd.DataFrame) -> pd.DataFrame:
    """Sort the table in the registry's order of its strategies, then by variant and basis.

    A strategy that is not registered comes last.
    """
    from gatherbench.strategies.registry import STRATEGIES  # imports torch

    places = {
        "strategy": {strategy.name: place for place, strategy in enumerate(STRATEGIES)},
        "basis": {name: place for place, name in enumerate(BASES)},
    }
    rank = table["strategy"].map(places["strategy"]).fillna(len(STRATEGIES))
    basis = table["basis"].map(places["basis"]).fillna(-1) if "basis" in table else 0
    order = table.assign(_rank=rank, _basis=basis)
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
    paths = zip(table["strategy"], table["variant"], strict=True)
    return table[pd.Series([wanted(pair) for pair in paths], table.index, dtype=bool)]


def ends_of(name: str) -> list[str]:
    """Return the names of the columns of a value and of the ends of its interval."""
    return [name, f"{name}_low", f"{name}_high"]


def with_ends_of(**values: Sequence[float]) -> dict[str, float]:
    """Return each value and the ends of its interval by the columns of :func:`ends_of`."""
    return {
        column: number
        for name, three in values.items()
        for column, number in zip(ends_of(name), three, strict=True)
    }
