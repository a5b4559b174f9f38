"""How far off the model is: epochs that were measured on a GPU beside what it says of them.

``epochs.csv`` is data: a line for each series that was measured on a GPU whose profile is shipped,
``measured_s`` (median epoch, runs of 2026-11-26), ``modelled_s`` (by what ``gatherbench calibrate``
found on the same machine behind the runs) and ``published_s`` (by a preset of that GPU, from
publications alone, halfway between its ends: out of sample; empty where a constant is not known).
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
def told_apart(*, issue_known: bool = True) -> float:
    """Modelled epochs closer than this ratio have no order: the model's own error is as large.

    Of the ratios of two paths of a run's workload :data:`SHARE` are off by no more. A profile that
    does not know ``gpu.issue`` was not measured beside the runs: then those out of sample count.
    """
    found = sorted(ratio_errors(pd.read_csv(FILE), "modelled_s" if issue_known else "published_s"))
    return found[math.ceil(SHARE * len(found)) - 1]


def ratio_errors(series: pd.DataFrame, column: str) -> list[float]:
    """By which factor, from 1, the ratio of two modelled epochs of a workload is off.

    What all paths of a workload are off alike cancels out.
    """
    off = (series[column] / series["measured_s"]).dropna()
    groups = off.groupby([series["run"], series["workload"]])
    pairs = (pair for _, group in groups for pair in itertools.combinations(group, 2))
    return [max(a / b, b / a) for a, b in pairs]
