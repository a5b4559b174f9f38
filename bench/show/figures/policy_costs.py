"""Bytes on the link for each byte wanted: every launch policy at several row widths, as a table.

Counted from the addresses that lanes load, not measured, and hatched like everything that is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gatherbench.bench.show.figures.panels import panel_row
from gatherbench.bench.show.figures.style import BLUE, MODEL_HATCH, RC
from gatherbench.kernels.requests import RequestRow

#: Link bytes over payload at which the colour is at its end.
HIGHEST = 2.5


def policy_costs(rows: Sequence[RequestRow], *, title: str, foot: str) -> Figure:
    """Draw ``rows``: a line a policy, a column a width; the least of a column is bold."""
    policies = list(dict.fromkeys(row.policy.label for row in rows))
    widths = sorted({row.row_bytes for row in rows})
    cost = {(row.policy.label, row.row_bytes): 1 / row.link_efficiency for row in rows}
    figure, (axes,) = panel_row(
        title,
        ["modelled: request accounting, up to 128 B a request"],
        foot=foot,
        width=2.2 + 0.85 * len(widths),
        height=0.27 * len(policies),
        labels=1.8,
        share_y=True,
    )
    colours = mpl.colormaps["Oranges"]
    with mpl.rc_context(RC):
        for x, width in enumerate(widths):
            least = min(cost[name, width] for name in policies)
            for y, name in enumerate(policies):
                value = cost[name, width]
                best = value <= least * 1.005
                shade = colours(0.75 * min(1.0, (value - 1) / (HIGHEST - 1)))
                axes.add_patch(
                    Rectangle(
                        (x - 0.48, y - 0.44), 0.96, 0.88, facecolor=shade, edgecolor="white",
                        hatch=MODEL_HATCH, linewidth=0.4,
                    )
                )  # fmt: skip
                axes.text(
                    x, y, f"{value:.2f}", ha="center", va="center", fontsize=8,
                    fontweight="bold" if best else "normal", color=BLUE if best else "black",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8},
                )  # fmt: skip
        axes.grid(visible=False)
        axes.set_xlim(-0.5, len(widths) - 0.5)
        axes.set_ylim(len(policies) - 0.5, -0.5)
        axes.set_xticks(range(len(widths)), [str(width) for width in widths])
        axes.set_yticks(range(len(policies)), policies)
        axes.set_xlabel("row width (B)")
    return figure
