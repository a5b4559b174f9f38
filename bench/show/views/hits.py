"""Rows that a path keeps in the device's memory: how many it found there, and what that changes."""

from __future__ import annotations

from gatherbench.bench.read.derive import plan_order
from gatherbench.bench.read.kept import found_on_device
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.figures.kept_rows import draw_kept_rows
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate
from gatherbench.bench.show.view import View


def found(run: Run) -> Table:
    """One line a series that keeps any rows and counts how many of an epoch's lay there."""
    shares = found_on_device(run).dropna(subset="counted")
    columns = [
        *WHAT[:3],
        Column("counted", "rows found on the device", "share", short="counted"),
        Column("declared", "declared", "share", short="declared"),
    ]
    caption = "Rows of an epoch that the path found in the device’s own memory"
    frame = plan_order(run, shares[(shares > 0).any(axis=1)].reset_index())
    return tabulate("found", caption, columns, frame, title="Rows found on the device")


HITS = View(
    "hits",
    "Rows kept on the device",
    lambda run: bool((found_on_device(run)["counted"] > 0).any()),
    lambda run: [found(run)],
    figures=lambda run: {f"kept_rows_{name}": one for name, one in draw_kept_rows(run).items()},
)
