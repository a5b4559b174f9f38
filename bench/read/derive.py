"""Derive from a run's frames what is never stored: medians, ratios, and their confidence.

Spread is stated as quartiles, because epoch times have a long tail to one side that a standard
deviation hides; ratios carry a 95 % interval over the repeats. Noisy repeats stay out if there
are quiet ones.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from gatherbench.bench.meters.pcie import DIRECTIONS
from gatherbench.bench.meters.trust import TRUSTED
from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import BASES, SERIES, Key
from gatherbench.kernels.grid import COMPLETION_HEADER_BYTES
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
#: Roles of paths that gather on the CPU.
GATHERS = ("baseline", "conventional")
PATH = SERIES[:3]


def spread(values: pd.Series[float]) -> pd.DataFrame:
    """Return each series' ``median``, quartiles ``low`` and ``high``, and ``count`` of values."""
    of_series = values.dropna().groupby(SERIES)
    low, high = of_series.quantile(0.25), of_series.quantile(0.75)
    table = pd.DataFrame({"median": of_series.median(), "low": low, "high": high})
    return sort_series(table.assign(count=of_series.size()).reset_index())


def stage_breakdown(run: Run) -> pd.DataFrame:
    """Return seconds per epoch of each series, as :func:`spread`, with medians of each stage.

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
    return spread(whole).join(parts.groupby(SERIES).median(), on=SERIES)


def repeat_logs(run: Run, values: pd.Series[float] | None = None) -> dict[Key, Logs]:
    """Return the logarithm of each repeat's median, by series, for ratios.

    Args:
        values: above 0, by :data:`SERIES`, repeat and perhaps epoch; as a rule measured epochs. NaN
            are left out. Epochs of paths that took turns in one process are paired.
    """
    known = (run.measured["epoch_s"] if values is None else values).dropna()
    paired: dict[Key, dict[float, dict[int, float]]] = defaultdict(dict)
    if "epoch" in known.index.names:
        blocks = run.measured["block"].reindex(known.index)  # -1: a process for its case alone
        logs = pd.DataFrame({"block": blocks, "log": np.log(known)})
        for (*series, _, epoch), block, log in logs[logs["block"] >= 0].itertuples(name=None):
            paired[Key(*series)].setdefault(block, {})[epoch] = log
    medians = known.groupby(CASE, sort=False).median()
    repeats = pd.Series(np.log(medians), medians.index).groupby(SERIES, sort=False)
    by_series = {Key._make(series): logs for series, logs in repeats}
    return {key: Logs(logs, paired.get(key)) for key, logs in by_series.items()}


def over(own: Logs, base: Logs) -> Interval:
    """Return :func:`~gatherbench.stats.interval.ratio_of`; over itself it is 1 by definition."""
    return Interval(1.0, 1.0, 1.0, len(own)) if own is base else ratio_of(own, base)


def speedup_over(run: Run, strategy: str = "cpu_gather", variant: str = "naive") -> pd.DataFrame:
    """Return the reference's measured epoch over that of each series, on the same workload.

    Columns: :data:`SERIES`, ``speedup``, and its 95 % interval ``low``, ``high`` (NaN for one
    repeat). A series without a reference is left out. Undecided ratios are included
    (:func:`no_ratio_over`).
    """
    logs, lines = repeat_logs(run), []
    for key, own in logs.items():
        if base := logs.get(key._replace(strategy=strategy, variant=variant)):
            lines.append((*key, *over(base, own).ends))
    return sort_series(pd.DataFrame(lines, columns=[*SERIES, "speedup", "low", "high"]))


def baseline(run: Run) -> tuple[str, str]:
    """Return the reference of speed-ups: the paper's baseline, ``cpu_gather naive``.

    If that was not measured: the first other strategy and variant with a CPU gather, if any.
    """
    paths = run.medians.query("role in @GATHERS and epoch_s.notna()").reset_index()
    paths = paths.sort_values(["role", *PATH[1:]])  # "baseline" before "conventional"
    return next(paths[PATH[1:]].itertuples(index=False, name=None), ("cpu_gather", "naive"))


@lru_cache(maxsize=4)  # a run is read by many views
def predictions(run: Run) -> pd.DataFrame:
    """Return the predicted series: :data:`SERIES`, ``machine``, ``median`` (the epoch, s),
    ``fetch``, ``train`` (s), ``speedup`` over the baseline, and the ``reason`` if it has no epoch.

    ``noisy``: it borrows times only from series without a quiet repeat. Other work has lengthened
    these times, so it has no valid ratio.
    """
    names = {"epoch_s": "median", "fetch_s": "fetch", "train_s": "train"}
    table, noisy = run.predicted.rename(columns=names).reset_index(), noisy_series(run)
    lent = {key.workload for key in noisy} - {k.workload for k in series_of(run) if k not in noisy}
    table["noisy"] = table["borrowed"].notna() & table["workload"].isin(lent)
    quiet = table["median"].mask(table["noisy"])
    base = quiet[table[PATH[1:]].eq(list(baseline(run))).all(axis=1)].dropna()
    base.index = table.loc[base.index, "workload"]
    table["speedup"] = table["workload"].map(base).astype(float) / quiet
    why = reasons_of(run, "epoch_s").query("basis == 'predicted'")[[*PATH, "reason"]]
    table = table.merge(why.drop_duplicates(PATH), on=PATH, how="left")
    return table[[*SERIES, "machine", *names.values(), "speedup", "noisy", "reason"]]


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
    return [Key._make(series) for series in run.medians.dropna(subset="epoch_s").index]


def noise(run: Run) -> str:
    """Return how much other work there was during how many cases, in words; empty if quiet."""
    load = run.ended.loc[run.ended["noisy"], "other_cores"]
    if load.empty:
        return ""
    counted = f"{len(load)} of {run.ended['other_cores'].count()} cases"
    return f"other work had up to {load.max():.1f} cores of the host while {counted} ran"


def host_bound(run: Run) -> set[Key]:
    """Return the measured series with host-bound epochs: between two of them there is no verdict
    (``derived.toml`` has the rule, and why).
    """
    return {Key._make(series) for series in run.medians.query("host_bound").index}


def gpu_energy(run: Run) -> pd.DataFrame:
    """Return the GPU's energy per epoch, J, as :func:`spread`, and its parts, which add up to it.

    ``idle``: the energy of an idle GPU in that time; ``above idle``; ``not split``: all of it, if
    the idle power was not measured. The energy is that of a window over whole epochs, long enough
    for the counter (:mod:`gatherbench.bench.run.untimed`).
    """
    table = spread(run.ended.loc[run.ended["used"], "gpu_joules"])
    names = {"gpu_idle_joules": "idle", "gpu_net_joules": "above idle"}
    parts = run.medians[[*names]].rename(columns=names)
    left = {"not split": table["median"] if math.isnan(run.idle_power_w) else 0.0}
    return table.join(parts, on=SERIES).assign(**left).fillna({"idle": 0.0, "above idle": 0.0})


def copied_ratio(run: Run) -> float | None:
    """Return the trusted sensor's bytes for each byte copied to the device, by calibration.

    A sensor is trusted if it is right in both directions.
    """
    names = [f"pcie_{direction}_ratio" for direction in DIRECTIONS]
    table = run.calibration.query("metric in @names and status == 'ok'")
    for _, ratios in table.groupby("source", sort=False):
        if len(ratios) == len(names) and ratios["value"].between(*TRUSTED).all():
            return float(ratios.set_index("metric")["value"][names[0]])
    return None


def requests_declared(columns: Iterable[object]) -> dict[int, str]:
    """Return the columns that count requests declared by cases, by the bytes of one request."""
    matches = (re.fullmatch(r"declared_gpu_requests_(\d+)b", str(name)) for name in columns)
    return {int(match[1]): match[0] for match in matches if match}


def link_bytes(run: Run) -> pd.DataFrame:
    """Return bytes from host to device in an epoch of each series whose traffic was measured.

    The sensors count traffic; the strategies declare requests that were counted from the ids.
    Agreement of both is the evidence for alignment. If they disagree, the GPU's largest read
    differs from the assumed one, or other traffic crosses the link.

    Columns: :func:`spread` of the measured bytes; ``payload`` (of the path's rows); ``read`` (whole
    sectors of its reads, and its copies, ids among them); ``link_128`` and ``link_64`` (that with
    the header of each completion, if these are the GPU's largest reads, and with the calibrated
    cost of a copied byte). NaN if requests were not counted. Edges that are copied for training are
    measured and not counted; reads of neighbour lists in host memory are counted as rows are.
    """
    measured = spread(run.measured["link_rx_bytes"])
    table = measured.join(run.declared_medians.droplevel("backend"), on=SERIES[:3])
    copies, sizes = table["declared_copy_engine_bytes"], requests_declared(table)
    requests = table[[*sizes.values()]]
    uncounted = (table["declared_gpu_link_read_bytes"] > 0) & requests.isna().all(axis=1)
    counts = requests.fillna(0.0).to_numpy()
    links = {"read": counts @ [*sizes] + copies}
    for largest in (128, 64):
        headers = counts @ [math.ceil(size / largest) for size in sizes] * COMPLETION_HEADER_BYTES
        cost = copies * (copied_ratio(run) or 1.0)
        links[f"link_{largest}"] = counts @ [*sizes] + headers + cost
    counted = pd.DataFrame(links).mask(uncounted)
    lines = measured.assign(payload=table["declared_payload_bytes"], **counted)
    return sort_series(lines, run.workloads)


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


def reasons(run: Run) -> dict[Any, list[str]]:
    """Return status and reason of each line of :func:`problems`, by :data:`PATH`."""
    by_path: dict[Any, Any] = problems(run).set_index(PATH)[["status", "reason"]].T.to_dict("list")
    return by_path


def reasons_of(run: Run, *columns: str) -> pd.DataFrame:
    """Return the lines of :attr:`Run.reasons` why whole cases lack numbers of these columns, the
    first column's first.
    """
    why = run.reasons
    why = why[why["column"].isin(columns) & (why["status"] != "ok") & (why["rank"] < 0)]
    return sort_by(why, column=columns)


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
