"""The GPU's meters where there is no GPU: reasons, whom a run believes, and no names given away."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gatherbench.bench.machine.nvml import list_gpus
from gatherbench.bench.machine.pcie import UnknownLinkError, raw_rate
from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.meters import pcie, uvm
from gatherbench.bench.meters.base import Meter
from gatherbench.bench.meters.gpu_choice import GpuUnderTest, SensorChoice
from gatherbench.bench.meters.nvml_device import Link
from gatherbench.bench.meters.pcie import (
    DIRECTIONS,
    MODULUS,
    SOURCES,
    FieldCounters,
    Gpm,
    PcieMeter,
    SampledThroughput,
    link_counter,
)
from gatherbench.bench.meters.poller import Polled
from gatherbench.bench.meters.power import GpuPowerMeter
from gatherbench.bench.meters.trust import Comparison, choose
from gatherbench.bench.meters.uvm import SIZE_BYTES, KnownMove

GPU = GpuUnderTest(("GPU-x",), SensorChoice("counters", None))


@pytest.mark.parametrize("gpu", [None, GPU])
@pytest.mark.parametrize("kind_of_meter", [PcieMeter, GpuPowerMeter])
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no_device"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no_device"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no_permission"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "unsupported"),
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
    assert reason.kind == kind
    assert reason.remedy


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
    for meter in (PcieMeter(), GpuPowerMeter()):
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
        assert all(r.reason and r.reason.kind == "failed" for r in meter.stop())


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
    assert (one.memory_bytes, one.numa_node) == (None, None)  # the driver did not say
    assert one.uuid_hash != two.uuid_hash
    assert "secret" not in repr(one)


# Whom a run believes of the link's bytes.


def both(source: str, ratio: float | Reason) -> list[Comparison]:
    counted = ratio if isinstance(ratio, Reason) else 1e9 * ratio
    return [Comparison(source, direction, counted, 1e9) for direction in DIRECTIONS]


@pytest.mark.parametrize(
    ("ratio", "trusted"),
    [(0.94, False), (0.95, True), (1.0, True), (1.25, True), (1.26, False), (0.0, False)],
)
def test_a_source_is_trusted_from_095_to_125(ratio: float, trusted: bool) -> None:
    assert [c.trusted for c in both("counters", ratio)] == [trusted] * 2


def test_one_direction_that_is_wrong_costs_the_source() -> None:
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


def test_sources_come_in_the_order_of_trust_and_poll_as_their_sensors_need() -> None:
    assert [(source.name, source.unobtrusive) for source in SOURCES] == [
        ("counters", True),
        ("gpm", True),
        ("throughput", False),
    ]
    assert 2 * FieldCounters.period_s < MODULUS / 63e9  # one late reading loses no wrap
    assert Gpm.period_s >= 0.2


def test_a_link_is_judged_by_what_it_can_train_up_to() -> None:
    assert link_counter(Link(1, 5, 16, 16)).most_per_s == raw_rate(5, 16)  # idle: generation 1 now
    assert link_counter(None).most_per_s > raw_rate(5, 16)
    with pytest.raises(UnknownLinkError, match="generation 9"):
        link_counter(Link(1, 9, 16, 16))  # taken for a slower one, a wrap would be missed


def test_metrics_are_mebibytes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {(1, 2): [3.0, 1.0], (2, 3): [5.0, 0.0]}  # MiB/s to the device and back
    monkeypatch.setattr(pcie, "gpm_metrics", lambda early, late, _: rates[early, late])
    to_device, to_host = pcie.gpm_traffic([(10.0, 1), (10.5, 2), (11.5, 3)])
    assert to_device == ((0.0, 0.0), (0.5, 1.5 * 2**20), (1.5, 6.5 * 2**20))
    assert "0 for 1 of 2 intervals" in str(to_host)


def test_snapshots_closer_than_a_metric_needs_are_passed_over() -> None:
    kept = pcie.chain([(s, None) for s in (0.0, 0.05, 0.25, 0.3, 0.5, 0.55)])
    assert [s for s, _ in kept] == [0.0, 0.25, 0.55], "0.5 leaves too little to the end"


def test_every_snapshot_is_given_back_also_when_something_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(pcie, "free_gpm_sample", freed.append)
    with pytest.raises(ZeroDivisionError), pcie.given_back([(0.0, 1), (0.3, 2), (0.6, 3)]):
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
    monkeypatch.setattr(pcie.time, "monotonic", lambda: next(clock))
    source.start()
    to_device, to_host, _ = source.stop()
    assert [to_device.value, to_host.value] == [1e9, 2e9]
    assert to_device.samples == 1


def test_the_known_move_is_touched_here_then_moved_and_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block = (ctypes.c_uint8 * SIZE_BYTES)()
    start, calls = ctypes.addressof(block), []
    answers = {"cudaMallocManaged": start, "cudaGetDevice": 1}

    def call(name: str, *arguments: Any) -> Any:
        calls.append((name, *arguments))
        return answers.get(name)

    location = SimpleNamespace(type=None, id=None)
    module = SimpleNamespace(
        cudaMemAttachGlobal=1,
        cudaMemLocation=lambda: location,
        cudaMemLocationType=SimpleNamespace(cudaMemLocationTypeDevice="device"),
    )
    monkeypatch.setattr(uvm, "call_runtime", call)
    monkeypatch.setattr(uvm, "runtime", lambda: module)
    move = KnownMove()
    assert set(block) == {1}
    assert (start in move.addresses, start + SIZE_BYTES in move.addresses) == (True, False)
    assert len(move.addresses) == SIZE_BYTES
    move.to_gpu()
    move.close()
    assert (location.type, location.id) == ("device", 1)
    assert calls == [
        ("cudaMallocManaged", SIZE_BYTES, 1),
        ("cudaGetDevice",),
        ("cudaMemPrefetchAsync", start, SIZE_BYTES, location, 0, 0),
        ("cudaDeviceSynchronize",),
        ("cudaFree", start),
    ]
