"""Give the notebooks the runs of ``results/``, their ratios, pictures and sentences.

If several runs measured the same thing, the one with more repeats counts.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from IPython.display import Image, Markdown, display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image as Picture

from gatherbench.bench.probe.points import is_point_table, read_points
from gatherbench.bench.read.derive import repeat_logs
from gatherbench.bench.read.tables import Run, began, load_reference, load_run
from gatherbench.bench.read.units import with_ends
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.drawing import Chart, draw
from gatherbench.bench.show.looks import RC, colour_of, ink
from gatherbench.stats.interval import Interval, ratio_of
from gatherbench.stats.judge import judge
from gatherbench.strategies.registry import in_words

#: The repository's results; ``make figures`` may name others.
REPOSITORY = Path(__file__).resolve().parents[1] / "results"
#: The paper's baseline.
NAIVE = ("cpu_gather", "naive")
ONE_REPEAT = "One repeat does not tell how much processes differ."
ONE_PROCESS = "One process: how much processes differ is not known."
COLOURS = ("blue", "vermilion", "green", "orange", "purple", "sky", "brown", "navy", "grey")
#: Style, marker and filling of curves, by the kind of their values.
LINES = {
    "published": ("none", "D", "none"),
    "modelled": ("--", ".", "full"),
    "measured": ("-", "o", "full"),
}
PATH = SERIES[1:3]


# ---- what is known -------------------------------------------------------------------------------


def results() -> Path:
    return Path(os.environ.get("GATHERBENCH_RESULTS", REPOSITORY))


@cache
def _load(folder: Path) -> Run:
    return load_run(folder)


def runs() -> list[Run]:
    """Load every run below the results: first those with more repeats, then the newer ones."""
    plans = [plan for plan in results().rglob("plan.json") if "predicted" not in plan.parts]
    loaded = [_load(plan.parent) for plan in plans]
    order = {run.run_id: (_repeats(run), began(run.folder)) for run in loaded}
    return sorted(loaded, key=lambda run: order[run.run_id], reverse=True)


def _repeats(run: Run) -> int:
    return run.measured.index.unique("repeat").size


def runs_on(backend: str, having: Callable[[Run], bool] = lambda _run: True) -> list[Run]:
    """Return a backend's runs; of runs with the same workloads only that with most repeats."""
    chosen, seen = [], set[tuple[str, str]]()
    for run in runs():
        epochs = run.measured.query("backend == @backend")
        workloads = {(run.machine, workload) for workload in epochs.index.unique("workload")}
        if workloads - seen and having(run):
            chosen.append(run)
            seen |= workloads
    return chosen


def known(derive: Callable[[Run], pd.DataFrame], backend: str) -> pd.DataFrame:
    """Apply ``derive`` to every run, and add the ``machine`` and the ``graph`` in words.

    Of each series of a machine the run with more repeats counts.
    """
    columns = [*SERIES, "machine", "graph", "median", "ratio", "low", "high"]
    frames = [pd.DataFrame(columns=columns)]
    for run in runs():
        frame = derive(run)
        measured = frame[(frame["backend"] == backend) & (frame["basis"] == "measured")]
        graph = measured["workload"].map(run.names)
        frames.append(measured.assign(machine=run.machine, graph=graph))
    series = pd.concat([frame for frame in frames if len(frame)] or frames)
    return series.drop_duplicates(["machine", *SERIES[:3]], ignore_index=True)


def ratios(
    run: Run, values: pd.Series[float], over: tuple[str, str] = NAIVE, *, inverse: bool = False
) -> pd.DataFrame:
    """Divide each series by one of its workload, with a 95 % interval over the repeats.

    Columns: :data:`SERIES`, ``ratio``, ``low``, ``high`` and the ``interval``.
    """
    logs, lines = repeat_logs(run, values[values > 0]), []
    for key, repeats in logs.items():
        base = logs.get(key._replace(strategy=over[0], variant=over[1]))
        if base is not None and key[1:3] != over:
            interval = ratio_of(base, repeats) if inverse else ratio_of(repeats, base)
            lines.append((*key, *interval.ends, interval))
    return pd.DataFrame(lines, columns=[*SERIES, "ratio", "low", "high", "interval"])


def published(table: str) -> pd.DataFrame:
    """Return the rows of a table of published figures."""
    rows = load_reference()
    return rows[rows["table"] == table]


def probed() -> pd.DataFrame:
    """Return the timings of ``gatherbench probe`` with their ``machine``: each case's newest table.

    Columns: those of the table, and ``rate``, GB/s.
    """
    tables = sorted(results().rglob("rows.csv"), key=lambda path: began(path.parent), reverse=True)
    tables_read = [read_points(None).assign(machine="")]
    for path in (path for path in tables if is_point_table(path)):
        points = read_points(path)
        seen = {case for frame in tables_read for case in frame["case"]}
        new = ~points["case"].isin(seen)
        tables_read.append(points[new].assign(machine=path.parent.parent.name))
    points = pd.concat([frame for frame in tables_read if len(frame)] or tables_read)
    return points.assign(rate=points["amount"] / points["time_s"] / 1e9)


# ---- words ---------------------------------------------------------------------------------------


def name_of(row: Any) -> str:
    """Return a path in words: ``cached_zero_copy (degree, 10 %)``."""
    return in_words(row.strategy, row.variant)


