"""The link model in the terminal: how near the link each strategy comes, how far the model is off.

Stands below the tables of ``run.py`` wherever a profile came with the run.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import pandas as pd
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gatherbench.bench.model.host_ranks import host_ranks
from gatherbench.bench.model.predict import profile_of
from gatherbench.bench.model.profile import ProfileError
from gatherbench.bench.model.roofline import against_measured, roofline
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import three_digits, time_unit

#: Shares of the roofs, and what their columns are called.
_SHARES = {"of_copy_engine": "copies", "of_sm_read": "SM reads", "of_raw_link": "raw link"}
_DISK = {"of_disk": "disk"}
READING = (
    "GB/s: rows that cross the link over the time waited for rows, or over the epoch (*) where"
    " fetches are hidden; then their share of the roofs of copies, of reads by SMs and of the raw"
    " link; a path may exceed a roof that is not its own. Disk: of that time what its reads take at"
    " least."
)
OFF_BY = (
    "Off by: how much longer the model expects an epoch to be, only worth something with the"
    " machine's own profile; with training as measured, what is left is the data path's."
)
FROM_ONE_RANK = (
    "Modelled: of the same run with one rank, its stages and core-seconds, and what every case"
    " declares of its work. The longer of two bounds: each rank's share of the work (ranks), or the"
    " core-seconds on the cores that all ranks share (cores). Without what ranks send each other or"
    " wait for each other. !: there was other work beside every repeat of one of the two."
)


def model_tables(run: Run) -> list[RenderableType]:
    """The tables of each workload, or a line that says why there is none."""
    parts = host_ranks_tables(run)
    try:
        profile = profile_of(run)
    except ProfileError as error:
        return [*parts, Text(f"no roofline: {error}"), Text()]
    if profile is None:
        remedy = "gatherbench predict RUN --profile NAME"
        return [*parts, Text(f"no roofline: the run has no link profile ({remedy})"), Text()]
    table = roofline(run, profile)
    if table["rate"].notna().any():
        table = table[table["bound"] != "unknown"]
        for workload, here in table.groupby("workload", sort=False):
            parts += [_table(run.names[str(workload)], profile.name, here), Text()]
        parts += [Text(READING, style="dim"), Text()]
    errors = against_measured(run, profile)
    if errors["modelled_s"].notna().any():
        for workload, here in errors.groupby("workload", sort=False):
            parts += [_errors(run.names[str(workload)], profile.name, here), Text()]
        parts += [Text(OFF_BY, style="dim"), Text()]
    return parts


def host_ranks_tables(run: Run) -> list[RenderableType]:
    """Measured epochs of ranks on a host beside what one rank's epoch makes expect; maybe none."""
    parts: list[RenderableType] = []
    lines = host_ranks(run)
    for workload, here in lines.groupby("workload", sort=False):
        parts += [_of_ranks(run.names[str(workload)], here), Text()]
    return [*parts, Text(FROM_ONE_RANK, style="dim"), Text()] if parts else []


def _of_ranks(workload: str, lines: pd.DataFrame) -> Table:
    unit, factor = time_unit(float(lines["measured_s"].max()))
    table = _empty(f"epochs of {workload}, and what one rank makes expect")
    table.add_column("strategy", no_wrap=True)
    table.add_column("variant", overflow="fold")
    for name in (f"measured, {unit}", "modelled", "off by"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound by")
    for line in lines.to_dict("records"):
        cells = [line["strategy"], line["variant"], three_digits(line["measured_s"] * factor)]
        if line["reason"]:
            cells += ["–", "–", line["reason"]]
        else:
            seconds = three_digits(line["modelled_s"] * factor)
            off = f"{line['error']:+.0%}" + "!" * line["disturbed"]
            cells += [seconds, off, line["bound"]]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _table(workload: str, profile: str, lines: pd.DataFrame) -> Table:
    """One line a series whose epoch is known."""
    table = _empty(f"roofline of {workload} for {profile}")
    table.add_column("strategy", no_wrap=True)
    table.add_column("variant", overflow="fold")
    table.add_column("GB/s", justify="right", no_wrap=True)
    shares = _SHARES | (_DISK if lines["of_disk"].notna().any() else {})
    for name in shares.values():
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound by: fetch / epoch", overflow="fold")
    # Of what was measured on a GPU the model's seconds have a table of their own.
    series = pd.MultiIndex.from_frame(lines[["strategy", "variant"]])
    measured = lines["kind"] == "measured"
    told = series.isin(series[measured])
    for kind, some in lines[~told | measured].groupby("kind", sort=True):
        table.add_section()
        table.add_row(str(kind))
        for line in some.to_dict("records"):
            table.add_row(*_cells(line, shares), style="italic" if kind == "modelled" else "")
    return table


def _cells(line: Mapping[Hashable, Any], roofs: Iterable[str]) -> list[Text]:
    rate = "–"
    if not pd.isna(line["rate"]):
        rate = three_digits(line["rate"] * 1e-9) + ("*" if line["over"] == "epoch" else "")
        rate = f"{line['end']} {rate}".strip()
    shares = ["–" if pd.isna(line[key]) else f"{line[key]:.0%}" for key in roofs]
    bound = f"{line['fetch_bound']} / {line['bound']}"
    return [Text(str(word)) for word in (line["strategy"], line["variant"], rate, *shares, bound)]


def _errors(workload: str, profile: str, lines: pd.DataFrame) -> Table:
    """Measured epochs beside the model's, whose training is modelled or as it was measured."""
    unit, factor = time_unit(float(lines["measured_s"].max()))
    table = _empty(f"epochs of {workload}, and how far the model is off with {profile}")
    table.add_column("strategy", no_wrap=True)
    table.add_column("variant", overflow="fold")
    for name in (f"measured, {unit}", "modelled", "off by", "training as measured", "off by"):
        table.add_column(name, justify="right")
    for line in lines.to_dict("records"):
        cells = [three_digits(line["measured_s"] * factor)]
        for seconds, error in (("modelled_s", "error"), ("modelled_path_s", "path_error")):
            known = not pd.isna(line[seconds])
            said = f"{line['end']} {three_digits(line[seconds] * factor)}".strip() if known else ""
            cells += [said, f"{line[error]:+.0%}"] if known else ["–"] * 2
        table.add_row(Text(line["strategy"]), Text(line["variant"]), *cells)
    return table


def _empty(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
