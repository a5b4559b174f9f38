"""Compare a run with the link's limits and with the model.

A strategy that hides its fetches behind training is measured over the whole epoch: its percentage
is then a lower bound of the link's use.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from gatherbench.bench.model.epoch import EpochPrediction
from gatherbench.bench.model.physics import MinibatchLoad, Part, engine_copy, gpu_reads
from gatherbench.bench.model.predict import KEYS, Series, SeriesName, predictions
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.read.derive import sort_series
from gatherbench.bench.read.tables import Run

_GIB = 1 << 30
#: Limits of the link, and their names for readers.
ROOFS = {"copy_engine": "copy engine", "sm_read": "reads by SMs", "raw_link": "raw link"}
#: The limit: a path that fetches nothing, which is the fastest possible.
LIMIT = "no_fetch"
#: The ratio below which two modelled epochs of a workload are a tie, because nine tenths of the
#: ratios of measured ones are off by at most this factor (``epochs.csv``; a test computes it): by a
#: profile with ``gpu.issue``, as measured with the runs, and by one without, out of sample.
ERROR_OF_RATIOS = {True: 1.16, False: 2.36}


def roofs(profile: LinkProfile, table_bytes: float) -> dict[str, float]:
    """Return the limits for a table of this span by :data:`ROOFS`, B/s of payload; NaN: unknown."""
    lines = MinibatchLoad(_GIB, gpu_link_read_bytes=_GIB, gpu_requests={128: _GIB / 128})
    reads = gpu_reads(replace(lines, table_bytes=table_bytes), profile)
    copied = engine_copy(_GIB, profile)
    rates = _GIB / copied.seconds, _GIB / reads.seconds, profile.number("link.raw_rate")
    return dict(zip(ROOFS, rates, strict=True))


def roofline(run: Run, profile: LinkProfile) -> pd.DataFrame:
    """Return a line for each series that was measured on a GPU, and one for each modelled series.

    Columns: workload, strategy, variant; ``kind`` (``measured`` or ``modelled``); ``rate`` (B/s of
    rows that cross the link over the time in ``over``, ``fetch`` or ``epoch``; NaN: none cross it);
    its shares of the limits, ``of_copy_engine``, ``of_sm_read``, ``of_raw_link``; ``of_disk`` (the
    share of that time that the disk needs); ``fetch_bound`` and ``bound``, the model's. Measured
    lines are valid only if ``profile`` describes the machine of the run.
    """
    measured = _measured_seconds(run)
    records = []
    for series, epoch in predictions(run, profile):
        times = {"modelled": {"epoch": epoch.epoch_s, "fetch": epoch.fetch_s}}
        if series.key in measured:
            times = {"measured": measured[series.key], **times}
        for kind, seconds in times.items():
            line = dict(zip(KEYS, series.key, strict=True))
            records.append(line | {"kind": kind, **_line(series, epoch, profile, seconds)})
    return sort_series(pd.DataFrame(records), run.workloads)


def _measured_seconds(run: Run) -> dict[SeriesName, dict[str, float]]:
    """Return median seconds of ``epoch`` and ``fetch`` for each series measured on a GPU."""
    on_gpu = run.medians.query("backend == 'cuda'")
    seconds = on_gpu[["epoch_s", "fetch_s"]].set_axis(["epoch", "fetch"], axis=1)
    known = seconds.dropna(how="all").groupby(KEYS).first()
    return {key: row.dropna().to_dict() for key, row in known.iterrows()}  # type: ignore[misc]


def _line(
    series: Series, epoch: EpochPrediction, profile: LinkProfile, seconds: dict[str, float]
) -> dict[str, Any]:
    load = series.load
    over = "epoch" if load is not None and load.lookahead else "fetch"
    time = seconds.get(over) or math.nan
    rate, limits, of_disk = math.nan, dict.fromkeys(ROOFS, math.nan), math.nan
    if load is not None and "transfer" in epoch.parts:
        rate = load.brought_bytes * series.steps / time
        limits = roofs(profile, load.table_bytes)
    if "disk" in epoch.parts:
        of_disk = series.steps * epoch.parts["disk"].seconds / time
    parts = [p for n, p in epoch.parts.items() if n in ("disk", "gather", "transfer", "expand")]
    longest = max(parts, key=lambda part: part.seconds, default=Part(0.0, "–"))
    return {
        "rate": rate,
        "over": over,
        **{f"of_{kind}": rate / limit for kind, limit in limits.items()},
        "of_disk": of_disk,
        "fetch_bound": longest.bound if all(part.known for part in parts) else "unknown",
        "bound": epoch.bound,
    }


def against_measured(run: Run, profile: LinkProfile) -> pd.DataFrame:
    """Compare median epochs of a run on a GPU with the model's; empty without any.

    Columns: ``workload``, ``strategy``, ``variant``, ``measured_s``, ``modelled_s``, ``error``
    (modelled over measured, less 1), ``limit_error`` (that of the ratio over ``no_fetch`` of the
    workload), ``bound``. Unknown predictions are NaN.
    """
    measured = _measured_seconds(run)
    records = [
        (*series.key, measured[series.key]["epoch"], epoch.epoch_s, epoch.bound)
        for series, epoch in predictions(run, profile)
        if "epoch" in measured.get(series.key, {})
    ]
    table = pd.DataFrame(records, columns=[*KEYS, "measured_s", "modelled_s", "bound"])
    table["error"] = table["modelled_s"].astype(float) / table["measured_s"] - 1
    is_limit = table["strategy"] == LIMIT
    limit = table["error"].where(is_limit).groupby(table["workload"]).transform("first")
    ratios = (table["error"] + 1) / (limit + 1) - 1
    return sort_series(table.assign(limit_error=ratios.mask(is_limit)), run.workloads)
