"""How many times faster than the conventional path: the figure of the paper's title page."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatherbench.bench.read.epochs import reference_variant
from gatherbench.bench.read.modelled import speedups
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.figures.bars import Line, draw_plain, draw_whiskers
from gatherbench.bench.show.figures.sheet import draw_sheet


def speedup(run: Run) -> Figure:
    """Epoch time of ``cpu_gather`` over that of each series; the variant is in the title."""
    reference = reference_variant(run) or ("cpu_gather", "naive")
    name = " ".join(reference)
    return draw_sheet(
        run,
        speedups(run, *reference),
        _draw,
        title=f"Speed-up over {name}",
        legend=[],
        reading=(
            f"Typical epoch time of {name} over that of each strategy: means over repeats; "
            "whiskers: their 95 % interval."
        ),
        absent=f"no {name} measured to compare with",
    )


def _draw(axes: Axes, lines: list[Line]) -> tuple[str, list[tuple[float, str]]]:
    ends = draw_plain(axes, lines, "speedup")
    labels = draw_whiskers(axes, lines, ends, "speedup")
    axes.axvline(1.0, color="black", linewidth=0.9, linestyle=":")
    return "speed-up (×)", [(end, f"{number}×") for end, number in labels]
