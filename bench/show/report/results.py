"""The measured part of the report: speed-ups, stages, processor time, and all of it as a table."""

from __future__ import annotations

from types import MappingProxyType

import pandas as pd

from gatherbench.bench.read.epochs import (
    cpu_seconds,
    plan_order,
    reference_variant,
    stage_breakdown,
)
from gatherbench.bench.read.modelled import speedups as speedups_of
from gatherbench.bench.read.modelled import with_ranges
from gatherbench.bench.read.summary import summarise
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.report.bars import BarChart, bar_chart
from gatherbench.bench.show.report.grid import Column, Grid, grid
from gatherbench.bench.show.sentences.changes import changes_of_run
from gatherbench.bench.show.sentences.provenance import borrowed

#: Columns that say what a line of a table is about.
WHAT = (
    Column("workload", "workload"),
    Column("strategy", "strategy"),
    Column("variant", "variant"),
    Column("kind", "kind"),
)
KINDS = MappingProxyType({"host": "measured, host", "cuda": "measured, GPU"})

#: What a data path may save: stage and metric, and what the table calls it.
_SAVED = {
    "epoch": ("epoch", "wall_time", "epoch time"),
    "cpu": ("epoch", "cpu", "core-seconds"),
    "power": ("energy", "power", "power of the GPU"),
    "energy": ("energy", "energy", "energy of the GPU"),
}
_STAGE_COLOURS = {"sample": "sample", "fetch": "fetch", "train": "train", "other": "other"}


def with_kind(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its basis and backend in words."""
    kinds = frame["backend"].map(KINDS).where(frame["basis"] == "measured", "modelled")
    return frame.assign(kind=kinds)


def in_plan_order(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its backend in words, in the order of workloads and strategies."""
    return with_kind(plan_order(run, frame))


def speedups(run: Run) -> BarChart:
    """Epoch time of the baseline over that of each series."""
    reference = reference_variant(run) or ("cpu_gather", "naive")
    name = " ".join(reference)
    return bar_chart(
        run,
        speedups_of(run, *reference),
        ident="speedup",
        title=f"Speed-up over {name}",
        reading=f"Typical epoch time of {name} over that of each strategy, on one workload: means "
        "over repeats. Whiskers: their 95\N{NARROW NO-BREAK SPACE}% interval. "
        f"Longer is faster.{borrowed(run)}",
        total="speedup",
        unit="×",
        mark=1.0,
        absent=f"no {name} measured to compare with",
    )


def stages(run: Run) -> BarChart:
    """Epoch time by stage; ``other`` is what the stages' medians leave of the epoch's."""
    return bar_chart(
        run,
        with_ranges(run, stage_breakdown(run)),
        ident="stages",
        title="Where an epoch’s time goes",
        reading="Medians of each stage; whiskers: quartiles of the whole epoch. "
        "“fetch” is the time that the loop waited for rows: a strategy that fetches ahead shows "
        f"what it could not hide. Shorter is faster.{borrowed(run)}",
        total="median",
        unit="s",
        parts=_STAGE_COLOURS,
    )


def processor(run: Run) -> BarChart:
    """Core-seconds of the process tree in an epoch."""
    return bar_chart(
        run,
        cpu_seconds(run),
        ident="cpu",
        title="Processor time per epoch",
        reading="Core-seconds of the process and its children: sampling, gather and training "
        "alike. Medians of user and system; whiskers: quartiles of their sum.",
        total="median",
        unit="s",
        parts={"user": "user", "system": "system"},
        absent="processor time was not metered",
    )


def numbers(run: Run) -> Grid:
    """One line a series: what the charts show, as numbers."""
    frame = in_plan_order(run, summarise(run))
    other = [Column("other", "other work", "cores")] if frame["disturbed"].notna().any() else []
    left_out = []
    if frame["left_out"].any():
        left_out = [Column("left_out", "left out", "1")]
    return grid(
        "numbers",
        "Medians over repeats and epochs of each series, with quartiles of the epoch or the ends of"
        " what is modelled; left out: repeats beside other work",
        [
            *WHAT,
            Column("speedup", "speed-up", "×"),
            Column("speedup_low", "ratio from", "×"),
            Column("speedup_high", "ratio to", "×"),
            Column("median", "epoch", "s"),
            *other,
            Column("fetch", "fetch", "s"),
            Column("train", "train", "s"),
            Column("rate", "payload over fetch", "B/s"),
            Column("cpu", "core-seconds", "s"),
            Column("low", "epoch, low", "s"),
            Column("high", "epoch, high", "s"),
            Column("repeats", "repeats", "1"),
            *left_out,
        ],
        frame,
    )


def savings(run: Run) -> Grid:
    """Changes an epoch against the baseline, of whatever of them was measured: negative is less."""
    reference = reference_variant(run) or ("cpu_gather", "naive")
    quantities = {name: (stage, metric) for name, (stage, metric, _) in _SAVED.items()}
    frame = changes_of_run(run, quantities, reference)
    # To a hundredth of a per cent, far below any spread: no more digits than mean something.
    frame[list(_SAVED)] = frame[list(_SAVED)].astype(float).round(4) + 0.0
    columns = [
        Column(name, label, "share")
        for name, (_, _, label) in _SAVED.items()
        if frame[name].notna().any()
    ]
    caption = f"Change of an epoch’s medians against {' '.join(reference)}"
    return grid("savings", caption, [*WHAT, *columns], in_plan_order(run, frame))
