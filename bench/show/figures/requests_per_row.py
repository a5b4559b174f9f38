"""Requests per row against row width for every launch policy: the paper's alignment argument.

One panel a policy, so that ten of them can be read. Each is drawn over the lines that lie under a
row, which no launch can go below. Two kinds of rows are told apart, because the width of an access
decides much: rows of an odd multiple of 16 B (100 floats are one), and rows of an odd number of
floats, which forbid accesses of more than 4 B. Rows of whole lines need no alignment and are left
out. Computed by request accounting, not measured.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gatherbench.bench.show.figures.paper import paper
from gatherbench.bench.show.looks import RC, ink
from gatherbench.kernels.grid import LINE_BYTES
from gatherbench.kernels.policies import POLICIES, Policy
from gatherbench.kernels.requests import RequestRow, requests_by_row_width

FLOAT_BYTES = 4
WIDEST_BYTES = 2560
BLUE, GREY, VERMILION = ink("blue"), ink("grey"), ink("vermilion")
#: Name, row widths in bytes, colour and dashes of the two kinds of rows.
KINDS: tuple[tuple[str, range, str, tuple[float, tuple[float, ...]]], ...] = (
    ("rows of an odd multiple of 16 B", range(16, WIDEST_BYTES + 1, 32), BLUE, (0.0, ())),
    (
        "rows of an odd number of floats",
        range(12, WIDEST_BYTES + 1, 24),
        VERMILION,
        (0.0, (4.0, 1.2)),
    ),
)
FOOT = (
    "float32, uniform ids over 2.4 M rows, table on a 128 B boundary. A request is a run of sectors"
    " of 32 B that one warp instruction wants of one line; each carries 20 B of header and framing"
    " (Neugebauer et al., SIGCOMM 2018). Caches between instructions are left out. A policy is the"
    " lanes, widths, shift and order of a system on our kernel, never that system. Rows of whole"
    " lines, where nothing is to be aligned, are left out."
)
COLUMNS = 6
#: Inches: of the figure, of a panel with its title and numbers, of the name of a block.
WIDTH, PANEL, BLOCK = 12.5, 1.85, 0.35


def requests_per_row(policies: Sequence[Policy] = ()) -> Figure:
    """Draw ``policies`` (all for none) for requests of up to a line.

    Two blocks of panels: requests per row above, link bytes beyond the row as a share of the row
    below.
    """
    chosen = list(policies) or list(POLICIES.values())
    counted = [requests_by_row_width(widths, FLOAT_BYTES, chosen) for _, widths, _, _ in KINDS]
    columns = min(COLUMNS, len(chosen))
    lines = -(-len(chosen) // columns)
    blocks = (
        ("Read requests per row", _requests, 1.08 * _highest(chosen, counted)),
        ("Link bytes beyond the row, as a share of it", _overhead, 2.0),
    )
    handles = [
        Line2D([], [], color=c, linestyle=dashes, label=name) for name, _, c, dashes in KINDS
    ]
    floor = Line2D([], [], color=GREY, linewidth=7, alpha=0.55, label="the lines under a row")
    with mpl.rc_context(RC):
        figure = paper(
            "What each launch policy asks of the link",
            WIDTH,
            len(blocks) * (BLOCK + lines * PANEL),
            warnings=[
                f"Computed by request accounting, not measured; requests of up to {LINE_BYTES} B"
            ],
            legend=[*handles, floor],
            foot=FOOT,
        )
        parts = figure.add_gridspec(len(blocks), 1)
        for place, (name, value, limit) in enumerate(blocks):
            grid = parts[place].subgridspec(lines, columns)
            for number, policy in enumerate(chosen):
                axes = figure.add_subplot(grid[divmod(number, columns)])
                _panel(axes, policy, counted, value, limit)
                last = number + columns >= len(chosen)
                axes.tick_params(labelbottom=last, labelleft=number % columns == 0)
                axes.set_xlabel("row width (B)" if last else "", fontsize=8)
                axes.set_ylabel("" if number % columns else textwrap.fill(name, 24), fontsize=8)
    return figure


def _requests(row: RequestRow) -> float:
    return row.requests_per_row


def _overhead(row: RequestRow) -> float:
    return 1 / row.link_efficiency - 1


def _highest(chosen: Sequence[Policy], counted: Sequence[Sequence[RequestRow]]) -> float:
    """Requests of the costliest policy, or of the costliest but one where it dwarfs the rest."""
    most = sorted(
        max(row.requests_per_row for rows in counted for row in rows if row.policy is policy)
        for policy in chosen
    )
    return most[-2] if len(most) > 1 and most[-1] > 1.5 * most[-2] else most[-1]


def floor_requests(row_bytes: int) -> float:
    """Lines that lie under a row of a table that begins on a line, on average over its rows."""
    starts = np.arange(0, LINE_BYTES, math.gcd(row_bytes, LINE_BYTES))
    return float(((starts + row_bytes - 1) // LINE_BYTES + 1).mean())


def _panel(
    axes: Axes,
    policy: Policy,
    counted: Sequence[Sequence[RequestRow]],
    value: Callable[[RequestRow], float],
    limit: float,
) -> None:
    axes.set_title(policy.label, fontsize=8.5, loc="left")
    axes.grid(visible=True, axis="both")
    if value is _requests:
        widths = range(16, WIDEST_BYTES + 1, 32)
        floor = [floor_requests(w) for w in widths]
        axes.fill_between(widths, floor, color=GREY, alpha=0.55, linewidth=0)
    clipped = []
    for (_, _, colour, dashes), rows in zip(KINDS, counted, strict=True):
        mine = [row for row in rows if row.policy is policy]
        heights = [value(row) for row in mine]
        axes.plot(
            [r.row_bytes for r in mine], heights, color=colour, linestyle=dashes, linewidth=1.4
        )
        if heights[-1] > limit:
            clipped.append(heights[-1])
    if clipped:
        number = f"{max(clipped):.0f}" if value is _requests else f"{max(clipped):.0%}"
        axes.text(
            0.96, 0.06, f"up to {number} at {WIDEST_BYTES} B", transform=axes.transAxes,
            ha="right", fontsize=7.5, style="italic",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8},
        )  # fmt: skip
    axes.set_xlim(0, WIDEST_BYTES)
    axes.set_ylim(0, limit)
    axes.set_xticks([0, 1024, 2048])
    axes.tick_params(labelsize=7.5)
    if value is not _requests:
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
