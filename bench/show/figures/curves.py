"""Curves: published, modelled and measured beside each other, shares of a GPU, and sweeps.

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

from gatherbench.bench.model.sweeps import Sweep
from gatherbench.bench.read.epochs import sort_series
from gatherbench.bench.read.units import time_unit
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
    MODELLED,
    PALETTE,
    RC,
    colour_of,
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


# ---- sweeps of the link model -----------------------------------------------------------------

#: Markers of a strategy's variants, which share its colour.
MARKERS = ("o", "s", "^", "D", "v", "P")
#: Values closer than this factor to one that is labelled stay without a label.
LABEL_FACTOR = 1.75
READING = (
    "Modelled, not measured. Lines that coincide lie on each other; where a line ends, the path"
    " needs more GPU memory than there is, or a constant that is not known. On a link that the"
    " machine does not have, rates that were seen on its own are no limit."
)
READING_LAWS = (
    " The strong line is the longest epoch of the laws that the graph may follow, and of what the"
    " profile knows but as a range, the faint one the shortest."
)


def sweep_panels(sweeps: Sequence[Sweep], *, title: str, foot: str) -> Figure:
    """Modelled epochs against one thing that is varied, a panel for each sweep.

    All have one axis of time that begins at 0. A strategy that needs more GPU memory than there is
    at some value has no point there, and none at all where the profile knows too little of it.
    """
    whole = pd.concat([sweep.table for sweep in sweeps])
    named = sort_series(whole[["strategy", "variant"]].drop_duplicates())
    looks: dict[str, dict[str, Any]] = {}
    for strategy, variants in named.groupby("strategy", sort=False):
        for variant, marker in zip(variants["variant"], MARKERS * 9, strict=False):
            look = {"marker": marker, "markersize": 4, "fillstyle": "none"}
            looks[_name(str(strategy), variant)] = MODELLED.curve(colour_of(str(strategy))) | look
    names = [sweep.name.replace("_", " ").replace("gpu", "GPU") for sweep in sweeps]
    reading = READING + READING_LAWS * bool((whole["shortest_s"] < whole["longest_s"]).any())
    figure, panels = panel_row(
        f"{title} (modelled)", names, foot=f"{reading} {foot}", height=3.0, width=13.0
    )
    unit, factor = time_unit(float(whole["longest_s"].max()))
    with mpl.rc_context(RC):
        name_series(figure, panels, looks, room=2.3)
        for axes, sweep in zip(panels, sweeps, strict=True):
            _sweep(axes, sweep, looks, factor)
        panels[0].set_ylabel(f"modelled epoch ({unit})")
    return figure


def _sweep(axes: Axes, sweep: Sweep, looks: Mapping[str, dict[str, Any]], factor: float) -> None:
    known = sweep.table.dropna(subset=["longest_s"])
    if known.empty:
        # The path that lacks least names what all of them lack; a panel holds the first of it.
        reason = min(map(str, sweep.table["reason"]), key=len, default="")
        say_absent(axes, reason.partition(";")[0], "not modelled")
        return
    axes.grid(visible=True, axis="both")
    ticks = sorted(set(sweep.table["x"]))
    place = {x: float(x) if sweep.log_x else float(i) for i, x in enumerate(ticks)}
    for (strategy, variant), line in known.groupby(["strategy", "variant"], sort=False):
        ordered = line.sort_values("x")
        look = looks[_name(str(strategy), str(variant))]
        at = [place[x] for x in ordered["x"]]
        low, high = (ordered[name] * factor for name in ("shortest_s", "longest_s"))
        axes.plot(at, high, **look)
        if (low < high).any():
            axes.plot(at, low, **look, alpha=0.4)
    if sweep.log_x:
        axes.set_xscale("log", base=2)
    labelled = _spaced(ticks) if sweep.log_x else ticks
    label_places(axes, [place[x] for x in labelled], [f"{x:g}" for x in labelled])
    axes.set_xlabel(sweep.label, fontsize=8)
    axes.set_ylim(bottom=0)


def _spaced(values: Sequence[float]) -> list[float]:
    """Those of ascending values whose labels do not run into each other."""
    kept: list[float] = []
    for value in values:
        if not kept or value >= LABEL_FACTOR * kept[-1]:
            kept.append(value)
    return kept


def _name(strategy: str, variant: str) -> str:
    return strategy if variant == "default" else f"{strategy} {variant}"
