"""Curves: published, modelled and measured beside each other.

A series has one colour in all panels; the panel and its look say of which kind it is. A panel
without values says how to get them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from gatherbench.bench.show.figures.paper import (
    NOT_MEASURED,
    named,
    panel_row,
    say_absent,
)
from gatherbench.bench.show.looks import (
    KINDS,
    PALETTE,
    RC,
    own_colour,
)

#: For series that are no strategies: the palette's colours, then darker ones.
COLOURS = (
    *("blue", "vermilion", "green", "orange", "purple", "sky"),
    *("#000000", "#8C564B", "#7F7F00", "#17687A", "#6A3D9A", "#A6CE39", "#B2182B"),
)


# ---- published, modelled, measured ------------------------------------------------------------


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
    kinds: Sequence[str] = tuple(KINDS),
    names: Mapping[str, str] | None = None,
) -> Figure:
    """Draw ``table``: ``kind``, ``series``, ``x``, ``y``, and where known ``low`` and ``high``.

    Args:
        absent: for each kind what its panel says where it has no value.
        roofs: ``kind``, ``name``, ``y``: limits, drawn as dotted lines across their panel.
        kinds: which get a panel.
        names: titles of the panels by kind, where they say more than the kind.
    """
    looks = series_looks(list(dict.fromkeys(table["series"])))
    titles = [(names or {}).get(kind, kind) for kind in kinds]
    figure, panels = panel_row(
        title, titles, foot=foot, height=3.0, width=12.0, share_y=True, beside=named(looks)
    )
    roofs = pd.DataFrame(columns=["kind", "name", "y"]) if roofs is None else roofs
    with mpl.rc_context(RC):
        for axes, kind in zip(panels, kinds, strict=True):
            mine, limits = table[table["kind"] == kind], roofs[roofs["kind"] == kind]
            if mine.empty and limits.empty:
                what = NOT_MEASURED if kind == "measured" else f"not {kind}"
                say_absent(axes, absent.get(kind, ""), what)
                continue
            axes.grid(visible=True, axis="both")
            for name, line in mine.groupby("series", sort=False):
                curve(axes, line, kind, looks[str(name)])
            _roofs(axes, limits)
            _scale(axes, axes_text, (float(table["x"].min()), float(table["x"].max())))
        panels[0].set_ylabel(axes_text.y)
        panels[0].set_ylim(0, 1.1 * max([*table["y"], *roofs["y"]], default=1.0))
    return figure


def series_looks(series: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A strategy's own colour; others take those left of :data:`COLOURS`, then other markers."""
    own = {name: colour for name in series if (colour := own_colour(name))}
    left = [colour for colour in COLOURS if colour not in own.values()]
    turn, looks = count(), {}
    for name in series:
        number = None if name in own else next(turn)
        colour = own[name] if number is None else left[number % len(left)]
        again = 0 if number is None else number // len(left)
        marker = {"marker": ("s", "^", "v")[(again - 1) % 3]} if again else {}
        looks[name] = {"color": PALETTE.get(colour, (colour,))[0], **marker}
    return looks


def curve(axes: Axes, line: pd.DataFrame, kind: str, look: Mapping[str, Any]) -> None:
    """Draw ``x``, ``y``, and where known ``low`` to ``high``, as values of that kind look."""
    ordered = line.sort_values("x")
    axes.plot(ordered["x"], ordered["y"], **(KINDS[kind].curve("") | dict(look)))
    if {"low", "high"} <= set(ordered.columns):
        known = ordered.dropna(subset=["low", "high"])
        axes.vlines(known["x"], known["low"], known["high"], color=look["color"], linewidth=0.9)


def _roofs(axes: Axes, roofs: pd.DataFrame) -> None:
    for name, height in zip(roofs["name"], roofs["y"], strict=True):
        axes.axhline(float(height), color="black", linestyle=":", linewidth=1)
        axes.annotate(
            str(name), (0.02, float(height)), xycoords=("axes fraction", "data"),
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
        label_places(axes, text.x_ticks, [f"{tick:g}" for tick in text.x_ticks])


def label_places(axes: Axes, places: Sequence[float], texts: Sequence[str]) -> None:
    """Label the horizontal axis at these places alone."""
    axes.xaxis.set_major_locator(FixedLocator(list(places)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels(texts, fontsize=7.5)
