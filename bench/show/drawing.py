"""Draw the lines of a frame as bars with matplotlib.

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

from gatherbench.bench.read.units import number, scale, short
from gatherbench.bench.show.looks import FAINT, KINDS, RC, bar, colour_of, ink

#: The longest axis, over its longest bar: without it a whisker of two repeats would fill the panel.
LONGEST_WHISKER = 4.0
#: Inches: the margin; the width of a panel, and between two; rows of names and of bars; a line of a
#: panel's title; ticks with their label below; a line of the legend.
MARGIN, COLUMN, GAP, NAME, BAR, TITLED, AXIS, LEGEND = 0.16, 4.3, 0.3, 0.165, 0.2, 0.19, 0.52, 0.22
#: Characters per inch of a bar's name, of words in italics and of a title.
NAMES, WORDS, TITLES = 14.5, 17.5, 13.5
_SMALL: dict[str, Any] = {"fontsize": 7.5, "color": FAINT, "linespacing": 1.3}
_WARNING: dict[str, Any] = {"color": "#B84A00", "fontweight": "bold"}
#: The texts of a figure, by their ``gid``: inches of a line, characters per inch, and their look.
#: The page shows them separately.
_TEXTS: Mapping[str, tuple[float, float, dict[str, Any]]] = {
    "title": (0.25, 9.0, {"fontsize": 12, "fontweight": "bold"}),
    "warning": (0.22, 12.0, _WARNING),
    "foot": (0.142, 17.5, _SMALL),
    "source": (0.142, 17.5, _SMALL),
}
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
        """Return the number next to a bar, and the ends of a whisker that exceeds the axis."""
        if line["reason"] or pd.isna(line["value"]):
            return ""
        unit, factor = self.shown
        value, *ends = (number(line[name] * factor) for name in ("value", "low", "high"))
        cut = f" ({' to '.join(ends)})" if line["high"] > self.top else ""
        whole = f"{value}{'' if unit == '×' else ' '}{unit}"
        return f"{whole}{line['suffix']}{cut}"


class Panel(NamedTuple):
    """Lines of a chart over one axis."""

    title: str
    profile: str
    axis: Axis
    lines: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Chart:
    """The content of a picture.

    Attributes:
        frame: a line per bar. ``panel`` is the title above it, ``name`` its name (else ``strategy``
            and ``variant`` in words), ``look`` one of :data:`KINDS`, ``value`` its number with
            ``suffix`` after it, ``low`` and ``high`` the ends of its whisker; ``reason`` says why
            there is no bar, ``note`` gives other remarks. Lines with a ``profile`` are modelled,
            in a separate panel. Lines of one ``scale`` (else of one panel) share an axis.
        quantity, unit: of the axis.
        reading: how to read bars, whiskers and lines.
        legend: columns that are drawn end to end → their names and the names of their colours.
            Without it a bar has its strategy's colour.
        marks: kinds of lines through all bars → their names.
        at: the places of these lines: title of the panel, value, kind.
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
    warnings: Sequence[str] = ()
    foot: str = ""

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
        if "scale" not in frame:
            frame["scale"] = frame["panel"] + "|" + frame["profile"]
        panels = []
        for names, of_panel in frame.groupby(["panel", "profile"], sort=False):
            axis = self._axis(frame[frame["scale"] == of_panel["scale"].iloc[0]])
            lines = of_panel.assign(
                text=[axis.text(line) for line in of_panel.to_dict("records")],
                cut=of_panel["high"] > axis.top,
                high=of_panel["high"].clip(upper=axis.top),
            )
            panels.append(Panel(str(names[0]), str(names[1]), axis, lines))
        order = list(dict.fromkeys(frame["panel"]))
        return sorted(panels, key=lambda panel: order.index(panel.title))

    def _axis(self, alike: pd.DataFrame) -> Axis:
        titles = set(alike["panel"])
        marks = [value for title, value, kind in self.at if title in titles and kind != "limit"]
        reach = [*alike["value"].dropna(), *alike["reach"].dropna(), *marks]
        return Axis.of(self.unit, [*reach, *alike["low"][alike["low"] < 0]], alike["high"])


