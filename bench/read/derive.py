"""Derive from a run's frames what is never stored: medians, ratios, and their confidence.

Spread is stated as quartiles, because epoch times have a long tail to one side that a standard
deviation hides; ratios carry a 95 % interval over the repeats. Noisy repeats stay out if there
are quiet ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import BASES, SERIES, Key
from gatherbench.stats.interval import Interval, Logs, ratio_of

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
#: Roles of paths whose host work for a fetch is only issuing it, and of those that gather on it.
_ISSUED = ("zero_copy", "upper_bound", "no_fetch", "control")
GATHERS = ("baseline", "conventional")
PATH = SERIES[:3]


def spread(values: pd.Series[float]) -> pd.DataFrame:
    """Return each series' ``median``, quartiles ``low`` and ``high``, and ``count`` of values."""
    of_series = values.dropna().groupby(SERIES)
    low, high = of_series.quantile(0.25), of_series.quantile(0.75)
    table = pd.DataFrame({"median": of_series.median(), "low": low, "high": high})
    return sort_series(table.assign(count=of_series.size()).reset_index())


def epoch_times(run: Run) -> pd.DataFrame:
    """Return seconds per epoch of each series, as :func:`spread`."""
    return spread(pd.concat([run.measured["epoch_s"], run.predicted["epoch_s"]]))


def stage_breakdown(run: Run) -> pd.DataFrame:
    """Return :func:`epoch_times` with medians of each stage and of the remainder, seconds.

    Columns: :data:`STAGES`, ``other``, and :data:`WITHIN_TRAIN`, which ``train`` includes. The
    remainder is that of each epoch, 0 if its stages overlap, as they can on a GPU: medians need not
    add up to the epoch's. A predicted epoch without stages is all ``other``.
    """
    names = {f"{stage}_s": stage for stage in (*STAGES, *WITHIN_TRAIN)}
    epochs = pd.concat([basis[["epoch_s", *names]] for basis in (run.measured, run.predicted)])
    parts = epochs.dropna(subset="epoch_s").fillna(0.0).rename(columns=names)
    whole = parts.pop("epoch_s")
    left = whole - parts[list(STAGES)].sum(axis=1)
    parts["other"] = left.where(left > ROUNDING * whole, 0.0)
    return epoch_times(run).join(parts.groupby(SERIES).median(), on=SERIES)


def repeat_logs(values: pd.Series[float], blocks: pd.Series[int] | None = None) -> dict[Key, Logs]:
    """Return the logarithm of each repeat's median, by series.

    Args:
        values: above 0, indexed by :data:`SERIES`, repeat and epoch. NaN are left out.
        blocks: for ratios: ``run.measured["block"]``, the process of each epoch (-1: a process for
            its case alone). Epochs of paths that took turns in one process are paired.
    """
    known = values.dropna()
    paired: dict[Key, dict[float, dict[int, float]]] = defaultdict(dict)
    if blocks is not None:
        logs = pd.DataFrame({"block": blocks.reindex(known.index), "log": np.log(known)})
        for (*series, _, epoch), block, log in logs[logs["block"] >= 0].itertuples(name=None):
            paired[Key(*series)].setdefault(block, {})[epoch] = log
    medians = known.groupby(CASE, sort=False).median()
    repeats = pd.Series(np.log(medians), medians.index).groupby(SERIES, sort=False)
    by_series = {Key._make(series): logs for series, logs in repeats}
    return {key: Logs(logs, paired.get(key)) for key, logs in by_series.items()}


def epoch_logs(run: Run) -> dict[Key, Logs]:
    """Return :func:`repeat_logs` of the measured epochs, for ratios."""
    return repeat_logs(run.measured["epoch_s"], run.measured["block"])


def over(own: Logs, base: Logs) -> Interval:
    """Return :func:`~gatherbench.stats.interval.ratio_of`; over itself it is 1 by definition."""
    return Interval(1.0, 1.0, 1.0, len(own)) if own is base else ratio_of(own, base)


def speedup_over(run: Run, strategy: str = "cpu_gather", variant: str = "naive") -> pd.DataFrame:
    """Return the reference's measured epoch over that of each series, on the same workload.

    Columns: :data:`SERIES`, ``speedup``, and its 95 % interval ``low``, ``high`` (NaN for one
    repeat). A series without a reference is left out. Undecided ratios are included
    (:func:`no_ratio_over`).
    """
    logs, lines = epoch_logs(run), []
    for key, own in logs.items():
        if base := logs.get(key._replace(strategy=strategy, variant=variant)):
            lines.append((*key, *over(base, own).ends))
    return sort_series(pd.DataFrame(lines, columns=[*SERIES, "speedup", "low", "high"]))


