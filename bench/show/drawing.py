"""Draw the lines of a frame with matplotlib: bars, stacked bars, or curves over time.

A line of a :class:`Chart`'s frame is a bar, or the reason why there is none. Names stand above
their bars, so that a panel is no wider than a telephone. Every place is in inches and known in
advance: text keeps its size whatever the number of panels, without a trial layout.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gatherbench.bench.read.units import number, quantity, scale, short
from gatherbench.bench.show.looks import FAINT, KINDS, PALETTE, RC, colour_of, ink

#: The longest axis, over its longest bar: without it a whisker of two repeats would fill the panel.
LONGEST_WHISKER = 4.0
#: Share of an axis below which a value has its own unit.
TINY = 1e-3
#: Share of a roof below which curves have their own scale.
LITTLE = 0.1
#: Inches: the margin; a line of the title, of a warning, of the legend and of the footer.
MARGIN, TITLE, WARNING, LEGEND, LINE = 0.16, 0.25, 0.22, 0.22, 0.142
#: Inches: the width of a panel, and between two; rows of names and of bars; a strip of curves.
COLUMN, GAP, NAME, BAR, STRIP = 4.3, 0.3, 0.165, 0.2, 0.66
#: Inches: a line of a panel's title, and ticks with their label below; the ticks to the left of a
#: strip, and the space above it.
TITLED, AXIS, TICKS, SPACE = 0.19, 0.52, 0.5, 0.06
#: Characters per inch of a bar's name, of words in italics and of a title.
NAMES, WORDS, TITLES = 14.5, 17.5, 13.5
#: The ``gid`` of a figure's texts that the page shows separately.
APART = ("title", "warning", "foot", "source")
DASHES: Any = {"one": ":", "raw_link": ":", "sm_read": "--", "copy_engine": "-", "limit": ":"}
#: Default values for the columns of a chart's frame.
EMPTY: Mapping[str, Any] = {
    **dict.fromkeys(("panel", "strategy", "variant", "reason", "note", "suffix", "profile"), ""),
    **dict.fromkeys(("value", "low", "high"), math.nan),
    "look": "measured",
}
_BEHIND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from ``bottom`` to ``top`` in ``unit``; numbers have a unit that suits ``top``."""

    unit: str
    top: float
    bottom: float = 0.0

    @classmethod
    def of(cls, unit: str, values: Iterable[float], ends: Iterable[float] = ()) -> Axis:
        """Make the axis of bars with these values; far longer whiskers (to these ends) are cut."""
        known = [*values]
        low = min((value for value in known if value < 0), default=0.0)
        least = -0.05 * low or 1.0  # without a longer bar
        top = max((value for value in known if 0 < value < math.inf), default=least)
        reach = max((end for end in ends if end > top), default=top)
        return cls(unit, min(reach, LONGEST_WHISKER * top), low)

    @property
    def shown(self) -> tuple[str, float]:
        """The unit that suits, and its number in one of ``unit``."""
        name, factor = scale(self.unit, self.top)
        return ("×" if self.unit == "×" else name), factor

    def text(self, line: Mapping[Any, Any]) -> str:
        """Return the number next to a bar, and the ends of a whisker that exceeds the axis.

        A number that would begin with many zeros has its own unit.
        """
        if line["reason"] or pd.isna(line["value"]):
            return ""
        unit, factor = self.shown
        value, *ends = (number(line[name] * factor) for name in ("value", "low", "high"))
        cut = f" ({' to '.join(ends)})" if line["high"] > self.top else ""
        whole = f"{value}{'' if unit == '×' else ' '}{unit}"
        whole = quantity(line["value"], self.unit) if 0 < line["value"] < TINY * self.top else whole
        return f"{whole}{line['suffix']}{cut}"


class Panel(NamedTuple):
    """Lines of a chart over one axis; for curves, ``axis`` is time and ``values`` is vertical."""

    title: str
    profile: str
    quantity: str
    axis: Axis
    lines: pd.DataFrame
    values: Axis | None = None


