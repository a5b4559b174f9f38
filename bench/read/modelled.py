"""Predicted epochs as tables: their ranges and ratios; and a summary with a line per series.

A profile knows only a range of some constants. Each end is then predicted as an epoch of its own
(:mod:`gatherbench.bench.model.predict`). There is one machine, whose true constants are unknown: so
the epochs of one number of two series belong together. A value known only as a range has two ends
and no middle to be quoted.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import (
    WITHIN_TRAIN,
    baseline,
    epoch_times,
    median,
    sort_series,
    speedup_over,
    stage_times,
)
from gatherbench.bench.read.noise import modelled_from_noisy
from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import SERIES


def corners(run: Run, stage: str = "epoch") -> pd.DataFrame:
    """Return predicted seconds of a stage: a line per series (:data:`SERIES`), a column per corner.

    A series that is equal at all corners has the same value in every column.
    """
    values = run.predicted[f"{stage}_s"].dropna()
    return values.droplevel("repeat").unstack("epoch").sort_index()


def with_ranges(run: Run, table: pd.DataFrame, stage: str = "epoch") -> pd.DataFrame:
    """Return a table of a stage's times whose predicted lines have their ends in ``low``, ``high``.

    ``median`` is halfway between them: the end of a bar whose whisker shows both.
    """
    ends = table[SERIES].merge(_ends(corners(run, stage)), on=SERIES, how="left")
    ends = ends.set_index(table.index)
    ends["median"] = (ends["low"] + ends["high"]) / 2
    columns = ["median", "low", "high"]
    return table.assign(**{c: table[c].where(ends["low"].isna(), ends[c]) for c in columns})


def speedups(run: Run, strategy: str, variant: str) -> pd.DataFrame:
    """Return :func:`~gatherbench.bench.read.derive.speedup_over`, for predicted epochs the range.

    ``low`` and ``high`` are then the least and greatest ratio at one corner, ``speedup`` is halfway
    between them.
    """
    measured = speedup_over(run, strategy, variant)
    modelled = modelled_ratios(run, strategy, variant)
    modelled["speedup"] = (modelled["low"] + modelled["high"]) / 2
    tables = [table for table in (measured, modelled) if len(table)]
    return sort_series(pd.concat(tables)) if tables else measured


def modelled_ratios(run: Run, strategy: str, variant: str) -> pd.DataFrame:
    """Return the ends of a reference's predicted epoch over each other's, corner by corner.

    Columns: :data:`SERIES`, ``low``, ``high``; without the series that borrow from noisy ones.
    """
    seconds = corners(run)
    without = [key for key in modelled_from_noisy(run) if key in seconds.index]
    seconds = seconds.drop(index=without)
    workloads = seconds.index.get_level_values("workload")
    over = [(workload, strategy, variant, "cuda", "predicted") for workload in workloads]
    reference = seconds.reindex(over).set_axis(seconds.index)
    return _ends((reference / seconds).dropna(how="all"))


def borrows(run: Run, stage: str) -> bool:
    """Return whether predictions take a stage's time from their run's measurements."""
    return any(stage in str(stages).split() for stages in run.predicted["borrowed"].dropna())


def _ends(seconds: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"low": seconds.min(axis=1), "high": seconds.max(axis=1)}).reset_index()


def summarise(run: Run) -> pd.DataFrame:
    """Return one line per series: its epoch's spread, and the medians of everything else.

    Columns: those of :func:`gatherbench.bench.read.derive.epoch_times` (s), and ``fetch``,
    ``train``, ``all_reduce``, ``wait`` (s; ``train`` holds the last two), ``cpu`` (core-seconds),
    ``rate`` (B/s), ``speedup`` with its 95 % interval, ``speedup_low`` and ``speedup_high``,
    ``other`` (cores of other work during the worst repeat that counts); NaN without a value, the
    rate also if fetches run ahead of the training. ``repeats`` count; ``noisy`` were noisy;
    ``left_out`` of them are excluded, as there were quiet ones. A predicted epoch is as noisy as
    the series from which it takes times. A predicted value that ranges has only its ends, in
    ``low``, ``high``, ``fetch_low``, … (measured: quartiles).
    """
    times = {"epoch": epoch_times(run), **stage_times(run)}
    epoch, fetch, train = (
        with_ranges(run, times[stage], stage).set_index(SERIES)
        for stage in ("epoch", "fetch", "train")
    )
    ratios = speedups(run, *baseline(run)).set_index(SERIES)
    summary = epoch.copy()
    for name, table in {"": epoch, "fetch": fetch, "train": train, "speedup": ratios}.items():
        value = name if name == "speedup" else "median"
        predicted = table.index.get_level_values("basis") == "predicted"
        # Between two ends there is no value to be quoted.
        summary[name or value] = table[value].mask(predicted & (table["low"] < table["high"]))
        if name:
            summary[f"{name}_low"], summary[f"{name}_high"] = table["low"], table["high"]
    seen = run.measured
    for name in (*WITHIN_TRAIN, "cpu", "payload_rate"):
        summary[name] = median(seen[name if name in seen else f"{name}_s"])
    epochs = run.epochs.reindex(columns=[*CASE, "rank", "used", "noisy", "epoch_s"])
    epochs = epochs[epochs["epoch_s"].notna() & (epochs["rank"] < 0)]
    counts = epochs.groupby(CASE)[["used", "noisy"]].first().groupby(SERIES).agg(["sum", "count"])
    summary["repeats"] = counts["used", "sum"]
    summary["left_out"] = counts["used", "count"] - counts["used", "sum"]
    summary["noisy"] = counts["noisy", "sum"]
    summary["other"] = run.ended[run.ended["used"]].groupby(SERIES)["other_cores"].max()
    ahead = run.declared[run.declared["declared_lookahead"] > 0].reset_index()
    summary = summary.rename(columns={"payload_rate": "rate"}).reset_index()
    named = pd.MultiIndex.from_frame(summary[SERIES[:3]])
    hidden = named.isin(pd.MultiIndex.from_frame(ahead[SERIES[:3]]))
    return summary.assign(rate=summary["rate"].mask(hidden))
