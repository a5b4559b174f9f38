"""Bars, whiskers and the numbers beside them, drawn alike in every figure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from gatherbench.bench.read.units import three_digits
from gatherbench.bench.show.figures.style import BAR_HEIGHT, Series


@dataclass(frozen=True, slots=True)
class Line:
    """A bar to draw: at height ``y`` of its panel, from the fields of ``row``."""

    y: float
    series: Series
    row: Mapping[Hashable, Any]

    def numbers(self, *names: str, factor: float = 1.0) -> list[float]:
        """Fields of the row, times ``factor``."""
        return [self.row[name] * factor for name in names]


def draw_stack(
    axes: Axes, lines: list[Line], colours: Mapping[str, str], factor: float = 1.0
) -> NDArray[np.float64]:
    """Draw the fields named by ``colours`` end to end; returns where each bar ends."""
    begin = np.zeros(len(lines))
    for name, colour in colours.items():
        lengths = np.array([line.numbers(name, factor=factor)[0] for line in lines])
        _bars(axes, lines, lengths, begin, colour)
        begin = begin + lengths
    return begin


def draw_plain(axes: Axes, lines: list[Line], name: str) -> NDArray[np.float64]:
    """Draw one field as bars in the colours of their strategies; returns where each ends."""
    lengths = np.array([line.numbers(name)[0] for line in lines])
    _bars(axes, lines, lengths, np.zeros(len(lines)), [line.series.colour for line in lines])
    return lengths


def draw_whiskers(
    axes: Axes, lines: list[Line], ends: NDArray[np.float64], name: str, factor: float = 1.0
) -> list[tuple[float, str]]:
    """Draw ``low`` to ``high`` around the field ``name``.

    Returns:
        For each line where its number is to be written, clear of bar and whisker, and the number.
    """
    labels = []
    for line, end in zip(lines, ends, strict=True):
        value, low, high = line.numbers(name, "low", "high", factor=factor)
        if high > low:  # a single epoch has no spread to show
            arms = [[max(value - low, 0.0)], [max(high - value, 0.0)]]
            axes.errorbar(
                [value], [line.y], xerr=arms, fmt="none", ecolor="black", elinewidth=1, capsize=2.5
            )
        said = three_digits(value)
        if line.series.basis == "predicted" and high > low:  # its ends: no value is between them
            said = f"{three_digits(low)} to {three_digits(high)}"
        labels.append((max(float(end), high), said))
    return labels


def _bars(
    axes: Axes,
    lines: list[Line],
    lengths: NDArray[np.float64],
    begin: NDArray[np.float64],
    colour: str | list[str],
) -> None:
    heights = [line.y for line in lines]
    # A thin edge: a wider one would hide a short stage.
    boxes = axes.barh(
        heights, lengths, BAR_HEIGHT, begin, color=colour, edgecolor="white", linewidth=0.4
    )
    for box, line in zip(boxes, lines, strict=True):
        box.set_hatch(line.series.hatch)
