"""What the training loop takes its host, from epochs that were measured on a GPU.

What is timed on its own is faster than the same in the loop: on an H200 a fetch was started in 0.13
ms, and in its epochs in 1.0. So these constants come from epochs, and each is one for all paths:
the median of what the paths tell that have little else in that stage.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.physics import cpu_gather, engine_copy
from gatherbench.bench.model.predict import SeriesName, series_of
from gatherbench.bench.model.profile import SPECS, LinkProfile
from gatherbench.bench.model.roofline import medians, waits_for_nothing
from gatherbench.bench.read.tables import Run

KEYS = ("loop.issue", "loop.submit", "loop.gather", "loop.beside_gather")
#: What a constant is the median of, in words.
_OF = {
    "loop.issue": "training steps of paths whose rows lie ready, over their operations",
    "loop.submit": "what these paths waited for a fetch",
    "loop.gather": "what cpu_gather pinned waited for a fetch beyond its gather's rate, its copy"
    " and starting it",
    "loop.beside_gather": "how much longer a step took beside cpu_gather prefetch, over the others",
}


@dataclass(frozen=True, slots=True)
class Epoch:
    """A series that was measured on a GPU: what its minibatch asks, and seconds of each."""

    run: str
    key: SeriesName
    load: MinibatchLoad
    fetch_s: float
    train_s: float
    #: By the host's own clock, where a run has it: starting the fetch, issuing the step.
    start_s: float | None = None
    issue_s: float | None = None

    @property
    def tells_the_host(self) -> bool:
        """Whether the stages hold the host's own part: rows lie ready, or its clock was read."""
        return waits_for_nothing(self.load) or (
            self.issue_s is not None and not self.load.cpu_write_bytes
        )


def epochs_of(runs: Iterable[Run], profile: LinkProfile) -> Iterator[Epoch]:
    """The series of these runs; their rates are those of ``profile``."""
    for run in runs:
        rows = run.select(metric="wall_time", basis="measured", backend="cuda", status="ok")
        fetch, train = (medians(rows[rows["stage"] == stage]) for stage in ("fetch", "train"))
        clock = run.select(stage="host", basis="measured", backend="cuda")
        told = ("issue_fetch", "issue_train")
        start, issue = (medians(clock[clock["metric"] == metric]) for metric in told)
        for one in series_of(run, profile):
            if one.load is not None and one.key in train:
                stages = (fetch, train, start, issue)
                seconds = (stage[one.key] / one.steps for stage in stages if one.key in stage)
                yield Epoch(run.run_id, one.key, one.load, *seconds)


def fitted(epochs: Sequence[Epoch], profile: LinkProfile) -> LinkProfile:
    """The profile with the constants of :data:`KEYS` that these epochs tell; of others, why not."""
    for key in KEYS:
        seen = list(_SEEN[key](epochs, profile))
        value, source = None, f"no epoch tells it: {_OF[key]}"
        if seen:
            spec = SPECS[key]
            value = min(max(statistics.median(seen), spec.low), spec.high)
            low, high = (f"{value:.3g}" for value in (min(seen), max(seen)))
            source = (
                f"median of {len(seen)} series of epochs on {profile.name} ({low} to {high}):"
                f" {_OF[key]}"
            )
        profile = profile.with_constant(key, value and float(f"{value:.3g}"), source)
    return profile


def _issue(epochs: Sequence[Epoch], profile: LinkProfile) -> Iterator[float]:
    # Behind a gather in the same stream issuing takes longer: a wait, and no cost of issuing.
    for one in epochs:
        if waits_for_nothing(one.load):
            seconds = one.train_s if one.issue_s is None else one.issue_s
            yield seconds / one.load.training.launches


def _submit(epochs: Sequence[Epoch], profile: LinkProfile) -> Iterator[float]:
    for one in epochs:
        if one.tells_the_host:
            yield one.fetch_s if one.start_s is None else one.start_s


def _gather(epochs: Sequence[Epoch], profile: LinkProfile) -> Iterator[float]:
    profile = profile.with_constant("loop.gather", 0.0, "without it")
    submit = profile["loop.submit"].value
    for one in epochs:
        load = one.load
        if load.cpu_write_bytes and not (load.pageable_bytes or load.lookahead or submit is None):
            gather, copy = cpu_gather(load, profile), engine_copy(load.copy_engine_bytes, profile)
            alone = (gather.seconds + copy.seconds).value
            if alone is not None:
                yield one.fetch_s - submit - alone


def _beside(epochs: Sequence[Epoch], profile: LinkProfile) -> Iterator[float]:
    issue = profile["loop.issue"].value
    for one in epochs:
        if one.load.cpu_write_bytes and one.load.lookahead and issue:
            yield one.train_s / (issue * one.load.training.launches) - 1


_SEEN = {
    "loop.issue": _issue,
    "loop.submit": _submit,
    "loop.gather": _gather,
    "loop.beside_gather": _beside,
}
