"""One line a series: what tables in the terminal and in the report show."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import (
    WITHIN_TRAIN,
    bandwidth,
    baseline,
    cpu_seconds,
    epoch_times,
    stage_times,
)
from gatherbench.bench.read.disturbance import disturbed_series
from gatherbench.bench.read.modelled import speedups, with_ranges
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES


def summarise(run: Run) -> pd.DataFrame:
    """One line a series: its epoch's spread, and the medians of everything else.

    Columns: those of :func:`gatherbench.bench.read.derive.epoch_times` (s), and ``fetch``,
    ``train``, ``all_reduce``, ``wait`` (s; ``train`` holds the last two), ``cpu`` (core-seconds),
    ``rate`` (B/s), ``speedup`` with its 95 % interval, ``speedup_low`` and ``speedup_high``,
    ``other`` (cores that other work had beside the worst repeat that counts), ``disturbed`` (the
    same where there was too much beside every repeat); NaN where there is none, the rate also where
    fetches run ahead of the training. ``repeats`` count; ``noisy`` were disturbed, of which
    ``left_out`` do not count as there were quiet ones. A modelled epoch is as disturbed as what it
    takes times from. A modelled value that ranges has its ends alone, in ``low``, ``high``,
    ``fetch_low``, … (measured: quartiles).
    """
    times = {"epoch": epoch_times(run), **stage_times(run)}
    epoch, fetch, train = (
        with_ranges(run, times[stage], stage).set_index(SERIES)
        for stage in ("epoch", "fetch", "train")
    )
    reference = baseline(run)
    ratios = speedups(run, *reference).set_index(SERIES)
    tables = {"": epoch, "fetch": fetch, "train": train, "speedup": ratios}
    summary = epoch.copy()
    for name, table in tables.items():
        value = name if name == "speedup" else "median"
        predicted = table.index.get_level_values("basis") == "predicted"
        # Between two ends there is no value to be quoted.
        summary[name or value] = table[value].mask(predicted & (table["low"] < table["high"]))
        if name:
            summary[f"{name}_low"], summary[f"{name}_high"] = table["low"], table["high"]
    for stage in WITHIN_TRAIN:
        summary[stage] = run.values(stage, "wall_time").groupby(SERIES).median()
    summary["cpu"] = cpu_seconds(run).set_index(SERIES)["median"]
    summary["rate"] = bandwidth(run).set_index(SERIES)["median"]
    measured = run.select(stage="epoch", metric="wall_time").groupby([*SERIES, "repeat"])
    counts = measured[["used", "disturbed"]].first().groupby(SERIES).agg(["sum", "count"])
    summary["repeats"] = counts["used", "sum"]
    summary["left_out"] = counts["used", "count"] - counts["used", "sum"]
    summary["noisy"] = counts["disturbed", "sum"]
    summary["other"] = run.select(used=True).groupby(SERIES)["other_cores"].max()
    summary["disturbed"] = pd.Series(disturbed_series(run), dtype=float).reindex(summary.index)
    ahead = run.select(metric="lookahead", basis="declared")
    series = pd.MultiIndex.from_frame(ahead.loc[ahead["value"] > 0, SERIES[:3]])
    summary = summary.reset_index()
    hidden = pd.MultiIndex.from_frame(summary[SERIES[:3]]).isin(series)
    return summary.assign(rate=summary["rate"].mask(hidden))
