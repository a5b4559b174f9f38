"""Predict an epoch from what its minibatches ask for and what the machine can do.

This is the model's front door for anything that is not a run, such as notebooks. What a run
has measured comes in through ``predict.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from gatherbench.bench.model.estimate import Estimate, combine
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.physics import (
    Part,
    all_reduce,
    beyond,
    cpu_gather,
    disk_read,
    engine_copy,
    gpu_reads,
    in_turn,
    issuing,
    local_gather,
    sampling,
    staged_copy,
    submitting,
    training,
)
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.model.schedule import Parts, Timeline, run_epoch

_T = TypeVar("_T")
#: By how much a part is shortened to see whether the epoch depends on it.
_NUDGE = 0.9


@dataclass(frozen=True, slots=True)
class EpochPrediction:
    """An epoch as the model sees it.

    Parts go by name: ``sample``, ``disk``, ``gather``, ``transfer``, ``expand``,
    ``train``, ``all_reduce``.
    """

    #: Wall time; unknown where a constant that it needs is. What it takes to average gradients is
    #: left out with a remark where that is not known: all paths have it alike.
    epoch_s: Estimate
    sample_s: Estimate  # training waited for minibatches
    fetch_s: Estimate  # and for rows
    train_s: Estimate  # training; these three add up to ``epoch_s``
    bound: str  # what the epoch would gain most from: ``link``, ``training (kernel launches)``
    parts: Mapping[str, Part]  # each part of a minibatch alone
    all_reduce_s: Estimate = field(default=Estimate(0.0))  # of ``train_s``, averaging gradients
    #: Rates of reads in place that are not known of a table so large: key → bytes up to which they
    #: are (:func:`~gatherbench.bench.model.physics.beyond`).
    beyond: Mapping[str, float] = field(default_factory=dict)


def predict_corners(
    load: MinibatchLoad, profile: LinkProfile, batches: int, *, gpus: int = 1
) -> tuple[EpochPrediction, ...]:
    """:func:`predict_batches` at each of the profile's corners: one where it knows no range.

    All of them are of one machine, nobody knows which: series are compared corner by corner.
    """
    return tuple(predict_batches(load, corner, batches, gpus=gpus) for corner in profile.corners())


def extremes(items: Iterable[_T], value: Callable[[_T], float | None]) -> list[tuple[str, _T]]:
    """Of what was computed at each corner, what is least and what is most, each so called.

    One item, called nothing, where all are alike or their value is not known.
    """
    found = list(items)
    values = [value(item) for item in found]
    known = [one for one in values if one is not None]
    if len(known) < len(values) or math.isclose(min(known), max(known)):
        return [("", found[0])]
    least, most = (found[values.index(end)] for end in (min(known), max(known)))
    return [("at least", least), ("at most", most)]


def predict_batches(
    load: MinibatchLoad, profile: LinkProfile, batches: int, *, gpus: int = 1
) -> EpochPrediction:
    """Predict an epoch of ``batches`` minibatches like ``load``.

    Args:
        batches: of all GPUs together.
        gpus: of the machine; they share its processor, host memory, disk and ports.

    Raises:
        ValueError: no minibatch or no GPU.
        ProfileError: of a constant that this needs the profile knows but a range.
    """
    if min(batches, gpus) < 1:
        raise ValueError("an epoch needs at least one minibatch and one GPU")
    parts = minibatch_parts(load, profile, gpus)
    averaging = Estimate(0.0) if parts.all_reduce is None else parts.all_reduce.seconds
    parts, every = _without_unknown_average(parts)
    share = -(-batches // gpus)
    per_port = gpus_per_port(profile, gpus)
    shared = {"ports": "node.root_ports", "host memory": "host.memory_rate"} if gpus > 1 else {}
    remarks = [
        f"as if GPUs shared no {what} ({'; '.join(Estimate.of(profile, key).unknown)})"
        for what, key in shared.items()
        if not Estimate.of(profile, key).known
    ]
    busy = min(1.0, parts.sample.demands.get("cpu", 0.0) * max(1, parts.sample_workers))
    if gpus * busy > 1 and parts.sample.seconds.value:
        remarks.append(
            f"drawing minibatches keeps {busy:.0%} of the cores busy for each of {gpus} GPUs, so it"
            " takes longer; a program that leaves cores idle gains more from them"
        )
    there = profile["node.gpus"].value
    if there is not None and gpus > there:
        remarks.append(f"{gpus} GPUs in a machine that is known with {there:g}")
    if not averaging.known:
        remarks.append(f"without averaging gradients ({'; '.join(averaging.unknown)})")
    alone, every = parts.named, every.remark(*remarks)
    if every.value is None:
        return EpochPrediction(every, every, every, every, "unknown", alone, every)
    timeline = run_epoch(parts, share, gpus, per_port)
    seconds = {
        f.name: Estimate(getattr(timeline, f.name)).remark(*every.remarks) for f in fields(Timeline)
    }
    if not averaging.known:
        seconds["all_reduce_s"] = averaging
    gains: dict[str, float] = {}
    for name, part in alone.items():
        shorter: Any = {name: replace(part, seconds=part.seconds * _NUDGE)}
        if name == "train":
            shorter["issue_s"] = parts.issue_s * _NUDGE
        nudged = run_epoch(replace(parts, **shorter), share, gpus, per_port)
        gains[name] = timeline.epoch_s - nudged.epoch_s
    return EpochPrediction(
        **seconds,
        bound=alone[max(gains, key=lambda name: gains[name])].bound,
        parts=alone,
        beyond=beyond(load, profile),
    )


def _without_unknown_average(parts: Parts) -> tuple[Parts, Estimate]:
    """The parts, less averaging gradients where that is not known; and if the others are known."""
    if parts.all_reduce is not None and not parts.all_reduce.seconds.known:
        parts = replace(parts, all_reduce=None)
    seconds = (part.seconds for part in parts.named.values())
    return parts, combine(lambda *_: 0.0, *seconds, parts.submit_s)


def gpus_per_port(profile: LinkProfile, gpus: int) -> int:
    """How many GPUs of a machine share a port of its host; 1 where the ports are not known."""
    ports = profile["node.root_ports"].value
    return 1 if ports is None else -(-gpus // int(ports))


def minibatch_parts(load: MinibatchLoad, profile: LinkProfile, gpus: int = 1) -> Parts:
    """The parts of a minibatch of each of ``gpus`` GPUs, from who moves its bytes."""
    local = load.kept_bytes
    averages = gpus > 1 and load.gradient_bytes != 0
    on_cpu = load.cpu_write_bytes > 0
    staged = load.pageable_bytes > 0
    transfer: Part | None = None
    if staged:
        transfer = staged_copy(load, profile)
    elif load.copied_bytes:
        transfer = engine_copy(load.copy_engine_bytes, profile, load.engine_copies)
    if load.gpu_link_read_bytes > 0:
        reads = gpu_reads(load, profile)
        transfer = reads if transfer is None else in_turn(transfer, reads)
    in_gpu = local or load.gpu_table_bytes
    on_disk = load.disk_bytes != 0 or load.disk_requests != 0
    return Parts(
        sample=sampling(load, profile),
        submit_s=submitting(profile),
        issue_s=issuing(load, profile),
        gather=cpu_gather(load, profile) if on_cpu and not staged else None,
        transfer=transfer,
        by_kernel=load.gpu_link_read_bytes > 0,
        expand=local_gather(local, load.gpu_table_bytes, profile) if in_gpu else None,
        train=training(load, profile),
        lookahead=load.lookahead,
        gpu_share=load.gpu_share,
        sample_workers=load.sample_workers,
        gpu_samples=load.gpu_samples,
        all_reduce=all_reduce(load, profile, gpus) if averages else None,
        disk=disk_read(load, profile) if on_disk else None,
    )
