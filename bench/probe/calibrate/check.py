"""What a calibration saw of each point, and what a profile says of it.

Predictions come from the link model's physics, so an error here is an error of the model and of
its constants together.
"""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from gatherbench.bench.model.load import MinibatchLoad, load_of
from gatherbench.bench.model.physics import cpu_gather, gpu_reads
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.probe.calibrate.points import POLICY, Point, Sample
from gatherbench.strategies.zero_copy_path import zero_copy_path

_SAMPLED_IDS = 20_000


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen of one point: amounts per second, over ``count`` samples."""

    median: float
    low: float
    high: float
    count: int

    @property
    def spread(self) -> str:
        """The quartiles as distances from the median."""
        down, up = self.low / self.median - 1, self.high / self.median - 1
        return f"quartiles {down:+.1%} and {up:+.1%}"


@dataclass(frozen=True, slots=True)
class Check:
    """A point beside what the profile says of it, in amounts per second.

    ``predicted`` is ``None`` where the profile does not know enough.
    """

    point: Point
    measured: Measured
    predicted: float | None

    @property
    def error(self) -> float | None:
        """By how much the prediction is off, as a share of the measurement."""
        return None if self.predicted is None else self.predicted / self.measured.median - 1


def summarise(samples: Iterable[Sample]) -> dict[Point, Measured]:
    """Medians and quartiles of each point, in the order in which points first appear."""
    rates: dict[Point, list[float]] = defaultdict(list)
    for sample in samples:
        rates[sample.point].append(sample.observed.amount / sample.observed.seconds)
    found = {}
    for point, values in rates.items():
        low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        found[point] = Measured(statistics.median(values), low, high, len(values))
    return found


def check(profile: LinkProfile, found: Mapping[Point, Measured]) -> list[Check]:
    """Every point that the profile predicts, fitted or held out, beside its measurement.

    Of contiguous reads only the best grid of each span: the profile knows no other.
    """
    best: dict[int, Point] = {}
    for point, measured in found.items():
        if point.kind == "sm_read":
            before = best.get(point.span_bytes)
            if before is None or measured.median > found[before].median:
                best[point.span_bytes] = point
    kept = [
        p
        for p in found
        if p.kind == "host_gather"
        or (p.kind == "gpu_gather" and p.share == 0)
        or best.get(p.span_bytes) == p
    ]
    kept.sort(key=lambda p: (p.kind, p.row_bytes, p.threads, p.span_bytes))
    return [Check(p, found[p], predicted_rate(profile, p)) for p in kept]


def predicted_rate(profile: LinkProfile, point: Point) -> float | None:
    """Bytes of rows a second that the model expects of a gather or a contiguous read.

    ``None`` also where the profile has but a range of what the GPU's reads depend on.
    """
    if point.kind != "host_gather" and profile.ranges():
        return None
    if point.kind == "sm_read":
        return profile.read.roof.at(point.span_bytes)
    if point.kind == "host_gather":
        profile = profile.with_constant("host.cores", float(point.threads), "as measured")
        size = float(1 << 26)
        load = MinibatchLoad(
            size, cpu_read_bytes=size, cpu_write_bytes=size, row_bytes=point.row_bytes
        )
        seconds = cpu_gather(load, profile).seconds.value
    else:
        load = gather_load(point.row_bytes, point.span_bytes, point.order)
        seconds = gpu_reads(load, profile).seconds.value
    return load.payload_bytes / seconds if seconds else None


@functools.cache
def gather_load(
    row_bytes: int, span_bytes: int, order: Literal["given", "sorted"] = "given"
) -> MinibatchLoad:
    """Random rows of a table of ``span_bytes`` as the aligned launch policy reads them.

    A sample of a gather of millions of rows: sorted, it would visit far more pages for each row
    than they do. Its pages are so few beside its rows that they are taken to be none.
    """
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, span_bytes // row_bytes, (_SAMPLED_IDS,), generator=draw)
    path = zero_copy_path(ids, row_bytes, POLICY, order)
    if order == "sorted":
        path = replace(path, gpu_page_visits=0)
    return load_of(path, table_bytes=span_bytes, row_bytes=row_bytes)


def smallest_share(found: Mapping[Point, Measured], enough: float = 0.95) -> int | None:
    """The least per cent of the GPU's threads whose gather reaches ``enough`` of the best one."""
    rates = {p.share: m.median for p, m in found.items() if p.kind == "gpu_gather" and p.share}
    if not rates:
        return None
    return min(share for share, rate in rates.items() if rate >= enough * max(rates.values()))


def held_out_errors(checks: Iterable[Check]) -> list[float]:
    """The errors of the points that were not fitted and are predicted at all."""
    return [c.error for c in checks if c.point.held_out and c.error is not None]
