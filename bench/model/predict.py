"""What another machine would do with a run, from the run's own rows.

Each series becomes a load: what its case declared of itself, and what the run's host measured that
the other machine's profile does not know. Predictions are rows again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch

from gatherbench.bench.meters.threads import SAMPLER
from gatherbench.bench.model.epoch import EpochPrediction, predict_corners
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.load import MinibatchLoad, load_of
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.plan.plan import GPU_SAMPLING
from gatherbench.bench.plan.workload import ranks_of
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity
from gatherbench.bench.run.declared_rows import PATH_METRICS, TRAINING_METRICS, requests_of
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import CHECK_STAGE, RunStore
from gatherbench.bench.run.training_cost import (
    TrainingCost,
    recomputing,
    replay_calls,
    replaying,
)
from gatherbench.reason import Reason
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.registry import build

#: What a case has to have declared (``bench/run/declared_rows.py``), as ``stage.metric``.
_NEEDED = {
    *(f"fetch.{name}" for name in ("declared_payload", "row", "lookahead", "gpu_share")),
    *(f"sample.{name}" for name in ("minibatches", "edges")),
    *(f"train.{name}" for name, _ in TRAINING_METRICS.values()),
}
_NOWHERE = torch.device("cuda", 127)
#: What is said of the run's own time for minibatches, by how they were had.
_SAMPLING = {
    "live": "sampling as measured in the run, not scaled",
    "replay": "minibatches read from the trace as in the run, not drawn",
    "gpu": "sampling by the run's device as measured there, not scaled",
    "uva": "sampling by the run's device out of host memory as measured there, not scaled",
    "snapshot": "sampling that remembers, as measured in the run, not scaled",
}
_WORKERS = "minibatches had ahead by workers, in their core-seconds as measured in the run"
_UNMETERED = "the core-seconds of the run's sampler workers: not metered"
_GATHER = "the CPU's gather as measured on the run's host"

KEYS = ["workload", "strategy", "variant"]
#: Workload, strategy and variant.
SeriesName = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """One strategy on one workload of a run, as in its rows."""

    workload: str
    strategy: str
    variant: str
    load: MinibatchLoad | None  # its average minibatch; ``None`` where the run says too little
    batches: int  # minibatches of an epoch, of all ranks together
    missing: str = ""  # why there is no load
    gpus: int = 1  # ranks

    @property
    def key(self) -> SeriesName:
        return self.workload, self.strategy, self.variant

    @property
    def steps(self) -> int:
        """Minibatches of an epoch of one rank."""
        return -(-self.batches // self.gpus)


def series_of(run: Run, profile: LinkProfile) -> list[Series]:
    """Every series of the run's plan, ready to be predicted with ``profile``."""
    tables = run.select(stage="setup", metric="table").groupby("workload")["value"].max()
    wrong = run.select(stage=CHECK_STAGE, status="failed").groupby(KEYS)["reason"].first()
    host = _Host(run)
    planned: dict[SeriesName, Mapping[str, Any]] = {
        (case["workload"], case["strategy"], case["variant"]): case for case in run.plan["cases"]
    }
    found = []
    for key, case in planned.items():
        fields = run.plan["workloads"][key[0]]
        ranks = ranks_of(fields)
        facts = host.declared.get(key, {})
        strategy = _strategy_of(case)
        refused = None if strategy is None else refusal(strategy)
        missing = None if refused is None else str(refused)
        if key in wrong.index:
            missing = f"the case was found wrong: {wrong[key]}"
        if missing is None and (not facts.keys() >= _NEEDED or key[0] not in tables):
            missing = _why(run, key)
        if missing is None and facts.get("fetch.peer_read"):
            missing = "rows that other ranks send are not modelled"
        if missing is not None:
            found.append(Series(*key, None, 0, missing, ranks))
            continue
        load = declared_load(facts, float(tables[key[0]]))
        load = replace(load, cpu_share=1 / ranks)
        if strategy is not None:
            load = replace(load, disk_depth=strategy.disk_depth)
        if fields.get("activations") == "recompute":
            load = replace(load, training=recomputing(load.training))
        if fields.get("step") == "captured":
            training = replaying(load.training, load.payload_bytes)
            load = replace(load, training=training, step_calls=replay_calls(len(fields["fanouts"])))
        load = host.complete(key, load, profile, ranks)
        found.append(Series(*key, load, int(facts["sample.minibatches"]), "", ranks))
    return found


