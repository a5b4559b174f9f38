"""The paper of every figure: head and foot, panels side by side, what an empty panel says.

Sizes are in inches, so that text keeps its size whatever the number of panels.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gatherbench.bench.show.looks import FAINT, KINDS, RC

MARGIN, TITLE, LEGEND, NAME, GAP, AXIS = 0.12, 0.34, 0.26, 0.34, 0.3, 0.56
#: Height of a line of the footer, of a warning, and of each further line of a panel's title.
LINE, WARNING, NAME_LINE = 0.155, 0.22, 0.17
WARNING_COLOUR = "#B84A00"
_LETTERS_PER_INCH = 12
NOT_MEASURED = "not measured yet"


class Paper:
    """An empty figure with a head and a foot, and room between them.

    Args:
        title: of the figure.
        width, room: of the figure, and the height that is wanted between head and foot.
        warnings: what stands in red below the title.
        legend: handles, laid out in one line below.
        foot: how the figure is to be read, and where its numbers come from.
    """

    def __init__(
        self,
        title: str,
        width: float,
        room: float,
        *,
        warnings: Sequence[str] = (),
        legend: Sequence[Artist] = (),
        foot: str = "",
    ) -> None:
        lines = textwrap.wrap(foot, int(width * 16), break_on_hyphens=False)
        #: Height of the foot: above it the room begins.
        self.bottom = MARGIN + LINE * len(lines)
        head = MARGIN + TITLE + WARNING * len(warnings) + (LEGEND if legend else 0.0)
        self.width, self.height = width, self.bottom + room + head
        self.figure = Figure(figsize=(width, self.height), dpi=100, facecolor="white")
        top = self.height - MARGIN
        self._write(top, title, va="top", fontsize=12.5, fontweight="bold")
        top -= TITLE
        for line in warnings:
            self._write(top, line, va="top", color=WARNING_COLOUR, fontweight="bold")
            top -= WARNING
        if legend:
            self.figure.legend(
                handles=list(legend),
                loc="upper left",
                bbox_to_anchor=(MARGIN / width, top / self.height),
                ncols=len(legend),
                frameon=False,
                borderpad=0,
                borderaxespad=0,
                handlelength=1.6,
                columnspacing=1.4,
            )
        text = "\n".join(lines)
        self._write(MARGIN, text, va="bottom", fontsize=7.5, color=FAINT, linespacing=1.35)

    def panel(self, left: float, bottom: float, wide: float, tall: float, **more: Any) -> Axes:
        """Axes at these inches."""
        width, height = self.width, self.height
        box = (left / width, bottom / height, wide / width, tall / height)
        return self.figure.add_axes(box, **more)

    def _write(self, y: float, text: str, **style: Any) -> None:
        self.figure.text(MARGIN / self.width, y / self.height, text, **style)


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
        width, height: of the figure, and of a panel.
        labels: room left of a panel for the labels of its axis.
        share_y: whether all panels have the axis of the first, which alone is labelled.
    """
    pitch = (width - MARGIN - (labels if share_y else 0.0)) / len(names)
    wide = pitch - GAP - (0.0 if share_y else labels)
    names, more = wrapped(names, wide)
    with mpl.rc_context(RC):
        room = AXIS + height + NAME + more
        paper = Paper(title, width, room, legend=legend, foot=foot)
        axes: list[Axes] = []
        for number, name in enumerate(names):
            first = axes[0] if share_y and axes else None
            left = number * pitch + labels
            axes.append(paper.panel(left, paper.bottom + AXIS, wide, height, sharey=first))
            axes[-1].set_title(name)
            if share_y and number:
                axes[-1].tick_params(labelleft=False)
    return paper.figure, axes


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
        figure.savefig(path, metadata=metadata, dpi=150)
