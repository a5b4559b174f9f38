"""Check that all series of a workload train alike: each set starts from equal weights and dropout.

So losses of a set of minibatches, and accuracy, are equal but for rounding. They reveal a path that
delivered wrong rows in a timed epoch, even if the comparison of rows
(:mod:`gatherbench.bench.run.check`) missed them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import cast

import numpy as np
import pandas as pd

from gatherbench.bench.run.frames import CASES, ENDED, OF_CASE, Column, Frames, among, ids_in
from gatherbench.bench.run.part import CASE_STAGE, CHECK_STAGE, CaseId

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
#: The column that is missing for the reason why a deviating case is no result.
_STRAYED = Column(CHECK_STAGE, "training", "1", declared=False, source=SOURCE)
STRAYED = _STRAYED.name


def right_in(frames: Frames) -> set[CaseId]:
    """Return the cases that are a result: they ended well after passing their last comparison, and
    neither their rows nor their losses were found wrong."""
    cases, reasons = frames.cases, frames.reasons
    ended = cases[(cases["basis"] == "measured") & (cases["status"] == "ok")]
    checks = [name for name, column in frames.columns.items() if column.stage == CHECK_STAGE]
    wrong = (reasons["status"] == "failed") & reasons["column"].isin([*checks, STRAYED])
    return {*ids_in(ended)} - {*ids_in(reasons[wrong])}


def strays_in(frames: Frames) -> dict[CaseId, str]:
    """Return the cases that train differently from their workload's reference, and where.

    A process that continues a case that was cut off trains a new model: its epochs are compared
    with those of other paths that did the same there. The reference is the median of the baseline's
    cases, else of the medians of the series. Where two series without a baseline differ, it is
    unknown which is right, and both fail.
    """
    right, wrong = right_in(frames), dict[CaseId, str]()
    for (stage, metric), frame in product(TOLERANCES, (frames.epochs, frames.cases)):
        if (name := f"{stage}_{metric}") not in frame:
            continue
        # Ranks have losses of their own; those of a failed case may lack a mean.
        measured = (frame["basis"] == "measured") & (frame["rank"] == -1)
        values = frame[measured & among(frame, right) & frame[name].notna()].astype({name: float})
        sets = values.get("epoch", pd.Series(-1, values.index))
        sets = values.get("minibatch_set", sets).fillna(sets).astype(int)
        for key, of_set in values.groupby(["workload", "backend", sets]):
            _, backend, chosen = cast("tuple[str, str, int]", key)
            plain = of_set.loc[of_set["strategy"] == BASELINE, name]
            series = of_set.groupby(["strategy", "variant"])[name].median()
            reference = float((series if plain.empty else plain).median())
            allowed = TOLERANCES[stage, metric][backend]
            allowed *= reference if metric == "loss" else 1.0
            where = f"{stage}.{metric}" + (f" of minibatch set {chosen}" if chosen >= 0 else "")
            whose = "in the other series" if plain.empty else f"with {BASELINE}"
            far = of_set[(of_set[name] - reference).abs() > allowed]
            for case, value in zip(ids_in(far), far[name], strict=True):
                text = f"it trained on other rows: {where} is {value!r}, and {reference!r} {whose}"
                wrong.setdefault(case, text)
    return wrong


def judged(frames: Frames) -> Frames:
    """Return the tables, with the cases marked failed that train unlike others of their workload.

    The reason is that of :data:`STRAYED`, too. The epochs stay; readers leave them out. A run that
    was killed has not been judged: its reader does so.
    """
    strays = strays_in(frames)
    if not strays:
        return frames
    cases, reasons = frames.cases.copy(), frames.reasons
    why = pd.Series([strays.get(key) for key in ids_in(cases)], cases.index, dtype=object)
    lost = why.notna() & (cases["basis"] == "measured") & cases["status"].notna()
    cases.loc[lost, "status"], cases.loc[lost, "reason"] = "failed", why[lost]
    cases.loc[lost, [ENDED.name]] = cases[STRAYED] = np.nan
    more = cases.loc[lost, list(OF_CASE)].assign(epoch=-1, table=CASES, column=STRAYED)
    more = more.assign(status="failed", reason="failed: " + why[lost], source=None)
    kept = reasons[~((reasons["column"] == ENDED.name) & among(reasons, strays))]
    reasons = pd.concat([kept, more], ignore_index=True) if len(kept) else more
    columns = {**frames.columns, STRAYED: _STRAYED}
    return replace(frames, cases=cases, reasons=reasons, columns=columns)
