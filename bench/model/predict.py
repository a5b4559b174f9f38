"""Predict a run's epochs on another machine from the bytes and requests that cases declare."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gatherbench.bench.model.epoch import EpochPrediction, predict_batches
from gatherbench.bench.model.physics import DISK_DEPTH, MinibatchLoad, load_of
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.plan.plan import GPU_SAMPLING
from gatherbench.bench.plan.workload import ranks_of
from gatherbench.bench.read.derive import requests_declared
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.agreement import STRAYED
from gatherbench.bench.run.counting import DECLARED
from gatherbench.bench.run.frames import Column
from gatherbench.bench.run.part import CHECK_STAGE
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import RunStore
from gatherbench.bench.run.training_cost import TrainingCost
from gatherbench.reason import Reason
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.registry import build

#: Columns of a case's declarations, by the field of a data path or of the training's cost.
_PATH, _TRAINING = (
    {name: Column(stage, of["metric"], of["unit"], declared=True).name for name, of in fields}
    for stage, fields in (
        ("fetch", DECLARED["fetch"].items()),
        ("train", DECLARED["train"].items()),
    )
)
#: Declarations that a prediction requires (``bench/run/counting.py``).
_NEEDED = {f"declared_{name}" for name in ("payload_bytes", "row_bytes", "gpu_table_bytes")}
_NEEDED |= {f"declared_{n}" for n in ("lookahead", "gpu_share", "sample_minibatches")}
_NEEDED |= {"declared_sample_edges", *_TRAINING.values()}
_NOWHERE = torch.device("cuda", 127)
#: Remarks on the run's own time for minibatches, by its sampling.
_SAMPLING = {
    "live": "sampling as measured in the run, not scaled",
    "replay": "minibatches read from the trace as in the run, not drawn",
    "gpu": "sampling by the run's device as measured there, not scaled",
    "uva": "sampling by the run's device out of host memory as measured there, not scaled",
    "snapshot": "sampling that remembers, as measured in the run, not scaled",
}
_WAITED = "what the loop waited for sampler workers, as measured in the run, not scaled"

KEYS = ["workload", "strategy", "variant"]
#: Workload, strategy and variant.
SeriesName = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """One strategy on one workload of a run, from its rows."""

    workload: str
    strategy: str
    variant: str
    load: MinibatchLoad | None  # its average minibatch; ``None``: the run declares too little
    batches: int = 0  # minibatches of an epoch, of all ranks together
    missing: str = ""  # why there is no load
    gpus: int = 1  # ranks

    @property
    def key(self) -> SeriesName:
        return self.workload, self.strategy, self.variant

    @property
    def steps(self) -> int:
        """The minibatches of an epoch of one rank."""
        return -(-self.batches // self.gpus)


def series_of(run: Run) -> list[Series]:
    """Return every series of the run's plan, ready for prediction."""
    tables = run.ended["setup_table_bytes"].dropna().groupby("workload").max()
    checks = run.columns.index[run.columns["stage"] == CHECK_STAGE]
    failed = run.reasons[(run.reasons["status"] == "failed") & (run.reasons["rank"] < 0)]
    failed = failed[failed["column"].isin([*checks, STRAYED])]
    wrong = failed.groupby(KEYS)["reason"].first()
    lasts, measured = run.declared.groupby(KEYS).last(), _measured(run)
    declared: dict[Any, Any] = {key: values.dropna().to_dict() for key, values in lasts.iterrows()}
    planned = {(c["workload"], c["strategy"], c["variant"]): c for c in run.plan["cases"]}
    series = []
    for key, case in planned.items():
        fields, facts = run.plan["workloads"][key[0]], declared.get(key, {})
        ranks, strategy = ranks_of(fields), None
        with contextlib.suppress(ValueError):  # of a missing package, or of another version
            strategy = build(str(case["strategy"]), case.get("params"))
        known = facts.keys() >= _NEEDED and facts["declared_sample_minibatches"] > 0
        known = known and key[0] in tables
        missing = ""
        if key in wrong.index:
            missing = f"the case was found wrong: {wrong[key]}"
        elif strategy and (reason := refusal(strategy)):
            missing = str(reason)
        elif not known:
            missing = _why(run, key)
        elif facts.get("declared_peer_read_bytes"):
            missing = "rows that other ranks send are not modelled"
        elif fields.get("step") == "captured":
            missing = "captured steps are not modelled"
        elif fields.get("around_step"):
            missing = "what is around a step is not modelled"
        if missing:
            series.append(Series(*key, None, missing=missing, gpus=ranks))
            continue
        batches = int(facts["declared_sample_minibatches"])
        load = replace(
            declared_load(facts, float(tables[key[0]])),
            gpu_samples=run.drawn in GPU_SAMPLING,
            disk_depth=int(getattr(strategy, "depth", DISK_DEPTH)),
        )
        if drawn := measured.get(key[0]):
            seconds, remark = drawn
            load = replace(load, sample_s=seconds * (ranks / batches), remarks=(remark,))
        series.append(Series(*key, load, batches, gpus=ranks))
    return series


def refusal(strategy: Strategy) -> Reason | None:
    """Return why the strategy runs on no machine's GPU; a missing one here is no reason."""
    reason = strategy.skip(_NOWHERE)
    return None if reason is None or reason.kind == "no_device" else reason


