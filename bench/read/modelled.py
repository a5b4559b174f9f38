"""Modelled epochs as tables: how far they range, and their ratios; and one line a series.

Of some constants a profile knows only a range. Each end is then predicted as an epoch of its own
(:mod:`gatherbench.bench.model.predict`). The machine is one, and nobody knows which: so of two
series the epochs of one number belong together. A value that is not known better has two ends and
no middle to be quoted.
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
    """Modelled seconds of a stage: a line for each series (:data:`SERIES`), a column each corner.

    A series that the corners do not change has the same in every column.
    """
    values = run.predicted[f"{stage}_s"].dropna()
    return values.droplevel("repeat").unstack("epoch").sort_index()


def with_ranges(run: Run, table: pd.DataFrame, stage: str = "epoch") -> pd.DataFrame:
    """A table of a stage's times whose modelled lines have their ends for ``low`` and ``high``.

    ``median`` is halfway between them, where a bar may end whose whisker shows both.
    """
    ends = table[SERIES].merge(_ends(corners(run, stage)), on=SERIES, how="left")
    ends = ends.set_index(table.index)
    ends["median"] = (ends["low"] + ends["high"]) / 2
    columns = ["median", "low", "high"]
    return table.assign(**{c: table[c].where(ends["low"].isna(), ends[c]) for c in columns})


def speedups(run: Run, strategy: str, variant: str) -> pd.DataFrame:
    """:func:`~gatherbench.bench.read.derive.speedup_over`, and of modelled epochs the range.

    ``low`` and ``high`` are then the least and greatest ratio at one corner, ``speedup`` is halfway
    between them.
    """
    measured = speedup_over(run, strategy, variant)
    modelled = modelled_ratios(run, strategy, variant)
    modelled["speedup"] = (modelled["low"] + modelled["high"]) / 2
    tables = [table for table in (measured, modelled) if len(table)]
    return sort_series(pd.concat(tables)) if tables else measured


def modelled_ratios(run: Run, strategy: str, variant: str) -> pd.DataFrame:
    """Ends of the ratio of a reference's modelled epoch to each other's, corner by corner.

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
    """Whether predictions take a stage's time from what their run measured."""
    return any(stage in str(stages).split() for stages in run.predicted["borrowed"].dropna())


def _ends(seconds: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"low": seconds.min(axis=1), "high": seconds.max(axis=1)}).reset_index()


def summarise(run: Run) -> pd.DataFrame:
    """One line a series: its epoch's spread, and the medians of everything else.

    Columns: those of :func:`gatherbench.bench.read.derive.epoch_times` (s), and ``fetch``,
    ``train``, ``all_reduce``, ``wait`` (s; ``train`` holds the last two), ``cpu`` (core-seconds),
    ``rate`` (B/s), ``speedup`` with its 95 % interval, ``speedup_low`` and ``speedup_high``,
    ``other`` (cores that other work had during the worst repeat that counts); NaN where there is
    none, the rate also where fetches run ahead of the training. ``repeats`` count; ``noisy`` were
    noisy; ``left_out`` of them do not count, as there were quiet ones. A predicted epoch is as
    noisy as what it takes times from. A predicted value that ranges has its ends alone, in ``low``,
    ``high``, ``fetch_low``, … (measured: quartiles).
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
