"""The GPU's own sensors for real: a copy of known size is counted, or there is a reason."""

from __future__ import annotations

import pytest
import torch

from gatherbench.bench.meters.base import closed
from gatherbench.bench.meters.nvml_device import GpuUnderTest, NvmlDevice, SensorChoice
from gatherbench.bench.meters.pcie import PcieMeter
from gatherbench.bench.meters.power import GpuPowerMeter
from gatherbench.bench.meters.trust import TRUSTED
from gatherbench.bench.run import sensor_check
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.sensor_check import PinnedCopier, calibrate_gpu, torch_gpu_uuids
from gatherbench.reason import SensorUnavailableError


def this_gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def test_nvml_knows_torchs_gpu_by_its_uuid():
    try:
        rate = NvmlDevice(torch_gpu_uuids(this_gpu())).link_rate()
    except SensorUnavailableError as unavailable:
        pytest.skip(str(unavailable))
    assert 1e8 < rate < 1e13


def test_the_trusted_source_counts_a_known_copy(monkeypatch):
    monkeypatch.setattr(sensor_check, "IDLE_S", 0.0)
    rows: list[Row] = []
    make = RowMaker("test", "", "", "cuda")
    choice = calibrate_gpu(make, rows.append)
    assert "pcie_trusted" in {r.metric for r in rows}
    if choice.pcie is None:
        pytest.skip(str(choice.pcie_reason))
    meter = PcieMeter(GpuUnderTest(torch_gpu_uuids(this_gpu()), choice))
    copier = PinnedCopier(this_gpu(), 256 << 20)
    meter.begin()
    copied = copier.copy("host_to_device", 1.0)
    found = {r.metric: r for r in closed(meter)}
    counted = found["pcie_host_to_device"]
    if counted.value is None:  # the machine was too busy to read in time
        pytest.skip(str(counted.reason))
    assert TRUSTED[0] <= counted.value / copied <= TRUSTED[1]


def test_power_is_read_or_has_a_reason():
    meter = GpuPowerMeter(GpuUnderTest(torch_gpu_uuids(this_gpu()), SensorChoice()))
    meter.begin()
    torch.cuda.synchronize()
    readings = {r.metric: r for r in closed(meter)}
    power = readings["gpu_power"]
    assert (power.value is None) == (power.reason is not None)
    if power.value is not None:
        assert 1 < power.value < 10_000
    assert readings["gpu_energy"].value is None  # a window this short is never believed
