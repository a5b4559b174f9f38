"""The share of a GPU's multiprocessors that a gather needs, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatherbench.bench.show.figures.curves import curve, series_looks
from gatherbench.bench.show.figures.paper import NOT_MEASURED, curves_explained, named, panel_row
from gatherbench.bench.show.looks import FAINT, MEASURED, RC

#: Where the axis of shares of the multiprocessors is labelled, per cent.
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
    """
    looks = series_looks(list(dict.fromkeys([*gather["series"], *step["series"]])))
    figure, panels = panel_row(
        "What share of the multiprocessors a gather needs",
        ("A gather alone: rate over its best", "A training step with a gather beside it"),
        legend=curves_explained("published", "measured"),
        foot=foot,
        height=2.7,
        width=12.0,
        beside=named(looks),
    )
    with mpl.rc_context(RC):
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
