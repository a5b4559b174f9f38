"""Predict an epoch in closed form: the parts of a minibatch, and how they overlap in a period.

The order of events is that of ``bench/run/loop.py`` on a GPU: one thread of the host draws a
minibatch, starts its fetch and issues its training. A step ends when the host has issued it and the
GPU has done its work; a minibatch that the GPU draws follows the previous step. The host waits for
rows if the driver stages them, or if the training's edges are copied after them from host memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gatherbench.bench.model import physics
from gatherbench.bench.model.physics import MinibatchLoad, Part, in_turn, issuing, merged
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.read.units import quantity

#: How many times as long a step takes to issue while the CPU gathers: ``host.issue_train`` of
#: ``cpu_gather prefetch`` over that of ``no_fetch``, reddit-like of
#: results/nvidia-h200/20261126-gpu-decide-239f0b, 24.35 over 17.00 ms an epoch, means of 40 epochs.
#: The other three workloads' (1.27 to 1.82) failed a check and are left out.
ISSUE_BESIDE_GATHER = 1.43
#: The factor that shortens a part to find whether the epoch depends on it.
_NUDGE = 0.9


@dataclass(frozen=True, slots=True)
class EpochPrediction:
    """A modelled epoch, in seconds; NaN if a constant for it is unknown."""

    epoch_s: float = math.nan  # wall time
    sample_s: float = math.nan  # training waits for minibatches,
    fetch_s: float = math.nan  # for rows,
    train_s: float = math.nan  # and training: these add up to ``epoch_s``
    bound: str = "unknown"  # the limit to improve first: ``training (kernel launches)``
    parts: Mapping[str, Part] = field(default_factory=dict)  # :func:`minibatch_parts`
    unknown: tuple[str, ...] = ()  # unknown constants behind a NaN, and why
    remarks: tuple[str, ...] = ()  # what the time leaves out, or its other sources
    extrapolated: tuple[str, ...] = ()  # rates without a value for so large a table


def predict_batches(
    load: MinibatchLoad, profile: LinkProfile, batches: int, *, gpus: int = 1
) -> EpochPrediction:
    """Predict an epoch of ``batches`` minibatches like ``load``.

    Args:
        batches: of all GPUs together.
        gpus: of the machine; they share its processor, host memory and disk, and no port.

    Raises:
        ValueError: no minibatch or no GPU.
    """
    if min(batches, gpus) < 1:
        raise ValueError("an epoch needs at least one minibatch and one GPU")
    load = replace(load, gpus=gpus)
    parts, steps = minibatch_parts(load, profile), -(-batches // gpus)
    if unknown := merged(part.unknown for part in parts.values()):
        return EpochPrediction(parts=parts, unknown=unknown)
    remarks = [*load.remarks, *merged(part.remarks for part in parts.values())]
    if gpus > 1:
        remarks.append("as if each GPU had a port of its own, without averaging gradients")
    issue_s = issuing(load, profile)
    epoch_s, drawn_s, step_s = _seconds(parts, issue_s, load, steps)
    shorter = {n: _seconds(parts, issue_s, load, steps, n)[0] for n in parts if n != "submit"}
    waited = max(0.0, epoch_s - steps * step_s)
    sample_s = min(drawn_s, waited)
    return EpochPrediction(
        *(epoch_s, sample_s, waited - sample_s, epoch_s - waited),
        bound=parts[min(shorter, key=lambda name: shorter[name])].bound,
        parts=parts,
        remarks=tuple(remarks),
        extrapolated=tuple(
            f"{key} is known of tables up to {quantity(reach, 'B')}, not of this one"
            for key, reach in physics.beyond(load, profile).items()
        ),
    )


def _seconds(
    parts: Mapping[str, Part], issue_s: float, load: MinibatchLoad, steps: int, shorter: str = ""
) -> tuple[float, float, float]:
    """Return seconds of the epoch, of exposed drawing, of a step; ``shorter`` shortens one part."""
    s = {name: part.seconds * (_NUDGE if name == shorter else 1.0) for name, part in parts.items()}
    transfer, expand = s.get("transfer", 0.0), s.get("expand", 0.0)
    draw, submit, train = s["sample"], s["submit"], s["train"]
    gather = s.get("disk", 0.0) + s.get("gather", 0.0)  # both by one thread
    issue = issue_s * (_NUDGE if shorter == "train" else 1.0)
    if load.lookahead:
        issue *= ISSUE_BESIDE_GATHER if "gather" in s else 1.0
        # The gather takes its share of the multiprocessors while it runs.
        train = min(train / (1 - load.gpu_share), train + load.gpu_share * transfer)
    elif load.gpu_samples and not load.pageable_bytes:
        issue = max(0.0, issue - transfer - expand)  # issued while its rows arrive
    step = max(train, issue)
    first = draw + submit + gather + transfer + expand + step
    if load.lookahead and load.gpu_samples:
        period = max(draw + submit + step + expand, gather, transfer)
    elif load.lookahead:
        period = max(draw + submit + issue, gather, transfer, expand + train)
    elif load.gpu_samples:
        period = first
    else:
        host = draw + submit + gather + transfer + issue
        period = max(host, transfer + expand + train)
    beside = 0.0 if load.gpu_samples else step - issue  # the host draws, the GPU trains
    drawn = draw + (steps - 1) * max(0.0, draw - beside)
    return first + (steps - 1) * period, drawn, step


def minibatch_parts(load: MinibatchLoad, profile: LinkProfile) -> dict[str, Part]:
    """Return a minibatch's parts by name, each timed alone; the load decides which there are."""
    staged = load.pageable_bytes > 0
    parts = {"sample": physics.sampling(load, profile)}
    parts["submit"] = Part(profile.number("gpu.submit"), "submitting", profile.why("gpu.submit"))
    if load.disk_bytes != 0 or load.disk_requests != 0:
        parts["disk"] = physics.disk_read(load, profile)
    if load.cpu_write_bytes > 0 and not staged:
        parts["gather"] = physics.cpu_gather(load, profile)
    over = [physics.staged_copy(load, profile)] if staged else []
    if load.copied_bytes and not staged:
        over.append(physics.engine_copy(load.copy_engine_bytes, profile, load.engine_copies))
    if load.gpu_link_read_bytes > 0:
        over.append(physics.gpu_reads(load, profile))
    if over:
        parts["transfer"] = in_turn(*over)
    if load.kept_bytes or load.gpu_table_bytes:
        parts["expand"] = physics.local_gather(load.kept_bytes, load.gpu_table_bytes, profile)
    parts["train"] = physics.training(load, profile)
    return parts
