"""Whose time it was: the processor's core-seconds of an epoch by thread, and what was left."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gatherbench.bench.read.cpu import cores_of, thread_seconds
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.figures.bars import Line, draw_stack, draw_whiskers
from gatherbench.bench.show.figures.sheet import draw_sheet
from gatherbench.bench.show.figures.style import BLUE, GREEN, GREY, SKY, VERMILION

UNUSED = "#EDEDED"
#: Group → what the legend calls it, and its colour; stages of the loop keep the colours they have.
GROUPS = {
    "main": ("main thread (all stages)", BLUE),
    "gather": ("gather", VERMILION),
    "sampler": ("sampler", SKY),
    "torch": ("torch's own", GREEN),
    "rest": ("other", GREY),
    "unused": ("not used", UNUSED),
}


def cpu_by_thread(run: Run) -> Figure:
    """Core-seconds per epoch by group of threads, and what its cores had left."""
    cores = cores_of(run)
    return draw_sheet(
        run,
        thread_seconds(run),
        _draw,
        title="Processor time per epoch, by thread",
        legend=[Patch(facecolor=colour, label=label) for label, colour in GROUPS.values()],
        reading=(
            f"Core-seconds of this process's threads on {cores} core{'' if cores == 1 else 's'}; "
            "what it did not use was idle, or with other programs. Bars: medians of each group; "
            "number and whiskers: median and quartiles of what was used. Threads of torch that "
            "spin while they wait for work count as busy."
        ),
    )


def _draw(axes: Axes, lines: list[Line]) -> tuple[str, list[tuple[float, str]]]:
    ends = draw_stack(axes, lines, {name: colour for name, (_, colour) in GROUPS.items()})
    labels = draw_whiskers(axes, lines, ends, "median")
    return "core-seconds per epoch", [(end, f"{number} used") for end, number in labels]
