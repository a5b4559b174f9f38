"""A chart as a picture, by matplotlib: two columns of panels, a line for each series."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import short
from gatherbench.bench.show.chart import Chart, Line, Panel
from gatherbench.bench.show.figures.paper import (
    AXIS,
    MARGIN,
    bars_explained,
    paper,
    titled,
)
from gatherbench.bench.show.looks import FAINT, KINDS, MODEL_HATCH, RC, ink

#: Inches: a line holds two rows of label; a strip is a line with curves over time.
LINE, STRIP, LABELS, COLUMN = 0.36, 1.06, 2.1, {1: 6.3, 2: 4.4}
#: A "$" in somebody's words begins no formula.
_PLAIN = RC | {"text.parse_math": False}
#: Height of a bar, as a share of the line.
BAR = 0.68
#: Characters of a strategy's or variant's name, and of a note, that fit beside a bar.
LONGEST, LONGEST_NOTE = 18, 26
NOTHING = Line("", "", missing="no case of this workload")
DASHES: dict[str, Any] = {
    **{"one": ":", "raw_link": ":", "sm_read": "--", "copy_engine": "-"},
    "published": (0, (6, 2, 1, 2)),
    "in_memory": "--",
    "floor": ":",
}


def drawn(run: Run, **charts: Callable[[Run], Chart]) -> dict[str, Figure]:
    """These charts by the names of their files; one without a panel is left out."""
    made = {name: make(run) for name, make in charts.items()}
    return {name: draw(chart) for name, chart in made.items() if chart.panels}


def draw(
    chart: Chart,
    *,
    columns: int = 2,
    pitch: float | None = None,
    labels: float = LABELS,
    column: float | None = None,
) -> Figure:
    """Draw a chart; panels of one title stand below each other, the titles side by side.

    Args:
        columns: how many titles stand side by side, at most.
        pitch: inches of a line, if not as usual.
        labels, column: inches of the names of the lines, and of a column of panels.
    """
    if chart.absent and chart.over_time:
        return _reasons(chart)
    pitch = pitch or (STRIP if chart.over_time else LINE)
    cells = [list(one) for _, one in itertools.groupby(chart.panels, key=lambda one: one.title)]
    columns = min(len(cells), columns)
    column = column or COLUMN[min(columns, 2)]
    # Where all have the same lines, those of the first column are named alone.
    differ = len({tuple(_label(line) for one in cell for line in one.lines) for cell in cells}) > 1
    width = columns * column + labels * (columns if differ else 1)
    tall = [[pitch * max(len(one.lines), 1) + AXIS for one in cell] for cell in cells]
    rows = [max(map(sum, tall[first : first + columns])) for first in range(0, len(cells), columns)]
    reading = f"{chart.reading} {chart.foot}".strip()
    with mpl.rc_context(_PLAIN | ({"axes.grid.axis": "both"} if chart.over_time else {})):
        figure = paper(
            chart.title, width, sum(rows), warnings=chart.warnings, legend=_legend(chart),
            foot=reading,
        )  # fmt: skip
        grid = figure.add_gridspec(len(rows), columns, height_ratios=rows)
        for number, (cell, heights) in enumerate(zip(cells, tall, strict=True)):
            row, place = divmod(number, columns)
            rest = max(rows[row] - sum(heights), 1e-3)  # below the shorter of two cells
            # A strip is a row of the cell's own grid: of grids three deep the solver takes minutes.
            parts = [max(1, len(one.lines)) if one.values else 1 for one in cell]
            ratios = [high / n for high, n in zip(heights, parts, strict=True) for _ in range(n)]
            inner = grid[row, place].subgridspec(len(ratios) + 1, 1, height_ratios=[*ratios, rest])
            places = iter(inner)
            for at, panel in enumerate(cell):
                names = [_label(line) if differ or not place else "" for line in panel.lines]
                title = "" if at else titled(short(panel.title, 400), column - 0.3)
                axes = [figure.add_subplot(next(places)) for _ in range(parts[at])]
                if panel.values:
                    _strips(axes, chart, panel, names, title, column)
                else:
                    _bars(axes[0], chart, panel, names, title, column)
    return figure


def _legend(chart: Chart) -> list[Artist]:
    """What explains colours, lines across the panels, and the looks of bars."""
    handles: list[Artist] = []
    for label, colour in chart.legend.values():
        if chart.over_time:
            handles.append(Line2D([], [], color=ink(colour), linewidth=3, label=label))
        else:
            handles.append(Patch(facecolor=ink(colour), label=label))
    for kind, label in chart.marks.items():
        handles.append(Line2D([], [], color="black", linestyle=DASHES[kind], label=label))
    profiles = {panel.profile for panel in chart.panels if panel.profile}
    looks = {line.look for panel in chart.panels for line in panel.lines}
    if profiles:
        label = f"modelled for {', '.join(sorted(profiles))}, not measured"
        handles.append(Patch(fc="white", ec="black", hatch=MODEL_HATCH, label=label))
    elif looks - {"measured"}:
        handles += bars_explained(*looks)
    return handles


def _label(line: Line) -> str:
    name, detail = (_shortened(text) for text in (line.name, line.detail))
    name = line.name if line.detail == "" else name
    label = name if line.detail in ("default", "") else f"{name}\n{detail}"
    return f"{label} (modelled)" if line.modelled and line.detail else label


def _shortened(text: str) -> str:
    """Without its middle where it is longer than the margin of a figure is wide."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 + 1 :]}"


