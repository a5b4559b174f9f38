"""What a calibration visits, in which order, and where its chase of pointers runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gatherbench.bench.probe.calibrate import gpu as calibrate_gpu
from gatherbench.bench.probe.calibrate.gpu import Ring
from gatherbench.bench.probe.calibrate.host import CalibrationError, table_bytes
from gatherbench.bench.probe.calibrate.points import (
    Observation,
    Point,
    Sample,
    gpu_points,
    host_points,
    measure_all,
    thread_counts,
)

MIB = 1 << 20


@pytest.mark.parametrize("span", [MIB, 3 * MIB, 8 * MIB])
def test_a_ring_meets_each_of_its_places_once_all_over_the_span(
    span: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate_gpu, "RING_PLACES", 10_000)
    words = torch.full((MIB,), -1)
    rings = [Ring(words, span, column, torch.Generator().manual_seed(1)) for column in (0, 1)]
    for column, ring in enumerate(rings):
        at, met = ring.start, []
        for _ in range(len(ring.order)):
            met.append(at)
            at = int(words[at])
        assert at == ring.start
        assert len(set(met)) == len(met) == min(10_000, span // 128)
        assert {place % 16 for place in met} == {column}
        assert max(met) * 8 < span
        assert max(met) * 8 > 0.99 * span


def test_rounds_are_shuffled_and_the_first_is_dropped() -> None:
    points = host_points(4, MIB)
    seen: list[Point] = []
    kept: list[Sample] = []

    class Counting:
        def measure(self, point: Point) -> Observation:
            seen.append(point)
            return Observation(1, 1, "none")

    def ended() -> bool:
        return len(seen) >= 3 * len(points) + 5

    whole = measure_all(points, Counting(), most_rounds=9, out_of_time=ended, report=kept.append)
    assert whole == 2
    assert len(kept) == 2 * len(points) + 5
    assert {sample.round for sample in kept} == {1, 2, 3}
    size = len(points)
    assert set(seen[:size]) == set(seen[size : 2 * size]) == set(points)
    assert seen[:size] != seen[size : 2 * size]


def test_rounds_end_when_there_are_enough() -> None:
    points = [Point("gpu_copy"), Point("gpu_matmul")]

    class Known:
        def measure(self, point: Point) -> Observation:
            return Observation(1, 1, "none")

    kept: list[Sample] = []
    whole = measure_all(
        points, Known(), most_rounds=3, out_of_time=lambda: False, report=kept.append
    )
    assert (whole, len(kept)) == (3, 6)


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 16, 24, 96])
def test_points_are_distinct_and_some_are_held_out(cores: int) -> None:
    threads = thread_counts(cores)
    assert threads[0] == 1
    assert threads[-1] == cores
    points = [*host_points(cores, MIB), *gpu_points([MIB, 2 * MIB, 4 * MIB], cores)]
    assert len(set(points)) == len(points)
    held = [p for p in points if p.held_out]
    plain = {dataclasses.replace(p, held_out=False) for p in held}
    assert not plain & {p for p in points if not p.held_out}
    assert {p.kind for p in held} == {"host_gather", "gpu_gather", "sm_read"}


def test_too_little_memory_is_said() -> None:
    assert table_bytes(64 << 30) == 2 << 30
    assert table_bytes(4 << 30) == 1 << 30
    with pytest.raises(CalibrationError, match="close other programs"):
        table_bytes(900 * MIB)
