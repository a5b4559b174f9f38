"""What the host holds up: the CPU's gather inside the loop, and issuing an epoch to a GPU.

A speed-up over a gather that sampling, training or the harness slow down is not only the data
path's. What the machine gathers alone is found when threads are chosen.

What issuing takes is computed in :mod:`gatherbench.bench.read.issuing`.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.plan.workload import ranks_of
from gatherbench.bench.read.derive import names_of, of_paths, sort_series
from gatherbench.bench.read.issuing import issue_shares
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.answer import Point, extremes
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
    found = of_paths(found, lambda pair: role_of(*pair) == "conventional")
    share = found["loop"] / found["alone"]
    return sort_series(found.assign(share=share, held_up=share < ENOUGH))


def _gathered(run: Run) -> Table:
    columns = [
        Column("alone", "alone, no training between fetches", "B/s", short="alone"),
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
        " threads. On one core, or of minibatches too small to share, it is not tried.",
    )


def gather_points(run: Run) -> list[Point]:
    """Over which paths no speed-up is the data path's alone, with their rates."""
    frame = gather_rates(run)
    held = frame[frame["held_up"]]
    if held.empty:
        return []
    return [
        Point(
            "the loop leaves {names} {values} of the rate alone: a speed-up over that is in"
            " part the loop’s (other work on its cores, its memory)",
            subjects=names_of(held),
            values=extremes(held["share"]),
            unit="share",
            weight=5,
        )
    ]


def _issued(run: Run) -> Table:
    frame = issue_shares(run)
    columns = [
        Column("draw", "to draw minibatches, or have them drawn", "share", short="draw"),
        Column("wait", "wait for minibatches", "share", short="wait"),
        Column("train", "to issue the training", "share", short="train"),
        Column("fetch", "to issue the fetches, or to gather", "share", short="fetch"),
        Column("left", "left to the GPU when all was issued", "share", short="GPU left"),
    ]
    if frame["draw"].isna().all():
        del columns[0]
    return tabulate(
        "issue",
        "What the host needed of an epoch to issue it: medians over repeats and epochs",
        [*WHAT, *columns],
        with_kind(frame),
        title="Issued by the host",
        note="Shares of the epoch, by the clock of the thread that trains. Of a path that gathers"
        " on the CPU the fetch is that gather, too. Where little is left, the GPU waited.",
    )


def _can_capture(run: Run) -> bool:
    """Whether the plan would take captured steps for all its workloads, and has none."""
    measure, workloads = run.plan["measure"], run.plan["workloads"].values()
    return measure.get("activations", "keep") == "keep" and all(
        one["model"] == "sage" and ranks_of(one) == 1 and one.get("step") != "captured"
        for one in workloads
    )


def issue_points(run: Run) -> list[Point]:
    """Whose epochs the host bounds, its share of them, and what to change; nothing if none is."""
    frame = issue_shares(run)
    mine = frame[frame["bound"]]
    if mine.empty:
        return []
    remedy = 'step = "captured" in [measure], ' if _can_capture(run) else ""
    return [
        Point(
            "the host issues {values} of the epochs of {names}, and the GPU waits for it"
            + ": between these there is no verdict" * (len(mine) > 1)
            + f". To see more of the path: {remedy}minibatches with more rows (batch_size,"
            " fanouts), or a wider model (hidden)",
            subjects=names_of(mine),
            values=extremes(mine["issued"]),
            unit="share",
            weight=7,
        )
    ]


GATHER = View(
    name="gather",
    title="The CPU's gather",
    applies=lambda run: not gather_rates(run).empty,
    tables=lambda run: [_gathered(run)],
    points=gather_points,
)
ISSUE = View(
    name="issue",
    title="Issued by the host",
    applies=lambda run: not run.values("host", "issue_train").empty,
    tables=lambda run: [_issued(run)],
    points=issue_points,
)
