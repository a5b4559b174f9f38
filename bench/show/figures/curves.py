"""Curves: published, modelled and measured beside each other, and shares of a GPU.

A series has one colour in all panels; the panel and its look say of which kind it is. A panel
without values says how to get them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from gatherbench.bench.show.figures.paper import (
    NOT_MEASURED,
    curves_explained,
    panel_row,
    say_absent,
)
from gatherbench.bench.show.looks import (
    FAINT,
    KINDS,
    MEASURED,
    PALETTE,
    RC,
    own_colour,
)

#: Inches right of the panels for the names of the series, and characters of a name in an inch.
NAMES_ROOM, LETTERS = 2.55, 12
#: For series that are no strategies: the palette's colours, then darker ones.
COLOURS = (
    *("blue", "vermilion", "green", "orange", "purple", "sky"),
    *("#000000", "#8C564B", "#7F7F00", "#17687A", "#6A3D9A", "#A6CE39", "#B2182B"),
)
#: Where the axis of shares of the multiprocessors is labelled, per cent.
SHARES = (0, 5, 10, 15, 25, 50)


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
    styles: Mapping[str, Mapping[str, Any]] | None = None,
) -> Figure:
    """Draw ``table``: ``kind``, ``series``, ``x``, ``y``, and where known ``low`` and ``high``.

    Args:
        absent: for each kind what its panel says where it has no value.
        roofs: ``kind``, ``name``, ``y``: limits, drawn as dotted lines across their panel.
        kinds: which get a panel.
        names: titles of the panels by kind, where they say more than the kind.
        styles: by series, how matplotlib is to draw its line in the first panel, where not as its
            kind says.
    """
    looks = series_looks(list(dict.fromkeys(table["series"])))
    styled = {name: {**look, **(styles or {}).get(name, {})} for name, look in looks.items()}
    titles = [(names or {}).get(kind, kind) for kind in kinds]
    figure, panels = panel_row(title, titles, foot=foot, height=3.0, width=12.0, share_y=True)
    roofs = pd.DataFrame(columns=["kind", "name", "y"]) if roofs is None else roofs
    with mpl.rc_context(RC):
        name_series(figure, panels, styled)
        for axes, kind in zip(panels, kinds, strict=True):
            mine, limits = table[table["kind"] == kind], roofs[roofs["kind"] == kind]
            if mine.empty and limits.empty:
                what = NOT_MEASURED if kind == "measured" else f"not {kind}"
                say_absent(axes, absent.get(kind, ""), what)
                continue
            axes.grid(visible=True, axis="both")
            for name, line in mine.groupby("series", sort=False):
                curve(axes, line, kind, (styled if axes is panels[0] else looks)[str(name)])
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


def name_series(
    figure: Figure,
    panels: Sequence[Axes],
    looks: Mapping[str, Mapping[str, Any]],
    room: float = NAMES_ROOM,
) -> None:
    """Squeeze the panels to the left and name the series at the right, as they are drawn."""
    share = 1 - room / figure.get_figwidth()
    first = panels[0].get_position().x0
    for axes in panels:
        box = axes.get_position()
        left = first + (box.x0 - first) * share
        axes.set_position((left, box.y0, box.width * share - first * (1 - share) / 3, box.height))
    figure.legend(
        handles=[
            Line2D([], [], label=textwrap.fill(name, int(LETTERS * room)), **look)
            for name, look in looks.items()
        ],
        loc="center left",
        bbox_to_anchor=(share + 0.05 / figure.get_figwidth(), 0.55),
        frameon=False,
        fontsize=8,
        handlelength=2.5,
    )


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


# ---- shares of the multiprocessors ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """A published share: ``percent`` of the multiprocessors, and in words what it did."""

    percent: float
    text: str


def sm_share(
    gather: pd.DataFrame,
    step: pd.DataFrame,
    marks: tuple[Sequence[Mark], Sequence[Mark]],
    *,
    remedy: str,
    foot: str,
) -> Figure:
    """Draw two panels against the share in per cent: rate of a gather alone, time of a step.

    Args:
        gather: ``series``, ``x`` (per cent), ``y`` (share of the best rate).
        step: ``series``, ``x``, ``y`` (step with a gather beside it over training alone).
        marks: published shares for each panel.
        remedy: how to measure what is missing.
    """
    figure, panels = panel_row(
        "What share of the multiprocessors a gather needs",
        ("A gather alone: rate over its best", "A training step with a gather beside it"),
        legend=curves_explained("published", "measured"),
        foot=foot,
        height=2.7,
        width=12.0,
    )
    looks = series_looks(list(dict.fromkeys([*gather["series"], *step["series"]])))
    with mpl.rc_context(RC):
        if looks:
            name_series(figure, panels, looks)
        for axes, table, published in zip(panels, (gather, step), marks, strict=True):
            axes.grid(visible=True, axis="both")
            for name, line in table.groupby("series", sort=False):
                curve(axes, line, MEASURED.word, looks[str(name)])
            _published(axes, published)
            axes.set(xlim=(0, 53), xticks=SHARES)
            axes.set_xlabel("share of the multiprocessors for the gather (%)")
            axes.set_ylim(0, 1.3 * max([*table["y"], 1.0]))
            axes.axhline(1.0, color="black", linestyle=":", linewidth=0.9)
            if table.empty:
                place: dict[str, Any] = {"transform": axes.transAxes, "ha": "center"}
                place["color"] = FAINT
                axes.text(0.62, 0.42, NOT_MEASURED, fontsize=10, fontweight="bold", **place)
                axes.text(0.62, 0.4, remedy, fontsize=8, va="top", **place)
        panels[0].set_ylabel("share of the best rate")
        panels[1].set_ylabel("time over training alone")
    return figure


def _published(axes: Axes, marks: Sequence[Mark]) -> None:
    """Each published share as an open diamond at the top, with what it did."""
    for row, mark in enumerate(marks):
        height = 0.96 - 0.11 * row
        axes.axvline(mark.percent, color=FAINT, linewidth=0.9, linestyle=(0, (1, 2)))
        axes.plot(
            mark.percent, height, "D", transform=axes.get_xaxis_transform(),
            color=FAINT, fillstyle="none", markersize=5, clip_on=False,
        )  # fmt: skip
        axes.annotate(
            mark.text, (mark.percent, height), xycoords=axes.get_xaxis_transform(),
            xytext=(7, 0), textcoords="offset points", fontsize=7.5, va="center", color=FAINT,
        )  # fmt: skip