def compared(ratio: Interval, to: str = "") -> str:
    """Return ``1.14× (0.978–1.32) as fast as naive, too close to 1``; ``to``: the reference."""
    near = judge(ratio).word in ("SAME", "AMBIGUOUS") and ratio.repeats > 1
    return f"{with_ends(*ratio.ends)} {to}".rstrip() + ", too close to 1" * near


def change(row: Any) -> str:
    """Return a ratio as a change: ``-42 % (-45 to -39)``."""
    ends = f" ({100 * (row.low - 1):+.0f} to {100 * (row.high - 1):+.0f})" if row.low > 0 else ""
    return f"{100 * (row.ratio - 1):+.0f} %{ends or ' (one repeat)'}"


def say(*sentences: str) -> None:
    """Display sentences that were computed from the data, as Markdown."""
    display(Markdown("\n".join(sentences)))  # type: ignore[no-untyped-call]


# ---- pictures ------------------------------------------------------------------------------------


def show(picture: Figure | Chart, alt: str) -> None:
    """Display a picture; ``alt`` describes it in a sentence for readers who cannot see it."""
    figure = draw(picture) if isinstance(picture, Chart) else picture
    display(Image(png(figure), format="png", alt=alt))  # type: ignore[no-untyped-call]


def png(figure: Figure) -> bytes:
    """Return the figure as PNG of at most 256 colours, a third of the size with all of them."""
    drawn, small = io.BytesIO(), io.BytesIO()
    with mpl.rc_context(RC):
        figure.savefig(drawn, dpi=100)
    picture = Picture.open(drawn).convert("RGB")
    few = picture.quantize(method=Picture.Quantize.MAXCOVERAGE, dither=Picture.Dither.NONE)
    few.save(small, format="png", optimize=True)
    return small.getvalue()


def bars(frame: pd.DataFrame, title: str, quantity: str, unit: str, reading: str = "") -> Figure:
    """Draw the bars of a frame, as :class:`gatherbench.bench.show.drawing.Chart` takes it."""
    return draw(Chart(title, frame, quantity, unit, reading), columns=1, column=9.0)


def curves(
    panels: Mapping[str, pd.DataFrame],
    x: str,
    y: str,
    *,
    title: str,
    ticks: Sequence[float] = (),
    limits: Mapping[str, float] | None = None,
) -> Figure:
    """Draw a panel for each frame of ``kind``, ``series``, ``x``, ``y``, and ``low`` to ``high``.

    Args:
        x, y: the labels of the axes, with units.
        ticks: the labels of the horizontal axis; it is logarithmic if they span a hundredfold.
        limits: names and heights of dotted lines across all panels, for published values.
    """
    names = dict.fromkeys(name for frame in panels.values() for name in frame["series"])
    colours = {name: colour_of(name, COLOURS[i % len(COLOURS)]) for i, name in enumerate(names)}
    with mpl.rc_context(RC | {"axes.grid.axis": "both"}):
        figure = Figure(figsize=(12, 4.2), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (name, frame) in zip(drawn, panels.items(), strict=True):
            axes.set_title(name)
            axes.set_xlabel(x)
            for names_of, line in frame.groupby(["kind", "series"], sort=False):
                kind, series = map(str, names_of)
                _curve(axes, line.sort_values("x"), kind, colours[series], series)
            for text, height in (limits or {}).items():
                axes.axhline(height, color="black", linestyle=":", linewidth=1)
                at: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
                axes.annotate(text, (0.02, height), xytext=(0, 2), fontsize=7, **at)
            if frame.empty:
                axes.text(0.5, 0.5, "not measured yet", transform=axes.transAxes, ha="center")
            if ticks and max(ticks) >= 100 * min(ticks):
                axes.set_xscale("log")
                axes.minorticks_off()
            if ticks:
                axes.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])
        drawn[0].set_ylabel(y)
        drawn[0].set_ylim(bottom=0)
        handles = {h.get_label(): h for axes in drawn for h in axes.get_legend_handles_labels()[0]}
        figure.legend(handles=list(handles.values()), loc="outside right center", fontsize=8)
    return figure


def _curve(axes: Axes, line: pd.DataFrame, kind: str, colour: str, name: str) -> None:
    style, marker, filling = LINES[kind]
    look: Any = {"color": ink(colour), "linestyle": style, "marker": marker, "fillstyle": filling}
    size = 3.5 if marker == "." else 5
    axes.plot(line["x"], line["y"], label=name, markersize=size, linewidth=1.5, **look)
    if {"low", "high"} <= set(line):
        ends = line.dropna(subset=["low", "high"])
        axes.vlines(ends["x"], ends["low"], ends["high"], color=ink(colour), linewidth=0.9)


def middle(values: pd.Series[float]) -> pd.DataFrame:
    """Return median, least and greatest of grouped values, as ``y``, ``low`` and ``high``."""
    return values.agg(y="median", low="min", high="max").reset_index()


def within_rounds(upper: pd.DataFrame, lower: pd.DataFrame) -> Interval:
    """Return the ratio of two rates of a probe, round by round: its median, least and greatest.

    Each side uses the grid with the highest median rate.
    """
    sides = []
    for points in (upper, lower):
        rates = points.pivot_table("rate", "round", "grid_percent")
        sides.append(rates[rates.median().idxmax()] if rates.size else pd.Series(dtype=float))
    ratio = (sides[0] / sides[1]).dropna()
    if ratio.empty:
        return Interval(np.nan, np.nan, np.nan, 0)
    value, low, high = map(float, (ratio.median(), ratio.min(), ratio.max()))
    return Interval(value, low, high, 2, 0.0)
