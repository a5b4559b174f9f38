"""Coloured tables of the notebooks: cells that are not measured are hatched."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gatherbench.bench.show.figures.paper import panel_row, say_absent
from gatherbench.bench.show.looks import FAINT, MODEL_HATCH, RC, ink
from gatherbench.kernels.requests import RequestRow

#: Link bytes over payload at which the colour of a policy is at its end.
COSTLIEST = 2.5
#: Ratios of transfer times at the ends of the colours.
LOWEST, HIGHEST = 0.25, 4.0
COLOURS = "RdBu"


def policy_costs(rows: Sequence[RequestRow], *, title: str, foot: str) -> Figure:
    """Bytes on the link for each byte wanted: a line a policy, a column a row width.

    Counted from the addresses that lanes load. The least of a column is bold.
    """
    policies = list(dict.fromkeys(row.policy.label for row in rows))
    widths = sorted({row.row_bytes for row in rows})
    cost = {(row.policy.label, row.row_bytes): 1 / row.link_efficiency for row in rows}
    figure, (axes,) = panel_row(
        title,
        ["modelled: request accounting, up to 128 B a request"],
        foot=foot,
        width=2.2 + 0.85 * len(widths),
        height=0.27 * len(policies),
        share_y=True,
    )
    colours = mpl.colormaps["Oranges"]
    with mpl.rc_context(RC):
        for x, width in enumerate(widths):
            least = min(cost[name, width] for name in policies)
            for y, name in enumerate(policies):
                value = cost[name, width]
                best = value <= least * 1.005
                shade = colours(0.75 * min(1.0, (value - 1) / (COSTLIEST - 1)))
                weight, colour = ("bold", ink("blue")) if best else ("normal", "black")
                _cell(axes, x, y, f"{value:.2f}", shade, fontweight=weight, color=colour)
        axes.grid(visible=False)
        axes.set_xlim(-0.5, len(widths) - 0.5)
        axes.set_ylim(len(policies) - 0.5, -0.5)
        axes.set_xticks(range(len(widths)), [str(width) for width in widths])
        axes.set_yticks(range(len(policies)), policies)
        axes.set_xlabel("row width (B)")
    return figure


def transfer_heatmap(
    modelled: pd.DataFrame,
    measured: pd.DataFrame,
    published: str,
    *,
    profile: str,
    remedy: str,
    foot: str,
) -> Figure:
    """How many times faster zero-copy brings rows to the GPU, over their number and width.

    The colour is the ratio on a logarithmic scale, white where neither wins. Modelled values are
    cells, measured ones points on the same axes: ``rows``, ``row_bytes``, ``ratio``.

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
            _cell(axes, x, y, f"{ratio:.1f}", colours(float(norm(ratio))))
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


def _cell(
    axes: Axes, x: int, y: int, text: str, colour: tuple[float, ...], **style: object
) -> None:
    """A hatched box with its number."""
    axes.add_patch(
        Rectangle(
            (x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.4,
            hatch=MODEL_HATCH,
        )
    )  # fmt: skip
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
    axes.text(x, y, text, ha="center", va="center", fontsize=7.5, bbox=box, **style)  # type: ignore[arg-type]
