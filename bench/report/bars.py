"""Bar charts of the report: bars whose lengths are per cent, so that they fit any width of page.

The page sets the words around them as text, which stays readable on a phone, can be copied, and is
what a screen reader reads; the drawing itself is left to the template.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from gatherbench.bench.derive import epoch_times, problems
from gatherbench.bench.figures.sheet import all_series
from gatherbench.bench.figures.style import Series
from gatherbench.bench.report.grid import number, scale
from gatherbench.bench.tables import Run

#: Share of the panel's width that the longest bar or whisker takes.
FULL = 98.0


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar, in per cent of the panel's width."""

    name: str
    colour: str
    begin: float
    length: float
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A line of a panel: a bar, or in its place ``missing`` (why there is none)."""

    strategy: str
    variant: str
    modelled: bool
    parts: list[Part] = field(default_factory=list)
    whisker: tuple[float, float] | None = None
    text: str = ""
    spread: str = ""
    missing: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """The bars of one workload over one axis; ``ticks`` are places in per cent and their text."""

    workload: str
    bars: list[Bar]
    ticks: list[tuple[float, str]]
    mark: float | None


@dataclass(frozen=True, slots=True)
class BarChart:
    """A chart: ``legend`` holds names and colours, ``profiles`` whom its modelled bars are for."""

    ident: str
    title: str
    reading: str
    legend: list[tuple[str, str]]
    panels: list[Panel]
    profiles: str


def bar_chart(
    run: Run,
    values: pd.DataFrame,
    *,
    ident: str,
    title: str,
    reading: str,
    total: str,
    unit: str,
    parts: Mapping[str, str] | None = None,
    mark: float | None = None,
    absent: str = "no measurement",
) -> BarChart:
    """A panel for each workload, a bar for each series, reasons in place of what is missing.

    Args:
        run: what is drawn.
        values: the columns of ``derive.SERIES``, ``total``, ``low``, ``high`` and the parts'.
        ident: id of the chart in the page.
        title: its heading.
        reading: how bars and whiskers are to be read.
        total: the column that the number at the bar's end and the whisker belong to.
        unit: of all values: ``s``, ``×``.
        parts: columns that are drawn end to end, and the names of their colours; ``None`` draws
            the total in the colour of its strategy.
        mark: value at which a line is drawn through all bars.
        absent: what to write for a series that was measured but has no value here.
    """
    measured = {tuple(k) for k in epoch_times(run)[["workload", *_NAMES]].itertuples(index=False)}
    bad = {
        (b["workload"], b["strategy"], b["variant"]): b for b in problems(run).to_dict("records")
    }
    by_key = {(r["workload"], *(r[n] for n in _NAMES)): r for r in values.to_dict("records")}
    panels = []
    for workload in run.workloads:
        here = [r for key, r in by_key.items() if key[0] == workload]
        top = max((max(r[total], r["high"], mark or 0) for r in here), default=1.0) or 1.0
        name, factor = scale(unit, top)
        bars = []
        for one in all_series(run):
            key = (workload, one.strategy, one.variant, one.backend)
            problem = bad.get(key[:3]) if one.backend != "model" else None
            row = by_key.get(key)
            if row is not None:
                bars.append(_bar(one, row, total, parts, FULL / top, (unit, name, factor), problem))
            elif problem is not None or key in measured:
                why = f"{problem['status']}: {problem['reason']}" if problem else absent
                bars.append(Bar(one.strategy, one.variant, one.backend == "model", missing=why))
        ticks = ticks_of(top, name or unit, factor) if here else []
        place = mark * FULL / top if mark is not None and here else None
        panels.append(Panel(workload, bars, ticks, place))
    legend = list(parts.items()) if parts else []
    return BarChart(ident, title, reading, legend, panels, ", ".join(profiles(run)))


def profiles(run: Run) -> list[str]:
    """The link profiles whose epochs were modelled."""
    rows = run.rows
    return sorted(set(rows["machine"][(rows["backend"] == "model") & (rows["stage"] == "epoch")]))


def ticks_of(top: float, unit: str, factor: float) -> list[tuple[float, str]]:
    """Places in per cent and their text; the last one has the unit."""
    ticks = [(t * FULL / top, f"{t * factor:g}") for t in nice_ticks(top, factor)]
    place, text = ticks[-1]
    return [*ticks[:-1], (place, f"{text}{unit}" if unit == "×" else f"{text} {unit}")]


def nice_ticks(top: float, factor: float = 1.0, most: int = 5) -> list[float]:
    """Round places on an axis from 0 to ``top``: steps of 1, 2 or 5 times a power of ten."""
    reach = top * factor
    rough = reach / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))
    return [i * step / factor for i in range(int(reach / step * (1 + 1e-9)) + 1)]


_NAMES = ("strategy", "variant", "backend")


def _bar(
    one: Series,
    row: Mapping[Hashable, Any],
    total: str,
    parts: Mapping[str, str] | None,
    stretch: float,
    units: tuple[str, str, float],
    problem: Mapping[Hashable, Any] | None,
) -> Bar:
    unit, name, factor = units

    def said(value: float) -> str:
        return f"{number(value * factor)}{unit if unit == '×' else ' ' + name}"

    pieces, begin = [], 0.0
    for column, colour in (parts or {total: one.strategy}).items():
        value = row[column]
        if value > 0:
            pieces.append(Part(column, colour, begin, value * stretch, said(value)))
            begin += value * stretch
    several = row["high"] > row["low"]
    return Bar(
        one.strategy,
        one.variant,
        one.backend == "model",
        pieces,
        whisker=(row["low"] * stretch, row["high"] * stretch) if several else None,
        text=said(row[total]),
        spread=_spread(row["low"] * factor, row["high"] * factor) if several else "",
        note=f"{problem['repeats']} of {problem['of']} repeats {problem['status']}: "
        f"{problem['reason']}"
        if problem
        else "",
    )


def _spread(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}"
