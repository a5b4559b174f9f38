"""A chart as a picture, by matplotlib: columns of panels, a line for each series.

Names stand above their bars, so that a panel is no wider than a telephone. All places are known in
inches beforehand: nothing has to be tried out.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
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
from gatherbench.bench.show.figures.paper import Sheet, bars_explained, sheet
from gatherbench.bench.show.looks import FAINT, KINDS, MODEL_HATCH, RC, ink
from gatherbench.strategies.registry import in_words

#: Inches: the width of a panel, between two; rows of names and of bars; a strip of curves.
COLUMN, GAP, NAME, BAR, STRIP = 4.3, 0.3, 0.165, 0.2, 0.66
#: Inches: a line of a panel's title, and ticks with their label below; left of a strip its
#: ticks, above it a space.
TITLED, AXIS, TICKS, SPACE = 0.19, 0.52, 0.5, 0.06
#: A "$" in somebody's words begins no formula.
_PLAIN = RC | {"text.parse_math": False}
#: Characters in an inch of a bar's name, of words in italics and of a title.
NAMES, WORDS, TITLES = 14.5, 17.5, 13.5
NOTHING = Line("", "", missing="no case of this workload")
DASHES: dict[str, Any] = {
    **{"one": ":", "raw_link": ":", "sm_read": "--", "copy_engine": "-"},
    "published": (0, (6, 2, 1, 2)),
    "in_memory": "--",
    "limit": ":",
}


def drawn(run: Run, **charts: Callable[[Run], Chart]) -> dict[str, Figure]:
    """These charts by the names of their files; one without a panel is left out."""
    made = {name: make(run) for name, make in charts.items()}
    return {name: draw(chart) for name, chart in made.items() if chart.panels}


@dataclass(frozen=True, slots=True)
class _Placed:
    """A panel with the lines of its title, how tall it is, and its title and axis included."""

    panel: Panel
    title: list[str]
    tall: float

    @property
    def whole(self) -> float:
        return self.tall + AXIS + TITLED * len(self.title)


def draw(chart: Chart, *, columns: int = 3, column: float = COLUMN) -> Figure:
    """Draw a chart; panels of one title stand below each other, the titles side by side.

    Args:
        columns: how many titles stand side by side, at most.
        column: inches of a column of panels.
    """
    if chart.absent and chart.over_time:
        return _reasons(chart)
    cells = [
        [_placed(panel, not at, column) for at, panel in enumerate(same)]
        for _, same in itertools.groupby(chart.panels, key=lambda one: one.title)
    ]
    columns = 2 if len(cells) == 4 else max(1, min(len(cells), columns))
    rows = []
    for first in range(0, len(cells), columns):
        abreast = cells[first : first + columns]
        most = max(len(cell[0].title) for cell in abreast)
        for cell in abreast:
            cell[0].title[:0] = [""] * (most - len(cell[0].title))
        rows.append(max(sum(one.whole for one in cell) for cell in abreast))
    with mpl.rc_context(_PLAIN | ({"axes.grid.axis": "both"} if chart.over_time else {})):
        paper = sheet(
            chart.title, columns * column + (columns - 1) * GAP, sum(rows),
            warnings=chart.warnings, legend=_legend(chart), foot=chart.reading, source=chart.foot,
        )  # fmt: skip
        for number, cell in enumerate(cells):
            row, place = divmod(number, columns)
            left, top = place * (column + GAP), sum(rows[:row])
            for one in cell:
                top += TITLED * len(one.title)
                where = (left, top, column - GAP / 3, one.tall)
                (_strips if one.panel.values else _bars)(paper, where, chart, one)
                top += one.tall + AXIS
    return paper.figure


def _placed(panel: Panel, first: bool, column: float) -> _Placed:
    title = short(panel.title, 200) * first
    if panel.profile:
        title += f"{': ' * first}modelled for {short(panel.profile)}, not measured"
    lines = textwrap.wrap(title, int(TITLES * column), break_on_hyphens=False)
    if panel.values:
        return _Placed(panel, lines, (SPACE + NAME + STRIP) * max(1, len(panel.lines)))
    return _Placed(panel, lines, sum(map(_tall, panel.lines)) or BAR)


def _tall(line: Line) -> float:
    """Inches of a line: of its name, and of its bar or the reason; a little of a space."""
    there = bool(line.parts or line.missing)
    return NAME * bool(line.name) + (BAR if there else BAR / 3)


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
    looks = {line.look for panel in chart.panels for line in panel.lines}
    if any(panel.profile for panel in chart.panels):
        label = "modelled, not measured"
        handles.append(Patch(fc="white", ec="black", hatch=MODEL_HATCH, label=label))
    elif looks - {"measured"}:
        handles += bars_explained(*looks)
    return handles


def _bars(
    paper: Sheet, where: tuple[float, float, float, float], chart: Chart, one: _Placed
) -> None:
    panel, wide = one.panel, where[2]
    axes = paper.axes(*where)
    axes.set_title("\n".join(one.title))
    unit, factor = panel.axis.shown
    what = f"{'modelled ' * bool(panel.profile)}{panel.quantity or chart.quantity}"
    axes.set_xlabel(f"{what} ({unit})" if unit else what)
    axes.set_ylim(one.tall, 0)
    axes.set_yticks([])
    top, texts = 0.0, {}
    for line in panel.lines or [NOTHING]:
        height = _tall(line)
        y = top + height - BAR / 2
        _name(axes, line, top + NAME / 2, wide)
        top += height
        if line.missing:
            _words(axes, y, textwrap.shorten(line.missing, int(wide * WORDS), placeholder=" …"))
        elif line.parts:
            _bar(axes, chart, line, y, factor)
            texts[y] = line.end * factor, line.text + f" ({line.spread})" * line.cut
    if not texts:
        axes.set_xticks([])
    longest = max((len(text) for _, text in texts.values()), default=0)
    high, low = panel.axis.top * factor, panel.axis.bottom * factor
    room = min(0.6, (0.075 * longest + 0.1) / wide)
    axes.set_xlim(1.03 * low, low + (high - low) / (1 - room))
    crossed = any(mark != "one" for _, mark in panel.marks)
    for y, (at, text) in texts.items():
        behind: Any = {"facecolor": "white", "edgecolor": "none", "pad": 0.8} if crossed else None
        axes.annotate(
            text, (at, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8,
            bbox=behind,
        )  # fmt: skip
    if low < 0:
        axes.axvline(0, color="black", linewidth=0.9)
    for value, mark in panel.marks:
        axes.axvline(value * factor, color="black", linewidth=0.9, linestyle=DASHES[mark])


def _name(axes: Axes, line: Line, y: float, wide: float) -> None:
    """The name of a line, at the right what else is to be said of it."""
    at: Any = {"transform": axes.get_yaxis_transform(), "va": "center_baseline", "zorder": 4}
    behind: Any = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    name = short(in_words(line.name, line.detail), int(wide * NAMES))
    axes.text(0.006, y, name, fontsize=8, bbox=behind if name else None, **at)
    note = textwrap.shorten(line.note, max(8, int(wide * NAMES) - len(name)), placeholder=" …")
    if note:
        axes.text(1, y, note, ha="right", fontsize=7, color=FAINT, bbox=behind, **at)


def _words(axes: Axes, y: float, text: str) -> None:
    """Why there is no bar, in its place."""
    axes.text(
        0.006, y, text, transform=axes.get_yaxis_transform(), va="center", fontsize=7.5,
        style="italic", color=FAINT, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )  # fmt: skip


def _bar(axes: Axes, chart: Chart, line: Line, y: float, factor: float) -> None:
    for part, begin, length in line.pieces():
        look = KINDS[line.look].bar(chart.colour(part))
        axes.barh(y, length * factor, 0.75 * BAR, begin * factor, **look)
    if line.ends:
        low, high = (end * factor for end in line.ends)
        middle, arm = (low + high) / 2, (high - low) / 2
        axes.errorbar(middle, y, xerr=arm, ecolor="black", elinewidth=1, capsize=2.5)
        if line.cut:
            axes.plot(high, y, ">", color="black", markersize=4)


def _strips(
    paper: Sheet, where: tuple[float, float, float, float], chart: Chart, one: _Placed
) -> None:
    """Axes for each line: its curves as steps, each value up to its time."""
    left, top, wide, _ = where
    panel = one.panel
    lines = panel.lines or [NOTHING]
    for place, line in enumerate(lines):
        at = top + place * (SPACE + NAME + STRIP) + SPACE + NAME
        axes = paper.axes(left + TICKS, at, wide - TICKS, STRIP)
        if not place:
            axes.set_title("\n".join(one.title), pad=16)
        if place < len(lines) - 1:
            axes.tick_params(bottom=False, labelbottom=False)
        else:
            axes.set_xlabel(f"{chart.time} (s)")
        _strip(axes, chart, panel, line, wide - TICKS)


def _strip(axes: Axes, chart: Chart, panel: Panel, line: Line, wide: float) -> None:
    values = panel.values or panel.axis
    unit, factor = values.shown
    axes.set(xlim=(0, panel.axis.top), ylim=(0, 1.06 * values.top * factor))
    place: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
    name = short(in_words(line.name, line.detail), int(wide * NAMES))
    axes.annotate(name, (0, 1), xytext=(0, 2), fontsize=8, **place)
    if line.missing:
        axes.set_yticks([])
        why = textwrap.fill(line.missing, int(wide * WORDS), max_lines=3, placeholder=" …")
        axes.text(
            0.01, 0.5, why, transform=axes.transAxes, va="center", fontsize=7.5,
            style="italic", color=FAINT,
        )  # fmt: skip
        return
    axes.set_ylabel(unit, fontsize=8)
    for first, (part, points) in enumerate(line.curves.items()):
        axes.stairs(
            [value * factor for _, value in points],
            [0.0, *(time for time, _ in points)],
            color=ink(chart.colour(part)),
            fill=first == 0,
            alpha=0.85,
            linewidth=0.9,
        )
    behind: Any = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
    axes.text(
        0.99, 0.95, line.note or line.text, transform=axes.transAxes, ha="right", va="top",
        fontsize=7, bbox=behind,
    )  # fmt: skip
    if panel.roof is not None:
        axes.axhline(panel.roof * factor, color=FAINT, linestyle=":", linewidth=0.9)


def _reasons(chart: Chart) -> Figure:
    """In place of panels that would all be empty: why they are."""
    width = 1.5 * COLUMN
    lines = [
        line
        for why in chart.absent.splitlines()
        for line in textwrap.wrap(why, int(width * 13), subsequent_indent="    ")
    ]
    with mpl.rc_context(_PLAIN):
        room = 0.19 * (len(lines) + 1)
        paper = sheet(chart.title, width, room, warnings=chart.warnings, source=chart.foot)
        paper.write("\n".join(lines), 0.0, style="italic", fontsize=9)
    return paper.figure
