"""What the host needed to issue an epoch to a GPU: where that takes as long, it bounds the epoch.

A GPU does what it is told in its order, and the host tells it call by call. The thread that trains
issues steps and fetches; what the GPU has left to do when all is issued is the rest of the epoch.
Almost nothing left, and most of the epoch spent issuing: then a faster path would change nothing.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.answer import Point
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate, with_kind
from gatherbench.bench.show.view import View

#: Share of an epoch that issuing takes at least, and steps that the GPU has left at most, where it
#: bounds the epoch.
BOUND_SHARE, BOUND_STEPS = 2 / 3, 2.0
#: Paths whose fetches are issued and no more: others gather on the CPU meanwhile.
_ISSUED = ("zero_copy", "bound", "floor")


def issue_shares(run: Run) -> pd.DataFrame:
    """Medians over repeats and epochs, as shares of the epoch.

    Columns: :data:`SERIES`, ``train`` and ``fetch`` (what the host needed to issue them),
    ``sample`` (what threads beside it took to draw; NaN where none did),
    ``left`` (what the GPU still had to do then), and ``bound``, whether issuing bounds the epoch.
    """
    from gatherbench.strategies.registry import role_of  # imports torch

    whole, steps = (run.values("epoch", metric) for metric in ("wall_time", "minibatches"))
    parts = {"train": "issue_train", "fetch": "issue_fetch", "left": "drain"}
    parts["sample"] = "issue_sample"
    shares = {name: run.values("host", metric) / whole for name, metric in parts.items()}
    shares["steps_left"] = shares["left"] * steps
    found = (
        pd.DataFrame(shares)
        .dropna(subset=["train", "fetch", "left"])
        .groupby(SERIES)
        .median()
        .reset_index()
    )
    names = zip(found["strategy"], found["variant"], strict=True)
    issued = pd.Series([role_of(*pair) in _ISSUED for pair in names], found.index, dtype=bool)
    long = found["train"] + found["fetch"] >= BOUND_SHARE
    found["bound"] = issued & long & (found["steps_left"] <= BOUND_STEPS)
    return sort_series(found)


def _table(run: Run) -> Table:
    frame = issue_shares(run)
    columns = [
        Column("sample", "to draw, by a thread beside", "share", short="draw"),
        Column("train", "to issue the training", "share", short="train"),
        Column("fetch", "to issue the fetches, or to gather", "share", short="fetch"),
        Column("left", "left to the GPU when all was issued", "share", short="GPU left"),
    ]
    if frame["sample"].isna().all():
        del columns[0]
    return tabulate(
        "issue",
        "What the host needed of an epoch to issue it: medians over repeats and epochs",
        [*WHAT, *columns],
        with_kind(frame),
        title="Issued by the host",
        note="Shares of the epoch, by the clock of the thread that trains; what draws ahead has a"
        " thread of its own. Of a path that gathers on the CPU the fetch is that gather, too. Where"
        " little is left, the GPU waited.",
    )


def issue_points(run: Run) -> list[Point]:
    """Whose epochs are bound by issuing them, with the range of its share; nothing if none is."""
    frame = issue_shares(run)
    mine = frame[frame["bound"]]
    if mine.empty:
        return []
    shares = (mine["train"] + mine["fetch"]).tolist()
    names = dict.fromkeys((mine["strategy"] + " " + mine["variant"]).tolist())
    return [
        Point(
            "the host bounds the epochs of {names}: it needs {values} of them to issue steps and"
            " fetches, and the GPU waits; minibatches with more rows, or a wider model, would show"
            " the path",
            subjects=tuple(names),
            values=tuple((end, end, end) for end in dict.fromkeys((min(shares), max(shares)))),
            unit="share",
        )
    ]


ISSUE = View(
    name="issue",
    title="Issued by the host",
    applies=lambda run: not run.values("host", "issue_train").empty,
    tables=lambda run: [_table(run)],
    points=issue_points,
)
