"""Show where the host limits: the CPU's gather inside the loop, and launches to a GPU.

A speed-up over a gather that sampling, training or the harness slow down is only in part the data
path's. The choice of threads measures what the machine gathers alone.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import issue_shares, roles_of, sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.table import Table, table_of
from gatherbench.bench.show.view import View


def gather_rates(run: Run) -> pd.DataFrame:
    """Return medians over repeats (and epochs) for the CPU's best conventional gathers.

    Columns: :data:`SERIES`, ``alone_B_per_s`` and ``in_the_loop_B_per_s`` (NaN where the table was
    too small to try), and ``loop_to_alone_share``.
    """
    names = {"gather_alone_rate": "alone_B_per_s", "gather_rate": "in_the_loop_B_per_s"}
    rates = run.medians[[*names]].rename(columns=names).dropna(subset="in_the_loop_B_per_s")
    table = rates.reset_index()
    table = table[roles_of(table) == "conventional"]
    share = table["in_the_loop_B_per_s"] / table["alone_B_per_s"]
    return sort_series(table.assign(loop_to_alone_share=share))


def _gathered(run: Run) -> Table:
    note = (
        "Medians over repeats, in the loop over epochs, too. Alone: random rows on as many"
        " threads. On one core, or of minibatches too small to share, it is not tried. In the loop"
        " sampling and training share cores and memory."
    )
    return table_of("gather", "The CPU's gather, alone and in the loop", gather_rates(run), note)


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


GATHER = View("gather", "The CPU's gather", lambda run: not gather_rates(run).empty, _gathered)
ISSUE = View(
    "issue",
    "Issued by the host",
    lambda run: bool(run.measured["host_issue_train_s"].notna().any()),
    _issued,
)
