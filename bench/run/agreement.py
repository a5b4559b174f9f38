"""Check that all series of a workload train alike: each set starts from equal weights and dropout.

So losses of a set of minibatches, and accuracy, are equal but for rounding. They reveal a path that
delivered wrong rows in a timed epoch, even if the comparison of rows
(:mod:`gatherbench.bench.run.check`) missed them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatherbench.bench.run.frames import Frames
from gatherbench.bench.run.lines import frames_of
from gatherbench.bench.run.part import CASE_METRIC, CASE_STAGE, CHECK_STAGE, CaseId, key_of
from gatherbench.bench.run.rows import Row

#: Metrics that are compared, and their tolerance by backend: relative for the mean loss of an
#: epoch, absolute for the accuracy. Sums are rounded in any order, always on a GPU, and on the host
#: where threads share them: between correct cases of WordNet, losses differ by up to 5e-7 of them
#: in three epochs. A path that stops fetching at its fourth minibatch moves the loss by a tenth.
TOLERANCES = {
    ("train", "loss"): {"host": 1e-4, "cuda": 0.01},
    ("eval", "test_accuracy"): {"host": 0.005, "cuda": 0.02},
}
#: The gather that serves as the reference: its training result is assumed correct.
BASELINE = "cpu_gather"
SOURCE = "losses and accuracy compared with those of the workload's other cases"
#: Stages whose values are valid before a case fetches a row, and even if its rows are wrong.
STILL_RIGHT = (CASE_STAGE, CHECK_STAGE, "setup")
_END = (CASE_STAGE, CASE_METRIC)
CASE = ["workload", "strategy", "variant", "repeat"]
#: The column that holds the reason why a deviating case is no result.
STRAYED = "check_training"


def right_in(frames: Frames) -> set[CaseId]:
    """Return the cases that are a result: they ended well after passing their last comparison, and
    neither their rows nor their losses were found wrong."""
    cases, reasons = frames.cases, frames.reasons
    ended = cases[(cases["basis"] == "measured") & (cases["status"] == "ok")]
    checks = [name for name, column in frames.columns.items() if column.stage == CHECK_STAGE]
    wrong = (reasons["status"] == "failed") & reasons["column"].isin([*checks, STRAYED])
    right, lost = ({*of[CASE].itertuples(index=False, name=None)} for of in (ended, reasons[wrong]))
    return right - lost


def strays_in(frames: Frames) -> dict[CaseId, str]:
    """Return the cases that train differently from their workload's reference, and where.

    A process that continues a case that was cut off trains a new model: its epochs are compared
    with those of other paths that did the same there. The reference is the median of the baseline's
    cases, else of the medians of the series. Where two series without a baseline differ, it is
    unknown which is right, and both fail.
    """
    right, found = right_in(frames), dict[CaseId, str]()
    for stage, metric in TOLERANCES:
        for frame in (frames.epochs, frames.cases):
            if (name := f"{stage}_{metric}") not in frame:
                continue
            # Ranks have losses of their own; those of a failed case may lack a mean.
            measured = (frame["basis"] == "measured") & (frame["rank"] == -1)
            epochs = frame[measured & among(frame, right) & frame[name].notna()]
            sets = epochs.get("epoch", pd.Series(-1, epochs.index))
            sets = epochs.get("minibatch_set", sets).fillna(sets).astype(int)
            values = epochs.assign(value=epochs[name].astype(float), set=sets)
            for key, of_set in values.groupby(["workload", "backend", "set"]):
                _, backend, chosen = cast("tuple[str, str, int]", key)
                where = f"{stage}.{metric}" + (f" of minibatch set {chosen}" if chosen >= 0 else "")
                tolerance, relative = TOLERANCES[stage, metric][backend], metric == "loss"
                for case, why in _astray(of_set, tolerance, where, relative=relative).items():
                    found.setdefault(case, why)
    return found


def _astray(
    cases: pd.DataFrame, tolerance: float, where: str, *, relative: bool
) -> dict[CaseId, str]:
    """Return the cases whose ``value`` is too far from the reference's, and why they fail."""
    plain = cases.loc[cases["strategy"] == BASELINE, "value"]
    series = cases.groupby(["strategy", "variant"])["value"].median()
    reference = float((series if plain.empty else plain).median())
    whose = "in the other series" if plain.empty else f"with {BASELINE}"
    allowed = tolerance * (reference if relative else 1.0)
    strays = cases[(cases["value"] - reference).abs() > allowed]
    keys = strays[CASE].itertuples(index=False, name=None)
    return {
        key: f"it trained on other rows: {where} is {value!r}, and {reference!r} {whose}"
        for key, value in zip(keys, strays["value"].tolist(), strict=True)
    }


def among(table: pd.DataFrame, cases: Collection[CaseId]) -> NDArray[np.bool_]:
    """Return a mask of the lines of a table that belong to one of these cases."""
    known = [
        key in cases for key in table[CASE].drop_duplicates().itertuples(index=False, name=None)
    ]
    return np.array(known, bool)[table.groupby(CASE, sort=False).ngroup().to_numpy()]


def judged(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with the cases marked failed that train unlike the others of their workload.

    Each of these gets a row ``check.training`` that names the deviation, as does its last row.
    Its measurements stay; readers leave them out. A run that was killed has not been judged: its
    reader does so.
    """
    found = strays_in(frames_of(rows))
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
