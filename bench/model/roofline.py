"""A run beside the model: how near each strategy comes to the link, and how far the model is off.

The roofline shows the rows that cross the link per second, beside three roofs of the machine: the
copy engine's peak, what multiprocessors read at best from a table of that span, and the raw link. A
strategy that hides its fetches behind training is measured over the whole epoch, since nobody
waited for the link alone; its percentage is then a lower bound of how busy the link is. Rows that
come off a disk have a fourth roof: its reads and bytes a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gatherbench.bench.model.epoch import EpochPrediction, extremes
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.physics import Part, engine_copy, gpu_reads
from gatherbench.bench.model.predict import KEYS, Series, predictions
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.read.derive import epoch_times, plan_order, stage_times
from gatherbench.bench.read.tables import Run

_GIB = 1 << 30
_LINE = 128
COLUMNS = (
    *(*KEYS, "kind", "end", "rate", "over"),
    *("of_copy_engine", "of_sm_read", "of_raw_link", "of_disk", "fetch_bound", "bound"),
)


@dataclass(frozen=True, slots=True)
class Roofs:
    """What the link of a machine gives at best, B/s of payload; NaN where it is not known."""

    copy_engine: float
    sm_read: float
    raw_link: float


def roofs(profile: LinkProfile, table_bytes: float) -> Roofs:
    """The roofs for a table of this span; multiprocessors read whole lines."""
    whole_lines = MinibatchLoad(
        payload_bytes=_GIB,
        gpu_link_read_bytes=_GIB,
        gpu_requests={_LINE: _GIB / _LINE},
        table_bytes=table_bytes,
    )
    raw = profile["link.raw_rate"].value
    return Roofs(
        _rate(engine_copy(_GIB, profile)),
        _rate(gpu_reads(whole_lines, profile)),
        math.nan if raw is None else raw,
    )


def roofline(run: Run, profile: LinkProfile) -> pd.DataFrame:
    """A line for each series that was measured on a GPU, and for each as modelled.

    Columns: ``workload``, ``strategy``, ``variant``; ``kind`` (``measured`` or ``modelled``);
    ``rate`` (B/s of rows that cross the link over the time in ``over``: ``fetch`` or ``epoch``; NaN
    where none cross it or nothing is known); its shares of the roofs ``of_copy_engine``,
    ``of_sm_read``, ``of_raw_link``; ``of_disk``, of the time in ``over`` the share that the disk
    needs at its best for the reads of all GPUs of a machine; and by the model ``fetch_bound``, the
    limit that sets how long a fetch takes, and ``bound``, what the epoch would gain most from.
    Where the profile's ranges make more than one rate, there is a line with the least and one with
    the most, and ``end`` says which (:func:`~gatherbench.bench.model.epoch.extremes`); of what was
    measured the share of a roof that ranges is NaN. The measured lines mean something only if
    ``profile`` describes the machine of the run.
    """
    measured = _measured_seconds(run)
    corners = profile.corners()
    records: list[dict[str, Any]] = []
    for one, epochs in predictions(run, profile):
        pairs = list(zip(epochs, corners, strict=False))
        if one.key in measured:
            lines = [_line(one, *pair, "measured", measured[one.key]) for pair in pairs]
            records.append(_merged(lines))
        lines = []
        for epoch, corner in pairs:
            seconds = {"epoch": epoch.epoch_s.value, "fetch": epoch.fetch_s.value}
            lines.append(_line(one, epoch, corner, "modelled", seconds))
        ends = extremes(lines, lambda line: None if math.isnan(line["rate"]) else line["rate"])
        records += [line | {"end": end} for end, line in ends if end] or [_merged(lines)]
    return plan_order(run, pd.DataFrame(records, columns=list(COLUMNS)))


def _merged(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The line of every corner: a number that is not the same at all is NaN, words are listed."""
    merged = {}
    for name in COLUMNS:
        there = list(dict.fromkeys(line[name] for line in lines))
        merged[name] = there[0] if len(there) == 1 else math.nan
        if isinstance(there[0], str):
            merged[name] = " or ".join(there)
    return merged


def _measured_seconds(run: Run) -> dict[tuple[str, str, str], dict[str, float | None]]:
    """Median seconds an epoch of ``epoch`` and ``fetch`` of each series measured on a GPU."""
    found: dict[tuple[str, str, str], dict[str, float | None]] = {}
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
    seconds: dict[str, float | None],
) -> dict[str, Any]:
    load = one.load
    over = "epoch" if load is not None and load.lookahead else "fetch"
    time = seconds.get(over)
    rate, shares, of_disk = math.nan, (math.nan,) * 3, math.nan
    if load is not None and time and "transfer" in epoch.parts:
        rate = load.brought_bytes * one.steps / time
        best = roofs(profile, load.table_bytes)
        shares = (rate / best.copy_engine, rate / best.sm_read, rate / best.raw_link)
    if time and "disk" in epoch.parts:
        least = epoch.parts["disk"].seconds.value
        of_disk = math.nan if least is None else one.gpus * one.steps * least / time
    return dict(
        zip(
            COLUMNS,
            (*one.key, kind, "", rate, over, *shares, of_disk, _fetch_bound(epoch), epoch.bound),
            strict=True,
        )
    )


def _fetch_bound(epoch: EpochPrediction) -> str:
    """The limit of the longest part of a fetch."""
    names = ("disk", "gather", "transfer", "expand")
    parts = [epoch.parts[name] for name in names if name in epoch.parts]
    if not parts or any(part.seconds.value is None for part in parts):
        return "unknown"
    return max(parts, key=lambda part: part.seconds.value or 0.0).bound


def _rate(part: Part) -> float:
    """Bytes a second of a transfer of one GiB."""
    return _GIB / part.seconds.value if part.seconds.value else math.nan


def against_measured(run: Run, profile: LinkProfile) -> pd.DataFrame:
    """Median epochs of a run on a GPU beside the model's; empty without any.

    Columns: ``workload``, ``strategy``, ``variant``, ``measured_s``, ``end``, ``modelled_s``,
    ``error``, ``bound``.
    What the model cannot predict is NaN. Where the profile's ranges make more than one epoch, there
    is a line with the shortest and one with the longest, and ``end`` says which.
    """
    measured = epoch_times(run).query("backend == 'cuda' and basis == 'measured'")
    seconds = {tuple(r[:3]): r[3] for r in measured[[*KEYS, "median"]].itertuples(index=False)}
    records = [
        (*one.key, seconds[one.key], end, epoch.epoch_s.value, epoch.bound)
        for one, epochs in predictions(run, profile)
        if one.key in seconds
        for end, epoch in extremes(epochs, lambda epoch: epoch.epoch_s.value)
    ]
    names = ["measured_s", "end", "modelled_s", "bound"]
    table = pd.DataFrame(records, columns=[*KEYS, *names])
    table["modelled_s"] = table["modelled_s"].astype(float)
    table["error"] = table["modelled_s"] / table["measured_s"] - 1
    return plan_order(run, table)