def baseline(run: Run) -> tuple[str, str]:
    """Return the reference of speed-ups: the paper's baseline, ``cpu_gather naive``.

    If that was not measured: the first other strategy and variant with a CPU gather, if any.
    """
    paths = pd.DataFrame(series_of(run), columns=SERIES)
    paths["role"] = roles_of(paths)  # "baseline" sorts before "conventional"
    gathers = paths[paths["role"].isin(GATHERS)].sort_values(["role", *PATH[1:]])[PATH[1:]]
    return next(gathers.itertuples(index=False, name=None), ("cpu_gather", "naive"))


def predictions(run: Run) -> pd.DataFrame:
    """Return the predicted series: :data:`SERIES`, ``median`` (the epoch, s), ``fetch``, ``train``
    (s), and ``speedup`` over the baseline, NaN if one borrows times from noisy series.
    """
    names = {"epoch_s": "median", "fetch_s": "fetch", "train_s": "train"}
    known = run.predicted.rename(columns=names).dropna(subset="median")
    table = sort_series(known.reset_index()[[*SERIES, *names.values()]])
    noisy = modelled_from_noisy(run)
    quiet = table.loc[[Key(*key) not in noisy for key in table[SERIES].to_numpy()]]
    is_base = quiet[PATH[1:]].eq(list(baseline(run))).all(axis=1)
    base = quiet[is_base].set_index("workload")["median"]
    epochs = quiet["workload"].map(base).astype(float)
    return table.assign(speedup=epochs / quiet["median"])


def speedups(run: Run) -> pd.DataFrame:
    """Return :func:`speedup_over` the baseline, then predictions', whose ends are the ratio."""
    measured = speedup_over(run, *baseline(run))
    modelled = predictions(run)[[*SERIES, "speedup"]].dropna()
    modelled["low"] = modelled["high"] = modelled["speedup"]
    tables = [table for table in (measured, modelled) if len(table)]
    return sort_series(pd.concat(tables)) if tables else measured


def noisy_series(run: Run) -> dict[Key, float]:
    """Return the series without a quiet repeat, with the worst repeat's cores of other work."""
    noisy = run.ended[run.ended["noisy"] & run.ended["used"]]
    worst = noisy["other_cores"].groupby(SERIES).max()
    return {Key(*series): cores for series, cores in worst.items()}  # type: ignore[misc]


def modelled_from_noisy(run: Run) -> set[Key]:
    """Return predicted series that take times only from series without a quiet repeat: they have
    no valid ratios, as other work has lengthened these times.
    """
    noisy = noisy_series(run)
    lent = {key.workload for key in noisy} - {k.workload for k in series_of(run) if k not in noisy}
    borrowing = run.predicted.index[run.predicted["borrowed"].notna()]
    return {Key(*names[:5]) for names in borrowing if names[0] in lent}


def mostly_noisy(run: Run) -> bool:
    """Return whether most measured series lack a quiet repeat."""
    return 2 * len(noisy_series(run)) > len(series_of(run))


def no_ratio_over(run: Run, reference: Key) -> str:
    """Return why ratios of measured epochs over this series decide nothing; empty if they may."""
    if mostly_noisy(run):
        return f"{noise(run)}: no ratio is given; measure again on an idle machine"
    if reference in noisy_series(run):
        return f"no quiet repeat of {reference.strategy} {reference.variant} to compare with"
    return ""


def series_of(run: Run) -> list[Key]:
    """Return the series with an epoch that counts."""
    known = run.measured.index[run.measured["epoch_s"].notna()]
    return list(dict.fromkeys(Key(*names[:5]) for names in known))


