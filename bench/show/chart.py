"""A chart as data: panels of bars or of curves over time, and a reason where one is missing.

A chart is made from a run (:mod:`gatherbench.bench.show.charts`); what draws it
(:mod:`gatherbench.bench.show.figures.draw`) knows nothing of runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gatherbench.bench.read.units import number, quantity, scale
from gatherbench.bench.show.looks import colour_of

#: Of an axis, times its longest bar: a whisker of two repeats would leave nothing else to see.
LONGEST_WHISKER = 4.0
#: Times the axis, and as a share of it, beyond which a whisker's end is said by its power of ten.
FAR = 1e3
#: Share of an axis below which a value is said in a unit that suits it and not the axis.
TINY = 1e-3
#: Seconds since the axis of time begins, and the value up to then, in order.
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``bottom`` to ``top`` in ``unit``; numbers are said in a unit that suits ``top``."""

    unit: str
    top: float
    bottom: float = 0.0

    @classmethod
    def of(cls, unit: str, values: Iterable[float], ends: Iterable[float] = ()) -> Axis:
        """For bars of these values; whiskers of these ends are cut where they are far longer."""
        top = max((value for value in values if 0 < value < math.inf), default=1.0)
        reach = max((end for end in ends if end > top), default=top)
        return cls(unit, min(reach, LONGEST_WHISKER * top))

    @property
    def shown(self) -> tuple[str, float]:
        """The unit that suits, and how many of it make one of ``unit``."""
        name, factor = scale(self.unit, self.top)
        return ("×" if self.unit == "×" else name), factor

    def said(self, value: float) -> str:
        """The value with its unit; one that would be all noughts in it has a unit of its own."""
        if 0 < value < TINY * self.top:
            return quantity(value, self.unit)
        return self._with_unit(self.plain(value))

    def plain(self, value: float) -> str:
        """The value without its unit."""
        return number(value * self.shown[1])

    def end(self, value: float) -> str:
        """:meth:`plain` of a whisker's end; as ``2.1e-7`` where it is far from all bars."""
        if value == 0 or self.top / FAR <= value <= self.top * FAR:
            return self.plain(value)
        digits, power = f"{value * self.shown[1]:.1e}".split("e")
        return f"{digits}e{int(power)}"

    def _with_unit(self, text: str) -> str:
        return f"{text}{'' if self.unit == '×' else ' '}{self.shown[0]}"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a panel: a bar, or curves over time, or in their place ``missing``, the reason.

    Attributes:
        name, detail: what it stands for; mostly a strategy and its variant.
        look: a key of :data:`gatherbench.bench.show.looks.KINDS`: ``measured``, ``modelled``, ….
        parts: values that are drawn end to end, by a name of the chart's legend.
        ends: of the whisker, where there is one.
        text, spread: the number beside it, and the ends of its whisker in words.
        missing: why there is nothing to draw.
        note: what else is to be said of it.
        start: where the first part begins.
        curves: values over time, by a name of the chart's legend.
        cut: whether the whisker goes on beyond the axis.
    """

    name: str
    detail: str = "default"
    look: str = "measured"
    parts: Mapping[str, float] = field(default_factory=dict)
    ends: tuple[float, float] | None = None
    text: str = ""
    spread: str = ""
    missing: str = ""
    note: str = ""
    start: float = 0.0
    curves: Mapping[str, Points] = field(default_factory=dict)
    cut: bool = False

    @property
    def modelled(self) -> bool:
        return self.look == "modelled"

    @property
    def end(self) -> float:
        """How far bar and whisker reach."""
        return max(self.start + sum(self.parts.values()), *(self.ends or (0.0,)), 0.0)

    def pieces(self) -> list[tuple[str, float, float]]:
        """Name, begin and length of each part that is not empty."""
        found, begin = [], self.start
        for name, length in self.parts.items():
            if length:
                found.append((name, begin, length))
            begin += length
        return found


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over one axis.

    Attributes:
        title: of the workload; panels of one title belong together.
        axis: of bars their values, of curves the time.
        marks: lines through all bars: value and kind (a key of the chart's ``marks``).
        profile: for whom the lines are modelled; empty where they were measured.
        values: of curves the axis that goes up.
        roof: of curves the value that cannot be exceeded, where it is known.
        quantity: what the axis is, where the panels of a chart differ in it.
    """

    title: str
    lines: Sequence[Line]
    axis: Axis
    marks: Sequence[tuple[float, str]] = ()
    profile: str = ""
    values: Axis | None = None
    roof: float | None = None
    quantity: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """What a picture shows.

    Attributes:
        ident: its name in the page.
        title: its heading.
        reading: how bars, whiskers and lines are to be read.
        quantity: what the axis is; for curves what goes up.
        panels: a reason in place of each line that is missing.
        legend: parts or curves → what they are called, and the name of their colour.
        marks: kinds of marks → what they are called.
        time: of curves, what the axis of time is.
        absent: why there is nothing to draw at all.
        warnings: what has to stand above the numbers.
        foot: where they come from.
    """

    ident: str
    title: str
    reading: str
    quantity: str
    panels: Sequence[Panel]
    legend: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    time: str = "time since the epoch began"
    absent: str = ""
    warnings: Sequence[str] = ()
    foot: str = ""

    def colour(self, part: str) -> str:
        """Name of the colour of a part; one that the legend does not have is a strategy."""
        return self.legend[part][1] if part in self.legend else colour_of(part)

    @property
    def over_time(self) -> bool:
        return any(panel.values for panel in self.panels)
