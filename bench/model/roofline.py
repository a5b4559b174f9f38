"""Compare a run with the link's limits and with the model.

The roofline shows the rows that cross the link per second, and three limits of the machine: the
copy engine's peak, the multiprocessors' best rate from a table of that span, and the raw link. A
strategy that hides its fetches behind training is measured over the whole epoch: its percentage is
then a lower bound of the link's use. Rows off a disk have a fourth limit: its reads and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pandas as pd

from gatherbench.bench.model.epoch import EpochPrediction
from gatherbench.bench.model.errors import LIMIT
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.physics import engine_copy, gpu_reads
from gatherbench.bench.model.predict import KEYS, Series, SeriesName, predictions
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.read.derive import epoch_times, plan_order, stage_times
from gatherbench.bench.read.tables import Run

_T = TypeVar("_T")
_GIB = 1 << 30
COLUMNS = (
    *(*KEYS, "kind", "end", "rate", "over"),
    *("of_copy_engine", "of_sm_read", "of_raw_link", "of_disk", "fetch_bound", "bound"),
)


@dataclass(frozen=True, slots=True)
class Roofs:
    """The limits of a machine's link, B/s of payload; NaN: unknown."""

    copy_engine: float = math.nan
    sm_read: float = math.nan
    raw_link: float = math.nan


def roofs(profile: LinkProfile, table_bytes: float) -> Roofs:
    """Return the limits for a table of this span; multiprocessors read whole lines of 128 B."""
    lines = MinibatchLoad(_GIB, gpu_link_read_bytes=_GIB, gpu_requests={128: _GIB / 128})
    reads = gpu_reads(replace(lines, table_bytes=table_bytes), profile)
    copied = engine_copy(_GIB, profile)
    return Roofs(_GIB / copied.seconds, _GIB / reads.seconds, profile.number("link.raw_rate"))


def least_and_most(items: Sequence[_T], value: Callable[[_T], float]) -> list[tuple[str, _T]]:
    """Return the items with the least and the most value, each with its label.

    If the values are equal or one is unknown, return the first item with an empty label.
    """
    if not max(map(value, items)) > min(map(value, items)) * (1 + 1e-9):
        return [("", items[0])]
    return list(zip(("at least", "at most"), sorted(items, key=value), strict=True))


def roofline(run: Run, profile: LinkProfile) -> pd.DataFrame:
    """Return a line for each series that was measured on a GPU, and one for each modelled series.

    Columns: :data:`COLUMNS`. ``kind`` is ``measured`` or ``modelled``; ``rate`` is in B/s of rows
    that cross the link over the time in ``over`` (``fetch`` or ``epoch``; NaN: none cross it),
    ``of_…`` its shares of the limits, ``of_disk`` the share of that time that the disk needs;
    ``fetch_bound`` and ``bound`` are the model's. If the profile's ranges make more than one rate,
    ``end`` distinguishes the lines with the least and the most; a measured line's share of a limit
    with a range is NaN. Measured lines are valid only if ``profile`` describes the machine of the
    run.
    """
    measured = _measured_seconds(run)
    records: list[dict[str, Any]] = []
    for one, epochs in predictions(run, profile):
        pairs = list(zip(epochs, profile.ends(), strict=False))
        if seconds := measured.get(one.key):
            records.append(_merged([_line(one, *pair, "measured", seconds) for pair in pairs]))
        lines = [
            _line(one, e, end, "modelled", {"epoch": e.epoch_s, "fetch": e.fetch_s})
            for e, end in pairs
        ]
        ends = least_and_most(lines, lambda line: float(line["rate"]))
        records += [line | {"end": end} for end, line in ends if end] or [_merged(lines)]
    return plan_order(run, pd.DataFrame(records, columns=list(COLUMNS)))


def _merged(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the lines of both ends: numbers that differ become NaN, words are listed."""
    merged = {}
    for name in COLUMNS:
        there = list(dict.fromkeys(line[name] for line in lines))
        merged[name] = there[0] if len(there) == 1 else math.nan
        if isinstance(there[0], str):
            merged[name] = " or ".join(there)
    return merged


def _measured_seconds(run: Run) -> dict[SeriesName, dict[str, float]]:
    """Return median seconds of ``epoch`` and ``fetch`` for each series measured on a GPU."""
    found: dict[SeriesName, dict[str, float]] = {}
    for name, table in (("epoch", epoch_times(run)), ("fetch", stage_times(run)["fetch"])):
        for row in table.query("backend == 'cuda' and basis == 'measured'").to_dict("records"):
            key = (row["workload"], row["strategy"], row["variant"])
            found.setdefault(key, {})[name] = float(row["median"])
    return found


def _line(
    one: Series,
    epoch: EpochPrediction,
    profile: LinkProfile,
    kind: str,
    seconds: dict[str, float],
) -> dict[str, Any]:
    load = one.load
    over = "epoch" if load is not None and load.lookahead else "fetch"
    time = seconds.get(over) or math.nan
    rate, best, of_disk = math.nan, Roofs(), math.nan
    if load is not None and "transfer" in epoch.parts:
        rate = load.brought_bytes * one.steps / time
        best = roofs(profile, load.table_bytes)
    if "disk" in epoch.parts:
        of_disk = one.steps * epoch.parts["disk"].seconds / time
    shares = (rate / best.copy_engine, rate / best.sm_read, rate / best.raw_link)
    parts = [p for n, p in epoch.parts.items() if n in ("disk", "gather", "transfer", "expand")]
    longest = max(parts, key=lambda part: part.seconds).bound if parts else "unknown"
    bounds = (longest if all(part.known for part in parts) else "unknown", epoch.bound)
    cells = (*one.key, kind, "", rate, over, *shares, of_disk, *bounds)
    return dict(zip(COLUMNS, cells, strict=True))


def against_measured(run: Run, profile: LinkProfile) -> pd.DataFrame:
    """Compare median epochs of a run on a GPU with the model's; empty without any.

    Columns: ``workload``, ``strategy``, ``variant``, ``measured_s``, ``end``, ``modelled_s``,
    ``error`` (modelled over measured, less 1), ``limit_error`` (that of the ratio over ``no_fetch``
    of the workload), ``bound``. Unknown predictions are NaN. If the profile's ranges make more than
    one epoch there is a line with the shortest and one with the longest (``end``).
    """
    measured = _measured_seconds(run)
    records = [
        (*one.key, measured[one.key]["epoch"], end, epoch.epoch_s, epoch.bound)
        for one, epochs in predictions(run, profile)
        if "epoch" in measured.get(one.key, {})
        for end, epoch in least_and_most(epochs, lambda epoch: epoch.epoch_s)
    ]
    names = ["measured_s", "end", "modelled_s", "bound"]
    table = pd.DataFrame(records, columns=[*KEYS, *names])
    table["error"] = table["modelled_s"].astype(float) / table["measured_s"] - 1
    limit = table[table["strategy"] == LIMIT].groupby("workload")["error"].first()
    ratios = (table["error"] + 1) / (table["workload"].map(limit) + 1) - 1
    table["limit_error"] = ratios.where(table["strategy"] != LIMIT)
    return plan_order(run, table)