@dataclass(frozen=True, eq=False)
class Chart:
    """The content of a picture.

    Attributes:
        frame: a line per bar. ``panel`` is the title above it, ``name`` its name (else ``strategy``
            and ``variant`` in words), ``look`` a key of :data:`KINDS`, ``value`` its number with
            ``suffix`` after it, ``low`` and ``high`` the ends of its whisker; ``reason`` says why
            there is no bar, ``note`` gives other remarks. Modelled lines have a ``profile`` and a
            separate panel, as has each ``quantity``. Lines of one ``scale`` (else of one panel)
            share an axis. Instead of a value a line may have ``curves``: seconds and the value up
            to then, in order, by a name of the legend.
        quantity, unit: of the axis; for curves, of the vertical one, and ``time`` labels the other.
        reading: how to read bars, whiskers and lines.
        legend: columns that are drawn end to end, or curves → their names and the names of their
            colours. Without it a bar has its strategy's colour.
        marks: kinds of lines through all bars → their names.
        at: the places of these lines: title of the panel, value, kind.
        roof: the value that curves cannot exceed.
        warnings, foot: what has to stand above the numbers, and their origin below.
    """

    title: str
    frame: pd.DataFrame
    quantity: str
    unit: str
    reading: str = ""
    legend: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    at: Sequence[tuple[str, float, str]] = ()
    roof: float | None = None
    time: str = "time since the epoch began"
    warnings: Sequence[str] = ()
    foot: str = ""

    @property
    def over_time(self) -> bool:
        return "curves" in self.frame

    def panels(self) -> list[Panel]:
        """Return its lines by panel, with the ``name`` and ``text`` of each; a whisker that exceeds
        the axis is cut (``cut``).
        """
        from gatherbench.strategies.registry import in_words  # imports torch

        frame = self.frame.assign(**{k: v for k, v in EMPTY.items() if k not in self.frame})
        parts = [name for name in self.legend if name in frame]
        frame["reach"] = frame[parts].sum(axis=1, min_count=1) if parts else frame["value"]
        if "name" not in frame:
            frame["name"] = [*map(in_words, frame["strategy"], frame["variant"])]
        if "quantity" not in frame:
            frame["quantity"] = self.quantity
        if "scale" not in frame:
            frame["scale"] = frame["panel"] + "|" + frame["profile"]
        panels = []
        for names, panel_lines in frame.groupby(["panel", "profile", "quantity"], sort=False):
            alike, lines = frame[frame["scale"] == panel_lines["scale"].iloc[0]], panel_lines
            axis, values = self._time(alike) if self.over_time else (self._axis(alike), None)
            if values is None:
                text = [axis.text(line) for line in panel_lines.to_dict("records")]
                cut, high = panel_lines["high"] > axis.top, panel_lines["high"].clip(upper=axis.top)
                lines = panel_lines.assign(text=text, cut=cut, high=high)
            panels.append(Panel(str(names[0]), str(names[1]), str(names[2]), axis, lines, values))
        order = list(dict.fromkeys(frame["panel"]))
        return sorted(panels, key=lambda panel: order.index(panel.title))

    def _axis(self, alike: pd.DataFrame) -> Axis:
        titles = set(alike["panel"])
        marks = [value for title, value, kind in self.at if title in titles and kind != "limit"]
        reach = [*alike["value"].dropna(), *alike["reach"].dropna(), *marks]
        return Axis.of(self.unit, [*reach, *alike["low"][alike["low"] < 0]], alike["high"])

    def _time(self, alike: pd.DataFrame) -> tuple[Axis, Axis]:
        points = [p for curves in alike["curves"] for line in curves.values() for p in line]
        longest, peak = (max((point[i] for point in points), default=0.0) for i in (0, 1))
        roof = self.roof
        top = roof if roof is not None and not 0 < peak < LITTLE * roof else peak
        return Axis("s", longest or 1.0), Axis(self.unit, float(top) or 1.0)