def refusal(strategy: Strategy) -> Reason | None:
    """Why the strategy runs on no GPU of any machine, or ``None`` where one would do.

    It is asked about a GPU that no machine has; that alone is no reason.
    """
    reason = strategy.skip(_NOWHERE)
    return None if reason is None or reason.kind == "no_device" else reason


def _strategy_of(case: Mapping[str, Any]) -> Strategy | None:
    """``None``: another package's that is not here, or a variant of another version."""
    try:
        return build(str(case["strategy"]), case.get("params"))
    except ValueError:
        return None


def declared_load(declared: Mapping[str, float], table_bytes: float) -> MinibatchLoad:
    """The average minibatch of what a case declared (``stage.metric`` → total over the trace)."""
    share = 1 / declared["sample.minibatches"]
    sums: dict[str, Any] = {
        name: declared.get(f"fetch.{metric}", 0.0) for name, metric in PATH_METRICS.items()
    }
    fetched = {name.removeprefix("fetch."): value for name, value in declared.items()}
    requests = {size: fetched[name] for size, name in requests_of(fetched).items()}
    # What stands there without a value is decided by the page cache; before disks nothing stood.
    uncounted = None if sums["disk_payload_bytes"] else 0.0
    sums["disk_bytes"] = declared.get("fetch.disk_read", uncounted)
    sums["disk_requests"] = declared.get("fetch.disk_requests", uncounted)
    sums["engine_copies"] = declared.get("fetch.copy_engine_copies", 0.0)
    read = sums["gpu_link_read_bytes"]
    sums["gpu_requests"] = requests if requests or not read else None
    sums["gpu_page_visits"] = declared.get("fetch.gpu_page_visits")
    sums["managed_page_visits"] = declared.get("fetch.managed_page_visits", 0.0)
    # Runs from before it was declared had no path that kept a part of the table.
    kept = 0.0 if read or sums["cpu_write_bytes"] else table_bytes
    costs = {n: share * declared[f"train.{m}"] for n, (m, _) in TRAINING_METRICS.items()}
    return load_of(
        DataPath(**sums),
        share,
        training=TrainingCost(**costs),
        row_bytes=declared["fetch.row"],
        table_bytes=table_bytes,
        gpu_table_bytes=declared.get("fetch.gpu_table", kept),
        lookahead=int(declared["fetch.lookahead"]),
        gpu_share=declared["fetch.gpu_share"],
        sampled_edges=share * declared["sample.edges"],
    )


def declared_facts(run: Run) -> dict[SeriesName, dict[str, float]]:
    """Series → ``stage.metric`` → what it declared, of all ranks."""
    found: dict[SeriesName, dict[str, float]] = {}
    rows = run.select(basis="declared", status="ok")[[*KEYS, "stage", "metric", "value"]]
    for *key, stage, metric, value in rows.itertuples(index=False, name=None):
        found.setdefault((key[0], key[1], key[2]), {})[f"{stage}.{metric}"] = value
    return found


