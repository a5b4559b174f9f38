"""A run as data frames: a line an epoch, a line a case, what each column means, what is missing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from gatherbench.bench.run.agreement import STILL_RIGHT, among
from gatherbench.bench.run.columns import CASE_KEYS, EPOCH_KEYS, KNOWN
from gatherbench.bench.run.frames import Frames
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.run.store import CaseId

#: What other work there was while a case ran, see :mod:`gatherbench.bench.read.disturbance`.
NOISE = ("disturbed", "other_cores")
_ABOUT = ("unit", "source", "meaning", "stage", "metric", "declared")


class Shown(NamedTuple):
    """For the columns see the properties of :class:`gatherbench.bench.read.tables.Run`."""

    epochs: pd.DataFrame
    cases: pd.DataFrame
    columns: pd.DataFrame
    reasons: pd.DataFrame


def shown(frames: Frames, noise: pd.DataFrame) -> Shown:
    """The tables of a run as users have them.

    Args:
        noise: :data:`NOISE` of each case, by :data:`SERIES` and repeat.
    """
    noise = noise.rename(columns={"disturbed": "noisy"})
    case = [*SERIES, "repeat"]
    epochs = frames.epochs.merge(noise[[*case, "noisy"]], on=case, how="left")
    cases = frames.cases.merge(noise[[*case, "noisy", "other_cores"]], on=case, how="left")
    epochs, cases = (  # of a case without an epoch nobody knows
        frame.assign(noisy=frame["noisy"].eq(True)) for frame in (epochs, cases)
    )
    about = {
        name: [getattr(column, of) for of in _ABOUT] for name, column in frames.columns.items()
    }
    columns = pd.DataFrame.from_dict(about, orient="index", columns=list(_ABOUT))
    missing = frames.reasons[frames.reasons["status"] != "ok"]
    return Shown(
        _ordered(epochs, (*EPOCH_KEYS, "noisy")),
        _ordered(cases, (*CASE_KEYS, "noisy", "other_cores")),
        columns.rename_axis("column"),
        missing.drop(columns="source").reset_index(drop=True),
    )


def right_of(frames: Frames, right: Collection[CaseId]) -> Frames:
    """The tables, of cases that are no result only what is declared of them and how they ended."""
    epochs, cases = frames.epochs, frames.cases.copy()
    epochs = epochs[(epochs["basis"] != "measured") | among(epochs, right)]
    lost = (cases["basis"] == "measured") & ~among(cases, right)
    observed = [
        name
        for name, column in frames.columns.items()
        if name in cases and not column.declared and column.stage not in STILL_RIGHT
    ]
    cases.loc[lost, observed] = np.nan
    return replace(frames, epochs=epochs.reset_index(drop=True), cases=cases)


def _ordered(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The keys in front, then what is known, then what else was observed."""
    metrics = [str(name) for name in frame if name not in keys]
    places = {name: place for place, name in enumerate(KNOWN)}
    metrics.sort(key=lambda name: places.get(name.removesuffix("_samples"), len(places)))
    return frame[[*keys, *metrics]]
