"""A run as data frames: a line an epoch, a line a case, what each column means, what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from gatherbench.bench.run.columns import KNOWN
from gatherbench.bench.run.lines import CASE_KEYS, EPOCH_KEYS, REASON_KEYS, Lines
from gatherbench.bench.run.rows import SERIES

#: What other work there was while a case ran, see :mod:`gatherbench.bench.read.disturbance`.
NOISE = ("disturbed", "other_cores")
_ABOUT = ("unit", "source", "meaning", "stage", "metric", "declared")


class Frames(NamedTuple):
    """For the columns see the properties of :class:`gatherbench.bench.read.tables.Run`."""

    epochs: pd.DataFrame
    cases: pd.DataFrame
    columns: pd.DataFrame
    reasons: pd.DataFrame


def frames_of(lines: Lines, noise: pd.DataFrame) -> Frames:
    """The lines as frames.

    Args:
        noise: :data:`NOISE` of each case, by :data:`SERIES` and repeat.
    """
    noise = noise.rename(columns={"disturbed": "noisy"})
    case = [*SERIES, "repeat"]
    epochs, cases = (
        _frame(found, keys).merge(noise[[*case, *columns]], on=case, how="left")
        for found, keys, columns in (
            (lines.epochs, EPOCH_KEYS, ["noisy"]),
            (lines.cases, CASE_KEYS, ["noisy", "other_cores"]),
        )
    )
    epochs, cases = (
        frame.assign(noisy=frame["noisy"].eq(True)) for frame in (epochs, cases)
    )  # of a case without an epoch nobody knows
    about = {name: [getattr(column, of) for of in _ABOUT] for name, column in lines.columns.items()}
    columns = pd.DataFrame.from_dict(about, orient="index", columns=list(_ABOUT))
    reasons = _frame(lines.reasons, REASON_KEYS)
    missing = reasons[reasons["status"] != "ok"].drop(columns="source").reset_index(drop=True)
    return Frames(
        _ordered(epochs, (*EPOCH_KEYS, "noisy")),
        _ordered(cases, (*CASE_KEYS, "noisy", "other_cores")),
        columns.rename_axis("column"),
        missing,
    )


def _frame(lines: Sequence[dict[str, Any]], keys: Sequence[str]) -> pd.DataFrame:
    columns = dict.fromkeys([*keys, *(name for line in lines for name in line)])
    return pd.DataFrame(lines, columns=list(columns))


def _ordered(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The keys in front, then what is known, then what else was observed."""
    metrics = [str(name) for name in frame if name not in keys]
    places = {name: place for place, name in enumerate(KNOWN)}
    metrics.sort(key=lambda name: places.get(name.removesuffix("_samples"), len(places)))
    return frame[[*keys, *metrics]]
