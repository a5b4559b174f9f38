"""The frame that all figures share: a panel for each workload, a line for each series, a footer.

Modelled series have a panel of their own below, with an axis of their own: another machine's times
may be a hundredth of the host's. A series that failed or was skipped keeps its line and says why; a
figure of a run without a GPU, or beside other work, says so in its head; the footer says what was
measured, on what, how often.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gatherbench.bench.read.epochs import epoch_times, problems, sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.figures.bars import Line
from gatherbench.bench.show.figures.panels import wrapped
from gatherbench.bench.show.figures.style import FAINT, MODEL_HATCH, RC, VERMILION, Series
from gatherbench.bench.show.sentences.provenance import (
    borrowed,
    modelled_for,
    provenance,
    warnings_of,
)

#: Inches. A line holds two rows of label; above each panel stands its name, below it its axis.
LINE, NAME, AXIS, FOOT = 0.36, 0.32, 0.58, 0.55
LABELS, PANEL, MARGIN = 2.1, {1: 6.3, 2: 4.4}, 0.12
HEAD_LINE, HEAD_TITLE = 0.22, 0.32

#: Draws the lines of one panel; returns the label of its axis and, for each line, where to write
#: its number and the number.
DrawPanel = Callable[[Axes, list[Line]], tuple[str, list[tuple[float, str]]]]


def draw_sheet(
    run: Run,
    values: pd.DataFrame,
    draw: DrawPanel,
    *,
    title: str,
    legend: Sequence[Patch],
    reading: str,
    absent: str = "no measurement",
) -> Figure:
    """Lay out the figure of ``values`` (one row for each bar) and have ``draw`` fill its panels.

    Args:
        run: what is drawn.
        values: a derived table with the columns :data:`gatherbench.bench.run.rows.SERIES`.
        draw: fills one panel.
        title: of the figure.
        legend: patches that explain colours.
        reading: how bars and whiskers are to be read, for the footer.
        absent: what to write for a series that has no value although it was run.
    """
    drawn = {(v["strategy"], v["variant"], v["basis"]) for v in values.to_dict("records")}
    series = [
        one
        for one in all_series(run)
        if one.basis != "predicted" or (one.strategy, one.variant, one.basis) in drawn
    ]
    modelled = [one for one in series if one.basis == "predicted"]
    groups = [[one for one in series if one.basis != "predicted"], modelled]
    groups = [group for group in groups if group] or [[]]
    banner = warnings_of(run)
    patches = list(legend)
    if modelled:
        label = f"modelled for {', '.join(modelled_for(run))}, not measured"
        patches.append(Patch(fc="white", ec="black", hatch=MODEL_HATCH, label=label))
    columns = min(len(run.workloads), 2)
    rows = -(-len(run.workloads) // columns)
    talls = [LINE * max(len(group), 1) for group in groups]
    wide = PANEL[columns] - 0.25
    titles, more = wrapped([run.names[workload] for workload in run.workloads], wide)
    cell = NAME + more + sum(talls) + AXIS * len(groups)
    head = MARGIN + HEAD_TITLE + HEAD_LINE * (len(banner) + bool(patches))
    width = LABELS + PANEL[columns] * columns
    height = head + cell * rows + FOOT
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
        _head(figure, title, banner, patches)
        if modelled:
            reading += borrowed(run)
        _foot(figure, f"{reading} {provenance(run)}")
        for number, workload in enumerate(run.workloads):
            row, column = divmod(number, columns)
            left = LABELS + PANEL[columns] * column
            top = FOOT + cell * (rows - row) - NAME - more
            for group, tall in zip(groups, talls, strict=True):
                place = (left / width, (top - tall) / height, wide / width, tall / height)
                axes = figure.add_axes(place)
                if group is groups[0]:
                    axes.set_title(titles[number])
                axes.set_ylim(max(len(group), 1) - 0.5, -0.5)
                names = [one.label for one in group] if column == 0 else []
                axes.set_yticks(range(len(group)), names)
                places = [(float(y), one) for y, one in enumerate(group)]
                _fill(axes, run, workload, places, values, draw, absent, int(wide * 15))
                if group is modelled:
                    axes.set_xlabel(f"modelled {axes.get_xlabel()}")
                top -= tall + AXIS
    return figure


def all_series(run: Run) -> list[Series]:
    """Every series of the run in reading order, with those that were never measured."""
    keys = ["strategy", "variant", "basis"]
    measured = epoch_times(run)[keys]
    bad = problems(run)[keys[:2]].assign(basis="")
    known = set(zip(measured["strategy"], measured["variant"], strict=True))
    bad = bad[[(s, v) not in known for s, v in zip(bad["strategy"], bad["variant"], strict=True)]]
    table = sort_series(pd.concat([measured, bad]).drop_duplicates())
    return [Series(str(a), str(b), str(c)) for a, b, c in table[keys].itertuples(index=False)]


def _fill(
    axes: Axes,
    run: Run,
    workload: str,
    places: list[tuple[float, Series]],
    values: pd.DataFrame,
    draw: DrawPanel,
    absent: str,
    room: int,
) -> None:
    """Draw what there is, and write why the rest is missing; ``room`` is in characters."""
    here = values[values["workload"] == workload]
    rows = {Series(r["strategy"], r["variant"], r["basis"]): r for r in here.to_dict("records")}
    bad = problems(run)
    bad = bad[bad["workload"] == workload]
    why = {(b["strategy"], b["variant"]): b for b in bad.to_dict("records")}
    lines = [Line(y, one, rows[one]) for y, one in places if one in rows]
    x_label, labels = draw(axes, lines)
    axes.set_xlabel(x_label)
    if not lines:
        axes.set_xticks([])
    texts = [number + _note(line, why) for line, (_, number) in zip(lines, labels, strict=True)]
    room_right = 1.4 if any("\n" in text for text in texts) else 1.2
    axes.set_xlim(0, room_right * max((end for end, _ in labels), default=1.0))
    for line, (end, _), text in zip(lines, labels, texts, strict=True):
        axes.annotate(
            text, (end, line.y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
        )
    for y, one in places:
        if one in rows:
            continue
        problem = why.get((one.strategy, one.variant))
        text = absent if problem is None else f"{problem['status']}: {problem['reason']}"
        text = "\n".join(textwrap.wrap(text, room, max_lines=2, placeholder=" …"))
        axes.text(
            0.01,
            y,
            text,
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=7.5,
            style="italic",
            color=FAINT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )


def _note(line: Line, why: Mapping[tuple[str, str], Mapping[Hashable, Any]]) -> str:
    """How many repeats of a measured series went wrong; empty when none did."""
    problem = why.get((line.series.strategy, line.series.variant))
    if problem is None or line.series.basis == "predicted":
        return ""
    return f"\n{problem['repeats']} of {problem['of']} {problem['status']}"


def _head(figure: Figure, title: str, banner: Sequence[str], patches: list[Patch]) -> None:
    width, height = figure.get_size_inches()
    left, top = MARGIN / width, height - MARGIN
    figure.text(left, top / height, title, va="top", fontsize=12.5, fontweight="bold")
    top -= HEAD_TITLE
    for line in banner:
        figure.text(left, top / height, line, va="top", color=VERMILION, fontweight="bold")
        top -= HEAD_LINE
    if patches:
        figure.legend(
            handles=patches,
            loc="upper left",
            bbox_to_anchor=(left, top / height),
            ncols=len(patches),
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            handlelength=1.4,
            columnspacing=1.4,
        )


def _foot(figure: Figure, text: str) -> None:
    width, height = figure.get_size_inches()
    text = "\n".join(textwrap.wrap(text, int(width * 16), break_on_hyphens=False))
    figure.text(MARGIN / width, MARGIN / height, text, fontsize=7.5, color=FAINT)
