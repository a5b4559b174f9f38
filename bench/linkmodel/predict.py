"""What another machine would do with a run: predictions as rows, from the run's own rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gatherbench.bench.linkmodel.epoch import EpochPrediction, predict_batches
from gatherbench.bench.linkmodel.estimate import Estimate
from gatherbench.bench.linkmodel.profile import LinkProfile
from gatherbench.bench.linkmodel.profile_file import load_profile
from gatherbench.bench.linkmodel.series import Series, series_of
from gatherbench.bench.rows import Row, RowMaker
from gatherbench.bench.store import RunStore
from gatherbench.bench.tables import Run


def profile_of(run: Run) -> LinkProfile | None:
    """The profile that the run's epochs were predicted for, if any.

    Raises:
        ProfileError: its file cannot be read.
    """
    file = RunStore(run.folder).profile_file
    return load_profile(file) if file.is_file() else None


def predictions(
    run: Run, profile: LinkProfile, *, gpus: int = 1, nodes: int = 1
) -> list[tuple[Series, EpochPrediction]]:
    """Every series of the run on the machine of ``profile``, in the order of the plan.

    A series of which the run says too little is predicted as unknown.
    """
    found = []
    for one in series_of(run, profile):
        if one.load is None:
            nothing = Estimate(None, (one.missing or "nothing is declared",))
            epoch = EpochPrediction(nothing, nothing, nothing, nothing, "unknown", {})
        else:
            epoch = predict_batches(one.load, profile, one.batches, gpus=gpus, nodes=nodes)
        found.append((one, epoch))
    return found


def predict(run: Run, profile: LinkProfile, *, gpus: int = 1, nodes: int = 1) -> list[Row]:
    """Predictions as rows: ``backend = model``, ``machine`` the profile's name, repeat and epoch 0.

    For each series ``epoch.wall_time`` and the ``wall_time`` of ``sample``, ``fetch`` and ``train``
    (what training waited for, and training: they add up to the epoch); and, in ``fetch``, what
    gathering and transfer would take alone. What is not known is a row with the reason.
    """
    commit = str(run.rows["commit"].iloc[-1]) if len(run.rows) else "unknown"
    rows: list[Row] = []
    for one, epoch in predictions(run, profile, gpus=gpus, nodes=nodes):
        make = RowMaker(
            run_id=run.run_id,
            commit=commit,
            machine=profile.name,
            backend="model",
            workload=one.workload,
            dataset=run.plan["workloads"][one.workload]["dataset"],
            strategy=one.strategy,
            variant=one.variant,
            repeat=0,
        )
        rows += _rows(make, one, epoch, profile)
    return rows


def is_prediction(row: Row) -> bool:
    """Whether a row was predicted; the other ``model`` rows are declared by the cases."""
    return row.backend == "model" and row.epoch >= 0


def _rows(
    make: RowMaker, one: Series, epoch: EpochPrediction, profile: LinkProfile
) -> Iterator[Row]:
    source = f"link model, profile {profile.name}"

    def row(stage: str, metric: str, seconds: Estimate, said: str) -> Row:
        if seconds.value is None:
            reason = "unknown: " + "; ".join(seconds.unknown)
            return make.missing(stage, metric, "s", source, reason, epoch=0)
        return make.ok(stage, metric, "s", seconds.value, said, epoch=0)

    remarks = "".join(f"; {text}" for text in epoch.epoch_s.remarks)
    yield row("epoch", "wall_time", epoch.epoch_s, f"{source}: bound by {epoch.bound}{remarks}")
    yield row("sample", "wall_time", epoch.sample_s, f"{source}: training waits for sampling")
    yield row("fetch", "wall_time", epoch.fetch_s, f"{source}: training waits for rows")
    yield row("train", "wall_time", epoch.train_s, source)
    for name in ("gather", "transfer"):
        part = epoch.parts.get(name)
        if part is not None:
            alone = replace(part.seconds, remarks=())
            if alone.value is not None:
                alone = Estimate(alone.value * one.batches)
            yield row("fetch", f"{name}_time_alone", alone, f"{source}: bound by {part.bound}")
