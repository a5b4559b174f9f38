"""An epoch in closed form: the parts of a minibatch, and how they overlap in a period.

One description for every strategy. What differs is in the load: who moves the bytes, and how many
minibatches ahead. The order of events is that of ``bench/run/loop.py`` on a GPU: one thread of the
host draws a minibatch, starts its fetch and issues its training. A step ends when the GPU has done
its work and not before the host has issued it; minibatches that the GPU draws come behind the step
before. For rows the host waits where the driver stages them, and where the training's edges are
copied behind them from host memory. An epoch is its first minibatch alone and a period for each
other one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
    merged,
    sampling,
    staged_copy,
    training,
)
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.read.units import quantity

#: How many times as long a step takes to issue while the CPU gathers: ``host.issue_train`` of
#: ``cpu_gather prefetch`` over that of ``no_fetch``, reddit-like of
#: results/nvidia-h200/20261126-gpu-decide-239f0b, 24.35 over 17.00 ms an epoch, means of 40 epochs.
#: The other three workloads' (1.27 to 1.82) failed a check and do not count.
ISSUE_BESIDE_GATHER = 1.43
#: By how much a part is shortened to see whether the epoch depends on it.
_NUDGE = 0.9


@dataclass(frozen=True, slots=True)
class EpochPrediction:
    """An epoch as the model sees it, in seconds; NaN where a constant that it needs is not known.

    Attributes:
        epoch_s: wall time. What it takes to average gradients is left out with a remark where that
            is not known: all paths have it alike.
        sample_s, fetch_s: training waited for minibatches, for rows.
        train_s: training; these three add up to ``epoch_s``.
        bound: what the epoch would gain most from: ``link``, ``training (kernel launches)``.
        parts: each part of a minibatch alone: ``sample``, ``submit``, ``disk``, ``gather``,
            ``transfer``, ``expand``, ``train``, ``all_reduce``.
        all_reduce_s: of ``train_s``, averaging gradients.
        unknown: with NaN what is not known, and why.
        remarks: what the time leaves out, or takes from elsewhere.
        extrapolated: rates that are not known of a table so large.
    """

    epoch_s: float
    sample_s: float
    fetch_s: float
    train_s: float
    bound: str
    parts: Mapping[str, Part] = field(default_factory=dict)
    all_reduce_s: float = 0.0
    unknown: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    extrapolated: tuple[str, ...] = ()


def no_prediction(unknown: tuple[str, ...], parts: Mapping[str, Part]) -> EpochPrediction:
    """Of an epoch of which these are not known."""
    nan = math.nan
    return EpochPrediction(nan, nan, nan, nan, "unknown", parts, nan, unknown)


def predict_batches(
    load: MinibatchLoad, profile: LinkProfile, batches: int, *, gpus: int = 1
) -> EpochPrediction:
    """Predict an epoch of ``batches`` minibatches like ``load``.

    Args:
        batches: of all GPUs together.
        gpus: of the machine; they share its processor, host memory and disk, and no port.

    Raises:
        ValueError: no minibatch or no GPU.
        ProfileError: of a constant that this needs the profile knows but a range.
    """
    if min(batches, gpus) < 1:
        raise ValueError("an epoch needs at least one minibatch and one GPU")
    load = replace(load, gpus=gpus)
    parts, steps = minibatch_parts(load, profile), -(-batches // gpus)
    average = parts.get("all_reduce", Part(0.0))
    needed = {n: part for n, part in parts.items() if n != "all_reduce" or part.known}
    if unknown := merged(part.unknown for part in needed.values()):
        return no_prediction(unknown, parts)
    remarks = [*load.remarks, *merged(part.remarks for part in needed.values())]
    if not average.known:
        remarks.append(f"without averaging gradients ({'; '.join(average.unknown)})")
    if gpus > 1:
        remarks.append("as if each GPU had a port of its own")
    there = profile["node.gpus"].value
    if there is not None and gpus > there:
        remarks.append(f"{gpus} GPUs in a machine that is known with {there:g}")
    issue_s = issuing(load, profile)
    epoch_s, drawn_s, step_s = _seconds(needed, issue_s, load, steps)
    shorter = {n: _seconds(needed, issue_s, load, steps, n)[0] for n in parts if n != "submit"}
    waited = max(0.0, epoch_s - steps * step_s)
    sample_s = min(drawn_s, waited)
    return EpochPrediction(
        *(epoch_s, sample_s, waited - sample_s, epoch_s - waited),
        bound=parts[min(shorter, key=lambda name: shorter[name])].bound,
        parts=parts,
        all_reduce_s=steps * average.seconds,
        remarks=tuple(remarks),
        extrapolated=tuple(
            f"{key} is known of tables up to {quantity(reach, 'B')}, not of this one"
            for key, reach in beyond(load, profile).items()
        ),
    )


def _seconds(
    parts: Mapping[str, Part], issue_s: float, load: MinibatchLoad, steps: int, shorter: str = ""
) -> tuple[float, float, float]:
    """Of the epoch, of drawing behind its steps, of a step; with one of the parts a bit shorter."""
    s = {name: part.seconds * (_NUDGE if name == shorter else 1.0) for name, part in parts.items()}
    transfer, expand, average = (s.get(n, 0.0) for n in ("transfer", "expand", "all_reduce"))
    draw, submit, train = s["sample"], s["submit"], s["train"]
    gather = s.get("disk", 0.0) + s.get("gather", 0.0)  # one thread does both
    issue = issue_s * (_NUDGE if shorter == "train" else 1.0)
    if load.lookahead:
        issue *= ISSUE_BESIDE_GATHER if "gather" in s else 1.0
        # The gather takes its share of the multiprocessors for as long as it runs.
        train = min(train / (1 - load.gpu_share), train + load.gpu_share * transfer)
    elif load.gpu_samples and not load.pageable_bytes:
        issue = max(0.0, issue - transfer - expand)  # issued while its rows come
    step = max(train, issue) + average
    first = draw + submit + gather + transfer + expand + step
    if load.lookahead and load.gpu_samples:
        period = max(draw + submit + step + expand, gather, transfer)
    elif load.lookahead:
        period = max(draw + submit + issue, gather, transfer, expand + train + average)
    elif load.gpu_samples:
        period = first
    else:
        host = draw + submit + gather + transfer + issue
        period = max(host, transfer + expand + train + average)
    beside = 0.0 if load.gpu_samples else step - average - issue  # the host draws, the GPU trains
    drawn = draw + (steps - 1) * max(0.0, draw - beside)
    return first + (steps - 1) * period, drawn, step


def minibatch_parts(load: MinibatchLoad, profile: LinkProfile) -> dict[str, Part]:
    """The parts of a minibatch that there are, by name, from who moves its bytes."""
    staged, kept = load.pageable_bytes > 0, load.kept_bytes
    parts = {"sample": sampling(load, profile)}
    parts["submit"] = Part(profile.number("gpu.submit"), "submitting", profile.why("gpu.submit"))
    if load.disk_bytes != 0 or load.disk_requests != 0:
        parts["disk"] = disk_read(load, profile)
    if load.cpu_write_bytes > 0 and not staged:
        parts["gather"] = cpu_gather(load, profile)
    over = [staged_copy(load, profile)] if staged else []
    if load.copied_bytes and not staged:
        over.append(engine_copy(load.copy_engine_bytes, profile, load.engine_copies))
    if load.gpu_link_read_bytes > 0:
        over.append(gpu_reads(load, profile))
    if over:
        parts["transfer"] = in_turn(*over)
    if kept or load.gpu_table_bytes:
        parts["expand"] = local_gather(kept, load.gpu_table_bytes, profile)
    parts["train"] = training(load, profile)
    if load.gpus > 1 and load.gradient_bytes != 0:
        parts["all_reduce"] = all_reduce(load, profile)
    return parts
