"""The roofline of a run in the terminal: how near the link each strategy comes, what bounds it.

Stands below the tables of ``run.py`` wherever a profile came with the run.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gatherbench.bench.linkmodel.profile import ProfileError
from gatherbench.bench.linkmodel.profile_file import load_profile
from gatherbench.bench.linkmodel.roofline import roofline
from gatherbench.bench.store import RunStore
from gatherbench.bench.tables import Run
from gatherbench.bench.units import three_digits

#: Shares of the roofs, and what their columns are called.
_SHARES = {"of_copy_engine": "copies", "of_sm_read": "SM reads", "of_raw_link": "raw link"}
READING = (
    "GB/s: rows that cross the link over the time waited for rows, or over the epoch (*) where"
    " fetches are hidden; then their share of the roofs of copies, of reads by SMs and of the raw"
    " link."
)


def roofline_tables(run: Run) -> list[RenderableType]:
    """A table for each workload, or a line that says why there is none."""
    file = RunStore(run.folder).profile_file
    if not file.is_file():
        return [Text("no roofline: the run has no link profile (--profile NAME)"), Text()]
    try:
        profile = load_profile(file)
    except ProfileError as error:
        return [Text(f"no roofline: {error}"), Text()]
    table = roofline(run, profile)
    if table["rate"].isna().all():
        return []
    table = table[table["bound"] != "unknown"]
    parts: list[RenderableType] = []
    for workload, here in table.groupby("workload", sort=False):
        parts += [_table(run.names[str(workload)], profile.name, here), Text()]
    return [*parts, Text(READING, style="dim"), Text()]


def _table(workload: str, profile: str, lines: pd.DataFrame) -> Table:
    """One line a series whose epoch is known."""
    table = Table(
        title=f"roofline of {workload} for {profile}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    table.add_column("strategy", no_wrap=True)
    table.add_column("variant", overflow="fold")
    table.add_column("GB/s", justify="right", no_wrap=True)
    for name in _SHARES.values():
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound by: fetch / epoch", overflow="fold")
    for kind, some in lines.groupby("kind", sort=True):
        table.add_section()
        table.add_row(str(kind))
        for line in some.to_dict("records"):
            table.add_row(*_cells(line), style="italic" if kind == "modelled" else "")
    return table


def _cells(line: Mapping[Hashable, Any]) -> list[Text]:
    rate = "–"
    if not pd.isna(line["rate"]):
        rate = three_digits(line["rate"] * 1e-9) + ("*" if line["over"] == "epoch" else "")
    shares = ["–" if pd.isna(line[key]) else f"{line[key]:.0%}" for key in _SHARES]
    bound = f"{line['fetch_bound']} / {line['bound']}"
    return [Text(str(word)) for word in (line["strategy"], line["variant"], rate, *shares, bound)]
