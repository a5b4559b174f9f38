"""How many times faster zero-copy brings rows to the GPU, over number of rows and row width.

A coloured table: the colour is the ratio on a logarithmic scale, white where neither wins. Modelled
cells are hatched; measured points lie on the same axes and the same colours.
"""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gatherbench.bench.show.figures.panels import panel_row, say_absent
from gatherbench.bench.show.figures.style import FAINT, MODEL_HATCH, RC

#: Ratios at the ends of the colours.
LOWEST, HIGHEST = 0.25, 4.0
COLOURS = "RdBu"


def transfer_heatmap(
    modelled: pd.DataFrame,
    measured: pd.DataFrame,
    published: str,
    *,
    profile: str,
    remedy: str,
    foot: str,
) -> Figure:
    """Draw ``modelled`` as cells and ``measured`` as points: ``rows``, ``row_bytes``, ``ratio``.

    Args:
        modelled, measured: transfer time of CPU gather over that of zero-copy.
        published: what is published, in words: a single number is no table.
        profile: name of the modelled machine.
        remedy: how to measure.
        foot: of the figure.
    """
    figure, panels = panel_row(
        "Transfer time: CPU gather over zero-copy",
        ["published", f"modelled, {profile}", "measured"],
        foot=foot,
        width=12.0,
        height=3.1,
        labels=0.8,
    )
    norm = LogNorm(LOWEST, HIGHEST)
    widths = sorted(set(modelled["row_bytes"]))
    counts = sorted(set(modelled["rows"]))
    with mpl.rc_context(RC):
        say_absent(panels[0], published, "one number")
        _cells(panels[1], modelled, widths, counts, norm)
        if measured.empty:
            say_absent(panels[2], remedy)
        else:
            _points(panels[2], measured, widths, counts, norm)
    return figure


def _cells(
    axes: Axes, table: pd.DataFrame, widths: list[int], counts: list[int], norm: LogNorm
) -> None:
    colours = mpl.colormaps[COLOURS]
    at = table.set_index(["rows", "row_bytes"])["ratio"]
    for y, rows in enumerate(counts):
        for x, width in enumerate(widths):
            ratio = float(at.get((rows, width), np.nan))
            if not np.isfinite(ratio):
                axes.text(x, y, "?", ha="center", va="center", fontsize=8, color=FAINT)
                continue
            colour = colours(float(norm(ratio)))
            axes.add_patch(
                Rectangle(
                    (x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white",
                    hatch=MODEL_HATCH, linewidth=0.4,
                )
            )  # fmt: skip
            axes.text(
                x, y, f"{ratio:.1f}", ha="center", va="center", fontsize=7.5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.75},
            )  # fmt: skip
    _axes(axes, widths, counts)


def _points(
    axes: Axes, table: pd.DataFrame, widths: list[int], counts: list[int], norm: LogNorm
) -> None:
    """Points between the cells: positions are interpolated on the logarithm of both axes."""
    x = np.interp(np.log(table["row_bytes"]), np.log(widths), range(len(widths)))
    y = np.interp(np.log(table["rows"]), np.log(counts), range(len(counts)))
    axes.scatter(x, y, c=table["ratio"], norm=norm, cmap=COLOURS, s=90, edgecolors="black")
    for left, low, ratio in zip(x, y, table["ratio"], strict=True):
        axes.annotate(
            f"{ratio:.1f}", (left, low), xytext=(7, 0), textcoords="offset points",
            va="center", fontsize=7.5,
        )  # fmt: skip
    _axes(axes, widths, counts)


def _axes(axes: Axes, widths: list[int], counts: list[int]) -> None:
    axes.grid(visible=False)
    axes.set_xlim(-0.5, len(widths) - 0.5)
    axes.set_ylim(-0.5, len(counts) - 0.5)
    axes.set_xticks(range(len(widths)), [str(width) for width in widths], fontsize=7.5)
    axes.set_yticks(range(len(counts)), [f"{rows:,}".replace(",", " ") for rows in counts])
    axes.set_xlabel("row width (B)")
    axes.set_ylabel("rows of a transfer")
