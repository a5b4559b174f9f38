"""What crosses the link in the course of an epoch: whether a strategy keeps it busy or in bursts.

These are the link's own bytes, headers included, from the source that the run's calibration
trusts. One epoch of each strategy is shown, the first that was polled.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gatherbench.bench.read.gpu import DIRECTIONS, link_rate, link_rates
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import bytes_in_words
from gatherbench.bench.run.samples import load_timeline
from gatherbench.bench.show.figures.panels import wrapped
from gatherbench.bench.show.figures.sheet import all_series
from gatherbench.bench.show.figures.style import BLUE, FAINT, ORANGE, RC, Series
from gatherbench.bench.show.sentences.provenance import provenance, warnings_of

COLOURS = dict(zip(DIRECTIONS, (BLUE, ORANGE), strict=True))
#: Inches.
LABELS, PANEL, TALL, GAP, BESIDE = 1.95, {1: 6.3, 2: 4.4}, 0.72, 0.34, 0.6
MARGIN, HEAD, NAME, AXIS, FOOT, LINE = 0.12, 0.62, 0.44, 0.5, 0.6, 0.19
GB = 1e9
#: Share of the link's raw rate below which traffic has a scale of its own.
LITTLE = 0.1
OWN_SCALE = "The scale ends at the raw rate, or at the peak where that is less than a tenth of it."


def pcie_over_time(run: Run) -> Figure:
    """Rate over the link during one epoch of each series, a panel each, a column a workload."""
    timeline = load_timeline(run.folder)
    series = [s for s in all_series(run) if s.basis != "predicted"]
    if _one_epoch_each(timeline).empty:
        return _without_traffic(run, series)
    columns = max(len(run.workloads), 1)
    wide = PANEL[min(columns, 2)]
    width = LABELS + wide * columns
    titles, more = wrapped([run.names[workload] for workload in run.workloads], wide - BESIDE)
    name = NAME + more
    height = HEAD + name + (TALL + GAP) * max(len(series), 1) + AXIS - GAP + FOOT
    with mpl.rc_context(RC | {"axes.grid.axis": "both"}):
        figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
        _words(figure, run)
        for column, workload in enumerate(run.workloads):
            mine = _one_epoch_each(timeline[timeline["workload"] == workload])
            longest_s = float(mine["time_s"].max()) if len(mine) else 1.0
            peaks = [float(link_rates(part)["rate"].max()) for part in _counters(mine)]
            # Where the link's raw rate is known it is the scale: how busy is the link? But for
            # traffic so little beside it that nothing would be seen.
            fastest, peak = link_rate(run)[0], max(peaks, default=GB)
            if fastest is None or 0 < peak < LITTLE * fastest:
                fastest = peak
            for line, one in enumerate(series):
                left = LABELS + wide * column
                top = height - HEAD - name - (TALL + GAP) * line
                box = (left / width, (top - TALL) / height, (wide - BESIDE) / width, TALL / height)
                axes = figure.add_axes(box)
                axes.set(xlim=(0, longest_s), ylim=(0, 1.06 * fastest / GB))
                _panel(axes, run, workload, one, mine)
                if line == 0:
                    axes.annotate(
                        titles[column], (0, 1), xytext=(0, 17), xycoords="axes fraction",
                        textcoords="offset points", fontsize=9.5,
                    )  # fmt: skip
                if line + 1 < len(series):
                    axes.tick_params(labelbottom=False)
                else:
                    axes.set_xlabel("time since the epoch began (s)")
                if column == 0:
                    axes.annotate(
                        f"{one.label}\nGB/s", (0, 0.5), xytext=(-30, 0), ha="right", va="center",
                        xycoords="axes fraction", textcoords="offset points", fontsize=8,
                    )  # fmt: skip
    return figure


def _without_traffic(run: Run, series: list[Series]) -> Figure:
    """In place of panels that would all be empty: each reason once, and how many it struck."""
    whys = Counter(why_no_traffic(run, name, one) for name in run.workloads for one in series)
    wide = LABELS + PANEL[1]
    lines = [
        line
        for why, count in whys.items()
        for line in textwrap.wrap(
            f"{count} series: {why}", int(wide * 13), subsequent_indent="    "
        )
    ]
    height = MARGIN + LINE * (len(lines) + 3) + FOOT
    with mpl.rc_context(RC):
        figure = Figure(figsize=(wide, height), dpi=150, facecolor="white")
        _title(figure)
        top = (height - MARGIN - LINE * 2) / height
        figure.text(MARGIN / wide, top, "\n".join(lines), va="top", style="italic", fontsize=9)
        _foot(figure, provenance(run))
    return figure


def _one_epoch_each(timeline: pd.DataFrame) -> pd.DataFrame:
    """The link's bytes in the first epoch of the first repeat of each series that has them."""
    wanted = timeline[timeline["metric"].isin([f"pcie_{d}" for d in DIRECTIONS])]
    if wanted.empty:
        return wanted
    first = wanted[["strategy", "variant", "repeat", "epoch"]].sort_values(["repeat", "epoch"])
    return wanted.merge(first.drop_duplicates(["strategy", "variant"]))


