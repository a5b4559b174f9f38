"""The GPU's meters where there is no GPU: reasons, whom a run believes, and no names given away."""

from __future__ import annotations

import pynvml
import pytest

from gatherbench.bench.meters.base import closed
from gatherbench.bench.meters.nvml_device import GpuUnderTest, SensorChoice
from gatherbench.bench.meters.pcie import DIRECTIONS, MODULUS, PERIOD_S, PcieMeter
from gatherbench.bench.meters.poller import Polled
from gatherbench.bench.meters.power import GpuPowerMeter, Sample, summarise
from gatherbench.bench.meters.trust import Comparison, choose
from gatherbench.reason import Reason

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


def both(ratio: float | Reason) -> list[Comparison]:
    counted = ratio if isinstance(ratio, Reason) else 1e9 * ratio
    return [Comparison(direction, counted, 1e9) for direction in DIRECTIONS]


@pytest.mark.parametrize(
    ("ratio", "trusted"),
    [(0.94, False), (0.95, True), (1.0, True), (1.25, True), (1.26, False), (0.0, False)],
)
def test_counters_are_trusted_from_095_to_125(ratio, trusted):
    assert (choose(both(ratio)).pcie == "counters") is trusted
    assert 2 * PERIOD_S < MODULUS / 63e9, "one late reading loses no wrap"


def test_one_direction_that_is_wrong_costs_the_counters():
    nobody = choose([both(1.05)[0], both(1.67)[1]])
    assert nobody.pcie is None
    assert nobody.pcie_reason
    assert "(device to host: counts 1.67 B" in nobody.pcie_reason.cause
    assert nobody.pcie_reason.remedy == "update the NVIDIA driver"
    none = Reason("unsupported", "no such counters", "none known")
    assert choose(both(none)).pcie_reason == none
    assert "host to device: no such counters" in str(choose([both(none)[0], both(1.0)[1]]))


def test_what_a_window_comes_to():
    """Three looks within 12 s: each number another of them, or their mean."""
    looks = [
        Sample(5.0, 100.0, 310.0, 1.0e9, ()),
        Sample(11.0, 300.0, 330.0, 0.7e9, ("power cap",)),
        Sample(17.0, 200.0, 320.0, 1.9e9, ()),
    ]
    found, sources, watts = summarise(Polled(looks, None))
    assert found == {
        "gpu_power": 200.0,
        "gpu_temperature": 330.0,
        "gpu_clock": pytest.approx(1.2e9),
        "gpu_clock_lowest": 0.7e9,
        "gpu_slowed": pytest.approx(1 / 3),
    }
    assert watts == ((0.0, 100.0), (6.0, 300.0), (12.0, 200.0))
    assert sources["gpu_slowed"].endswith(": power cap")
