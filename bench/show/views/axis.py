"""Show the effect of one field: a table and a picture for each axis with several values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.axis import AXES, PATH, Axis, axis
from gatherbench.bench.read.tables import Run, load_reference
from gatherbench.bench.show.charts import chart_of, drawn
from gatherbench.bench.show.drawing import Chart
from gatherbench.bench.show.table import WHAT, Column, Table
from gatherbench.bench.show.view import View
from gatherbench.strategies.registry import in_words

#: The heading of ratios to the value that stands first.
_OVER_FIRST = "vs first value"


def compared(shown: Axis, frame: pd.DataFrame) -> Table:
    """Make a line for each value of each family, with the columns that have a value."""
    status = frame["reason"].str.partition(":")[0].where(frame["epoch"].isna(), "")
    frame = frame.assign(instead=status, reason=frame["reason"].where(status == "", ""))
    extra = [
        Column(field.name, field.label, field.unit, interval=bool(field.logs),
               short=f"{field.short} {_OVER_FIRST}" if field.logs and field.unit == "×"
               else field.short)
        for field in shown.extra
        if frame[field.name].notna().any()
    ]  # fmt: skip
    columns = [
        Column("family", "workload"),
        *WHAT[1:],
        Column("value", shown.field, short=shown.field * (shown.field != PATH)),
        Column("epoch", "epoch", "s", interval=True, brief=True, short="epoch"),
        Column("ratio", f"epoch {_OVER_FIRST}", "×", interval=True, short=f"epoch {_OVER_FIRST}"),
        *extra,
        Column("reason", "why no ratio"),
    ]
    caption = (
        f"{shown.title}: what differs in {shown.field} alone. Medians over repeats and epochs;"
        " ratios to the first value with intervals of 95 %"
    )
    return Table(f"axis-{shown.field}", caption, columns, frame, shown.title, shown.note)


def published(shown: Axis) -> pd.DataFrame:
    """Return the figures that others published for the axis, on their machines."""
    rows, (table, metric) = load_reference(), shown.published
    rows = rows[(rows["table"] == table) & (rows["metric"] == metric)]
    return rows[
        ["dataset", "strategy", "variant", "workload", "machine", "value", "unit", "source"]
    ]


def _as_published(shown: Axis) -> Table:
    columns = [
        Column("dataset", "dataset"),
        *WHAT[1:3],
        Column("workload", "workload", short="workload"),
        Column("machine", "machine", short="machine"),
        Column("value", shown.published[1], units="unit", short=shown.published[1]),
        Column("source", "source"),
    ]
    caption = f"{shown.title}: published by others, on their machines"
    return Table(f"published-{shown.field}", caption, columns, published(shown), "Published")


def chart(run: Run, field: str, column: str = "epoch") -> Chart:
    """Draw a bar for each value: its epoch, or another column of :func:`axis`.

    Published epochs are added to epochs.
    """
    shown, rows = AXES[field], axis(run, field)
    units = {"epoch": ("epoch", "s")} | {e.name: (e.label, e.unit or "1") for e in shown.extra}
    label, unit = units[column]
    frame = pd.DataFrame(
        {
            "panel": rows["family"],
            "name": [_named(shown, row) for row in rows.to_dict("records")],
            "strategy": rows["strategy"],
            "value": rows[column],
            "low": rows.get(f"{column}_low", math.nan),
            "high": rows.get(f"{column}_high", math.nan),
            "reason": rows["reason"].where(rows["reason"] != "", "nobody counts it"),
        }
    )
    frame["reason"] = frame["reason"].where(frame["value"].isna(), "")
    if column == "epoch":
        published_rows = [frame.assign(look="measured"), _published_epochs(shown)]
        frame = pd.concat(published_rows).fillna({"reason": ""})
    ends = "whiskers: quartiles" if column == "epoch" else "whiskers, where there are: 95 %"
    reading, title = f"Medians over repeats and epochs; {ends}.", f"{shown.title}: {label}"
    return chart_of(run, frame, title=title, reading=reading, quantity=label, unit=unit)


def _named(shown: Axis, row: Mapping[Any, Any]) -> str:
    """Name a path, with the value of the field if the path does not include it."""
    path = in_words(row["strategy"], row["variant"])
    value = row["value"] or "plain"
    return (
        f"{path}, {shown.field} {value}" if shown.field in Workload.__dataclass_fields__ else path
    )


def _published_epochs(shown: Axis) -> pd.DataFrame:
    rows = published(shown).query("unit == 's'").sort_values("value", ignore_index=True)
    return rows[["strategy", "variant", "value"]].assign(
        panel="published: " + rows["dataset"] + ", machine " + rows["machine"],
        name=rows["strategy"] + " (" + rows["variant"] + ")",
        look="published",
    )


def _no_ratio(shown: Axis, run: Run) -> str:
    rows = axis(run, shown.field).query("epoch.notna() and reason != ''")
    lines = []
    for why, group in rows.groupby("reason", sort=False):
        paths = dict.fromkeys(map(in_words, group["strategy"], group["variant"]))
        lines.append(f"no ratio of {', '.join(paths)}: {why}")
    return "\n".join(lines)


def view_of(shown: Axis) -> View:
    """Make the view of an axis."""
    return View(
        f"axis-{shown.field}",
        shown.title,
        lambda run: len(axis(run, shown.field)) > 0,
        lambda run: [compared(shown, axis(run, shown.field)), _as_published(shown)],
        lambda run: drawn(run, **{f"axis_{shown.field}": partial(chart, field=shown.field)}),
        partial(_no_ratio, shown),
    )


#: A view for each axis.
AXIS_VIEWS = tuple(map(view_of, AXES.values()))
