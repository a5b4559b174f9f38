"""How much less of something than the conventional path: time, processor time, power, energy.

A line for each value, grouped by quantity; published ranges are outlined from their lowest to their
highest, measured changes are solid bars from 0 to their median over the workloads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from gatherbench.bench.show.figures.kinds import KINDS, MEASURED, PUBLISHED, bar_legend
from gatherbench.bench.show.figures.panels import panel_row
from gatherbench.bench.show.figures.style import FAINT, RC, STRATEGY_COLOURS

PITCH, BAR = 0.34, 0.62


def changes(table: pd.DataFrame, absent: Mapping[str, str], *, title: str, foot: str) -> Figure:
    """Draw changes against the conventional path, as shares: -0.17 is 17 % less.

    Args:
        table: ``quantity``, ``kind``, ``strategy``, ``label``, ``median``, ``low``, ``high``. A bar
            reaches from 0 to the median with whiskers from ``low`` to ``high``; a range without a
            median (NaN) is a box.
        absent: the quantities in order, and for each how to measure it, written where nothing was
            measured.
        title, foot: of the figure.
    """
    lines: list[tuple[str, dict[str, Any] | None]] = []
    for quantity in absent:
        mine = table[table["quantity"] == quantity]
        rows: list[Any] = mine.to_dict("records")
        lines += [(f"{quantity}: {row['label']}\n({row['kind']})", row) for row in rows]
        if not any(row["kind"] == MEASURED.name for row in rows):
            lines.append((f"{quantity}\n({MEASURED.name})", None))
    known = {PUBLISHED.name, MEASURED.name}
    figure, (axes,) = panel_row(
        title,
        [""],
        legend=[patch for patch in bar_legend() if patch.get_label() in known],
        foot=foot,
        height=PITCH * len(lines),
        labels=3.0,
        share_y=True,
    )
    shares = [100 * float(row[end]) for _, row in lines if row for end in ("low", "high")]
    left, right = min([0.0, *shares]), max([0.0, *shares])
    with mpl.rc_context(RC):
        for y, (label, row) in enumerate(lines):
            if row is None:
                reason = absent[label.split("\n")[0]]
                text, end = reason, 0.0
            else:
                text, end = _bar(axes, y, row)
            axes.annotate(
                text, (end, y), xytext=(5, 0), textcoords="offset points", va="center",
                fontsize=7.5, color="black" if row else FAINT,
                style="normal" if row else "italic",
            )  # fmt: skip
        span = right - left or 1.0
        axes.set_xlim(left - 0.03 * span, right + 0.75 * span)
        axes.axvline(0, color="black", linewidth=0.9)
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.set_yticks(range(len(lines)), [label for label, _ in lines])
        axes.set_xlabel("change against CPU gather (%)")
    return figure


def _bar(axes: Any, y: int, row: Mapping[str, Any]) -> tuple[str, float]:
    """Draw one line's bar; its text, and where to write it."""
    middle, low, high = (100 * float(row[name]) for name in ("median", "low", "high"))
    ranged = f"{low:+.1f} to {high:+.1f} %"
    look = next(kind for kind in KINDS if kind.name == row["kind"])
    colour = STRATEGY_COLOURS.get(str(row["strategy"]), FAINT)
    if math.isnan(middle):
        axes.barh(y, high - low, BAR, low, **look.bar(colour))
        return ranged, max(high, 0.0)
    axes.barh(y, middle, BAR, **look.bar(colour))
    if low == high:
        return f"{middle:+.1f} %", max(middle, 0.0)
    arms = [[middle - low], [high - middle]]
    axes.errorbar(middle, y, xerr=arms, ecolor="black", elinewidth=0.9, capsize=2)
    return f"{middle:+.1f} % ({ranged})", max(high, 0.0)
