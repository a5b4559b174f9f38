"""Epoch time of each strategy: published, modelled and measured beside each other.

A panel for each group (a link, a graph), a line for each strategy, and in it a bar for each kind of
value, always in the same order. Where a kind has no value its place says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatherbench.bench.read.epochs import READING_ORDER
from gatherbench.bench.read.units import three_digits, time_unit
from gatherbench.bench.show.figures.kinds import KINDS, Kind, bar_legend
from gatherbench.bench.show.figures.panels import panel_row
from gatherbench.bench.show.figures.style import FAINT, RC, STRATEGY_COLOURS, YELLOW

#: Inches that one bar takes; bars fill most of it.
PITCH, BAR = 0.2, 0.82


def epoch_bars(
    table: pd.DataFrame,
    absent: Mapping[str, str],
    *,
    title: str,
    foot: str,
    groups: Sequence[str] = (),
    kinds: Sequence[Kind] = KINDS,
) -> Figure:
    """Draw ``table``: ``group``, ``kind``, ``strategy``, ``median``, ``low``, ``high``; seconds.

    ``low`` and ``high`` may be missing (NaN). Of several rows for one bar the fastest is drawn: a
    strategy is shown by its best variant, named in the column ``note`` if there is one.

    Args:
        absent: for each kind what its place says where it has no value.
        title, foot: of the figure.
        groups: panels, in order; those of the table if not given.
        kinds: which to give a place.
    """
    best = table.sort_values("median", kind="stable").drop_duplicates(["group", "kind", "strategy"])
    names = list(groups) or list(dict.fromkeys(table["group"]))
    present = set(best["strategy"])
    strategies = [name for name in READING_ORDER if name in present]
    strategies += sorted(present - set(strategies))
    pitch = PITCH * (len(kinds) + 0.8)
    figure, axes = panel_row(
        title,
        names,
        legend=[patch for patch in bar_legend() if patch.get_label() in {k.name for k in kinds}],
        foot=foot,
        width=max(7.5, 1.6 + 3.6 * len(names)),
        height=max(pitch * len(strategies), 0.6),
        labels=1.45,
        share_y=True,
    )
    with mpl.rc_context(RC):
        for one, name in zip(axes, names, strict=True):
            _panel(one, best[best["group"] == name], strategies, kinds, absent)
        axes[0].set_ylim(len(strategies) - 0.5, -0.5)
        axes[0].set_yticks(range(len(strategies)), strategies)
    return figure


def _panel(
    axes: Axes,
    bars: pd.DataFrame,
    strategies: Sequence[str],
    kinds: Sequence[Kind],
    absent: Mapping[str, str],
) -> None:
    highest = float(np.nanmax(bars[["median", "high"]].to_numpy(float), initial=0.0)) or 1.0
    unit, factor = time_unit(highest)
    height = 1 / (len(kinds) + 0.8)
    axes.set_xlabel(f"time per epoch ({unit})")
    axes.set_xlim(0, 1.32 * highest * factor)
    if bars.empty:
        axes.set_xticks([])
    rows: dict[tuple[str, str], Any] = {
        (str(r["kind"]), str(r["strategy"])): r for r in bars.to_dict("records")
    }
    for line, strategy in enumerate(strategies):
        for place, kind in enumerate(kinds):
            y = line + (place - (len(kinds) - 1) / 2) * height
            row = rows.get((kind.name, strategy))
            if row is None:
                text = absent.get(kind.name, f"not {kind.name}")
                axes.annotate(
                    text, (0, y), xytext=(3, 0), textcoords="offset points",
                    va="center", fontsize=7, style="italic", color=FAINT,
                )  # fmt: skip
                continue
            value, low, high = (float(row[name]) * factor for name in ("median", "low", "high"))
            colour = STRATEGY_COLOURS.get(strategy, YELLOW)
            axes.barh(y, value, height * BAR, **kind.bar(colour))
            end = value
            if high > low:
                end = max(value, high)
                arms = [[max(value - low, 0.0)], [max(high - value, 0.0)]]
                axes.errorbar(value, y, xerr=arms, ecolor="black", elinewidth=0.9, capsize=2)
            note = row.get("note")
            text = three_digits(value) + (f"  {note}" if isinstance(note, str) and note else "")
            axes.annotate(
                text, (end, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7.5
            )