def draw(chart: Chart, *, columns: int = 3, column: float = COLUMN) -> Figure:
    """Draw a chart; panels of one title stand below each other, the titles side by side.

    Args:
        columns: the most titles side by side.
        column: the width of a column of panels, inches.
    """
    cells = [list(same) for _, same in groupby(chart.panels(), key=lambda panel: panel.title)]
    columns = max(1, min(len(cells), columns))
    titles = {id(panel): _title(panel, not n, column) for c in cells for n, panel in enumerate(c)}
    head = TITLED * max((len(lines) for lines in titles.values()), default=0)
    rows = [cells[first : first + columns] for first in range(0, len(cells), columns)]
    tall = [max(sum(head + _height(p) + AXIS for p in cell) for cell in row) for row in rows]
    # A "$" in a name begins no formula.
    with mpl.rc_context(RC | {"text.parse_math": False}):
        figure, top = _paper(chart, columns * (column + GAP) - GAP, sum(tall), column)
        for row, height in zip(rows, tall, strict=True):
            for place, cell in enumerate(row):
                above = top
                for panel in cell:
                    above += head
                    where = MARGIN + place * (column + GAP), above, column - GAP / 3
                    _bars(figure, where, chart, panel, "\n".join(titles[id(panel)]))
                    above += _height(panel) + AXIS
            top += height
    return figure


def _title(panel: Panel, first: bool, column: float) -> list[str]:
    title = short(panel.title, 200) * first
    if panel.profile:
        title += f"{': ' * first}modelled for {short(panel.profile)}, not measured"
    return textwrap.wrap(title, int(TITLES * column), break_on_hyphens=False)


def _height(panel: Panel) -> float:
    return sum(NAME * bool(name) + BAR for name in panel.lines["name"])


def _paper(chart: Chart, width: float, room: float, column: float) -> tuple[Figure, float]:
    """Make a figure with head, legend and foot of a chart; return it and where ``room`` begins.

    Its legend is no wider than a column: a telephone shows that much.
    """
    texts = [("title", chart.title), *(("warning", text) for text in chart.warnings)]
    after = len(texts)
    texts += [("foot", chart.reading), ("source", chart.foot)]
    wrapped = [
        textwrap.wrap(text, int(width * _TEXTS[kind][1]), break_on_hyphens=False)
        for kind, text in texts
    ]
    heights = [_TEXTS[texts[i][0]][0] * len(lines) for i, lines in enumerate(wrapped)]
    keys = _legend(chart)
    longest = max((len(str(key.get_label())) for key in keys), default=1)
    abreast = max(1, int(column / (0.55 + longest / 14)))
    above = MARGIN + sum(heights[:after])
    top = above + (LEGEND * math.ceil(len(keys) / abreast) + 0.06) * bool(keys)
    wide, height = width + 2 * MARGIN, top + room + MARGIN + sum(heights[after:])
    figure = Figure(figsize=(wide, height), dpi=100, facecolor="white")
    down = MARGIN
    for place, (kind, _) in enumerate(texts):
        down = top + room if place == after else down
        lines = "\n".join(wrapped[place])
        figure.text(MARGIN / wide, 1 - down / height, lines, va="top", gid=kind, **_TEXTS[kind][2])
        down += heights[place]
    if keys:
        figure.legend(
            handles=keys, loc="upper left", ncols=abreast, fontsize=8.5, frameon=False,
            bbox_to_anchor=(MARGIN / wide, 1 - above / height), handlelength=1.6,
            columnspacing=1.4, labelspacing=0.35, borderpad=0, borderaxespad=0,
        )  # fmt: skip
    return figure, top


def _legend(chart: Chart) -> list[Artist]:
    keys: list[Artist] = [
        Patch(facecolor=ink(colour), label=label) for label, colour in chart.legend.values()
    ]
    for kind, label in chart.marks.items():
        keys.append(Line2D([], [], color="black", linestyle=DASHES[kind], label=label))
    looks = set(chart.frame.get("look", ()))
    if looks - {"measured"}:
        for look in (name for name in KINDS if name in looks):
            label = "modelled, not measured" if look == "modelled" else look
            keys.append(Patch(label=label, **bar(look, FAINT)))
    return keys


