"""What one field changes: a table and a picture for each axis of which a run has several values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd

from gatherbench.bench.read.axis import AXES, PATH, Axis, axis, axis_of
from gatherbench.bench.read.derive import ends_of
from gatherbench.bench.read.reference import load_reference
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.chart import Axis as Scale
from gatherbench.bench.show.chart import Chart, Line, Panel
from gatherbench.bench.show.charts import chart_of, panel_of, typical
from gatherbench.bench.show.figures.draw import drawn
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate, with_kind
from gatherbench.bench.show.view import View


def compared(of: Axis, frame: pd.DataFrame) -> Table:
    """A line for each value of each family, with the columns that have a value."""
    frame = with_kind(frame)
    status = frame["value"] + ": " + frame["reason"].str.partition(":")[0]
    frame["instead"] = status.where(frame["epoch"].isna(), "")
    frame["reason"] = frame["reason"].where(frame["epoch"].notna(), "")
    extra = [
        Column(one.name, one.label, one.unit, interval=bool(one.logs), short=one.short)
        for one in of.extra
        if frame[one.name].notna().any()
    ]
    columns = [
        Column("family", "workload"),
        *WHAT[1:],
        Column("value", of.field, short=of.field * (of.field != PATH)),
        Column("epoch", "epoch", "s", interval=True, ends="hidden", short="epoch"),
        Column("ratio", "epoch over the first", "×", interval=True, short="over first"),
        *extra,
        Column("reason", "why no ratio", below="no ratio of {series}: {value}"),
    ]
    return tabulate(
        f"axis-{of.field}",
        f"{of.title}: what differs in {of.field} alone. Medians over repeats and epochs; ratios to"
        " the first value with intervals of 95 %",
        columns,
        frame,
        title=of.title,
        note=of.note,
    )


def published(of: Axis) -> pd.DataFrame:
    """What others published of it, on their machines."""
    rows, (table, metric) = load_reference(), of.published
    rows = rows[(rows["table"] == table) & (rows["metric"] == metric)]
    return rows[
        ["dataset", "strategy", "variant", "workload", "machine", "value", "unit", "source"]
    ]


def _as_published(of: Axis) -> Table:
    columns = [
        Column("dataset", "dataset"),
        *WHAT[1:3],
        Column("workload", "workload", short="workload"),
        Column("machine", "machine", short="machine"),
        Column("value", of.published[1], units="unit", short=of.published[1]),
        Column("source", "source"),
    ]
    caption = f"{of.title}: published by others, on their machines"
    return tabulate(f"published-{of.field}", caption, columns, published(of), title="Published")


def chart(run: Run, field: str, column: str = "epoch") -> Chart:
    """A bar for each value: of its epoch, or of another column of :func:`axis`.

    Beside epochs stand those that others published.
    """
    of, frame = axis_of(field), axis(run, field)
    label, unit = (
        ("epoch", "s")
        if column == "epoch"
        else next((one.label, one.unit or "1") for one in of.extra if one.name == column)
    )
    frame = frame.reindex(columns=[*dict.fromkeys([*frame.columns, *ends_of(column)])])
    panels = []
    for family, mine in frame.groupby("family", sort=False):
        scale = Scale.of(unit, mine[column].dropna(), mine[f"{column}_high"].dropna())
        lines = [_line(run, of, scale, column, row) for row in mine.to_dict("records")]
        panels.append(Panel(str(family), lines, scale))
    ends = "whiskers: quartiles" if column == "epoch" else "whiskers, where there are: 95 %"
    return chart_of(
        run,
        [*panels, *(_published_epochs(run, of) if column == "epoch" else ())],
        ident=f"axis-{field}-{column}",
        title=f"{of.title}: {label}",
        reading=f"Medians over repeats and epochs; {ends}.",
        quantity=label,
    )


def _line(run: Run, of: Axis, scale: Scale, column: str, row: Mapping[Any, Any]) -> Line:
    words = [row["value"] or "plain"] * (of.field != PATH)
    detail = ", ".join([*words, *[row["variant"]] * (row["variant"] != "default")])
    if pd.isna(row[column]):
        return Line(row["strategy"], detail, missing=row["reason"] or "nobody counts it")
    return typical(run, scale, row, column, "", detail)


def _published_epochs(run: Run, of: Axis) -> Iterator[Panel]:
    rows = published(of).query("unit == 's'").sort_values("value")
    for (dataset, machine), mine in rows.groupby(["dataset", "machine"]):
        bars = mine[["strategy", "variant", "value"]].itertuples(index=False)
        lines = [Line(s, v, "published", {s: t}) for s, v, t in bars]
        yield panel_of(f"published: {dataset}, machine {machine}", "s", lines)


def view_of(of: Axis) -> View:
    """The view of an axis."""
    return View(
        f"axis-{of.field}",
        of.title,
        lambda run: len(axis(run, of.field)) > 0,
        lambda run: [compared(of, axis(run, of.field)), _as_published(of)],
        lambda run: drawn(run, **{f"axis_{of.field}": partial(chart, field=of.field)}),
    )


#: One for each axis.
AXIS_VIEWS = tuple(map(view_of, AXES))
