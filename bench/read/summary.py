"""One line a series: what tables in the terminal and in the report show."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.disturbance import disturbed_alone, other_load
from gatherbench.bench.read.epochs import (
    bandwidth,
    cpu_seconds,
    epoch_times,
    reference_variant,
    stage_times,
)
from gatherbench.bench.read.modelled import speedups, with_ranges
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES


def summarise(run: Run) -> pd.DataFrame:
    """One line a series: its epoch's spread, and the medians of everything else.

    Columns: those of :func:`gatherbench.bench.read.epochs.epoch_times` (s), and ``fetch``,
    ``train`` (s), ``cpu`` (core-seconds), ``rate`` (B/s), ``speedup`` with its 95 % interval,
    ``speedup_low`` and ``speedup_high``, ``other`` (cores that other work had beside the worst
    repeat), ``disturbed`` (the same where there was too much beside every repeat); NaN where there
    is none, the rate also where fetches run ahead of the training. ``repeats`` count,
    ``left_out`` were disturbed while there were quiet ones. A modelled value that ranges
    has its ends alone, in ``low``, ``high``, ``fetch_low``, … (measured: quartiles).
    """
    stages = stage_times(run)
    fetch, train = (with_ranges(run, stages[stage], stage) for stage in ("fetch", "train"))
    reference = reference_variant(run) or ("cpu_gather", "naive")
    summary = with_ranges(run, epoch_times(run))
    ratios = speedups(run, *reference)
    for table, value in (
        (summary, "median"),
        (fetch, "median"),
        (train, "median"),
        (ratios, "speedup"),
    ):
        ranged = (table["basis"] == "predicted") & (table["low"] < table["high"])
        table[value] = table[value].mask(ranged)
    load = other_load(run).groupby(SERIES).max().rename("cores").reset_index()
    busy = pd.DataFrame(
        [(*key, cores) for key, cores in disturbed_alone(run).items()], columns=[*SERIES, "cores"]
    )
    epochs = run.select(stage="epoch", metric="wall_time")
    repeats = epochs[[*SERIES, "repeat", "used"]].drop_duplicates()
    counts = repeats.groupby(SERIES)["used"].agg(repeats="sum", all="count").reset_index()
    counts["left_out"] = counts["all"] - counts["repeats"]
    for name, table, column in (
        ("fetch", fetch, "median"),
        ("fetch_low", fetch, "low"),
        ("fetch_high", fetch, "high"),
        ("train", train, "median"),
        ("train_low", train, "low"),
        ("train_high", train, "high"),
        ("cpu", cpu_seconds(run), "median"),
        ("rate", bandwidth(run), "median"),
        ("speedup", ratios, "speedup"),
        ("speedup_low", ratios, "low"),
        ("speedup_high", ratios, "high"),
        ("repeats", counts, "repeats"),
        ("left_out", counts, "left_out"),
        ("other", load, "cores"),
        ("disturbed", busy, "cores"),
    ):
        part = table[[*SERIES, column]].rename(columns={column: name})
        summary = summary.merge(part, on=SERIES, how="left")
    ahead = run.select(metric="lookahead", basis="declared")
    ahead = ahead[ahead["value"] > 0]
    series = ["workload", "strategy", "variant"]
    hidden = summary.set_index(series).index.isin(ahead.set_index(series).index)
    return summary.assign(rate=summary["rate"].mask(hidden))
