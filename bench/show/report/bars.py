"""Bar charts of the report: bars whose lengths are per cent, so that they fit any width of page.

The page sets the words around them as text, which stays readable on a phone, can be copied, and is
what a screen reader reads; the drawing itself is left to the template.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from gatherbench.bench.read.epochs import EPOCHS, epoch_times, problems, sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import number, scale
from gatherbench.bench.show.sentences.provenance import has_gpu, modelled_for

#: Share of the panel's width that the longest bar or whisker takes.
FULL = 98.0

#: Strategy and variant.
Names = tuple[str, str]


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
class Mark:
    """A line through all bars of a panel, at a place in per cent; ``kind`` names its dashes."""

    place: float
    kind: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars over one axis; ``ticks`` are places in per cent and their text.

    ``profile`` names whom the bars are modelled for; it is empty where they were measured.
    """

    title: str
    bars: list[Bar]
    ticks: list[tuple[float, str]]
    marks: list[Mark] = field(default_factory=list)
    profile: str = ""


@dataclass(frozen=True, slots=True)
class BarChart:
    """A chart, or ``absent``: why there is none.

    ``legend`` holds names and colours of parts, ``marks`` names and kinds of marks.
    """

    ident: str
    title: str
    reading: str
    legend: list[tuple[str, str]]
    panels: list[Panel]
    marks: list[tuple[str, str]] = field(default_factory=list)
    absent: str = ""

    @property
    def modelled(self) -> bool:
        """Whether there is a modelled bar in it."""
        return any(bar.modelled and bar.parts for panel in self.panels for bar in panel.bars)


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
        values: the columns of ``SERIES``, ``total``, ``low``, ``high`` and the parts'.
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
    pieces: Mapping[str, str] = parts or {}
    if values.empty:
        return BarChart(ident, title, reading, [], [], absent=absent)
    panels, times, bad = [], epoch_times(run), problems(run)
    predicted = ", ".join(modelled_for(run))
    for workload in run.workloads:
        here = values[values["workload"] == workload]
        measured, modelled = (here[here["basis"] == basis] for basis in EPOCHS)
        timed, failed = (t[t["workload"] == workload] for t in (times, bad))
        groups = [(measured, _unmeasured(timed, failed, measured, absent), "")]
        if predicted:
            groups.append((modelled, _unpredicted(run, workload), predicted))
        for frame, why, profile in groups:
            # Beside figures of host memory, a GPU's on the same axis would be compared with them.
            axis = Axis(unit, _top(here if has_gpu(run) else frame, total, mark))
            bars = _bars(frame, why, bool(profile), total, pieces, axis)
            marks = [Mark(axis.place(mark), "one")] if mark is not None and len(frame) else []
            if bars or not profile:
                ticks = axis.ticks() if len(frame) else []
                panels.append(Panel(run.names[workload], bars, ticks, marks, profile))
    return BarChart(ident, title, reading, list(pieces.items()), panels)


@dataclass(frozen=True, slots=True)
class Axis:
    """From 0 to ``top``, in ``unit``: places in per cent, and numbers in a unit that suits."""

    unit: str
    top: float

    def place(self, value: float) -> float:
        """Where on the axis, in per cent."""
        return value * FULL / self.top

    def said(self, value: float) -> str:
        """The value with its unit."""
        return self._with_unit(self.plain(value))

    def plain(self, value: float) -> str:
        """The value without its unit."""
        return number(value * scale(self.unit, self.top)[1])

    def ticks(self) -> list[tuple[float, str]]:
        """Places and their text; the last one has the unit."""
        factor = scale(self.unit, self.top)[1]
        found = [(self.place(t), f"{t * factor:g}") for t in nice_ticks(self.top, factor)]
        place, text = found[-1]
        return [*found[:-1], (place, self._with_unit(text))]

    def _with_unit(self, text: str) -> str:
        return f"{text}×" if self.unit == "×" else f"{text} {scale(self.unit, self.top)[0]}"


def nice_ticks(top: float, factor: float = 1.0, most: int = 5) -> list[float]:
    """Round places on an axis from 0 to ``top``: steps of 1, 2 or 5 times a power of ten."""
    reach = top * factor
    rough = reach / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))
    return [i * step / factor for i in range(int(reach / step * (1 + 1e-9)) + 1)]


def bar(
    names: tuple[str, str],
    modelled: bool,
    parts: Mapping[str, tuple[str, float]],
    text: str,
    axis: Axis,
    spread: tuple[float, float] | None = None,
    note: str = "",
) -> Bar:
    """A bar of parts (name → colour and value); ``spread`` are the ends of its whisker."""
    pieces, begin = [], 0.0
    for name, (colour, value) in parts.items():
        if value > 0:
            length = axis.place(value)
            pieces.append(Part(name, colour, begin, length, axis.said(value)))
            begin += length
    if spread is None or not spread[1] > spread[0]:
        return Bar(*names, modelled, pieces, text=text, note=note)
    low, high = spread
    said = f"{axis.plain(low)} to {axis.plain(high)}"
    return Bar(*names, modelled, pieces, (axis.place(low), axis.place(high)), text, said, note=note)


def _bars(
    frame: pd.DataFrame,
    why: Mapping[Names, str],
    modelled: bool,
    total: str,
    parts: Mapping[str, str],
    axis: Axis,
) -> list[Bar]:
    """A bar for each row of the frame, and the reason for each series without one."""
    rows = {(str(r["strategy"]), str(r["variant"])): r for r in frame.to_dict("records")}
    names = pd.DataFrame(sorted({*rows, *why}), columns=["strategy", "variant"])
    bars = []
    for strategy, variant in sort_series(names).itertuples(index=False):
        key = (str(strategy), str(variant))
        row = rows.get(key)
        if row is None:
            bars.append(Bar(*key, modelled, missing=why[key]))
            continue
        values = {name: (colour, float(row[name])) for name, colour in parts.items()}
        values = values or {total: (key[0], float(row[total]))}
        text, spread = axis.said(row[total]), (float(row["low"]), float(row["high"]))
        if modelled and spread[1] > spread[0]:
            text = f"{axis.plain(spread[0])} to {axis.said(spread[1])}"
        bars.append(bar(key, modelled, values, text, axis, spread, why.get(key, "")))
    return bars


def _top(frame: pd.DataFrame, total: str, mark: float | None) -> float:
    return max([*frame[total], *frame["high"], mark or 0.0]) or 1.0


def _unmeasured(
    times: pd.DataFrame, bad: pd.DataFrame, frame: pd.DataFrame, absent: str
) -> dict[Names, str]:
    """Why series of a workload are not in the frame, or not with all of their repeats."""
    times = times[times["basis"] == "measured"]
    timed, there = (set(zip(t["strategy"], t["variant"], strict=True)) for t in (times, frame))
    found = dict.fromkeys(timed - there, absent)
    for b in bad.to_dict("records"):
        some = "" if b["repeats"] == b["of"] else f"{b['repeats']} of {b['of']} repeats "
        found[b["strategy"], b["variant"]] = f"{some}{b['status']}: {b['reason']}"
    return found


def _unpredicted(run: Run, workload: str) -> dict[Names, str]:
    """Why the link model says nothing of a series."""
    rows = run.select(stage="epoch", metric="wall_time", basis="predicted", workload=workload)
    rows = rows[rows["status"] != "ok"]
    keys = zip(rows["strategy"], rows["variant"], strict=True)
    return dict(zip(keys, rows["reason"], strict=True))
