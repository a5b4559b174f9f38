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
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.table import Table, table_of
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
    names = {
        "alone": "alone_B_per_s",
        "loop": "in_the_loop_B_per_s",
        "share": "loop_to_alone_share",
    }
    frame = gather_rates(run).drop(columns="held_up").rename(columns=names)
    note = (
        "Medians over repeats, in the loop over epochs, too. Alone: random rows on as many"
        " threads. On one core, or of minibatches too small to share, it is not tried."
    )
    return table_of("gather", "The CPU's gather, alone and in the loop", frame, note)


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
    parts = ["draw", "wait", "train", "fetch", "left"]
    frame = issue_shares(run)[[*SERIES, *parts]]
    frame = frame.rename(columns={name: f"{name}_share" for name in parts})
    note = (
        "What the host needed of an epoch: medians over repeats and epochs, by the clock of the"
        " thread that trains. Draw: to draw minibatches, or have them drawn; wait: for minibatches;"
        " train, fetch: to issue them. If a path gathers on the CPU, its fetch includes that"
        " gather. Left: what the GPU needed when all was issued; where it is little, it waited."
    )
    return table_of("issue", "Issued by the host", frame, note)


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