class _Host:
    """What the machine of a run measured, as far as a profile may have to borrow it.

    Of each workload the cases count beside which there was no other work, if there are any.
    """

    def __init__(self, run: Run) -> None:
        self.declared = declared_facts(run)
        self._sampling = run.drawn
        self._workers = run.sampler_workers
        spent = run.select(metric=SAMPLER, basis="measured", status="ok")
        self._spent = spent[spent["epoch"] >= 0]
        measured = run.select(metric="wall_time", basis="measured", status="ok")
        self._times = measured[measured["epoch"] >= 0]
        moved = run.select(stage="activations", metric="out", status="ok")
        self._activations = moved.groupby("workload")["value"].median()
        gradients = run.select(stage="all_reduce", metric="payload", status="ok")
        self._gradients = gradients.groupby("workload")["value"].median()

    def complete(
        self, key: SeriesName, load: MinibatchLoad, profile: LinkProfile, world: int = 1
    ) -> MinibatchLoad:
        """The load with what the host measured and the profile does not know.

        Of ``world`` ranks the times are the slowest one's, for its share of the minibatches.

        Sampling is that of the run, drawn live, replayed or on the GPU: a profile's rate may be
        another program's, and is of its processor. Of workers the stage tells only what the loop
        waited for; a minibatch takes one of them the core-seconds that they used for it.
        The CPU's gather is the profile's where it knows its processor.
        """
        batches = self.declared[key]["sample.minibatches"] / world
        times = self._times[self._times["workload"] == key[0]]
        sampled = times[times["stage"] == "sample"]
        drawn = _median(sampled, batches, _SAMPLING[self._sampling])
        if self._workers:
            spent = self._spent[self._spent["workload"] == key[0]]  # of all ranks together
            drawn = _median(spent, batches * world, _WORKERS) or Estimate(None, (_UNMETERED,))
        load = replace(
            load,
            gpu_samples=self._sampling in GPU_SAMPLING,
            sample_workers=self._workers,
            sample_s=drawn,
            gradient_bytes=self._gradients.get(key[0]),
            activation_bytes=self._activations.get(key[0], 0.0) / batches,
        )
        fetched = times[(times["stage"] == "fetch") & (times["backend"] == "host")]
        keys = list(fetched[KEYS].itertuples(index=False, name=None))
        if load.pageable_bytes and not profile["copy.pageable"].values:
            mine = fetched.loc[[one == key for one in keys]]
            return replace(load, gather_s=_median(mine, batches, _GATHER))
        if load.pageable_bytes or not load.cpu_write_bytes or profile["host.gather_rate"].values:
            return load
        direct = fetched.loc[[self._direct(one) for one in keys]]
        whole = _median(direct, batches, _GATHER)
        share = load.cpu_write_bytes / load.payload_bytes  # the rest is not the CPU's to gather
        return replace(load, gather_s=whole and whole * share)

    def _direct(self, key: SeriesName) -> bool:
        """Whether the host runs this series as one pass from the table into the output.

        A path that reads less than the batch in place has something else to do with the rest.
        """
        facts = self.declared.get(key, {})
        payload, read = (
            facts.get(f"fetch.{n}", 0.0) for n in ("declared_payload", "gpu_link_read")
        )
        return facts.get("fetch.lookahead") == 0 and 0 < payload <= read


def _median(rows: pd.DataFrame, batches: float, remark: str) -> Estimate | None:
    """Seconds of an epoch in these rows, over its minibatches; ``None`` if there are no rows."""
    if rows.empty:
        return None
    quiet = rows[~rows["disturbed"]]
    if quiet.empty:
        remark = f"{remark}, beside other work"
    seconds = float((rows if quiet.empty else quiet)["value"].median())
    return Estimate(seconds / batches).remark(remark)


def _why(run: Run, key: SeriesName) -> str:
    """Why a series declared too little."""
    ours = run.select(workload=key[0], strategy=key[1], variant=key[2])
    ended = ours[ours["stage"] == "case"]
    if len(said := ended["reason"].dropna()):
        return f"the case did not get so far: {said.iloc[0]}"
    told = ours[ours["metric"].isin(("operations", PATH_METRICS["payload_bytes"]))]
    if len(undeclared := told["reason"].dropna()):
        return str(undeclared.iloc[0])
    if ended.empty:
        return "the case has not been run; --resume completes it"
    return "the case declares too little: an old run"


def profile_of(run: Run) -> LinkProfile | None:
    """The profile that the run's epochs were predicted for, if any.

    Raises:
        ProfileError: its file cannot be read.
    """
    file = RunStore(run.folder).profile_file
    return load_profile(file) if file.is_file() else None