def draw(chart: Chart, *, columns: int = 3, column: float = COLUMN) -> Figure:
    """Draw a chart; panels of one title stand below each other, the titles side by side.

    Args:
        columns: the most titles side by side.
        column: the width of a column of panels, inches.
    """
    cells = [list(same) for _, same in groupby(chart.panels(), key=lambda panel: panel.title)]
    columns = 2 if len(cells) == 4 and columns > 1 else max(1, min(len(cells), columns))
    rows = [cells[first : first + columns] for first in range(0, len(cells), columns)]
    wide = column - TICKS * chart.over_time
    titles = {id(panel): _title(panel, not at, wide) for c in cells for at, panel in enumerate(c)}
    for row in rows:  # align the bottom lines of titles side by side
        most = max(len(titles[id(cell[0])]) for cell in row)
        for first in (titles[id(cell[0])] for cell in row):
            first[:0] = [""] * (most - len(first))
    whole = {id(p): TITLED * len(titles[id(p)]) + _height(p) + AXIS for c in cells for p in c}
    tall = [max(sum(whole[id(panel)] for panel in cell) for cell in row) for row in rows]
    # A "$" in a name begins no formula.
    grid = {"axes.grid.axis": "both"} if chart.over_time else {}
    with mpl.rc_context(RC | {"text.parse_math": False} | grid):
        figure, top = _paper(chart, columns * (column + GAP) - GAP, sum(tall), column)
        for number_, cell in enumerate(cells):
            down, place = divmod(number_, columns)
            left, above = MARGIN + place * (column + GAP), top + sum(tall[:down])
            for panel in cell:
                title = titles[id(panel)]
                at = left, above + TITLED * len(title), column - GAP / 3
                (_strips if panel.values else _bars)(figure, at, chart, panel, "\n".join(title))
                above += whole[id(panel)]
    return figure


def _title(panel: Panel, first: bool, column: float) -> list[str]:
    title = short(panel.title, 200) * first
    if panel.profile:
        title += f"{': ' * first}modelled for {short(panel.profile)}, not measured"
    return textwrap.wrap(title, int(TITLES * column), break_on_hyphens=False)


def _height(panel: Panel) -> float:
    if panel.values:
        return (SPACE + NAME + STRIP) * max(1, len(panel.lines))
    return sum(NAME * bool(name) + BAR for name in panel.lines["name"])


def _paper(chart: Chart, width: float, room: float, column: float) -> tuple[Figure, float]:
    """Make a figure with head, legend and foot of a chart; return it and where ``room`` begins.

    Its legend is no wider than a column: a telephone shows that much.
    """
    small: dict[str, Any] = {"fontsize": 7.5, "color": FAINT, "linespacing": 1.3}
    warning: dict[str, Any] = {"color": "#B84A00", "fontweight": "bold"}
    head = [("title", TITLE, chart.title, 9.0, warning | {"fontsize": 12, "color": "black"})]
    head += [("warning", WARNING, text, 12.0, warning) for text in chart.warnings]
    foot = [("foot", LINE, chart.reading, 17.5, small), ("source", LINE, chart.foot, 17.5, small)]
    texts = [
        (kind, tall, textwrap.wrap(text, int(width * letters), break_on_hyphens=False), style)
        for kind, tall, text, letters, style in (*head, *foot)
    ]
    legend = _legend(chart)
    labels = [textwrap.wrap(str(key.get_label()), int((column - 0.55) * 13)) for key in legend]
    for key, lines in zip(legend, labels, strict=True):
        key.set_label("\n".join(lines))
    longest = max((len(line) for lines in labels for line in lines), default=1)
    abreast = max(1, int(column / (0.55 + longest / 14)))
    most = max(map(len, labels), default=0)
    keys = (LEGEND * most * math.ceil(len(legend) / abreast) + 0.06) * bool(legend)
    heights = [tall * len(lines) for _, tall, lines, _ in texts]
    above = MARGIN + sum(heights[: len(head)])
    top = above + keys
    wide, height = width + 2 * MARGIN, top + room + MARGIN + sum(heights[len(head) :])
    figure = Figure(figsize=(wide, height), dpi=100, facecolor="white")
    down = MARGIN
    for place, (kind, _, lines, style) in enumerate(texts):
        down = top + room if place == len(head) else down
        at = MARGIN / wide, 1 - down / height
        if lines:
            figure.text(*at, "\n".join(lines), va="top", gid=kind, **style)
        down += heights[place]
    if legend:
        figure.legend(
            handles=legend, loc="upper left", ncols=abreast, fontsize=8.5, frameon=False,
            bbox_to_anchor=(MARGIN / wide, 1 - above / height), handlelength=1.6,
            columnspacing=1.4, labelspacing=0.35, borderpad=0, borderaxespad=0,
        )  # fmt: skip
    return figure, top


