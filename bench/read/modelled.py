"""Predicted epochs as tables: their ranges and ratios.

A profile knows only a range of some constants. Each end is then predicted as an epoch of its own
(:mod:`gatherbench.bench.model.predict`). There is one machine, whose true constants are unknown: so
the epochs of one number of two series belong together. A value known only as a range has two ends
and no middle to be quoted.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import baseline, sort_series, speedup_over
from gatherbench.bench.read.noise import modelled_from_noisy
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES


def corners(run: Run, stage: str = "epoch") -> pd.DataFrame:
    """Return predicted seconds of a stage: a line per series (:data:`SERIES`), a column per corner.

    A series that is equal at all corners has the same value in every column.
    """
    values = run.predicted[f"{stage}_s"].dropna()
    return values.droplevel("repeat").unstack("epoch").sort_index()


def speedups(run: Run, strategy: str, variant: str) -> pd.DataFrame:
    """Return :func:`~gatherbench.bench.read.derive.speedup_over`, for predicted epochs the range.

    ``low`` and ``high`` are then the least and greatest ratio at one corner, ``speedup`` is halfway
    between them.
    """
    measured = speedup_over(run, strategy, variant)
    modelled = _ends(modelled_ratios(run, strategy, variant)).reset_index()
    modelled["speedup"] = (modelled["low"] + modelled["high"]) / 2
    tables = [table for table in (measured, modelled) if len(table)]
    return sort_series(pd.concat(tables)) if tables else measured


def modelled_ratios(run: Run, strategy: str, variant: str) -> pd.DataFrame:
    """Return a reference's predicted epoch over each other's, a column per corner, by series.

    Series that borrow from noisy ones are left out.
    """
    seconds = corners(run)
    without = [key for key in modelled_from_noisy(run) if key in seconds.index]
    seconds = seconds.drop(index=without)
    workloads = seconds.index.get_level_values("workload")
    over = [(workload, strategy, variant, "cuda", "predicted") for workload in workloads]
    reference = seconds.reindex(over).set_axis(seconds.index)
    return (reference / seconds).dropna(how="all")


def predictions(run: Run) -> pd.DataFrame:
    """Return a line per predicted series.

    Columns: :data:`SERIES`, and with their ends (``…_low``, ``…_high``) ``median`` (the epoch, s),
    ``fetch``, ``train`` and ``speedup`` (over the baseline), each NaN between ends that differ.
    """
    parts = {"median": "epoch", "fetch": "fetch", "train": "train"}
    frames = {name: corners(run, stage) for name, stage in parts.items()}
    frames["speedup"] = modelled_ratios(run, *baseline(run))
    found = pd.DataFrame(index=frames["median"].index)
    for name, frame in frames.items():
        ends = _ends(frame)
        found[name] = ends["low"].where(ends["low"] == ends["high"])
        found[[f"{name}_low", f"{name}_high"]] = ends
    return sort_series(found.reset_index(names=SERIES))


def borrows(run: Run, stage: str) -> bool:
    """Return whether predictions take a stage's time from their run's measurements."""
    return any(stage in str(stages).split() for stages in run.predicted["borrowed"].dropna())


def _ends(values: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"low": values.min(axis=1), "high": values.max(axis=1)})
