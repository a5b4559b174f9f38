"""Curves that were published, modelled and measured, in a panel each, on the same axes.

A series has one colour in all three panels; the panel and its look say which kind it is. A panel
without values says how to get them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from gatherbench.bench.show.figures.kinds import KINDS, MEASURED, Kind
from gatherbench.bench.show.figures.panels import NOT_MEASURED, panel_row, say_absent
from gatherbench.bench.show.figures.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RC,
    SKY,
    STRATEGY_COLOURS,
    VERMILION,
)

#: Inches right of the panels for the names of the series.
NAMES_ROOM = 2.55
#: Characters of a line of a name.
NAME_WIDTH = 32
#: For series that are no strategies: the palette's colours, then darker ones.
PALETTE = (
    *(BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY),
    *("#000000", "#8C564B", "#7F7F00", "#17687A", "#6A3D9A", "#A6CE39"),
)


@dataclass(frozen=True, slots=True)
class CurveAxes:
    """What the axes of the panels say.

    Attributes:
        x, y: labels, with units.
        x_ticks: where the horizontal axis is labelled; its scale is logarithmic where ``log_x``.
        log_x: as above.
    """

    x: str
    y: str
    x_ticks: Sequence[float] = ()
    log_x: bool = False


def curves(
    table: pd.DataFrame,
    absent: Mapping[str, str],
    axes_text: CurveAxes,
    *,
    title: str,
    foot: str,
    roofs: pd.DataFrame | None = None,
    kinds: Sequence[Kind] = KINDS,
    names: Mapping[str, str] | None = None,
) -> Figure:
    """Draw ``table``: ``kind``, ``series``, ``x``, ``y``, and where known ``low`` and ``high``.

    Args:
        absent: for each kind what its panel says where it has no value.
        axes_text: labels and scale of the axes.
        title, foot: of the figure.
        roofs: ``kind``, ``name``, ``y``: limits, drawn as dotted lines across their panel.
        kinds: which get a panel.
        names: titles of the panels by kind, where they say more than the kind.
    """
    series = list(dict.fromkeys(table["series"]))
    colours = series_colours(series)
    titles = [(names or {}).get(kind.name, kind.name) for kind in kinds]
    figure, panels = panel_row(title, titles, foot=foot, height=3.0, width=12.0, share_y=True)
    roofs = pd.DataFrame(columns=["kind", "name", "y"]) if roofs is None else roofs
    with mpl.rc_context(RC):
        name_series(figure, panels, colours)
        for axes, kind in zip(panels, kinds, strict=True):
            mine = table[table["kind"] == kind.name]
            limits = roofs[roofs["kind"] == kind.name]
            if mine.empty and limits.empty:
                what = NOT_MEASURED if kind is MEASURED else f"not {kind.name}"
                say_absent(axes, absent.get(kind.name, ""), what)
                continue
            _panel(axes, mine, limits, kind, colours)
            _scale(axes, axes_text, (float(table["x"].min()), float(table["x"].max())))
        panels[0].set_ylabel(axes_text.y)
        highest = [*table["y"], *roofs["y"]]
        panels[0].set_ylim(0, 1.1 * max(highest, default=1.0))
    return figure


def series_colours(series: Sequence[str]) -> dict[str, str]:
    """A strategy's own colour; others take the palette's in turn."""
    others = [name for name in series if name not in STRATEGY_COLOURS]
    chosen = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(others)}
    return {name: chosen.get(name) or STRATEGY_COLOURS[name] for name in series}


def again(name: str, colours: Mapping[str, str]) -> dict[str, Any]:
    """What tells a series from an earlier one of its colour, where there are more than colours."""
    earlier = list(colours)[: list(colours).index(name)]
    same = sum(colours[other] == colours[name] for other in earlier)
    return {"marker": ("s", "^", "v")[(same - 1) % 3]} if same else {}


def name_series(figure: Figure, panels: Sequence[Axes], colours: Mapping[str, str]) -> None:
    """Squeeze the panels to the left and name the series at the right, in their colours."""
    share = (figure.get_figwidth() - NAMES_ROOM) / figure.get_figwidth()
    first = panels[0].get_position().x0
    for axes in panels:
        box = axes.get_position()
        left = first + (box.x0 - first) * share
        axes.set_position((left, box.y0, box.width * share - first * (1 - share) / 3, box.height))
    figure.legend(
        handles=[
            Line2D(
                [], [], color=colour, label=textwrap.fill(name, NAME_WIDTH), **again(name, colours)
            )
            for name, colour in colours.items()
        ],
        loc="center left",
        bbox_to_anchor=(1 - (NAMES_ROOM - 0.05) / figure.get_figwidth(), 0.55),
        frameon=False,
        fontsize=8,
    )


def _panel(
    axes: Axes, mine: pd.DataFrame, roofs: pd.DataFrame, kind: Kind, colours: Mapping[str, str]
) -> None:
    axes.grid(visible=True, axis="both")
    for name, line in mine.groupby("series", sort=False):
        ordered = line.sort_values("x")
        look = kind.curve(colours[str(name)]) | again(str(name), colours)
        axes.plot(ordered["x"], ordered["y"], **look)
        if {"low", "high"} <= set(ordered.columns):
            known = ordered.dropna(subset=["low", "high"])
            axes.vlines(known["x"], known["low"], known["high"], color=look["color"], linewidth=0.9)
    for roof, height in zip(roofs["name"], roofs["y"], strict=True):
        axes.axhline(float(height), color="black", linestyle=":", linewidth=1)
        axes.annotate(
            str(roof), (0.02, float(height)), xycoords=("axes fraction", "data"),
            xytext=(0, 2), textcoords="offset points", fontsize=7,
        )  # fmt: skip


def _scale(axes: Axes, text: CurveAxes, ends: tuple[float, float]) -> None:
    """The same horizontal axis in every panel, a little wider than the values."""
    axes.set_xlabel(text.x)
    low, high = ends
    if text.log_x:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.25, high * 1.25)
    else:
        room = 0.06 * (high - low) or 0.5
        axes.set_xlim(low - room, high + room)
    if text.x_ticks:
        axes.xaxis.set_major_locator(FixedLocator(list(text.x_ticks)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([f"{tick:g}" for tick in text.x_ticks], fontsize=7.5)
