"""Predicted epochs, and their ratios."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import baseline, sort_series, speedup_over
from gatherbench.bench.read.noise import modelled_from_noisy
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES


def predictions(run: Run) -> pd.DataFrame:
    """Return a line per predicted series.

    Columns: :data:`SERIES`, ``median`` (the epoch, s), ``fetch``, ``train`` (s), and ``speedup``
    over the baseline, NaN for series that borrow times from noisy ones.
    """
    names = {"epoch_s": "median", "fetch_s": "fetch", "train_s": "train"}
    known = run.predicted.rename(columns=names).dropna(subset="median")
    table = sort_series(known.reset_index()[[*SERIES, *names.values()]])
    noisy = modelled_from_noisy(run)
    named = table[SERIES].itertuples(index=False, name=None)
    quiet = table.loc[[key not in noisy for key in named]]
    strategy, variant = baseline(run)
    mine = quiet[(quiet["strategy"] == strategy) & (quiet["variant"] == variant)]
    over = quiet["workload"].map(mine.set_index("workload")["median"]).astype(float)
    return table.assign(speedup=over / quiet["median"])


def speedups(run: Run) -> pd.DataFrame:
    """Return :func:`~gatherbench.bench.read.derive.speedup_over` the baseline, then predictions'.

    These have no interval: both ends are the ratio.
    """
    measured = speedup_over(run, *baseline(run))
    modelled = predictions(run)[[*SERIES, "speedup"]].dropna()
    modelled["low"] = modelled["high"] = modelled["speedup"]
    tables = [table for table in (measured, modelled) if len(table)]
    return sort_series(pd.concat(tables)) if tables else measured
