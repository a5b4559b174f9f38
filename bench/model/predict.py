"""What another machine would do with a run: predictions as rows, from the run's own rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gatherbench.bench.model.epoch import EpochPrediction, predict_corners
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.model.profile_file import load_profile
from gatherbench.bench.model.run_loads import Series, series_of
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import RunStore


def profile_of(run: Run) -> LinkProfile | None:
    """The profile that the run's epochs were predicted for, if any.

    Raises:
        ProfileError: its file cannot be read.
    """
    file = RunStore(run.folder).profile_file
    return load_profile(file) if file.is_file() else None


def predictions(
    run: Run, profile: LinkProfile, *, gpus: int = 1, nodes: int = 1
) -> list[tuple[Series, tuple[EpochPrediction, ...]]]:
    """Every series of the run on the machine of ``profile``, in the order of the plan.

    Each at every corner of the profile. A series that runs on no GPU, or of which the run says too
    little, is predicted as unknown.
    """
    found = []
    for one in series_of(run, profile):
        if one.load is None:
            nothing = Estimate(None, (one.missing or "nothing is declared",))
            epochs: tuple[EpochPrediction, ...] = (
                EpochPrediction(nothing, nothing, nothing, nothing, "unknown", {}),
            )
        else:
            epochs = predict_corners(one.load, profile, one.batches, gpus=gpus, nodes=nodes)
        found.append((one, epochs))
    return found


def predict(run: Run, profile: LinkProfile, *, gpus: int = 1, nodes: int = 1) -> list[Row]:
    """Predictions as rows: ``basis`` predicted, ``machine`` the profile's name, repeat 0.

    Where the profile knows ranges, epoch 0, 1, … are its corners: of two series those of one number
    belong together. Otherwise there is epoch 0.

    For each series ``epoch.wall_time`` and the ``wall_time`` of ``sample``, ``fetch`` and ``train``
    (what training waited for, and training: they add up to the epoch); and, in ``fetch``, what
    gathering and transfer would take alone. What is not known is a row with the reason.
    ``borrowed`` names the stages whose time was taken from what the run measured.
    """
    commit = str(run.rows["commit"].iloc[-1]) if len(run.rows) else "unknown"
    rows: list[Row] = []
    source = f"link model, profile {profile.name}"
    sources = [f"{source} with {ends}" if ends else source for ends in profile.corner_names()]
    for one, epochs in predictions(run, profile, gpus=gpus, nodes=nodes):
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
    make: RowMaker, one: Series, epoch: EpochPrediction, number: int, source: str
) -> Iterator[Row]:
    def row(stage: str, metric: str, seconds: Estimate, said: str) -> Row:
        if seconds.value is None:
            reason = "unknown: " + "; ".join(seconds.unknown)
            return make.missing(stage, metric, "s", source, reason, epoch=number)
        return make.ok(stage, metric, "s", seconds.value, said, epoch=number)

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
