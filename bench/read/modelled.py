"""Modelled epochs as tables: how far they range, and their ratios.

Of some constants a profile knows only a range. Each end is then predicted as an epoch of its own
(:mod:`gatherbench.bench.model.predict`). The machine is one, and nobody knows which: so of two
series the epochs of one number belong together. A value that is not known better has two ends and
no middle to be quoted.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from gatherbench.bench.read.derive import sort_series, speedup_over
from gatherbench.bench.read.disturbance import modelled_from_disturbed
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES


def corners(run: Run, stage: str = "epoch") -> pd.DataFrame:
    """Modelled seconds of a stage: a line for each series (:data:`SERIES`), a column each corner.

    A series that the corners do not change has the same in every column.
    """
    values = run.values(stage, "wall_time", "predicted")
    return values.droplevel("repeat").unstack("epoch").sort_index()


def with_ranges(run: Run, table: pd.DataFrame, stage: str = "epoch") -> pd.DataFrame:
    """A table of a stage's times whose modelled lines have their ends for ``low`` and ``high``.

    ``median`` is halfway between them, where a bar may end whose whisker shows both.
    """
    ends = (
        table[SERIES]
        .merge(_ends(corners(run, stage)), on=SERIES, how="left")
        .set_index(table.index)
    )
    modelled = ends["low"].notna()
    ends["median"] = (ends["low"] + ends["high"]) / 2
    columns = ["median", "low", "high"]
    return table.assign(**{c: table[c].where(~modelled, ends[c]) for c in columns})


def speedups(run: Run, strategy: str, variant: str) -> pd.DataFrame:
    """:func:`~gatherbench.bench.read.derive.speedup_over`, of modelled epochs with their range.

    ``low`` and ``high`` are then the least and greatest ratio at one corner, ``speedup`` is halfway
    between them.
    """
    measured = speedup_over(replace(run, rows=run.select(basis="measured")), strategy, variant)
    modelled = modelled_ratios(run, strategy, variant)
    modelled["speedup"] = (modelled["low"] + modelled["high"]) / 2
    tables = [table for table in (measured, modelled) if len(table)]
    return sort_series(pd.concat(tables)) if tables else measured


def modelled_ratios(run: Run, strategy: str, variant: str) -> pd.DataFrame:
    """Ends of the ratio of a reference's modelled epoch to each other's, corner by corner.

    Columns: :data:`SERIES`, ``low``, ``high``; without the series that borrow from disturbed ones.
    """
    seconds = corners(run)
    without = [key for key in modelled_from_disturbed(run) if key in seconds.index]
    seconds = seconds.drop(index=without)
    workloads = seconds.index.get_level_values("workload")
    over = [(workload, strategy, variant, "cuda", "predicted") for workload in workloads]
    reference = seconds.reindex(over).set_axis(seconds.index)
    return _ends((reference / seconds).dropna(how="all"))


def borrows(rows: pd.DataFrame, stage: str) -> pd.Series[bool]:
    """Which rows are predictions that take a stage's time from what their run measured."""
    return rows["borrowed"].map(lambda stages: stage in stages.split()).astype(bool)


def _ends(seconds: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"low": seconds.min(axis=1), "high": seconds.max(axis=1)}).reset_index()