def declared_load(declared: Mapping[str, float], table_bytes: float) -> MinibatchLoad:
    """Return the average minibatch from a case's declarations of an epoch, by column."""
    share = 1 / declared["declared_sample_minibatches"]
    sums: dict[str, Any] = {name: declared.get(column, 0.0) for name, column in _PATH.items()}
    requests = {size: declared[name] for size, name in requests_declared(declared).items()}
    # A declaration without a value depends on the page cache.
    uncounted = None if sums["disk_payload_bytes"] else 0.0
    read = sums["gpu_link_read_bytes"]
    costs = {name: share * declared[column] for name, column in _TRAINING.items()}
    sums |= {
        "disk_bytes": declared.get("declared_disk_read_bytes", uncounted),
        "disk_requests": declared.get("declared_disk_requests", uncounted),
        "engine_copies": declared.get("declared_copy_engine_copies", 0.0),
        "gpu_requests": requests if requests or not read else None,
        "gpu_page_visits": declared.get("declared_gpu_page_visits"),
        "managed_page_visits": declared.get("declared_managed_page_visits", 0.0),
        "gpu_share": declared["declared_gpu_share"],
    }
    return load_of(
        DataPath(**sums),
        share,
        training=TrainingCost(**costs),
        row_bytes=declared["declared_row_bytes"],
        table_bytes=table_bytes,
        gpu_table_bytes=declared["declared_gpu_table_bytes"],
        lookahead=int(declared["declared_lookahead"]),
        sampled_edges=share * declared["declared_sample_edges"],
    )


def _measured(run: Run) -> dict[str, tuple[float, str]]:
    """Return workload → seconds an epoch to draw its minibatches, and a remark on them.

    The slowest rank's count, and noisy cases only if a workload has no others.
    """
    epochs = run.epochs.reindex(columns=["workload", "basis", "rank", "noisy", "sample_s"])
    epochs = epochs[(epochs["basis"] == "measured") & (epochs["rank"] < 0)]
    draw_times = {}
    for workload, drawn in epochs.dropna(subset=["sample_s"]).groupby("workload"):
        quiet = drawn[~drawn["noisy"].astype(bool)]
        remark = _WAITED if run.sampler_workers else _SAMPLING[run.drawn]
        remark += ", while other work ran" * quiet.empty
        counted = drawn if quiet.empty else quiet
        draw_times[str(workload)] = (float(counted["sample_s"].median()), remark)
    return draw_times


def _why(run: Run, key: SeriesName) -> str:
    """Return why a series declared too little."""
    tables = (run.ended.reset_index(), run.reasons)
    ended, reasons = (table[(table[KEYS] == list(key)).all(axis=1)] for table in tables)
    if len(failed := ended["reason"].dropna()):
        return f"the case did not get so far: {failed.iloc[0]}"
    undeclared = reasons["column"].isin((_TRAINING["operations"], _PATH["payload_bytes"]))
    if len(why := reasons[undeclared]["reason"].dropna()):
        return str(why.iloc[0])
    if ended.empty:
        return "the case has not been run; --resume completes it"
    return "the case declares too little: an old run"


def profile_of(run: Run) -> LinkProfile | None:
    """Return the profile of the run's predictions, if any, as :func:`load_profile` does."""
    file = RunStore(run.folder).profile_file
    return load_profile(file) if file.is_file() else None


def predictions(run: Run, profile: LinkProfile) -> list[tuple[Series, EpochPrediction]]:
    """Predict every series of the run on a machine with as many GPUs as its workload has ranks."""
    predicted = []
    for series in series_of(run):
        epoch = EpochPrediction(unknown=(series.missing,))
        if series.load is not None:
            epoch = predict_batches(series.load, profile, series.batches, gpus=series.gpus)
        predicted.append((series, epoch))
    return predicted


def predict(run: Run, profile: LinkProfile) -> list[Row]:
    """Return predictions as rows: ``basis`` predicted, ``machine`` the profile's name, repeat 0.

    ``sample``, ``fetch`` and ``train`` (training, and its waits for them) add up to ``epoch``. An
    unknown value has a reason. ``borrowed`` names stages whose time the run measured.
    """
    commits = [*run.epochs["commit"][-1:], *run.cases["commit"][-1:]]
    rows: list[Row] = []
    for series, epoch in predictions(run, profile):
        make = RowMaker(
            run_id=run.run_id,
            commit=str(commits[-1]) if commits else "unknown",
            machine=profile.name,
            backend="cuda",
            workload=series.workload,
            dataset=run.plan["workloads"][series.workload]["dataset"],
            strategy=series.strategy,
            variant=series.variant,
            repeat=0,
            basis="predicted",
            borrowed="sample" if series.load and series.load.sample_s is not None else "",
        )
        rows += _rows(make, series, epoch, f"link model, profile {profile.name}")
    return rows


def _rows(make: RowMaker, series: Series, epoch: EpochPrediction, source: str) -> Iterator[Row]:
    notes = "; ".join([f"bound by {epoch.bound}", *epoch.remarks, *epoch.extrapolated])
    stages = {
        "epoch": (epoch.epoch_s, f": {notes}"),
        "sample": (epoch.sample_s, ": training waits for sampling"),
        "fetch": (epoch.fetch_s, ": training waits for rows"),
        "train": (epoch.train_s, ""),
    }
    cells = [(stage, "wall_time", *value, epoch.unknown) for stage, value in stages.items()]
    for name in ("disk", "gather", "transfer"):
        if part := epoch.parts.get(name):
            alone = series.steps * part.seconds, f": bound by {part.bound}"
            unknown = part.unknown or epoch.unknown
            cells.append(("fetch", f"{name}_time_alone", *alone, unknown))
    for stage, metric, seconds, text, unknown in cells:
        if math.isnan(seconds):
            reason = f"unknown: {'; '.join(unknown)}"
            yield make.missing(stage, metric, "s", source, reason, epoch=0)
        else:
            value = float(f"{seconds:.11g}")  # without the rounding of a long sum
            yield make.ok(stage, metric, "s", value, source + text, epoch=0)
