"""What share of the multiprocessors a gather needs, and what a training step loses to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatherbench.bench.show.figures.curves import again, name_series, series_colours
from gatherbench.bench.show.figures.kinds import MEASURED, curve_legend
from gatherbench.bench.show.figures.panels import NOT_MEASURED, panel_row
from gatherbench.bench.show.figures.style import FAINT, RC

SHARES = (0, 5, 10, 15, 25, 50)


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
        foot: of the figure.
    """
    titles = ("A gather alone: rate over its best", "A training step with a gather beside it")
    explained = [line for line in curve_legend() if line.get_label() != "modelled"]
    figure, panels = panel_row(
        "What share of the multiprocessors a gather needs",
        titles,
        legend=explained,
        foot=foot,
        height=2.7,
        width=12.0,
    )
    series = list(dict.fromkeys([*gather["series"], *step["series"]]))
    colours = series_colours(series)
    with mpl.rc_context(RC):
        if series:
            name_series(figure, panels, colours)
        for axes, table, published in zip(panels, (gather, step), marks, strict=True):
            axes.grid(visible=True, axis="both")
            for name, line in table.groupby("series", sort=False):
                ordered = line.sort_values("x")
                look = MEASURED.curve(colours[str(name)]) | again(str(name), colours)
                axes.plot(ordered["x"], ordered["y"], **look)
            _marks(axes, published)
            axes.set_xlim(0, 53)
            axes.set_xticks(SHARES)
            axes.set_xlabel("share of the multiprocessors for the gather (%)")
            highest = float(table["y"].max()) if len(table) else 1.0
            axes.set_ylim(0, 1.3 * max(highest, 1.0))
            axes.axhline(1.0, color="black", linestyle=":", linewidth=0.9)
            if table.empty:
                place: dict[str, Any] = {
                    "transform": axes.transAxes,
                    "ha": "center",
                    "color": FAINT,
                }
                axes.text(0.62, 0.42, NOT_MEASURED, fontsize=10, fontweight="bold", **place)
                axes.text(0.62, 0.4, remedy, fontsize=8, va="top", **place)
        panels[0].set_ylabel("share of the best rate")
        panels[1].set_ylabel("time over training alone")
    return figure


def _marks(axes: Axes, published: Sequence[Mark]) -> None:
    """A published share as an open diamond at the top, with what it did."""
    for row, mark in enumerate(published):
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