def _counters(timeline: pd.DataFrame) -> list[pd.DataFrame]:
    return [part for _, part in timeline.groupby(["strategy", "variant", "metric"])]


def _panel(axes: Axes, run: Run, workload: str, one: Series, timeline: pd.DataFrame) -> None:
    mine = timeline[(timeline["strategy"] == one.strategy) & (timeline["variant"] == one.variant)]
    if mine.empty:
        axes.tick_params(labelleft=False)
        why = textwrap.fill(why_no_traffic(run, workload, one), 70, max_lines=3, placeholder=" …")
        _write(axes, why, style="italic")
        return
    said: list[str] = []
    for direction in DIRECTIONS:
        points = mine[mine["metric"] == f"pcie_{direction}"]
        if points.empty:
            continue
        rates = link_rates(points)
        edges = [*rates["begin_s"], rates["end_s"].iloc[-1]]
        axes.stairs(
            rates["rate"] / GB,
            edges,
            color=COLOURS[direction],
            fill=direction == DIRECTIONS[0],
            alpha=0.85,
            linewidth=0.9,
        )
        total = float(points["value"].iloc[-1])
        said.append(f"{bytes_in_words(total)} {direction.replace('_', ' ')}")
    epoch = mine.iloc[0]
    payload = _payload(run, workload, one, int(epoch["repeat"]), int(epoch["epoch"]))
    if payload is not None:
        said.append(f"payload {bytes_in_words(payload)}")
    axes.annotate(
        ", ".join(said), (1, 1.02), xycoords="axes fraction", ha="right", va="bottom", fontsize=7.5
    )
    raw, _ = link_rate(run)
    if raw is not None:
        axes.axhline(raw / GB, color=FAINT, linestyle=":", linewidth=0.9)


def why_no_traffic(run: Run, workload: str, one: Series) -> str:
    """What the run says of link traffic that it does not have for a series."""
    rows = run.rows
    mine = rows[
        (rows["workload"] == workload)
        & (rows["strategy"] == one.strategy)
        & (rows["variant"] == one.variant)
        & (rows["status"] != "ok")
    ]
    for found in (mine[mine["metric"] == "pcie_host_to_device"], mine[mine["stage"] == "case"]):
        if len(found):
            return f"{found['status'].iloc[0]}: {found['reason'].iloc[0]}"
    return "no link traffic was polled"


def _payload(run: Run, workload: str, one: Series, repeat: int, epoch: int) -> float | None:
    case = {"strategy": one.strategy, "variant": one.variant, "repeat": repeat}
    rows = run.select(stage="fetch", metric="payload", workload=workload, epoch=epoch, **case)
    found = rows["value"].dropna()
    return float(found.iloc[0]) if len(found) else None


def _write(axes: Axes, text: str, **style: Any) -> None:
    axes.set_yticks([])
    axes.text(
        0.01, 0.5, text, transform=axes.transAxes, va="center", fontsize=7.5, color=FAINT, **style
    )


def _words(figure: Figure, run: Run) -> None:
    _title(figure)
    width, height = figure.get_size_inches()
    handles = [
        Line2D([], [], color=colour, linewidth=4 if direction == DIRECTIONS[0] else 1.2,
               label=direction.replace("_", " "))
        for direction, colour in COLOURS.items()
    ]  # fmt: skip
    raw, unknown = link_rate(run)
    if raw is not None:
        label = f"raw rate of the link, {raw / GB:.1f} GB/s"
        handles.append(Line2D([], [], color=FAINT, linestyle=":", label=label))
    figure.legend(
        handles=handles, loc="upper left",
        bbox_to_anchor=(MARGIN / width, 1 - (MARGIN + 0.3) / height),
        ncols=len(handles), frameon=False, borderpad=0, borderaxespad=0,
    )  # fmt: skip
    text = (
        "Bytes of the link, headers included, between readings of the counter that the run's"
        " calibration trusts; payload: the rows that the loop asked for. The first epoch of each"
        " that was polled."
        f"{f' No raw rate of the link: {unknown}.' if unknown else ''}"
        f"{f' {OWN_SCALE}' if raw is not None else ''}"
        f" {' '.join([provenance(run), *(f'{line}.' for line in warnings_of(run))])}"
    )
    _foot(figure, text)


def _title(figure: Figure) -> None:
    width, height = figure.get_size_inches()
    figure.text(
        MARGIN / width, 1 - MARGIN / height, "Traffic over the link during an epoch", va="top",
        fontsize=12.5, fontweight="bold",
    )  # fmt: skip


def _foot(figure: Figure, text: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(
        MARGIN / width, MARGIN / height, "\n".join(textwrap.wrap(text, int(width * 16))),
        fontsize=7.5, color=FAINT,
    )  # fmt: skip
