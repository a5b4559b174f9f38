"""Bars of the notebooks' tables: published, modelled and measured values beside each other.

Where a kind has no value its place says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gatherbench.bench.read.derive import sort_series
from gatherbench.bench.read.units import quantity
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.charts import whiskered
from gatherbench.bench.show.figures.draw import draw
from gatherbench.bench.show.looks import KINDS, STAGE_COLOURS


def epoch_bars(
    table: pd.DataFrame,
    absent: Mapping[str, str],
    *,
    title: str,
    foot: str,
    groups: Sequence[str] = (),
    kinds: Sequence[str] = tuple(KINDS),
) -> Figure:
    """Draw ``table``: ``group``, ``kind``, ``strategy``, ``median``, ``low``, ``high``; seconds.

    A panel for each group (a link, a graph), in it for each strategy a bar of each kind. ``low``
    and ``high`` may be missing (NaN). Of several rows for one bar the fastest is drawn: a strategy
    is shown by its best variant, named in the column ``note`` if there is one.

    Args:
        absent: for each kind what its place says where it has no value.
        groups: panels, in order; those of the table if not given.
        kinds: which to give a place.
    """
    best = table.sort_values("median", kind="stable").drop_duplicates(["group", "kind", "strategy"])
    names = best[["strategy"]].drop_duplicates().assign(variant="")
    strategies = list(sort_series(names)["strategy"])
    panels = []
    for group in groups or list(dict.fromkeys(table["group"])):
        here = best[best["group"] == group]
        rows: dict[tuple[str, str], Any] = {
            (str(r["kind"]), str(r["strategy"])): r for r in here.to_dict("records")
        }
        axis = Axis.of("s", here["median"], here["high"])
        lines: list[Line] = []
        for strategy in strategies:
            if lines:
                lines.append(Line("", ""))  # room between strategies
            for place, kind in enumerate(kinds):
                name = strategy if not place else ""
                row = rows.get((kind, strategy))
                if row is None:
                    lines.append(Line(name, "", kind, missing=absent.get(kind, f"not {kind}")))
                    continue
                value, low, high = (float(row[name]) for name in ("median", "low", "high"))
                note = row.get("note")
                text = axis.plain(value) + (f"  {note}" if isinstance(note, str) and note else "")
                ends, parts = (low, high), {strategy: value}
                lines.append(whiskered(Line(name, "", kind, parts, text=text), axis, ends))
        panels.append(Panel(group, lines, axis))
    chart = Chart("epochs", title, "", "time per epoch", panels, foot=foot)
    side_by_side = max(1, len(panels))
    column = max(7.5 - 1.45, 3.6 * side_by_side) / side_by_side
    return draw(chart, columns=side_by_side, column=column)


def listed_epochs(table: pd.DataFrame, missing: str, *, title: str, foot: str) -> Figure:
    """Draw ``table``: a line for each epoch, by ``kind``, ``strategy`` and ``note``.

    Args:
        missing: what stands in the place of measured epochs where there is none.
    """
    axis, lines = Axis.of("s", table["median"], table["high"]), []
    for row in table.sort_values(["kind", "median"], ascending=[False, True]).to_dict("records"):
        name, value = str(row["strategy"]), float(row["median"])
        text = f"{axis.plain(value)}  {row['note']}"
        line = Line(name, "", row["kind"], {name: value}, text=text)
        lines.append(whiskered(line, axis, (float(row["low"]), float(row["high"]))))
    if not (table["kind"] == "measured").any():
        lines.append(Line("gatherbench", "", "measured", missing=missing))
    chart = Chart("epochs", title, "", "time per epoch", [Panel("", lines, axis)], foot=foot)
    return draw(chart, column=9.0)


def stage_shares(
    table: pd.DataFrame, absent: Sequence[tuple[str, str]], *, title: str, foot: str
) -> Figure:
    """Draw ``table``: ``kind``, ``label``, and the seconds of each stage, as shares of the epoch.

    Epochs on different graphs and machines are compared by shares; the seconds of the whole epoch
    stand beside each bar.

    Args:
        table: one row for each bar; the bars stand in the order of the kinds.
        absent: label and reason of each line that has no bar, below the others.
    """
    lines = []
    for row in (r for kind in KINDS for r in table[table["kind"] == kind].to_dict("records")):
        whole = sum(float(row[stage]) for stage in STAGE_COLOURS)
        shares = {stage: float(row[stage]) / whole for stage in STAGE_COLOURS}
        text = quantity(whole, "s")
        lines.append(Line(f"{row['label']} ({row['kind']})", "", row["kind"], shares, text=text))
    lines += [Line(label, "", missing=reason) for label, reason in absent]
    legend = {stage: (stage, colour) for stage, colour in STAGE_COLOURS.items()}
    panels = [Panel("", lines, Axis("share", 1.0))]
    what = "share of the epoch; at the right the whole epoch"
    chart = Chart("shares", title, "", what, panels, legend, foot=foot)
    return draw(chart, column=9.0)


def changes(table: pd.DataFrame, absent: Mapping[str, str], *, title: str, foot: str) -> Figure:
    """Draw changes against the conventional path, as shares: -0.17 is 17 % less.

    Args:
        table: ``quantity``, ``kind``, ``strategy``, ``label``, ``median``, ``low``, ``high``, and
            ``note`` where more is to be said of the kind. A bar reaches from 0 to the median with
            whiskers from ``low`` to ``high``; a range without a median (NaN) is a box.
        absent: the quantities in order, and for each how to measure it, written where nothing was
            measured.
    """
    lines = []
    for name, remedy in absent.items():
        mine = table[table["quantity"] == name]
        lines += [_change(row) for row in mine.to_dict("records")]
        if not (mine["kind"] == "measured").any():
            lines.append(Line(f"{name}\n(measured)", "", missing=remedy))
    ends = [0.0, *table["low"], *table["high"]]
    # Beside the longest bar stands its number: the axis goes as far beyond 0.
    axis = Axis("share", max(ends) or -0.05 * min(ends) or 1.0, min(ends))
    what = "change against CPU gather"
    chart = Chart("changes", title, "", what, [Panel("", lines, axis)], foot=foot)
    return draw(chart, column=9.0)


def _change(row: Any) -> Line:
    middle, low, high = (float(row[name]) for name in ("median", "low", "high"))
    kind = f"{row['kind']}, {row['note']}" if row.get("note") else str(row["kind"])
    name, strategy = f"{row['quantity']}: {row['label']}\n({kind})", str(row["strategy"])
    ranged = f"{100 * low:+.1f} to {100 * high:+.1f} %"
    if math.isnan(middle):
        return Line(name, "", row["kind"], {strategy: high - low}, text=ranged, start=low)
    text = f"{100 * middle:+.1f} %"
    if low == high:
        return Line(name, "", row["kind"], {strategy: middle}, text=text)
    return Line(name, "", row["kind"], {strategy: middle}, (low, high), f"{text} ({ranged})")
