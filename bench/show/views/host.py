"""Show where the host limits: the CPU's gather inside the loop, and launches to a GPU.

A speed-up over a gather that sampling, training or the harness slow down is only in part the data
path's. The choice of threads measures what the machine gathers alone.

:mod:`gatherbench.bench.read.derive` computes what launches need.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import issue_shares, of_paths, sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import listed, span
from gatherbench.bench.show.table import WHAT, Column, Table, with_kind
from gatherbench.bench.show.view import View
from gatherbench.strategies.registry import in_words

#: The share of the stand-alone rate that a gather in the loop should reach.
ENOUGH = 0.9


def gather_rates(run: Run) -> pd.DataFrame:
    """Return medians over repeats (and epochs) for the CPU's best conventional gathers.

    Columns: :data:`SERIES`, ``alone`` and ``loop`` (B/s; NaN where the table was too small to try),
    ``share`` (loop over alone), and ``held_up`` (whether it is below :data:`ENOUGH`).
    """
    from gatherbench.strategies.registry import role_of  # imports torch

    rates = {"gather_alone_rate": "alone", "gather_rate": "loop"}
    found = run.medians[[*rates]].rename(columns=rates).dropna(subset=["loop"]).reset_index()
    found = of_paths(found, lambda pair: role_of(*pair) == "conventional")
    share = found["loop"] / found["alone"]
    return sort_series(found.assign(share=share, held_up=share < ENOUGH))


def _gathered(run: Run) -> Table:
    columns = [
        Column("alone", "alone, no training between fetches", "B/s", short="alone"),
        Column("loop", "in the loop", "B/s", short="in the loop"),
        Column("share", "in the loop over alone", "share", short="share"),
    ]
    return Table(
        "gather",
        "What the CPU gathers a second",
        [*WHAT, *columns],
        with_kind(gather_rates(run)),
        "The CPU's gather, alone and in the loop",
        "Medians over repeats, in the loop over epochs, too. Alone: random rows on as many"
        " threads. On one core, or of minibatches too small to share, it is not tried.",
    )


def _held_up(run: Run) -> str:
    """Describe the gathers that are slower in the loop, with their share of the rate alone."""
    frame = gather_rates(run)
    held = frame[frame["held_up"]]
    if held.empty:
        return ""
    names = [*dict.fromkeys(map(in_words, held["strategy"], held["variant"]))]
    return (
        f"Slower inside the training loop: {listed(names)}, at"
        f" {span(held['share'].min(), held['share'].max(), 'share')} of the rate alone; sampling"
        " and training share cores and memory."
    )


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
    return Table(
        "issue",
        "What the host needed of an epoch to issue it: medians over repeats and epochs",
        [*WHAT, *columns],
        with_kind(frame),
        "Issued by the host",
        "Shares of the epoch, by the clock of the thread that trains. If a path gathers on the"
        " CPU, its fetch includes that gather. Where little is left to the GPU, the GPU waited.",
    )


GATHER = View(
    "gather",
    "The CPU's gather",
    lambda run: not gather_rates(run).empty,
    _gathered,
    note=_held_up,
)
ISSUE = View(
    "issue",
    "Issued by the host",
    lambda run: bool(run.measured["host_issue_train_s"].notna().any()),
    _issued,
)