def _legend(chart: Chart) -> list[Artist]:
    """Return the keys of colours, lines across the panels, and the looks of bars."""
    handles: list[Artist] = []
    for label, colour in chart.legend.values():
        if chart.over_time:
            handles.append(Line2D([], [], color=ink(colour), linewidth=3, label=label))
        else:
            handles.append(Patch(facecolor=ink(colour), label=label))
    for kind, label in chart.marks.items():
        handles.append(Line2D([], [], color="black", linestyle=DASHES[kind], label=label))
    looks = set(chart.frame.get("look", ()))
    if looks - {"measured"}:
        modelled = (chart.frame.get("profile", pd.Series(dtype=str)) != "").any()
        for look in ("modelled",) if modelled else (name for name in KINDS if name in looks):
            label = "modelled, not measured" if look == "modelled" else look
            handles.append(Patch(label=label, **KINDS[look].bar(FAINT)))
    return handles


_Where = tuple[float, float, float]


def _axes(figure: Figure, left: float, top: float, wide: float, tall: float) -> Axes:
    """Add axes at a place in inches from the figure's upper left corner."""
    width, height = figure.get_size_inches()
    return figure.add_axes((left / width, 1 - (top + tall) / height, wide / width, tall / height))


def _bars(figure: Figure, where: _Where, chart: Chart, panel: Panel, title: str) -> None:
    wide, tall = where[2], _height(panel)
    axes = _axes(figure, *where, tall)
    axes.set_title(title)
    unit, factor = panel.axis.shown
    what = f"{'modelled ' * bool(panel.profile)}{panel.quantity}"
    axes.set_xlabel(f"{what} ({unit})" if unit else what)
    axes.set_ylim(tall, 0)
    axes.set_yticks([])
    marks = [(value, kind) for name, value, kind in chart.at if name == panel.title]
    marks = [mark for mark in marks if not panel.profile or mark[1] != "limit"]
    behind = _BEHIND if any(kind != "one" for _, kind in marks) else None
    top, longest = 0.0, 0
    for line in panel.lines.to_dict("records"):
        height = NAME * bool(line["name"]) + BAR
        y = top + height - BAR / 2
        _name(axes, line, top + NAME / 2, wide)
        top += height
        if pd.isna(line["value"]):
            why = textwrap.shorten(line["reason"], int(wide * WORDS), placeholder=" …")
            at: Any = {"transform": axes.get_yaxis_transform(), "va": "center", "bbox": _BEHIND}
            axes.text(0.006, y, why, fontsize=7.5, style="italic", color=FAINT, **at)
            continue
        longest = max(longest, len(line["text"]))
        _bar(axes, chart, line, y, factor)
        end = max(line["reach"], line["high"] if line["high"] > line["low"] else 0, 0) * factor
        axes.annotate(
            line["text"], (end, y), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=8, bbox=behind,
        )  # fmt: skip
    if not longest:
        axes.set_xticks([])
    high, low = panel.axis.top * factor, panel.axis.bottom * factor
    room = min(0.6, (0.075 * longest + 0.1) / wide)
    axes.set_xlim(1.03 * low, low + (high - low) / (1 - room))
    if low < 0:
        axes.axvline(0, color="black", linewidth=0.9)
    for value, kind in marks:
        axes.axvline(value * factor, color="black", linewidth=0.9, linestyle=DASHES[kind])


def _name(axes: Axes, line: Mapping[Any, Any], y: float, wide: float) -> None:
    """Write the name of a line, and at the right its note."""
    at: Any = {"transform": axes.get_yaxis_transform(), "va": "center_baseline", "zorder": 4}
    name = short(line["name"], int(wide * NAMES))
    axes.text(0.006, y, name, fontsize=8, bbox=_BEHIND if name else None, **at)
    width = max(8, int(wide * NAMES) - len(name))
    if note := textwrap.shorten(line["note"], width, placeholder=" …"):
        axes.text(1, y, note, ha="right", fontsize=7, color=FAINT, bbox=_BEHIND, **at)


def _bar(axes: Axes, chart: Chart, line: Mapping[Any, Any], y: float, factor: float) -> None:
    parts = {colour: line[name] for name, (_, colour) in chart.legend.items() if name in line}
    parts = parts or {line.get("colour") or colour_of(line["strategy"]): line["value"]}
    begin = 0.0
    for colour, length in parts.items():
        if length:
            look = KINDS[line["look"]].bar(colour)
            axes.barh(y, length * factor, 0.75 * BAR, begin * factor, **look)
        begin += length
    low, high = line["low"] * factor, line["high"] * factor
    if high > low:  # a single epoch has no whisker
        middle, arm = (low + high) / 2, (high - low) / 2
        axes.errorbar(middle, y, xerr=arm, ecolor="black", elinewidth=1, capsize=2.5)
        if line["cut"]:
            axes.plot(high, y, ">", color="black", markersize=4)