def _bars(
    axes: Axes, chart: Chart, panel: Panel, names: Sequence[str], title: str, wide: float
) -> None:
    axes.set_title(title)
    unit, factor = panel.axis.shown
    kind = "modelled " if panel.profile else ""
    what = panel.quantity or chart.quantity
    axes.set_xlabel(titled(f"{kind}{what}" + (f" ({unit})" if unit else ""), wide - 0.3))
    axes.set_ylim(max(len(panel.lines), 1) - 0.5, -0.5)
    axes.set_yticks(range(len(panel.lines)), names)
    texts = {}
    for y, line in enumerate(panel.lines):
        if line.missing:
            _missing(axes, y, line.missing, int(wide * 14))
            continue
        for part, begin, length in line.pieces():
            look = KINDS[line.look].bar(chart.colour(part))
            axes.barh(y, length * factor, BAR, begin * factor, **look)
        if line.ends:
            low, high = (end * factor for end in line.ends)
            middle, arm = (low + high) / 2, (high - low) / 2
            axes.errorbar(middle, y, xerr=arm, ecolor="black", elinewidth=1, capsize=2.5)
            if line.cut:
                axes.plot(high, y, ">", color="black", markersize=4)
        texts[y] = line.text + f" ({line.spread})" * line.cut + _note(line)
    if not texts:
        axes.set_xticks([])
    longest = max((len(one) for text in texts.values() for one in text.split("\n")), default=0)
    top, bottom = panel.axis.top * factor, panel.axis.bottom * factor
    room = min(0.6, (0.075 * longest + 0.1) / wide)
    axes.set_xlim(1.03 * bottom, bottom + (top - bottom) / (1 - room))
    paper_white: Any = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    crossed = any(mark != "one" for _, mark in panel.marks)
    for y, text in texts.items():
        at = panel.lines[y].end * factor
        axes.annotate(
            text, (at, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8,
            bbox=paper_white if crossed else None,
        )  # fmt: skip
    if bottom < 0:
        axes.axvline(0, color="black", linewidth=0.9)
    for value, mark in panel.marks:
        axes.axvline(value * factor, color="black", linewidth=0.9, linestyle=DASHES[mark])


def _note(line: Line) -> str:
    return f"\n{textwrap.shorten(line.note, LONGEST_NOTE, placeholder=' …')}" if line.note else ""


def _missing(axes: Axes, y: float, why: str, room: int) -> None:
    """Write the reason into the line, which has room for so many characters in two rows."""
    axes.text(
        0.01,
        y,
        "\n".join(textwrap.wrap(why, room, max_lines=2, placeholder=" …")),
        transform=axes.get_yaxis_transform(),
        va="center",
        fontsize=7.5,
        style="italic",
        color=FAINT,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )


def _strips(
    each: Sequence[Axes], chart: Chart, panel: Panel, names: Sequence[str], title: str, wide: float
) -> None:
    """Axes for each line: its curves as steps, each value up to its time."""
    each[0].set_title(title, pad=16)
    for axes in each[:-1]:
        axes.tick_params(labelbottom=False)
    each[-1].set_xlabel(f"{chart.time} (s)")
    lines = zip(panel.lines, names, strict=True) if panel.lines else [(NOTHING, "")]
    for axes, (line, name) in zip(each, lines, strict=True):
        _strip(axes, chart, panel, line, name, wide)


def _strip(axes: Axes, chart: Chart, panel: Panel, line: Line, name: str, wide: float) -> None:
    values = panel.values or panel.axis
    unit, factor = values.shown
    axes.set(xlim=(0, panel.axis.top), ylim=(0, 1.06 * values.top * factor))
    if name:
        axes.set_ylabel(f"{name}\n{unit}", rotation=0, ha="right", va="center", fontsize=8)
    if line.missing:
        axes.set_yticks([])
        why = textwrap.fill(line.missing, int(wide * 14), max_lines=3, placeholder=" …")
        axes.text(
            0.01, 0.5, why, transform=axes.transAxes, va="center", fontsize=7.5,
            style="italic", color=FAINT,
        )  # fmt: skip
        return
    for place, (part, points) in enumerate(line.curves.items()):
        axes.stairs(
            [value * factor for _, value in points],
            [0.0, *(time for time, _ in points)],
            color=ink(chart.colour(part)),
            fill=place == 0,
            alpha=0.85,
            linewidth=0.9,
        )
    axes.annotate(
        line.note or line.text, (1, 1.02), xycoords="axes fraction", ha="right", va="bottom",
        fontsize=7.5,
    )  # fmt: skip
    if panel.roof is not None:
        axes.axhline(panel.roof * factor, color=FAINT, linestyle=":", linewidth=0.9)


def _reasons(chart: Chart) -> Figure:
    """In place of panels that would all be empty: why they are."""
    width = LABELS + COLUMN[1]
    lines = [
        line
        for why in chart.absent.splitlines()
        for line in textwrap.wrap(why, int(width * 13), subsequent_indent="    ")
    ]
    with mpl.rc_context(_PLAIN):
        room = 0.19 * (len(lines) + 1)
        figure = paper(chart.title, width, room, warnings=chart.warnings, foot=chart.foot)
        _, bottom, _, height = figure.get_layout_engine().get()["rect"]  # type: ignore[union-attr]
        text, at = "\n".join(lines), (MARGIN / width, bottom + height)
        figure.text(*at, text, va="top", style="italic", fontsize=9)
    return figure
