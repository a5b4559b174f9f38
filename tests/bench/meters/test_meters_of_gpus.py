"""The GPU's meters where there is no GPU: reasons with remedies, and no names given away."""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest

from gatherbench.bench.machine import nvml as nvml_module
from gatherbench.bench.machine.nvml import list_gpus
from gatherbench.bench.meters.base import Meter
from gatherbench.bench.meters.gpu_choice import GpuUnderTest, SensorChoice
from gatherbench.bench.meters.pcie import PcieMeter
from gatherbench.bench.meters.power import GpuPowerMeter
from gatherbench.bench.meters.registry import open_meters

GPU = GpuUnderTest(("GPU-x",), SensorChoice("counters", ""))


@pytest.mark.parametrize("gpu", [None, GPU])
@pytest.mark.parametrize("kind_of_meter", [PcieMeter, GpuPowerMeter])
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no_device: "),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no_device: "),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no_permission: "),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "unsupported: "),
    ],
)
def test_nvml_errors_become_reasons(
    monkeypatch: pytest.MonkeyPatch,
    kind_of_meter: Callable[[GpuUnderTest | None], Meter],
    gpu: GpuUnderTest | None,
    code: int,
    kind: str,
) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    reason = kind_of_meter(gpu).probe()
    assert reason is not None
    assert reason.startswith(kind)
    assert "; " in reason  # the remedy


class FakeNvml:
    """Stands for the library: counts its opening and closing, and answers for one GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int = 1) -> None:
        self.opened = self.closed = 0

        def unsupported(*_: object) -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        answers = {
            "nvmlInit": self.open,
            "nvmlShutdown": self.close,
            "nvmlDeviceGetCount": lambda: gpus,
            "nvmlDeviceGetHandleByIndex": lambda i: i,
            "nvmlDeviceGetName": lambda _: "NVIDIA H200",
            "nvmlDeviceGetUUID": lambda i: f"GPU-secret-{i}",
            "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
            "nvmlDeviceGetMemoryInfo": unsupported,
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
            "nvmlSystemGetCudaDriverVersion": lambda: 13010,
            "nvmlSystemGetDriverVersion": lambda: "590.10",
            "nvmlDeviceGetPciInfo": unsupported,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 1,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda _: 16,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer)

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closed += 1


def test_a_run_without_a_gpu_reads_none_of_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml(monkeypatch)
    for meter in open_meters(["pcie", "gpu_power"]):
        meter.start()
        readings = meter.stop()
        assert {r.metric for r in readings} in (
            {"pcie_host_to_device", "pcie_device_to_host"},
            {"gpu_energy", "gpu_power"},
        )
        for reading in readings:
            assert reading.value is None
            assert str(reading.reason).startswith("no_device: this run moves nothing to a GPU")
    assert library.opened == library.closed > 0


def test_an_uncalibrated_source_is_not_read() -> None:
    meter = PcieMeter(GpuUnderTest(("GPU-x",), SensorChoice()))
    meter.start()
    for reading in meter.stop():
        assert reading.value is None
        assert "calibrated" in str(reading.reason)


def test_a_meter_that_was_never_opened_says_so() -> None:
    for meter in (PcieMeter(), GpuPowerMeter()):
        assert all(str(r.reason).startswith("failed: ") for r in meter.stop())


def test_a_driver_without_gpus_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml(monkeypatch, gpus=0)
    assert str(PcieMeter().probe()).startswith("no_device: ")
    assert library.opened == library.closed == 1


def test_gpus_are_described_without_their_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch, gpus=2)
    one, two = list_gpus()
    assert one.name == "NVIDIA H200"
    assert one.cuda_driver == "13.1"
    assert one.compute_capability == "9.0"
    assert (one.link_gen_current, one.link_gen_max) == (1, 5)
    assert one.power_limit_w == 700.0
    assert one.memory_bytes is None  # the driver did not say
    assert one.uuid_hash != two.uuid_hash
    assert "secret" not in repr(one)


def test_numa_node_of_nothing_is_none() -> None:
    assert nvml_module._numa_node(None) is None
