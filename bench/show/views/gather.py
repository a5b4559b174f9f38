"""The CPU's gather inside the loop beside the same gather alone: is the baseline held up by us?

A speed-up over a gather that sampling, training or the harness slow down is not only the data
path's. What the machine gathers alone is found when the path is opened.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.answer import Point
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate, with_kind
from gatherbench.bench.show.view import View

#: Of the rate alone what a gather in the loop has to reach.
ENOUGH = 0.9


def gather_rates(run: Run) -> pd.DataFrame:
    """Medians over repeats (and epochs) of the paths that are conventional at their best.

    Columns: :data:`SERIES`, ``alone`` and ``loop`` (B/s; NaN where the table was too small to try),
    ``share``, loop over alone, and ``held_up``, whether that is less than :data:`ENOUGH`.
    """
    from gatherbench.strategies.registry import role_of  # imports torch

    alone = run.values("setup", "gathered") / run.values("setup", "gather_time")
    loop = run.values("fetch", "payload") / run.values("fetch", "gather_time")
    rates = {"alone": alone, "loop": loop.dropna()}
    medians = {name: rate.groupby(SERIES).median() for name, rate in rates.items()}
    found = pd.DataFrame(medians).dropna(subset=["loop"]).reset_index(names=SERIES)
    names = zip(found["strategy"], found["variant"], strict=True)
    mine = [role_of(*pair) == "conventional" for pair in names]
    found = found[pd.Series(mine, found.index, dtype=bool)]
    share = found["loop"] / found["alone"]
    return sort_series(found.assign(share=share, held_up=share < ENOUGH))


def _table(run: Run) -> Table:
    columns = [
        Column("alone", "alone, when the path was opened", "B/s", short="alone"),
        Column("loop", "in the loop", "B/s", short="in the loop"),
        Column("share", "in the loop over alone", "share", short="share"),
    ]
    return tabulate(
        "gather",
        "What the CPU gathers a second",
        [*WHAT, *columns],
        with_kind(gather_rates(run)),
        title="The CPU's gather, alone and in the loop",
        note="Medians over repeats, in the loop over epochs, too. Alone: random rows on as many"
        " threads; minibatches ask for some rows again and again, and may be faster. Of a table"
        " below 64 MiB, or on one core, it is not tried.",
    )


def gather_points(run: Run) -> list[Point]:
    """Over which paths no speed-up is the data path's alone, with their rates."""
    frame = gather_rates(run)
    held = frame[frame["held_up"]]
    if held.empty:
        return []
    shares = dict.fromkeys((float(held["share"].min()), float(held["share"].max())))
    return [
        Point(
            "in the loop {names} gathers {values} of what it gathers alone: a speed-up over it is"
            " in part the loop’s (other work on its cores, its memory)",
            subjects=tuple(dict.fromkeys((held["strategy"] + " " + held["variant"]).tolist())),
            values=tuple((share, share, share) for share in shares),
            unit="share",
            weight=5,
        )
    ]


GATHER = View(
    name="gather",
    title="The CPU's gather",
    applies=lambda run: not gather_rates(run).empty,
    tables=lambda run: [_table(run)],
    points=gather_points,
)
