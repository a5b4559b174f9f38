"""A row of panels under one title: the frame of the figures that put kinds of values side by side.

Sizes are in inches, so that text keeps its size whatever the number of panels.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatherbench.bench.show.figures.style import FAINT, RC

MARGIN, TITLE, LEGEND, NAME, GAP, AXIS = 0.12, 0.34, 0.26, 0.34, 0.3, 0.56
#: Height of a line of the footer, and of every further line of a panel's title.
LINE, NAME_LINE = 0.155, 0.17
_LETTERS_PER_INCH = 12
NOT_MEASURED = "not measured yet"


def panel_row(
    title: str,
    names: Sequence[str],
    *,
    legend: Sequence[Artist] = (),
    foot: str = "",
    width: float = 10.0,
    height: float = 2.6,
    labels: float = 0.7,
    share_y: bool = False,
) -> tuple[Figure, list[Axes]]:
    """An empty figure with a panel for each of ``names``, side by side.

    Args:
        title: of the figure.
        names: titles of the panels.
        legend: handles, laid out in one line below the title.
        foot: how the figure is to be read, and where its numbers come from.
        width, height: of the figure, and of a panel.
        labels: room left of a panel for the labels of its axis.
        share_y: whether all panels have the axis of the first, which alone is labelled.
    """
    lines = textwrap.wrap(foot, int(width * 16), break_on_hyphens=False)
    room = width - MARGIN - (labels if share_y else 0.0)
    pitch = room / len(names)
    wide = pitch - GAP - (0.0 if share_y else labels)
    names, more = wrapped(names, wide)
    head = MARGIN + TITLE + (LEGEND if legend else 0.0) + NAME + more
    bottom = AXIS + MARGIN + LINE * len(lines)
    whole = head + height + bottom
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width, whole), dpi=100, facecolor="white")
        figure.text(
            MARGIN / width, 1 - MARGIN / whole, title, va="top", fontsize=12.5, fontweight="bold"
        )
        if legend:
            figure.legend(
                handles=list(legend),
                loc="upper left",
                bbox_to_anchor=(MARGIN / width, 1 - (MARGIN + TITLE) / whole),
                ncols=len(legend),
                frameon=False,
                borderpad=0,
                borderaxespad=0,
                handlelength=2.0,
                columnspacing=1.6,
            )
        figure.text(
            MARGIN / width,
            MARGIN / whole,
            "\n".join(lines),
            fontsize=7.5,
            color=FAINT,
            va="bottom",
            linespacing=1.35,
        )
        axes: list[Axes] = []
        for number, name in enumerate(names):
            left = number * pitch + labels
            box = (left / width, bottom / whole, wide / width, height / whole)
            axes.append(figure.add_axes(box, sharey=axes[0] if share_y and axes else None))
            axes[-1].set_title(name)
            if share_y and number:
                axes[-1].tick_params(labelleft=False)
    return figure, axes


def wrapped(names: Sequence[str], wide: float) -> tuple[list[str], float]:
    """Titles of panels that are ``wide`` inches, in lines, and what these take beyond one line."""
    room = max(1, int(wide * _LETTERS_PER_INCH))
    lines = [textwrap.wrap(name, room, break_on_hyphens=False) for name in names]
    more = max((len(one) for one in lines), default=1) - 1
    return ["\n".join(one) for one in lines], NAME_LINE * max(0, more)


def say_absent(axes: Axes, remedy: str, what: str = NOT_MEASURED) -> None:
    """Write into a panel that its values are not there, and how to get them."""
    axes.set_xticks([])
    axes.tick_params(left=False, labelleft=False)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set(visible=True, linestyle=(0, (4, 3)), color=FAINT)
    width = axes.get_window_extent().width / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    text = "\n".join(textwrap.wrap(remedy, max(18, int(width * 13)), break_on_hyphens=False))
    place: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "color": FAINT}
    axes.text(0.5, 0.55, what, va="bottom", fontsize=10, fontweight="bold", **place)
    axes.text(0.5, 0.5, text, va="top", fontsize=8, linespacing=1.4, **place)