def _strips(figure: Figure, where: _Where, chart: Chart, panel: Panel, title: str) -> None:
    """Draw axes for each line: its curves as steps, each value up to its time."""
    left, top, wide = where[0] + TICKS, where[1], where[2] - TICKS
    for place, line in enumerate(lines := panel.lines.to_dict("records")):
        axes = _axes(figure, left, top + SPACE + NAME, wide, STRIP)
        top += SPACE + NAME + STRIP
        if not place:
            axes.set_title(title, pad=16)
        if place < len(lines) - 1:
            axes.tick_params(bottom=False, labelbottom=False)
        else:
            axes.set_xlabel(f"{chart.time} (s)")
        _strip(axes, chart, panel, line, wide)


def _strip(axes: Axes, chart: Chart, panel: Panel, line: Mapping[Any, Any], wide: float) -> None:
    values = panel.values or panel.axis
    unit, factor = values.shown
    axes.set(xlim=(0, panel.axis.top), ylim=(0, 1.06 * values.top * factor))
    at: Any = {"transform": axes.transAxes}
    above: Any = {"xytext": (0, 2), "textcoords": "offset points"}
    name = short(line["name"], int(wide * NAMES))
    axes.annotate(name, (0, 1), xycoords="axes fraction", va="bottom", fontsize=8, **above)
    if not line["curves"]:
        axes.set_yticks([])
        why = textwrap.fill(line["reason"], int(wide * WORDS), max_lines=3, placeholder=" …")
        axes.text(0.01, 0.5, why, va="center", fontsize=7.5, style="italic", color=FAINT, **at)
        return
    axes.set_ylabel(unit, fontsize=8)
    for first, (part, points) in enumerate(line["curves"].items()):
        times, heights = zip(*points, strict=True)
        axes.stairs(
            [height * factor for height in heights], [0.0, *times], fill=first == 0, alpha=0.85,
            color=ink(chart.legend[part][1]), linewidth=0.9,
        )  # fmt: skip
    axes.text(0.99, 0.95, line["note"], ha="right", va="top", fontsize=7, bbox=_BEHIND, **at)
    if chart.roof is not None:
        axes.axhline(chart.roof * factor, color=FAINT, linestyle=":", linewidth=0.9)


# ---- files, and the page -------------------------------------------------------------------------

#: Colours of a picture → those of the page, which has a light and a dark version of each.
_OF_THE_PAGE = {light.lower(): f"var(--{name})" for name, (light, _) in PALETTE.items()} | {
    "#000000": "var(--ink)",
    "#ffffff": "var(--card)",
    FAINT: "var(--soft)",
    RC["grid.color"].lower(): "var(--faint)",
}


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the file's ending. The same numbers give the same SVG.

    Raises:
        ValueError: matplotlib knows no such format.
        OSError: the file cannot be written.
    """
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with mpl.rc_context(RC):
        figure.savefig(path, metadata=metadata, dpi=150)


def words_of(figure: Figure) -> dict[str, str]:
    """Return the texts of a figure's head and foot, by :data:`APART`."""
    texts = {str(text.get_gid()): " ".join(text.get_text().split()) for text in figure.texts}
    return {kind: texts.get(kind, "") for kind in APART}


def inline(figure: Figure, ident: str) -> Markup:
    """Return the figure as SVG in the page's colours, without the words of head and foot."""
    words = [text for text in figure.texts if text.get_gid() in APART]
    drawn = io.StringIO()
    with mpl.rc_context(RC | {"svg.fonttype": "none"}):
        for text in words:
            text.set_visible(False)
        figure.savefig(
            drawn, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.05,
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )  # fmt: skip
        for text in words:
            text.set_visible(True)
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :]
    ident = re.sub(r"\W", "-", ident)
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{ident}-", svg)
    for colour, name in _OF_THE_PAGE.items():
        svg = re.sub(rf"\b(fill|stroke): {colour}", rf"\1: {name}", svg)
        svg = re.sub(rf' fill="{colour}"', f' style="fill: {name}"', svg)  # behind a hatch
    return Markup(svg)
