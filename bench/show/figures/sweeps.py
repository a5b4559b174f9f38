"""Modelled epochs against one thing that is varied, a panel for each.

``gatherbench advise --figure FILE`` draws them around its question.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from gatherbench.bench.show.figures.kinds import MODELLED
from gatherbench.bench.show.figures.panels import panel_row, say_absent
from gatherbench.bench.show.figures.style import RC, STRATEGY_COLOURS, YELLOW

#: Markers of a strategy's variants, which share its colour.
MARKERS = ("o", "s", "^", "D", "v", "P")
#: Inches right of the panels for the names of the series.
NAMES_ROOM = 2.3
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
FAINT_LINE = 0.4
Series = tuple[str, str]


def sweep_panels(sweeps: Sequence[Sweep], *, title: str, foot: str) -> Figure:
    """Draw the sweeps side by side, on one axis of time that begins at 0.

    A strategy that needs more GPU memory than there is at some value has no point there, and none
    at all where the profile knows too little of it.
    """
    whole = pd.concat([sweep.table for sweep in sweeps])
    named = sort_series(whole[["strategy", "variant"]].drop_duplicates())
    series = list(zip(named["strategy"], named["variant"], strict=True))
    looks = _looks(series)
    names = [sweep.name.replace("_", " ").replace("gpu", "GPU") for sweep in sweeps]
    reading = READING + READING_LAWS * bool((whole["shortest_s"] < whole["longest_s"]).any())
    figure, panels = panel_row(
        f"{title} (modelled)", names, foot=f"{reading} {foot}", height=3.0, width=13.0
    )
    known = whole["longest_s"].dropna()
    unit, factor = time_unit(float(known.max()) if len(known) else 1.0)
    with mpl.rc_context(RC):
        _make_room(figure, panels)
        for axes, sweep in zip(panels, sweeps, strict=True):
            _panel(axes, sweep, looks, factor)
        panels[0].set_ylabel(f"modelled epoch ({unit})")
        handles = [Line2D([], [], label=_name(one), **look) for one, look in looks.items()]
        figure.legend(
            handles=handles,
            loc="center left",
            bbox_to_anchor=(1 - NAMES_ROOM / figure.get_figwidth(), 0.55),
            frameon=False,
            fontsize=8,
            handlelength=3,
        )
    return figure


def _panel(axes: Axes, sweep: Sweep, looks: dict[Series, dict[str, Any]], factor: float) -> None:
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
        look = looks[str(strategy), str(variant)]
        at = [place[x] for x in ordered["x"]]
        low, high = (ordered[name] * factor for name in ("shortest_s", "longest_s"))
        axes.plot(at, high, **look)
        if (low < high).any():
            axes.plot(at, low, **look, alpha=FAINT_LINE)
    if sweep.log_x:
        axes.set_xscale("log", base=2)
    labelled = _spaced(ticks) if sweep.log_x else ticks
    axes.xaxis.set_major_locator(FixedLocator([place[x] for x in labelled]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{x:g}" for x in labelled], fontsize=7)
    axes.set_xlabel(sweep.label, fontsize=8)
    axes.set_ylim(bottom=0)


def _spaced(values: Sequence[float]) -> list[float]:
    """Those of ascending values whose labels do not run into each other."""
    kept: list[float] = []
    for value in values:
        if not kept or value >= LABEL_FACTOR * kept[-1]:
            kept.append(value)
    return kept


def _looks(series: Sequence[Series]) -> dict[Series, dict[str, Any]]:
    """A strategy's colour, a marker for each of its variants."""
    numbers = {strategy: count() for strategy, _ in series}
    looks: dict[Series, dict[str, Any]] = {}
    for strategy, variant in series:
        marker = MARKERS[next(numbers[strategy]) % len(MARKERS)]
        colour = STRATEGY_COLOURS.get(strategy, YELLOW)
        looks[strategy, variant] = {
            **MODELLED.curve(colour), "marker": marker, "markersize": 4, "fillstyle": "none"
        }  # fmt: skip
    return looks


def _name(series: Series) -> str:
    strategy, variant = series
    return strategy if variant == "default" else f"{strategy} {variant}"


def _make_room(figure: Figure, panels: Sequence[Axes]) -> None:
    """Squeeze the panels to the left, for the names of the series at the right."""
    share = 1 - NAMES_ROOM / figure.get_figwidth()
    for axes in panels:
        box = axes.get_position()
        axes.set_position((box.x0 * share, box.y0, box.width * share, box.height))
