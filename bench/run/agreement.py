"""Do all series of a workload train alike? On a set of minibatches all begin with the same weights
and dropout.

So losses of a set, and accuracy, are equal but for rounding, and betray a path that delivered other
rows in a timed epoch, whatever the comparison of rows saw (:mod:`gatherbench.bench.run.check`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatherbench.bench.run.frames import Frames, frames_of
from gatherbench.bench.run.lines import lines_of
from gatherbench.bench.run.part import CASE_METRIC, CASE_STAGE, CHECK_STAGE, CaseId, key_of
from gatherbench.bench.run.rows import Row

#: What is compared, and how far it may be off by backend: the mean loss of an epoch by a share of
#: it, the accuracy absolutely. Sums are rounded in any order, on a GPU always, on the host where
#: threads share them: between right cases of WordNet losses were seen to differ by 5e-7 of them in
#: three epochs. A path that stops fetching at its fourth minibatch moves the loss by a tenth.
TOLERANCES = {
    ("train", "loss"): {"host": 1e-4, "cuda": 0.01},
    ("eval", "test_accuracy"): {"host": 0.005, "cuda": 0.02},
}
#: The gather that needs no trust: what it trains to is right.
BASELINE = "cpu_gather"
SOURCE = "losses and accuracy compared with those of the workload's other cases"
#: What is known of a case before it has fetched a row, or although its rows were wrong.
STILL_RIGHT = (CASE_STAGE, CHECK_STAGE, "setup")
_END = (CASE_STAGE, CASE_METRIC)
CASE = ["workload", "strategy", "variant", "repeat"]
#: The column of the reason why a case that strays is none.
STRAYED = "check_training"
#: A loss or accuracy: of which case, backend, set of minibatches, stage and metric.
Seen = tuple[CaseId, str, int, tuple[str, str], float]


def right_in(frames: Frames) -> set[CaseId]:
    """The cases that are a result: they ended well, having passed their last comparison, and
    nobody found their rows or losses wrong."""
    cases, reasons = frames.cases, frames.reasons
    ended = cases[(cases["basis"] == "measured") & (cases["status"] == "ok")]
    checks = [name for name, column in frames.columns.items() if column.stage == CHECK_STAGE]
    wrong = (reasons["status"] == "failed") & reasons["column"].isin([*checks, STRAYED])
    right, lost = ({*of[CASE].itertuples(index=False, name=None)} for of in (ended, reasons[wrong]))
    return right - lost


def strays_in(frames: Frames) -> dict[CaseId, str]:
    """The cases that trained otherwise than the reference of their workload, and where they stray.

    A process that goes on with a case that was cut off trains a new model: its epochs are compared
    with those of other paths that did so there. The reference is the median of the baseline's
    cases, else of the medians of the series. Where two series without a baseline differ, nobody
    knows which is right, and both fail.
    """
    # Ranks have losses of their own; those of a case that failed may have no mean beside them.
    seen: list[Seen] = []
    right = right_in(frames)
    for frame in (frames.epochs, frames.cases):
        mine = frame[(frame["basis"] == "measured") & (frame["rank"] == -1) & among(frame, right)]
        epochs = mine["epoch"] if "epoch" in mine else pd.Series(-1, mine.index)
        sets = mine["minibatch_set"].fillna(epochs) if "minibatch_set" in mine else epochs
        keys = [*mine[CASE].itertuples(index=False, name=None)]
        for stage, metric in TOLERANCES:
            if (name := f"{stage}_{metric}") in mine:
                where = zip(keys, mine["backend"], sets, mine[name], strict=True)
                seen += [
                    (case, backend, int(chosen), (stage, metric), float(value))
                    for case, backend, chosen, value in where
                    if not pd.isna(value)
                ]
    return _astray(seen)


def among(table: pd.DataFrame, cases: Collection[CaseId]) -> NDArray[np.bool_]:
    """Which lines of a table are of one of these cases."""
    known = [
        key in cases for key in table[CASE].drop_duplicates().itertuples(index=False, name=None)
    ]
    return np.array(known, bool)[table.groupby(CASE, sort=False).ngroup().to_numpy()]


def judged(rows: Sequence[Row]) -> list[Row]:
    """The rows, with the cases failed that did not train as the others of their workload.

    Each gets a row ``check.training`` that says where it strays, and its last row says so, too.
    What it measured stays; readers leave it out. A run that was killed has not been judged: whoever
    reads it does so.
    """
    found = strays_in(frames_of(lines_of(rows)))
    kept, ends = [], []
    for row in rows:
        if (row.stage, row.metric) == _END and key_of(row) in found:
            reason = found[key_of(row)]
            lost = replace(row, value=None, status="failed", reason=reason)
            stray = replace(lost, stage=CHECK_STAGE, metric="training", unit="1", source=SOURCE)
            ends += [replace(stray, reason=f"failed: {reason}"), lost]
        else:
            kept.append(row)
    return kept + ends


def _astray(seen: Iterable[Seen]) -> dict[CaseId, str]:
    groups: dict[tuple[str, str, int, str, str], dict[CaseId, float]] = defaultdict(dict)
    for case, backend, chosen, what, value in seen:
        groups[case[0], backend, chosen, *what][case] = value
    found: dict[CaseId, str] = {}
    # The sets in their order, and then the score, whose epoch is -1.
    for where in sorted(groups, key=lambda where: (where[2] < 0, where)):
        _, backend, chosen, stage, metric = where
        values = groups[where]
        series: dict[tuple[str, str], list[float]] = defaultdict(list)
        for (_, strategy, variant, _), value in values.items():
            series[strategy, variant].append(value)
        plain = [value for (name, _), of in series.items() if name == BASELINE for value in of]
        right = median(plain or map(median, series.values()))
        allowed = TOLERANCES[stage, metric][backend] * (right if metric == "loss" else 1.0)
        name = f"{stage}.{metric}" + (f" of minibatch set {chosen}" if chosen >= 0 else "")
        whose = f"with {BASELINE}" if plain else "in the other series"
        for case, value in values.items():
            if abs(value - right) > allowed:
                said = f"it trained on other rows: {name} is {value!r}, and {right!r} {whose}"
                found.setdefault(case, said)
    return found
