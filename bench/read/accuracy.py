"""Test accuracy over the time that training took.

Workloads that differ in ``partitions`` or ``structure`` train on other minibatches: how long their
epochs are says nothing of which is better. How right the model is after as much time does.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES


def accuracy_over_time(run: Run) -> pd.DataFrame:
    """What each measured series had come to after each measured epoch.

    Columns: :data:`SERIES`, ``epoch``, ``time_s`` (of all measured epochs up to this one) and
    ``accuracy`` (0 to 1); medians over repeats. Empty where ``eval_every_epoch`` was not asked for.
    """
    case = [*SERIES, "repeat"]
    seconds = run.values("epoch", "wall_time").sort_index(level="epoch").groupby(case).cumsum()
    scored = run.values("eval", "test_accuracy")
    # Inner: the score of a whole case, of epoch -1, took no time of its own.
    both = pd.DataFrame({"time_s": seconds, "accuracy": scored}).dropna()
    return both.groupby([*SERIES, "epoch"]).median().reset_index()


def alike(run: Run) -> dict[str, list[str]]:
    """For each workload those that differ in partitions or structure at most, itself among them."""
    return {
        one: members for _, members in run.alike(partitions="", structure="") for one in members
    }


def accuracy_by_then(run: Run) -> pd.Series[float]:
    """What each series had come to by the time that all had with which it may be compared: those
    that differ in ``structure`` and seed at most. By :data:`SERIES`; 0 before the first score.
    """
    curves, found = accuracy_over_time(run), {}
    for _, members in run.alike(structure="", seed=0):
        mine = curves[curves["workload"].isin(members)].groupby(SERIES)
        by = mine["time_s"].max().min()
        for key, curve in mine:
            before = curve.loc[curve["time_s"] <= by, "accuracy"]
            found[key] = float(before.iloc[-1]) if len(before) else 0.0
    index = pd.MultiIndex.from_tuples(list(found), names=SERIES) if found else None
    return pd.Series(found.values(), index, dtype=float)
