"""The paper of every figure: head and foot, panels side by side, what an empty panel says.

Head and foot have their sizes in inches, so that text keeps its size whatever the number of panels.
What stands between them finds its own places (matplotlib's constrained layout).
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
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

#: Inches: around all, of the head's lines, and of a panel's title with the labels of its axis.
MARGIN, TITLE, LEGEND, AXIS = 0.12, 0.34, 0.26, 0.9
#: Height of a line of the footer, and of a warning.
LINE, WARNING = 0.155, 0.22
WARNING_COLOUR = "#B84A00"
NOT_MEASURED = "not measured yet"
#: Of a figure's texts those that the page has in words of its own, by their ``gid``.
WORDS = ("title", "warning", "foot")


def paper(
    title: str,
    width: float,
    room: float,
    *,
    warnings: Sequence[str] = (),
    legend: Sequence[Artist] = (),
    foot: str = "",
    beside: Sequence[Artist] = (),
) -> Figure:
    """An empty figure with a head and a foot, and room between them for panels.

    Args:
        width, room: of the figure, and the height that is wanted between head and foot; inches.
        warnings: what stands in red below the title.
        legend: handles, laid out in one line below.
        foot: how the figure is to be read, and where its numbers come from.
        beside: handles that are laid out below each other, right of the panels.
    """
    lines = textwrap.wrap(foot, int(width * 16), break_on_hyphens=False)
    below = MARGIN + LINE * len(lines)
    head = MARGIN + TITLE + WARNING * len(warnings) + (LEGEND if legend else 0.0)
    height = below + room + head
    figure = Figure(figsize=(width, height), dpi=100, facecolor="white")
    right = 1.0 - (NAMES_ROOM / width if beside else 0.0)
    box = (MARGIN / width, below / height, right - 2 * MARGIN / width, room / height)
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=box, h_pad=0.06, w_pad=0.08))
    written: list[tuple[str, dict[str, Any], float]]
    written = [(title, {"fontsize": 12.5, "gid": "title"}, TITLE)]
    written += [(line, {"color": WARNING_COLOUR, "gid": "warning"}, WARNING) for line in warnings]
    top, left = height - MARGIN, MARGIN / width
    for text, style, tall in written:
        figure.text(left, top / height, text, va="top", fontweight="bold", **style)
        top -= tall
    plain: dict[str, Any] = {"frameon": False, "borderpad": 0, "borderaxespad": 0}
    if legend:
        figure.legend(
            handles=list(legend), loc="upper left", bbox_to_anchor=(left, top / height),
            ncols=len(legend), handlelength=1.6, columnspacing=1.4, **plain,
        )  # fmt: skip
    if beside:
        figure.legend(
            handles=list(beside), loc="center left", bbox_to_anchor=(right, 0.55), fontsize=8,
            handlelength=2.5, **plain,
        )  # fmt: skip
    figure.text(left, MARGIN / height, "\n".join(lines), va="bottom", fontsize=7.5, color=FAINT,
                linespacing=1.35, gid="foot")  # fmt: skip
    return figure


#: Inches right of the panels for the names of the series, and characters of a name in an inch.
NAMES_ROOM, LETTERS = 2.55, 12


def named(looks: Mapping[str, Mapping[str, Any]]) -> list[Line2D]:
    """Handles of the series, as they are drawn."""
    return [
        Line2D([], [], label=textwrap.fill(name, int(LETTERS * NAMES_ROOM)), **look)
        for name, look in looks.items()
    ]


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
        head: see :func:`paper`.
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
