"""The link model in the terminal: how near the link each strategy comes, how far the model is off.

Stands below the tables of ``run.py`` wherever a profile came with the run.
"""

from __future__ import annotations

import pandas as pd
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gatherbench.bench.model.predict import profile_of
from gatherbench.bench.model.profile import ProfileError
from gatherbench.bench.model.roofline import against_measured, roofline
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import MISSING, three_digits, time_unit
from gatherbench.bench.show.sentences.provenance import has_gpu
from gatherbench.bench.show.terminal import Cell, Line, each_workload, frame, of_series

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


def model_tables(run: Run) -> list[RenderableType]:
    """The tables of each workload, or a line that says why there is none."""
    parts: list[RenderableType] = []
    try:
        profile = profile_of(run)
    except ProfileError as error:
        return [Text(f"no roofline: {error}"), Text()]
    if profile is None:
        remedy = "gatherbench predict RUN --profile NAME"
        return [Text(f"no roofline: the run has no link profile ({remedy})"), Text()]
    table = roofline(run, profile)
    if table["rate"].notna().any():
        table = table[table["bound"] != "unknown"]
        parts += each_workload(
            run, table, lambda name, here: _table(f"{name} for {profile.name}", here), READING
        )
    errors = against_measured(run, profile) if has_gpu(run) else pd.DataFrame()
    if not errors.empty and errors["modelled_s"].notna().any():
        parts += each_workload(
            run, errors, lambda name, here: _errors(name, profile.name, here), OFF_BY
        )
    return parts


def _table(name: str, lines: pd.DataFrame) -> Table:
    """One line a series whose epoch is known."""
    shares = _SHARES | (_DISK if lines["of_disk"].notna().any() else {})
    table = frame(f"roofline of {name}", "strategy", "variant", numbers=("GB/s", *shares.values()))
    table.add_column("bound by: fetch / epoch", overflow="fold")
    # Of what was measured on a GPU the model's seconds have a table of their own.
    series = pd.MultiIndex.from_frame(lines[["strategy", "variant"]])
    measured = lines["kind"] == "measured"
    told = series.isin(series[measured])
    for kind, some in lines[~told | measured].groupby("kind", sort=True):
        table.add_section()
        table.add_row(str(kind))
        for line in some.to_dict("records"):
            rate = three_digits(line["rate"] * 1e-9)
            if rate != MISSING:
                rate = f"{line['end']} {rate}{'*' * (line['over'] == 'epoch')}".strip()
            of = (MISSING if pd.isna(line[key]) else f"{line[key]:.0%}" for key in shares)
            bound = f"{line['fetch_bound']} / {line['bound']}"
            cells = map(Text, (line["strategy"], line["variant"], rate, *of, bound))
            table.add_row(*cells, style="italic" if kind == "modelled" else "")
    return table


def _errors(workload: str, profile: str, lines: pd.DataFrame) -> Table:
    """Measured epochs beside the model's, whose training is modelled or as it was measured."""
    unit, factor = time_unit(float(lines["measured_s"].max()))

    def seconds(name: str) -> Cell:
        def said(line: Line) -> str:
            shown = three_digits(line[name] * factor)
            return shown if shown == MISSING else f"{line['end']} {shown}".strip()

        return said

    def share(name: str) -> Cell:
        return lambda line: MISSING if pd.isna(line[name]) else f"{line[name]:+.0%}"

    cells: dict[str, Cell] = {
        f"measured, {unit}": lambda line: three_digits(line["measured_s"] * factor),
        "modelled": seconds("modelled_s"),
        "off by": share("error"),
        "training as measured": seconds("modelled_path_s"),
        "off by then": share("path_error"),
    }
    title = f"epochs of {workload}, and how far the model is off with {profile}"
    return of_series(title, lines, cells)
