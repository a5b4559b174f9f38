"""Where an epoch's time goes: the first question that a strategy has to answer."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gatherbench.bench.read.epochs import stage_breakdown
from gatherbench.bench.read.modelled import with_ranges
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import time_unit
from gatherbench.bench.show.figures.bars import Line, draw_stack, draw_whiskers
from gatherbench.bench.show.figures.sheet import draw_sheet
from gatherbench.bench.show.figures.style import STAGE_COLOURS


def epoch_breakdown(run: Run) -> Figure:
    """Epoch time of each series, stacked by stage.

    The stages are medians of their own; ``other`` is what is left to the median of the epoch. The
    stage ``fetch`` is the time that the loop waited for rows, so a strategy that fetches ahead
    shows only what it could not hide. A modelled epoch without stages is drawn as ``other``.
    """
    return draw_sheet(
        run,
        with_ranges(run, stage_breakdown(run)),
        _draw,
        title="Epoch time by stage",
        legend=[Patch(facecolor=c, label=stage) for stage, c in STAGE_COLOURS.items()],
        reading="Bars: medians by stage; whiskers: quartiles of the whole epoch.",
    )


def _draw(axes: Axes, lines: list[Line]) -> tuple[str, list[tuple[float, str]]]:
    unit, factor = time_unit(max((line.row["high"] for line in lines), default=1.0))
    ends = draw_stack(axes, lines, STAGE_COLOURS, factor)
    labels = draw_whiskers(axes, lines, ends, "median", factor)
    return f"time per epoch ({unit})", [(end, f"{number} {unit}") for end, number in labels]
