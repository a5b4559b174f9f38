"""Compare the model with measured epochs on GPUs, to find its error.

``epochs.csv`` has a line for each series that was measured on a GPU with a shipped profile:
``measured_s`` (median epoch, runs of 2026-11-26), ``modelled_s`` (by the result of ``gatherbench
calibrate`` on the same machine after the runs) and ``published_s`` (by a preset of that GPU, from
publications alone, halfway between its ends: out of sample; empty if a constant is unknown).
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from pathlib import Path

import pandas as pd

FILE = Path(__file__).with_name("epochs.csv")
#: The share of pairs of measured paths whose ratio's error is within :func:`told_apart`.
SHARE = 0.9
#: The limit: a path that fetches nothing, which is the fastest possible.
LIMIT = "no_fetch"


@cache
def told_apart(*, issue_known: bool = True) -> float:
    """Return the ratio below which modelled epochs are a tie: the model's error is as large.

    The errors of :data:`SHARE` of the ratios of two paths of a workload are at most as large. A
    profile without ``gpu.issue`` was not measured with the runs: it gets the error out of sample.
    """
    found = sorted(ratio_errors(pd.read_csv(FILE), "modelled_s" if issue_known else "published_s"))
    return found[math.ceil(SHARE * len(found)) - 1]


def ratio_errors(series: pd.DataFrame, column: str) -> list[float]:
    """Return the error, as a factor from 1, of each ratio of two modelled epochs of a workload.

    An error that all paths of a workload share cancels out.
    """
    off = (series[column] / series["measured_s"]).dropna()
    groups = off.groupby([series["run"], series["workload"]])
    pairs = (pair for _, group in groups for pair in itertools.combinations(group, 2))
    return [max(a / b, b / a) for a, b in pairs]
