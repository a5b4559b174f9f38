"""One line a series: what tables in the terminal and in the report show."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.derive.disturbance import disturbed, other_load
from gatherbench.bench.derive.epochs import (
    SERIES,
    bandwidth,
    cpu_seconds,
    epoch_times,
    reference_variant,
    speedup_over,
    stage_times,
)
from gatherbench.bench.tables import Run


def summarise(run: Run) -> pd.DataFrame:
    """One line a series: its epoch's spread, and the medians of everything else.

    Columns: those of :func:`gatherbench.bench.derive.epochs.epoch_times` (s), and ``fetch``,
    ``train`` (s), ``cpu`` (core-seconds), ``rate`` (B/s), ``speedup`` with its 95 % interval,
    ``speedup_low`` and ``speedup_high``, ``other`` (cores that other work had beside the worst
    repeat) and ``disturbed`` (the same where it was too much); NaN where there is none, the rate
    also where fetches run ahead of the training.
    """
    stages = stage_times(run)
    reference = reference_variant(run) or ("cpu_gather", "naive")
    summary = epoch_times(run)
    ratios = speedup_over(run, *reference)
    load, busy = (
        cases.groupby(SERIES).max().rename("cores").reset_index()
        for cases in (other_load(run), disturbed(run))
    )
    for name, table, column in (
        ("fetch", stages["fetch"], "median"),
        ("train", stages["train"], "median"),
        ("cpu", cpu_seconds(run), "median"),
        ("rate", bandwidth(run), "median"),
        ("speedup", ratios, "speedup"),
        ("speedup_low", ratios, "low"),
        ("speedup_high", ratios, "high"),
        ("other", load, "cores"),
        ("disturbed", busy, "cores"),
    ):
        part = table[[*SERIES, column]].rename(columns={column: name})
        summary = summary.merge(part, on=SERIES, how="left")
    ahead = run.rows[(run.rows["metric"] == "lookahead") & (run.rows["value"] > 0)]
    series = ["workload", "strategy", "variant"]
    hidden = summary.set_index(series).index.isin(ahead.set_index(series).index)
    return summary.assign(rate=summary["rate"].mask(hidden))
