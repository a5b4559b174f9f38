"""The GPUs of a machine whose NVML is not there, from CUDA's driver alone."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gatherbench.bench.machine import gpus
from gatherbench.bench.machine.env import describe_machine, machine_slug, this_machine
from gatherbench.bench.machine.numa import Topology
from gatherbench.bench.machine.nvml import GpuInfo, SensorUnavailableError, hash_of_uuid
from gatherbench.kernels.cuda_calls import CudaCallError

NO_NVML = "no_device: NVML says 'Shared Library Not Found'; install the driver"
IDENTITY = bytes(range(1, 17))


class Driver:
    """Two GPUs as ``cuda.bindings.driver`` tells of them; refuses what opens a context."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.answers = {
            "cuInit": lambda flags: None,
            "cuDeviceGetCount": lambda: 2,
            "cuDeviceGet": lambda number: number,
            "cuDeviceGetName": lambda room, device: f"NVIDIA H20{device}".encode().ljust(
                room, b"\0"
            ),
            "cuDeviceGetUuid": lambda device: SimpleNamespace(bytes=IDENTITY),
            "cuDriverGetVersion": lambda: 13010,
            "cuDeviceTotalMem": lambda device: 150 << 30,
            "cuDeviceGetAttribute": lambda kind, device: 9 if kind.name.endswith("MAJOR") else 0,
            "cuDeviceGetPCIBusId": lambda room, device: b"0000:1B:00.0\0\xff\xff\xff",
        }

    def call(self, name: str, *arguments: Any) -> Any:
        if name in self.refused:
            raise CudaCallError(name, "CUDA_ERROR_NOT_SUPPORTED", "no")
        return self.answers[name](*arguments)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    def silent() -> None:
        raise SensorUnavailableError(NO_NVML)

    made = Driver()
    monkeypatch.setattr(gpus, "list_gpus", silent)
    monkeypatch.setattr(gpus, "call_driver", made.call)
    monkeypatch.setattr(Topology, "node_of_pci", lambda _, at: {"0000:1B:00.0": 1}[at])
    return made


@pytest.mark.usefixtures("driver")
def test_a_machine_without_nvml_goes_by_its_gpu() -> None:
    env = describe_machine()
    assert machine_slug(env) == this_machine() == "nvidia-h200"
    assert (env["gpu_source"], env["no_gpu"], env["no_nvml"]) == ("CUDA driver API", None, NO_NVML)
    first, second = env["gpus"]
    assert (first["name"], second["name"]) == ("NVIDIA H200", "NVIDIA H201")
    assert first["uuid_hash"] == hash_of_uuid("GPU-01020304-0506-0708-090a-0b0c0d0e0f10")
    assert (first["compute_capability"], first["cuda_driver"]) == ("9.0", "13.1")
    assert (first["memory_bytes"], first["numa_node"]) == (150 << 30, 1)
    for name in ("driver", "power_limit_w", "link_gen_max", "sm_clock_hz", "persistence"):
        assert first[name] is None
    assert json.loads(json.dumps(env)) == env


def test_what_the_driver_does_not_say_is_none(driver: Driver) -> None:
    driver.refused = set(driver.answers) - {"cuInit", "cuDeviceGetCount", "cuDeviceGet"}
    first, _ = gpus.describe_gpus()["gpus"]
    assert {name for name, value in first.items() if value is not None} == {"name"}
    assert first["name"] == "unnamed GPU"


@pytest.mark.parametrize("refused", ["cuInit", "cuDeviceGetCount"])
def test_without_a_driver_there_is_no_gpu_and_nvml_says_why(driver: Driver, refused: str) -> None:
    driver.refused = {refused}
    assert gpus.describe_gpus() == {
        "gpus": [],
        "gpu_in_use": None,
        "gpu_source": None,
        "no_gpu": NO_NVML,
        "no_nvml": NO_NVML,
    }
    assert this_machine().startswith("cpu-")


def of_nvml(name: str, uuid: str) -> GpuInfo:
    return GpuInfo(name, hash_of_uuid(uuid), *[None] * 10)


@pytest.mark.parametrize("refused", ["", "cuInit", "cuDeviceGetUuid"])
def test_of_several_gpus_the_one_that_cuda_leaves_is_the_runs(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """NVML lists both, whatever ``CUDA_VISIBLE_DEVICES`` says."""
    neighbour = of_nvml("NVIDIA T400", "GPU-ffffffff-0000-0000-0000-000000000000")
    ours = of_nvml("NVIDIA H200", "GPU-01020304-0506-0708-090a-0b0c0d0e0f10")
    monkeypatch.setattr(gpus, "list_gpus", lambda: [neighbour, ours])
    driver.refused = {refused}
    env = describe_machine()
    assert env["gpu_source"] == "NVML"
    if refused:  # CUDA does not say: NVML's order stands, and nothing is claimed
        assert [gpu["name"] for gpu in env["gpus"]] == ["NVIDIA T400", "NVIDIA H200"]
        assert env["gpu_in_use"] is None
        return
    assert [gpu["name"] for gpu in env["gpus"]] == ["NVIDIA H200", "NVIDIA T400"]
    assert env["gpu_in_use"] == env["gpus"][0]["uuid_hash"] == ours.uuid_hash
    assert machine_slug(env) == this_machine() == "nvidia-h200"


def test_an_instance_of_a_partitioned_gpu_is_none_of_them(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA gives a MIG instance a UUID of its own, which NVML's list of GPUs does not have."""
    whole = of_nvml("NVIDIA H200", "GPU-ffffffff-0000-0000-0000-000000000000")
    monkeypatch.setattr(gpus, "list_gpus", lambda: [whole])
    found = gpus.describe_gpus()
    assert found["gpu_in_use"] is None
    assert [gpu["name"] for gpu in found["gpus"]] == ["NVIDIA H200"]


def test_a_driver_without_devices_is_no_gpu(driver: Driver) -> None:
    driver.answers["cuDeviceGetCount"] = lambda: 0
    assert gpus.describe_gpus()["gpu_source"] is None
