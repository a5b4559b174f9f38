"""The GPU's meters where there is no GPU: reasons, whom a run believes, and no names given away."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from gatherbench.bench.machine.pcie import UnknownLinkError, raw_rate
from gatherbench.bench.meters import pcie
from gatherbench.bench.meters.base import closed
from gatherbench.bench.meters.nvml_device import GpuUnderTest, Link, SensorChoice
from gatherbench.bench.meters.pcie import (
    DIRECTIONS,
    MODULUS,
    SOURCES,
    FieldCounters,
    Gpm,
    PcieMeter,
    link_counter,
)
from gatherbench.bench.meters.poller import Polled
from gatherbench.bench.meters.power import GpuPowerMeter, Sample, summarise
from gatherbench.bench.meters.trust import Comparison, choose
from gatherbench.reason import Reason

LOST = Reason("failed", "the GPU is lost", "reset it")
GPU = GpuUnderTest(("GPU-x",), SensorChoice("counters", None))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no_device"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no_device"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no_permission"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "unsupported"),
    ],
)
def test_nvml_errors_become_reasons(monkeypatch, code, kind):
    def refuse() -> None:
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    for meter in (PcieMeter(), PcieMeter(GPU), GpuPowerMeter(), GpuPowerMeter(GPU)):
        reason = meter.probe()
        assert reason
        assert reason.kind == kind
        assert reason.remedy
        meter.begin()
        assert all((r.value, r.reason) == (None, reason) for r in closed(meter))


@pytest.mark.parametrize(
    ("gpus", "why"),
    [(1, "no_device: this run moves nothing to a GPU"), (0, "no_device: NVML answers but lists")],
)
def test_a_run_without_a_gpu_reads_none_of_the_machines(gpus, why, monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: calls.append("open"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: calls.append("close"))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: gpus)
    for meter in (PcieMeter(), GpuPowerMeter()):
        meter.begin()
        readings = closed(meter)
        assert {r.metric for r in readings} in (
            {"pcie_host_to_device", "pcie_device_to_host"},
            {"gpu_energy", "gpu_power"},
        )
        assert all(r.value is None and str(r.reason).startswith(why) for r in readings)
    assert calls == ["open", "close"] * 2


def test_an_uncalibrated_source_is_not_read():
    meter = PcieMeter(GpuUnderTest(("GPU-x",), SensorChoice()))
    meter.begin()
    assert all(r.value is None and "calibrated" in str(r.reason) for r in closed(meter))


# Whom a run believes of the link's bytes.


def both(source: str, ratio: float | Reason) -> list[Comparison]:
    counted = ratio if isinstance(ratio, Reason) else 1e9 * ratio
    return [Comparison(source, direction, counted, 1e9) for direction in DIRECTIONS]


@pytest.mark.parametrize(
    ("ratio", "trusted"),
    [(0.94, False), (0.95, True), (1.0, True), (1.25, True), (1.26, False), (0.0, False)],
)
def test_a_source_is_trusted_from_095_to_125(ratio, trusted):
    assert [c.trusted for c in both("counters", ratio)] == [trusted] * 2


def test_one_direction_that_is_wrong_costs_the_source():
    right, wrong = both("counters", 1.05)[0], both("counters", 1.67)[1]
    assert choose([right, wrong, *both("gpm", 1.0)]) == SensorChoice("gpm", None)
    none = Reason("unsupported", "no such metrics", "none known")
    nobody = choose([right, wrong, *both("gpm", none)])
    assert nobody.pcie is None
    assert nobody.pcie_reason
    assert "counters device to host: counts 1.67 B" in nobody.pcie_reason.cause
    assert "gpm host to device: no such metrics" in nobody.pcie_reason.cause
    assert nobody.pcie_reason.remedy == "update the NVIDIA driver"
    assert choose([*both("counters", none), *both("gpm", none)]).pcie_reason == none
    half = [both("counters", none)[0], both("counters", 1.0)[1], *both("gpm", none)]
    assert "counters host to device: no such metrics" in str(choose(half).pcie_reason)
    assert choose([]).pcie is None


def test_sources_come_in_the_order_of_trust_and_poll_as_their_sensors_need():
    assert [source.name for source in SOURCES] == ["counters", "gpm"]
    assert 2 * FieldCounters.period_s < MODULUS / 63e9  # one late reading loses no wrap
    assert Gpm.period_s >= 0.2


def test_a_link_is_judged_by_what_it_can_train_up_to():
    assert link_counter(Link(1, 5, 16, 16)).most_per_s == raw_rate(5, 16)  # idle: generation 1 now
    assert link_counter(None).most_per_s > raw_rate(5, 16)
    with pytest.raises(UnknownLinkError, match="generation 9"):
        link_counter(Link(1, 9, 16, 16))  # taken for a slower one, a wrap would be missed


def test_metrics_are_mebibytes_a_second(monkeypatch):
    rates = {(1, 2): [3.0, 1.0], (2, 3): [5.0, 0.0]}  # MiB/s to the device and back
    monkeypatch.setattr(pcie, "gpm_metrics", lambda early, late, _: rates[early, late])
    to_device, to_host = pcie.gpm_traffic([(10.0, 1), (10.5, 2), (11.5, 3)])
    assert to_device == ((0.0, 0.0), (0.5, 1.5 * 2**20), (1.5, 6.5 * 2**20))
    assert "0 for 1 of 2 intervals" in str(to_host)


def test_snapshots_closer_than_a_metric_needs_are_passed_over():
    kept = pcie.chain([(s, None) for s in (0.0, 0.05, 0.25, 0.3, 0.5, 0.55)])
    assert [s for s, _ in kept] == [0.0, 0.25, 0.55], "0.5 leaves too little to the end"


def test_every_snapshot_is_given_back_also_when_something_breaks(monkeypatch):
    freed: list[int] = []
    monkeypatch.setattr(pynvml, "nvmlGpmSampleFree", freed.append)
    monkeypatch.setattr(pcie, "gpm_metrics", lambda *_: 1 // 0)
    polled = Polled([(0.0, 1), (0.3, 2), (0.6, 3)], None)
    taken = iter(range(1, 6))
    source = Gpm(SimpleNamespace(gpm_supported=lambda: True, gpm_sample=lambda: next(taken)))  # type: ignore[arg-type]
    source._poller = SimpleNamespace(stop=lambda: polled)  # type: ignore[assignment]
    for _ in range(3):
        source._read()
    with pytest.raises(ZeroDivisionError):
        source.end()
    assert freed == [1, 2, 3]
    source._read(), source._read()
    polled = Polled([(0.0, 4), (0.3, 5)], LOST)  # then nobody asks what there was before
    assert source.end().bytes == [LOST, LOST]
    assert freed == [1, 2, 3, 4, 5]


def test_what_a_window_comes_to():
    """Three looks within 12 s: each number another of them, or their mean."""
    looks = [
        Sample(5.0, 100.0, 90.0, 310.0, 1.0e9, ()),
        Sample(11.0, 300.0, 150.0, 330.0, 0.7e9, ("power cap",)),
        Sample(17.0, 200.0, 210.0, 320.0, 1.9e9, ()),
    ]
    found, sources, watts = summarise(Polled(looks, None))
    assert found == {
        "gpu_power": 200.0,
        "gpu_power_average": 210.0,  # over the seconds before the last look
        "gpu_temperature": 330.0,
        "gpu_clock": pytest.approx(1.2e9),
        "gpu_clock_lowest": 0.7e9,
        "gpu_slowed": pytest.approx(1 / 3),
    }
    assert watts == ((0.0, 100.0), (6.0, 300.0), (12.0, 200.0))
    assert sources["gpu_slowed"].endswith(": power cap")
