"""What an epoch costs the host's processor: the resource that zero-copy gives back."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gatherbench.bench.read.epochs import cpu_seconds
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.figures.bars import Line, draw_stack, draw_whiskers
from gatherbench.bench.show.figures.sheet import draw_sheet
from gatherbench.bench.show.figures.style import CPU_COLOURS


def cpu_core_seconds(run: Run) -> Figure:
    """Core-seconds per epoch of the process tree, user and system apart."""
    return draw_sheet(
        run,
        cpu_seconds(run),
        _draw,
        title="Processor time per epoch",
        legend=[Patch(facecolor=c, label=name) for name, c in CPU_COLOURS.items()],
        reading=(
            "Core-seconds of the process and its children: sampling, gather and training alike. "
            "Bars: medians of user and system; whiskers: quartiles of their sum."
        ),
    )


def _draw(axes: Axes, lines: list[Line]) -> tuple[str, list[tuple[float, str]]]:
    ends = draw_stack(axes, lines, CPU_COLOURS)
    return "core-seconds per epoch", draw_whiskers(axes, lines, ends, "median")
