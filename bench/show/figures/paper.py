"""The paper of every figure: head and foot, places for panels, what an empty panel says.

Head and foot have their sizes in inches, so that text keeps its size whatever the number of panels.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox

from gatherbench.bench.show.looks import FAINT, KINDS, RC

#: Inches: around all, a line of the title, of the legend, and a panel's title with its axis.
MARGIN, TITLE, LEGEND, AXIS = 0.16, 0.25, 0.22, 0.9
#: Height of a line of the footer, and of a warning.
LINE, WARNING = 0.142, 0.22
#: Inches right of the panels for the names of the series, and characters of a name in an inch.
NAMES_ROOM, LETTERS = 2.55, 12
WARNING_COLOUR = "#B84A00"
NOT_MEASURED = "not measured yet"
#: Of a figure's texts those that the page has in words of its own, by their ``gid``.
WORDS = ("title", "warning", "foot", "source")


@dataclass(frozen=True, slots=True)
class Sheet:
    """A figure with head and foot; between them the box: left, top, width, height, in inches."""

    figure: Figure
    box: tuple[float, float, float, float]

    @property
    def rect(self) -> tuple[float, float, float, float]:
        """The box as matplotlib has it: shares of the figure, from below."""
        left, top, wide, tall = self.box
        return self._share(left, top, wide, tall)

    def axes(self, left: float, top: float, wide: float, tall: float) -> Axes:
        """Axes at a place of the box, in inches from its corner at the upper left."""
        return self.figure.add_axes(self._share(self.box[0] + left, self.box[1] + top, wide, tall))

    def write(self, text: str, top: float, **style: Any) -> None:
        """Write so far below the upper end of the box."""
        at = self._share(self.box[0], self.box[1] + top, 0, 0)[:2]
        self.figure.text(*at, text, va="top", **style)

    def _share(
        self, left: float, top: float, wide: float, tall: float
    ) -> tuple[float, float, float, float]:
        width, height = self.figure.get_size_inches()
        return left / width, 1 - (top + tall) / height, wide / width, tall / height


def sheet(
    title: str,
    width: float,
    room: float,
    *,
    warnings: Sequence[str] = (),
    legend: Sequence[Artist] = (),
    foot: str = "",
    source: str = "",
    beside: Sequence[Artist] = (),
) -> Sheet:
    """An empty figure with a head and a foot, and room between them.

    Args:
        width, room: what is wanted between the margins, and between head and foot; inches.
        warnings: what stands in red below the title.
        legend: handles, in as few lines as they need.
        foot: how the figure is to be read.
        source: where its numbers come from.
        beside: handles that are laid out below each other, right of the panels.
    """
    letters = int(width * 17.5)
    words = [
        (wrapped, {"fontsize": 7.5, "color": FAINT, "linespacing": 1.3}, LINE, kind)
        for kind, text in (("foot", foot), ("source", source))
        if (wrapped := textwrap.wrap(text, letters, break_on_hyphens=False))
    ]
    bold = {"fontweight": "bold"}
    head: list[tuple[list[str], dict[str, Any], float, str]] = [
        (textwrap.wrap(title, int(width * 9)), {"fontsize": 12, **bold}, TITLE, "title")
    ]
    head += [
        (textwrap.wrap(one, int(width * 12)), {"color": WARNING_COLOUR, **bold}, WARNING, "warning")
        for one in warnings
    ]
    labels = [textwrap.wrap(str(key.get_label()), int((width - 0.55) * 13)) for key in legend]
    for key, lines in zip(legend, labels, strict=True):
        key.set_label("\n".join(lines))
    keyed = [0.55 + max(map(len, lines)) / 14 for lines in labels]
    fits = len(keyed) if sum(keyed) < width else int(width / max(keyed))
    abreast = max(1, fits)
    most = max(map(len, labels), default=0)
    keys = LEGEND * most * math.ceil(len(legend) / abreast) + 0.06 * bool(legend)
    above = MARGIN + sum(len(lines) * tall for lines, _, tall, _ in head) + keys
    below = MARGIN + sum(len(lines) * tall for lines, _, tall, _ in words)
    whole, height = width + 2 * MARGIN, above + room + below
    figure = Figure(figsize=(whole, height), dpi=100, facecolor="white")
    found = Sheet(figure, (MARGIN, above, width - NAMES_ROOM * bool(beside), room))
    for top, texts in ((MARGIN, head), (above + room, words)):
        down = top
        for lines, style, tall, kind in texts:
            at = MARGIN / whole, 1 - down / height
            figure.text(*at, "\n".join(lines), va="top", gid=kind, **style)
            down += len(lines) * tall
    plain: dict[str, Any] = {"frameon": False, "borderpad": 0, "borderaxespad": 0}
    if legend:
        figure.legend(
            handles=list(legend), loc="upper left", ncols=abreast, fontsize=8.5,
            bbox_to_anchor=(MARGIN / whole, 1 - (above - keys) / height), handlelength=1.6,
            columnspacing=1.4, labelspacing=0.35, **plain,
        )  # fmt: skip
    if beside:
        figure.legend(
            handles=list(beside), loc="center left", fontsize=8, handlelength=2.5,
            bbox_to_anchor=(1 - (NAMES_ROOM + MARGIN) / whole, 0.55), **plain,
        )  # fmt: skip
    return found


def named(looks: Mapping[str, Mapping[str, Any]]) -> list[Line2D]:
    """Handles of the series, as they are drawn."""
    return [
        Line2D([], [], label=textwrap.fill(name, int(LETTERS * NAMES_ROOM)), **look)
        for name, look in looks.items()
    ]


def paper(title: str, width: float, room: float, **head: Any) -> Figure:
    """A figure with head and foot whose panels find their own places between them."""
    found = sheet(title, width - 2 * MARGIN, room, **head)
    found.figure.set_layout_engine(ConstrainedLayoutEngine(rect=found.rect, h_pad=0.06, w_pad=0.08))
    return found.figure


def panel_row(
    title: str,
    names: Sequence[str],
    *,
    width: float = 10.0,
    height: float = 2.6,
    share_y: bool = False,
    **head: Any,
) -> tuple[Figure, list[Axes]]:
    """An empty figure with a panel for each of ``names``, side by side.

    Args:
        width, height: of the figure, and of a panel.
        share_y: whether all panels have the axis of the first, which alone is labelled.
        head: see :func:`sheet`.
    """
    room = width - (NAMES_ROOM if head.get("beside") else 0.0)
    titles = [titled(name, room / len(names) - 0.5) for name in names]
    lines = max(name.count("\n") for name in titles)
    with mpl.rc_context(RC):
        figure = paper(title, width, height + AXIS + 0.17 * lines, **head)
        axes = figure.subplots(1, len(names), sharey=share_y, squeeze=False)[0]
        for one, name in zip(axes, titles, strict=True):
            one.set_title(name)
    return figure, list(axes)


def titled(name: str, wide: float) -> str:
    """The title of a panel that is ``wide`` inches, in as many lines as it takes."""
    return textwrap.fill(name, max(1, int(wide * LETTERS)), break_on_hyphens=False)


def say_absent(axes: Axes, remedy: str, what: str = NOT_MEASURED) -> None:
    """Write into a panel that its values are not there, and how to get them."""
    axes.set_xticks([])
    axes.tick_params(left=False, labelleft=False)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set(visible=True, linestyle=(0, (4, 3)), color=FAINT)
    columns = axes.get_subplotspec().get_gridspec().ncols  # type: ignore[union-attr]
    width = axes.get_figure(root=True).get_figwidth() / columns - 1.4  # type: ignore[union-attr]
    text = "\n".join(textwrap.wrap(remedy, max(18, int(width * 13)), break_on_hyphens=False))
    place: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "color": FAINT}
    axes.text(0.5, 0.55, what, va="bottom", fontsize=10, fontweight="bold", **place)
    axes.text(0.5, 0.5, text, va="top", fontsize=8, linespacing=1.4, **place)


def bars_explained(*kinds: str) -> list[Patch]:
    """Patches that explain the looks of bars, in grey."""
    return [Patch(label=name, **KINDS[name].bar(FAINT)) for name in KINDS if name in kinds]


def curves_explained(*kinds: str) -> list[Line2D]:
    """Lines that explain the looks of curves, in grey."""
    return [Line2D([], [], label=k, **KINDS[k].curve(FAINT)) for k in KINDS if k in kinds]


def save(figure: Figure, path: Path) -> None:
    """Write the figure; the ending says in which format. The same numbers give the same SVG.

    Raises:
        ValueError: matplotlib knows no such format.
        OSError: the file cannot be written.
    """
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with mpl.rc_context(RC):
        settle(figure)
        figure.savefig(path, metadata=metadata, dpi=150)


def settle(figure: Figure) -> None:
    """Find the panels' places, once: each format has the same."""
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes in figure.axes:  # the solver finds them up to the last digits
            axes.set_position(Bbox(np.round(axes.get_position().get_points(), 4)))