def noise(run: Run) -> str:
    """Return how much other work there was during how many cases, in words; empty if quiet."""
    load = run.ended.loc[run.ended["noisy"], "other_cores"]
    if load.empty:
        return ""
    counted = f"{len(load)} of {run.ended['other_cores'].count()} cases"
    return f"other work had up to {load.max():.1f} cores of the host while {counted} ran"


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
    names = {f"issue_{part}": part for part in ("train", "fetch", "left", "draw", "wait")}
    known = run.medians.rename(columns=names)[[*names.values(), "issue_steps_left"]]
    timed = known.dropna(subset=["train", "fetch", "left"]).reset_index()
    roles = roles_of(timed)
    timed["issued"] = timed["train"] + timed["draw"].fillna(0.0)
    timed["issued"] += timed["fetch"].where(roles.isin(_ISSUED), 0.0)
    bound = (timed["issued"] > BOUND_SHARE) & (timed["issue_steps_left"] <= BOUND_STEPS)
    return sort_series(timed.assign(bound=bound & ~roles.isin(GATHERS)))


@lru_cache(maxsize=4)  # a run is read by many views
def problems(run: Run) -> pd.DataFrame:
    """Return the cases without a measurement: :data:`PATH`, ``status`` (``failed``, ``skipped``,
    ``not run``), ``reason`` (of the first such repeat), ``repeats`` (a number), ``of`` (planned,
    and measured beyond the plan until the epoch was precise).
    """
    keys = [*PATH, "repeat"]
    planned = pd.DataFrame(run.plan["cases"], columns=keys)
    cases = planned.merge(run.ended.reset_index()[[*keys, "status", "reason"]], "outer", keys)
    not_run = cases["status"].isna()
    cases.loc[not_run, ["status", "reason"]] = ["not run", NOT_RUN[run.going]]
    cases["of"] = cases.groupby(PATH)["repeat"].transform("count")
    bad = cases[cases["status"] != "ok"].sort_values("repeat").groupby(PATH, as_index=False)
    how = {"status": "first", "reason": "first", "repeat": "count", "of": "first"}
    return sort_series(bad.agg(how).rename(columns={"repeat": "repeats"}))


def reasons(run: Run) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Return status and reason of each line of :func:`problems`, by :data:`PATH`."""
    lines = problems(run)[[*PATH, "status", "reason"]]
    return {(w, s, v): (status, why) for w, s, v, status, why in lines.itertuples(index=False)}


def reasons_of(run: Run, *columns: str) -> pd.DataFrame:
    """Return the lines of :attr:`Run.reasons` why whole cases lack numbers of these columns, the
    first column's first.
    """
    why = run.reasons
    why = why[why["column"].isin(columns) & (why["status"] != "ok") & (why["rank"] < 0)]
    return sort_by(why, column=columns)


def unpredicted(run: Run) -> pd.DataFrame:
    """Return the predictions without an epoch, their ``machine``, and the ``reason``."""
    missing = run.predicted[run.predicted["epoch_s"].isna()].reset_index()
    why = reasons_of(run, "epoch_s").query("basis == 'predicted'")[[*PATH, "reason"]]
    return missing[[*SERIES, "machine"]].merge(why.drop_duplicates(PATH), on=PATH, how="left")


def roles_of(table: pd.DataFrame) -> pd.Series[str]:
    """Return the role of each line's path."""
    from gatherbench.strategies.registry import role_of  # imports torch

    roles = map(role_of, table["strategy"], table["variant"])
    return pd.Series(list(roles), table.index, str)


def sort_series(
    table: pd.DataFrame, workloads: Sequence[str] = (), **then: Sequence[str]
) -> pd.DataFrame:
    """Sort the table in the registry's order of its strategies, then by variant and basis.

    ``workloads``, in their order, come before that, and ``then`` further columns.
    """
    from gatherbench.strategies.registry import STRATEGIES  # imports torch

    names = [strategy.name for strategy in STRATEGIES]
    first = {"workload": workloads} if workloads else {}
    basis = {"basis": BASES} if "basis" in table else {}
    return sort_by(table, **first, strategy=names, variant=(), **basis, **then)


def sort_by(table: pd.DataFrame, **orders: Sequence[str]) -> pd.DataFrame:
    """Sort the table by columns, each in the order of its names; the others come last."""

    def places(column: pd.Series[str]) -> pd.Series[int]:
        names = dict.fromkeys([*orders[str(column.name)], *sorted(set(column))])
        return column.map({name: place for place, name in enumerate(names)})

    return table.sort_values([*orders], key=places, kind="stable", ignore_index=True)


def ends_of(name: str) -> list[str]:
    """Return the names of the columns of a value and of the ends of its interval."""
    return [name, f"{name}_low", f"{name}_high"]
