"""Whom a run believes of the link's bytes: the bounds of trust, the order, and the polling."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gatherbench.bench.meters import gpm
from gatherbench.bench.meters.pcie_link import MODULUS
from gatherbench.bench.meters.pcie_sources import (
    DIRECTIONS,
    SOURCES,
    FieldCounters,
    Gpm,
    SampledThroughput,
)
from gatherbench.bench.meters.poller import Polled
from gatherbench.bench.meters.trust import Comparison, choose, verdict


def both(source: str, ratio: float | None, reason: str | None = None) -> list[Comparison]:
    counted = None if ratio is None else 1e9 * ratio
    return [Comparison(source, direction, counted, 1e9, reason) for direction in DIRECTIONS]


@pytest.mark.parametrize(
    ("ratio", "trusted"),
    [(0.94, False), (0.95, True), (1.0, True), (1.25, True), (1.26, False), (0.0, False)],
)
def test_a_source_is_trusted_from_095_to_125(ratio: float, trusted: bool) -> None:
    for comparison in both("counters", ratio):
        assert (verdict(comparison) is None) == trusted


def test_one_direction_that_is_wrong_costs_the_source() -> None:
    right, wrong = both("counters", 1.05)[0], both("counters", 1.67)[1]
    chosen = choose([right, wrong, *both("gpm", 1.0)])
    assert chosen.pcie == "gpm"
    nobody = choose([right, wrong, *both("gpm", None, "unsupported: no such metrics; none known")])
    assert nobody.pcie is None
    assert "counters device to host: counts 1.67 B" in nobody.pcie_reason
    assert "gpm host to device: unsupported: no such metrics" in nobody.pcie_reason
    assert nobody.pcie_reason.split("; ")[1:] == ["update the NVIDIA driver"], "not one remedy"


def test_sources_come_in_the_order_of_trust_and_only_the_last_blocks() -> None:
    assert [(source.name, source.unobtrusive) for source in SOURCES] == [
        ("counters", True),
        ("gpm", True),
        ("throughput", False),
    ]


def test_periods_are_those_that_the_sensors_need() -> None:
    assert FieldCounters.period_s <= 0.025
    assert 2 * FieldCounters.period_s < MODULUS / 63e9  # one late reading loses no wrap
    assert Gpm.period_s >= 0.2


def test_metrics_are_mebibytes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {(1, 2): [3.0, 1.0], (2, 3): [5.0, 0.0]}  # MiB/s to the device and back
    monkeypatch.setattr(gpm, "gpm_metrics", lambda early, late, _: rates[early, late])
    to_device, to_host = gpm.traffic([(10.0, 1), (10.5, 2), (11.5, 3)])
    assert to_device == ((0.0, 0.0), (0.5, 1.5 * 2**20), (1.5, 6.5 * 2**20))
    assert "0 for 1 of 2 intervals" in str(to_host)


def test_snapshots_closer_than_a_metric_needs_are_passed_over() -> None:
    window = gpm.GpmWindow([(s, None) for s in (0.0, 0.05, 0.25, 0.3, 0.5, 0.55)])
    assert [s for s, _ in window.chain()] == [0.0, 0.25, 0.55], "0.5 leaves too little to the end"
    assert window.length_s == 0.55


def test_every_snapshot_is_given_back_also_when_something_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(gpm, "free_gpm_sample", freed.append)
    with pytest.raises(ZeroDivisionError), gpm.GpmWindow([(0.0, 1), (0.3, 2), (0.6, 3)]):
        raise ZeroDivisionError
    assert freed == [1, 2, 3]


def test_a_sample_that_reaches_beyond_the_window_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = SampledThroughput(SimpleNamespace(throughput=lambda _: 0.0))  # type: ignore[arg-type]
    within = (10.1, (1e9, 2e9), 10.14)
    samples = [(9.98, (9e9, 9e9), 10.02), within, (10.98, (9e9, 9e9), 11.02)]
    polled = Polled(samples, None, 0.001)
    source._poller = SimpleNamespace(start=lambda: None, stop=lambda: polled)  # type: ignore[assignment]
    clock = iter((10.0, 11.0))
    monkeypatch.setattr("gatherbench.bench.meters.pcie_sources.time.monotonic", lambda: next(clock))
    source.start()
    seen = source.stop().traffic
    assert [seen[d].value for d in DIRECTIONS] == [1e9, 2e9]
    assert seen[DIRECTIONS[0]].samples == 1
