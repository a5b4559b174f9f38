"""What share of an epoch each stage takes: where the time goes, whatever the machine.

Epochs of different machines and graphs are told apart by their shares, since their seconds cannot
be compared; the seconds stand beside each bar.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gatherbench.bench.read.units import three_digits, time_unit
from gatherbench.bench.show.figures.kinds import KINDS, bar_legend
from gatherbench.bench.show.figures.panels import panel_row
from gatherbench.bench.show.figures.style import FAINT, RC, STAGE_COLOURS

PITCH, BAR = 0.34, 0.66


def stage_shares(
    table: pd.DataFrame, absent: Sequence[tuple[str, str]], *, title: str, foot: str
) -> Figure:
    """Draw ``table``: ``kind``, ``label``, and the seconds of each of :data:`STAGE_COLOURS`.

    Args:
        table: one row for each bar; the bars stand in the order of the kinds.
        absent: label and reason of each line that has no bar, below the others.
        title, foot: of the figure.
    """
    looks = {kind.name: kind for kind in KINDS}
    rows = [row for name in looks for row in table[table["kind"] == name].to_dict("records")]
    labels = [f"{row['label']} ({row['kind']})" for row in rows] + [label for label, _ in absent]
    stages = [Patch(facecolor=colour, label=stage) for stage, colour in STAGE_COLOURS.items()]
    figure, (axes,) = panel_row(
        title,
        [""],
        legend=[*stages, *bar_legend()],
        foot=foot,
        height=PITCH * len(labels),
        labels=3.3,
        width=10.5,
        share_y=True,
    )
    with mpl.rc_context(RC):
        for y, row in enumerate(rows):
            whole = sum(float(row[stage]) for stage in STAGE_COLOURS)
            begin = 0.0
            for stage, colour in STAGE_COLOURS.items():
                share = 100 * float(row[stage]) / whole
                if share:
                    axes.barh(y, share, BAR, begin, **looks[row["kind"]].bar(colour))
                begin += share
            unit, factor = time_unit(whole)
            axes.text(101, y, f"{three_digits(whole * factor)} {unit}", va="center", fontsize=8)
        for y, (_, reason) in enumerate(absent, start=len(rows)):
            axes.text(0.6, y, reason, va="center", fontsize=8, style="italic", color=FAINT)
        axes.set_xlim(0, 112)
        axes.set_xticks(range(0, 101, 20))
        axes.set_xlabel("share of the epoch (%); at the right the whole epoch")
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_yticks(range(len(labels)), labels)
    return figure