def _bars(
    figure: Figure, where: tuple[float, float, float], chart: Chart, panel: Panel, title: str
) -> None:
    """Draw a panel; ``where``: left, top and width, inches from the figure's upper left corner."""
    (left, top, wide), tall = where, _height(panel)
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, 1 - (top + tall) / height, wide / width, tall / height))
    axes.set_title(title)
    unit, factor = panel.axis.shown
    what = f"{'modelled ' * bool(panel.profile)}{chart.quantity}"
    axes.set_xlabel(f"{what} ({unit})" if unit else what)
    axes.set_ylim(tall, 0)
    axes.set_yticks([])
    marks = [(value, kind) for name, value, kind in chart.at if name == panel.title]
    marks = [mark for mark in marks if not panel.profile or mark[1] != "limit"]
    behind = _BEHIND if any(kind != "one" for _, kind in marks) else None
    y, longest = 0.0, 0
    for line in panel.lines.to_dict("records"):
        _name(axes, line, y + NAME / 2, wide)
        y += NAME * bool(line["name"]) + BAR
        middle = y - BAR / 2
        if pd.isna(line["value"]):
            _absent(axes, line["reason"], middle, wide)
            continue
        longest = max(longest, len(line["text"]))
        _bar(axes, chart, line, middle, factor)
        end = max(line["reach"], line["high"] if line["high"] > line["low"] else 0, 0) * factor
        axes.annotate(
            line["text"], (end, middle), xytext=(4, 0), textcoords="offset points", va="center",
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
    at: Any = {"transform": axes.get_yaxis_transform(), "va": "center_baseline", "zorder": 4}
    name = short(line["name"], int(wide * NAMES))
    axes.text(0.006, y, name, fontsize=8, bbox=_BEHIND if name else None, **at)
    width = max(8, int(wide * NAMES) - len(name))
    if note := textwrap.shorten(line["note"], width, placeholder=" …"):
        axes.text(1, y, note, ha="right", fontsize=7, color=FAINT, bbox=_BEHIND, **at)


def _absent(axes: Axes, reason: str, y: float, wide: float) -> None:
    text = textwrap.shorten(reason, int(wide * WORDS), placeholder=" …")
    at: Any = {"transform": axes.get_yaxis_transform(), "va": "center", "bbox": _BEHIND}
    axes.text(0.006, y, text, fontsize=7.5, style="italic", color=FAINT, **at)


def _bar(axes: Axes, chart: Chart, line: Mapping[Any, Any], y: float, factor: float) -> None:
    parts = {colour: line[name] for name, (_, colour) in chart.legend.items() if name in line}
    parts = parts or {line.get("colour") or colour_of(line["strategy"]): line["value"]}
    begin = 0.0
    for colour, length in parts.items():
        if length:
            axes.barh(y, length * factor, 0.75 * BAR, begin * factor, **bar(line["look"], colour))
        begin += length
    low, high = line["low"] * factor, line["high"] * factor
    if high > low:  # a single epoch has no whisker
        middle, arm = (low + high) / 2, (high - low) / 2
        axes.errorbar(middle, y, xerr=arm, ecolor="black", elinewidth=1, capsize=2.5)
        if line["cut"]:
            axes.plot(high, y, ">", color="black", markersize=4)


# ---- files, and the page -------------------------------------------------------------------------


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
    """Return the texts of a figure's head and foot, by their ``gid``."""
    texts = {str(text.get_gid()): " ".join(text.get_text().split()) for text in figure.texts}
    return {kind: texts.get(kind, "") for kind in _TEXTS}


def inline(figure: Figure, ident: str) -> Markup:
    """Return the figure as SVG without the words of head and foot; ``ident`` makes its ids unique
    in the page.
    """
    words, drawn = [text for text in figure.texts if text.get_gid() in _TEXTS], io.StringIO()
    with mpl.rc_context(RC | {"svg.fonttype": "none"}):
        for text in words:
            text.set_visible(False)
        figure.savefig(
            drawn, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.05,
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )  # fmt: skip
        for text in words:
            text.set_visible(True)
    _, tag, svg = drawn.getvalue().partition("<svg")
    ident = re.sub(r"\W", "-", ident)
    return Markup(re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{ident}-", tag + svg))
