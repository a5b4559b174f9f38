"""A run beside the model: how near each strategy comes to the link, and how far the model is off.

The roofline shows the rows that cross the link per second, beside three roofs of the machine: the
copy engine's peak, what multiprocessors read at best from a table of that span, and the raw link. A
strategy that hides its fetches behind training is measured over the whole epoch, since nobody
waited for the link alone; its percentage is then a lower bound of how busy the link is. Rows that
come off a disk have a fourth roof: its reads and bytes a second.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from gatherbench.bench.model.epoch import EpochPrediction, extremes, predict_corners
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.physics import Part, engine_copy, gpu_reads
from gatherbench.bench.model.predict import KEYS, Series, SeriesName, predictions
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
        rate = load.served * load.brought_bytes * one.steps / time
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
    ``error``, ``bound``; and ``modelled_path_s``, ``path_error``, where a training step takes GPU
    and host what the run measured: what is left of the error is the data path's, not the
    roofline's of the training.
    What the model cannot predict is NaN. Where the profile's ranges make more than one epoch, there
    is a line with the shortest and one with the longest, and ``end`` says which.
    """
    measured = epoch_times(run).query("backend == 'cuda' and basis == 'measured'")
    seconds = {tuple(r[:3]): r[3] for r in measured[[*KEYS, "median"]].itertuples(index=False)}
    found = [(one, epochs) for one, epochs in predictions(run, profile) if one.key in seconds]
    training = _measured_training(run, [one for one, _ in found])
    records = []
    for one, epochs in found:
        paths: Sequence[EpochPrediction | None] = [None] * len(epochs)
        if one.load is not None and one.workload in training:
            # What was measured as training holds the average of the gradients.
            times = {n: s * (1 / one.steps) for n, s in training[one.workload].items()}
            load = replace(one.load, gradient_bytes=0.0, **times)  # type: ignore[arg-type]
            ranks = {"gpus": one.gpus, "nodes": one.nodes}
            paths = predict_corners(load, profile, one.batches, **ranks)
        pairs = list(zip(epochs, paths, strict=True))
        for end, (epoch, path) in extremes(pairs, lambda pair: pair[0].epoch_s.value):
            by_path = None if path is None else path.epoch_s.value
            row = (seconds[one.key], end, epoch.epoch_s.value, epoch.bound, by_path)
            records.append((*one.key, *row))
    names = ["measured_s", "end", "modelled_s", "bound", "modelled_path_s"]
    table = pd.DataFrame(records, columns=[*KEYS, *names])
    for name, error in (("modelled_s", "error"), ("modelled_path_s", "path_error")):
        table[name] = table[name].astype(float)
        table[error] = table[name] / table["measured_s"] - 1
    return plan_order(run, table)


def _measured_training(run: Run, series: Sequence[Series]) -> dict[str, dict[str, Estimate]]:
    """What training took in an epoch: ``train_s`` of the GPU, ``issue_s`` of the host, by workload.

    Where rows come before the step, its events tell the GPU's work, as the host has issued ahead;
    where they lie ready they tell how long issuing takes (:func:`waits_for_nothing`). The shortest
    of the first counts, as a step that begins late has issuing in it, too. Rows of the host's own
    clock tell issuing better; what is beside a CPU gather does not count.
    """
    loads = {one.key: one.load for one in series if one.load is not None}
    rows = run.select(metric="wall_time", stage="train", basis="measured", backend="cuda")
    told = run.select(metric="issue_train", stage="host", basis="measured", backend="cuda")
    steps, issued = medians(rows), medians(told)
    found: dict[str, dict[str, Estimate]] = {}
    for workload in dict.fromkeys(key[0] for key in loads):
        mine = {key: load for key, load in loads.items() if key[0] == workload}
        blocking = [steps[key] for key, load in mine.items() if not load.lookahead if key in steps]
        clocked = [
            issued[key] for key, load in mine.items() if not load.cpu_write_bytes if key in issued
        ]
        ready = [
            steps[key] for key, load in mine.items() if waits_for_nothing(load) if key in steps
        ]
        if blocking:
            found[workload] = {"train_s": Estimate(min(blocking))}
            if issue := clocked or ready:
                found[workload]["issue_s"] = Estimate(statistics.median(issue))
    return found


def waits_for_nothing(load: MinibatchLoad) -> bool:
    """Whether the rows lie ready when a step is issued, and no CPU gather is beside it."""
    there = load.lookahead > 0 or not load.brought_bytes
    return there and not load.cpu_write_bytes


def medians(rows: pd.DataFrame) -> dict[SeriesName, float]:
    """Median seconds of an epoch of each series; without warm-up."""
    rows = rows[(rows["epoch"] >= 0) & (rows["status"] == "ok")]
    medians = rows.groupby(KEYS)["value"].median()
    keys = medians.index.to_frame(index=False).itertuples(index=False, name=None)
    return {(k[0], k[1], k[2]): float(v) for k, v in zip(keys, medians, strict=True)}
