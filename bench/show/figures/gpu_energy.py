"""What an epoch costs the GPU in energy and power, with the part that it draws doing nothing.

A strategy that is faster saves the idle part too, because the GPU waits for less time; the part
above idle is what the work itself takes. Host and processors are not in it.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gatherbench.bench.read.gpu import gpu_energy, gpu_power, idle_power_w
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.figures.bars import Line, draw_stack, draw_whiskers
from gatherbench.bench.show.figures.sheet import draw_sheet
from gatherbench.bench.show.figures.style import GREY, SKY, VERMILION

COLOURS = {"idle": GREY, "above idle": VERMILION, "not split": SKY}
_LABELS = {
    "idle": "drawn by the idle GPU in that time",
    "above idle": "above idle",
    "not split": "idle part not measured",
}


def gpu_energy_per_epoch(run: Run) -> Figure:
    """Joules of the GPU an epoch, by strategy."""
    return _draw_sheet(run, gpu_energy(run), "Energy of the GPU per epoch", "energy per epoch", "J")


def gpu_mean_power(run: Run) -> Figure:
    """Mean watts of the GPU over an epoch, by strategy."""
    return _draw_sheet(run, gpu_power(run), "Power of the GPU", "mean power over an epoch", "W")


def _draw_sheet(run: Run, values: pd.DataFrame, title: str, axis: str, unit: str) -> Figure:
    def draw(axes: Axes, lines: list[Line]) -> tuple[str, list[tuple[float, str]]]:
        ends = draw_stack(axes, lines, COLOURS)
        labels = draw_whiskers(axes, lines, ends, "median")
        return f"{axis} ({unit})", [(end, f"{number} {unit}") for end, number in labels]

    used = [name for name in COLOURS if len(values) and (values[name] > 0).any()]
    idle = idle_power_w(run)
    said = "unknown" if idle is None else f"{idle:.0f} W"
    return draw_sheet(
        run,
        values,
        draw,
        title=title,
        legend=[Patch(facecolor=COLOURS[name], label=_LABELS[name]) for name in used],
        reading=(
            "The GPU alone, by its energy counter over windows of whole epochs, 10 s and more. "
            f"Idle power, with a process on the GPU: {said}. Bars: medians of repeats; whiskers:"
            " quartiles."
        ),
        absent=why_no_energy(run),
    )


def why_no_energy(run: Run) -> str:
    """What the run says of energy that it does not have."""
    rows = run.rows
    missing = rows[(rows["metric"] == "gpu_energy") & (rows["status"] != "ok")]
    of_blocks = missing[missing["stage"] == "energy"]
    found = of_blocks if len(of_blocks) else missing
    return str(found["reason"].iloc[0]) if len(found) else "no energy of the GPU was read"
