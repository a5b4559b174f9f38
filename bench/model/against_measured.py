"""Epochs measured on a GPU beside what the model says of them, and whose error it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from gatherbench.bench.model.epoch import EpochPrediction, extremes, predict_corners
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.predict import predictions
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.model.run_loads import Series
from gatherbench.bench.read.epochs import epoch_times, plan_order
from gatherbench.bench.read.tables import Run

_SERIES = ["workload", "strategy", "variant"]


def against_measured(run: Run, profile: LinkProfile) -> pd.DataFrame:
    """Median epochs of a run on a GPU beside the model's; empty without any.

    Columns: ``workload``, ``strategy``, ``variant``, ``measured_s``, ``end``, ``modelled_s``,
    ``error``, ``bound``; and ``modelled_path_s``, ``path_error``, where the training step takes
    what the run measured: what is left of the error is the data path's, not the roofline's of the
    training.
    What the model cannot predict is NaN. Where the profile's ranges make more than one epoch, there
    is a line with the shortest and one with the longest, and ``end`` says which.
    """
    measured = epoch_times(run).query("backend == 'cuda' and basis == 'measured'")
    seconds = {tuple(r[:3]): r[3] for r in measured[[*_SERIES, "median"]].itertuples(index=False)}
    found = [
        (one, epochs)
        for one, epochs in predictions(run, profile)
        if (one.workload, one.strategy, one.variant) in seconds
    ]
    training = _measured_training(run, [one for one, _ in found])
    records = []
    for one, epochs in found:
        key = (one.workload, one.strategy, one.variant)
        paths: Sequence[EpochPrediction | None] = [None] * len(epochs)
        if one.load is not None and one.workload in training:
            step = Estimate(training[one.workload] / one.batches)
            paths = predict_corners(replace(one.load, train_s=step), profile, one.batches)
        pairs = list(zip(epochs, paths, strict=True))
        for end, (epoch, path) in extremes(pairs, lambda pair: pair[0].epoch_s.value):
            found_s = (epoch.epoch_s.value, None if path is None else path.epoch_s.value)
            values = [float("nan") if s is None else s for s in found_s]
            errors = [value / seconds[key] - 1 for value in values]
            records.append(
                (*key, seconds[key], end, values[0], errors[0], epoch.bound, values[1], errors[1])
            )
    columns = [
        *_SERIES, "measured_s", "end", "modelled_s", "error", "bound", "modelled_path_s",
        "path_error",
    ]  # fmt: skip
    return plan_order(run, pd.DataFrame(records, columns=columns))


def _measured_training(run: Run, series: Sequence[Series]) -> dict[str, float]:
    """Median seconds an epoch of training alone, by workload: beside nothing that is fetched."""
    blocking = {
        (one.workload, one.strategy, one.variant)
        for one in series
        if one.load is not None and one.load.lookahead == 0
    }
    rows = run.select(
        stage="train", metric="wall_time", basis="measured", backend="cuda", status="ok"
    )
    alone = [key in blocking for key in rows[_SERIES].itertuples(index=False, name=None)]
    medians = rows.loc[alone].groupby("workload")["value"].median()
    return {str(workload): float(seconds) for workload, seconds in medians.items()}