def predictions(run: Run, profile: LinkProfile) -> list[tuple[Series, tuple[EpochPrediction, ...]]]:
    """Every series of the run on the machine of ``profile``, in the order of the plan.

    A workload of several ranks is predicted for as many GPUs. Each at every
    corner of the profile. A series that runs on no GPU, or of which the run says too little, is
    predicted as unknown.
    """
    found = []
    for one in series_of(run, profile):
        if one.load is None:
            nothing = Estimate(None, (one.missing,))
            epochs: tuple[EpochPrediction, ...] = (
                EpochPrediction(nothing, nothing, nothing, nothing, "unknown", {}, nothing),
            )
        else:
            epochs = predict_corners(one.load, profile, one.batches, gpus=one.gpus)
        found.append((one, epochs))
    return found


def predict(run: Run, profile: LinkProfile) -> list[Row]:
    """Predictions as rows: ``basis`` predicted, ``machine`` the profile's name, repeat 0.

    Where the profile knows ranges, epoch 0, 1, … are its corners: of two series those of one number
    belong together. Otherwise there is epoch 0.

    For each series ``epoch.wall_time`` and the ``wall_time`` of ``sample``, ``fetch`` and ``train``
    (what training waited for, and training: they add up to the epoch); and, in ``fetch``, what
    disk, gathering and transfer would take alone; of several ranks ``all_reduce.wall_time``, a part
    of ``train``. What is not known is a row with the reason.
    ``borrowed`` names the stages whose time was taken from what the run measured.
    """
    commit = str(run.rows["commit"].iloc[-1]) if len(run.rows) else "unknown"
    rows: list[Row] = []
    source = f"link model, profile {profile.name}"
    sources = [f"{source} with {ends}" if ends else source for ends in profile.corner_names()]
    for one, epochs in predictions(run, profile):
        make = RowMaker(
            run_id=run.run_id,
            commit=commit,
            machine=profile.name,
            backend="cuda",
            workload=one.workload,
            dataset=run.plan["workloads"][one.workload]["dataset"],
            strategy=one.strategy,
            variant=one.variant,
            repeat=0,
            basis="predicted",
            borrowed=_borrowed(one),
        )
        for number, (epoch, where) in enumerate(zip(epochs, sources, strict=False)):
            rows += _rows(make, one, epoch, number, where)
    return rows


def _borrowed(one: Series) -> str:
    """The stages whose time the prediction takes from the run's own measurements."""
    load = one.load
    times = {} if load is None else {"sample": load.sample_s, "fetch": load.gather_s}
    return " ".join(stage for stage, seconds in times.items() if seconds is not None)


def is_prediction(row: Row) -> bool:
    """Whether a row was predicted."""
    return row.basis == "predicted"


def _rows(
    make: RowMaker,
    one: Series,
    epoch: EpochPrediction,
    number: int,
    source: str,
) -> Iterator[Row]:
    def row(stage: str, metric: str, seconds: Estimate, said: str) -> Row:
        if seconds.value is None:
            reason = "unknown: " + "; ".join(seconds.unknown)
            return make.missing(stage, metric, "s", source, reason, epoch=number)
        # What is alike at two corners must not differ by the rounding of a long sum.
        return make.ok(stage, metric, "s", float(f"{seconds.value:.11g}"), said, epoch=number)

    remarks = "".join(f"; {text}" for text in epoch.epoch_s.remarks)
    for key, reach in epoch.beyond.items():
        remarks += f"; {key} is known of tables up to {quantity(reach, 'B')}, not of this one"
    yield row("epoch", "wall_time", epoch.epoch_s, f"{source}: bound by {epoch.bound}{remarks}")
    yield row("sample", "wall_time", epoch.sample_s, f"{source}: training waits for sampling")
    yield row("fetch", "wall_time", epoch.fetch_s, f"{source}: training waits for rows")
    yield row("train", "wall_time", epoch.train_s, source)
    if one.gpus > 1:
        said = f"{source}: averaging gradients in a ring, part of train"
        yield row("all_reduce", "wall_time", epoch.all_reduce_s, said)
    for name in ("disk", "gather", "transfer"):
        part = epoch.parts.get(name)
        if part is not None:
            alone = replace(part.seconds, remarks=())
            yield row(
                "fetch", f"{name}_time_alone", alone * one.steps, f"{source}: bound by {part.bound}"
            )
