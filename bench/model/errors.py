"""How far off the model is: epochs that were measured on a GPU beside what it says of them.

``epochs.csv`` is data: what runs of 2026-11-26 measured, with sampling as measured, and the model
of 2026-11-27 by two profiles. What is said of the model's errors is computed from it.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from pathlib import Path

import pandas as pd

FILE = Path(__file__).with_name("epochs.csv")
#: Of pairs of measured paths, the share that :func:`told_apart` holds.
SHARE = 0.9
#: What nothing is fetched: over it no path can be.
LIMIT = "no_fetch"


@cache
def measured_beside() -> pd.DataFrame:
    """Every series that was measured on a GPU whose profile is shipped, in the order of its run.

    Columns: ``machine``, ``run``, ``workload``, ``strategy``, ``variant``; ``measured_s`` (median
    epoch), ``modelled_s`` (by what ``gatherbench calibrate`` found on the same machine behind the
    runs) and ``published_s`` (by a preset of that GPU, from publications alone, halfway between its
    ends: out of sample; NaN where a constant is not known).
    """
    return pd.read_csv(FILE)


def errors_of(column: str) -> pd.Series[float]:
    """Modelled over measured, less 1, of the series that this profile's column has."""
    table = measured_beside()
    return (table[column] / table["measured_s"] - 1).dropna()


def over_the_limit(column: str) -> pd.Series[float]:
    """Modelled over measured, less 1, of each path's ratio over ``no_fetch`` of its workload."""
    table, errors = measured_beside(), errors_of(column)
    keys = [table["run"], table["workload"]]
    limit = errors.where(table["strategy"] == LIMIT).groupby(keys).transform("first")
    return ((errors + 1) / (limit + 1) - 1)[table["strategy"] != LIMIT].dropna()


@cache
def told_apart(*, issue_known: bool = True) -> float:
    """Modelled epochs closer than this ratio have no order: the model's own error is as large.

    Of the ratios of two paths of a run's workload :data:`SHARE` are off by no more. A profile that
    does not know ``gpu.issue`` was not measured beside the runs: then those out of sample count.
    """
    column = "modelled_s" if issue_known else "published_s"
    found = sorted(ratio_errors(measured_beside(), column))
    return found[math.ceil(SHARE * len(found)) - 1]


def ratio_errors(series: pd.DataFrame, column: str) -> list[float]:
    """By which factor the ratio of two modelled epochs is off, for each two of a run's workload.

    From 1, whichever way. What all paths of a workload are off alike cancels out.
    """
    off = (series[column] / series["measured_s"]).dropna()
    groups = off.groupby([series["run"], series["workload"]])
    pairs = (pair for _, group in groups for pair in itertools.combinations(group, 2))
    return [max(a / b, b / a) for a, b in pairs]
