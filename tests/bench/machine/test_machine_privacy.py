"""What is published of the machine: its nodes and settings, and nothing by which to find it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from gatherbench.bench.machine.env import describe_machine, describe_numa
from gatherbench.bench.machine.numa import Topology
from gatherbench.bench.machine.nvml import list_gpus


def topology(folder: Path, *cpulists: str) -> Topology:
    for node, cpulist in enumerate(cpulists):
        where = folder / f"devices/system/node/node{node}"
        where.mkdir(parents=True)
        (where / "cpulist").write_text(cpulist)
    return Topology(folder)


def test_no_address_of_a_network_interface() -> None:
    text = json.dumps(describe_machine())
    addresses = {a.address for found in psutil.net_if_addrs().values() for a in found}
    assert addresses
    for address in addresses - {"00:00:00:00:00:00"}:
        assert address not in text
    for card in psutil.net_if_addrs():
        assert f'"{card}"' not in text


@pytest.mark.parametrize(
    ("cpulists", "gpu_nodes", "binding"),
    [
        (("0-3",), [0], "not bound: one NUMA node"),
        ((), [], "not bound: one NUMA node"),
        (("0-3", "4-7"), [], "not bound: no GPU"),
        (("0-3", "4-7"), [1, None], "not bound: the kernel does not say"),
        (("0-3", "4-7"), [1, 0], "a case on a GPU is bound to its node"),
    ],
)
def test_binding_is_told(
    tmp_path: Path, cpulists: tuple[str, ...], gpu_nodes: list[int | None], binding: str
) -> None:
    found = describe_numa(gpu_nodes, topology(tmp_path, *cpulists))
    assert found["binding"].startswith(binding)
    assert found["processors_by_node"] == {str(i): 4 for i in range(len(cpulists))}
    assert json.loads(json.dumps(found)) == found


def test_the_real_machine_says_what_it_is_set_to() -> None:
    env = describe_machine()
    assert "binding" in env["numa"]
    assert {"max_clock_hz", "hyperthreads"} <= set(env["cpu"])
    assert "perf_event_paranoid" in env


def test_clocks_limits_and_persistence_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name in dir(pynvml):
        if name.startswith(("nvmlDeviceGet", "nvmlSystemGet")):
            monkeypatch.setattr(pynvml, name, unsupported)
    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetPersistenceMode": lambda _: 1,
        "nvmlDeviceGetPowerManagementLimitConstraints": lambda _: (200_000, 700_000),
        "nvmlDeviceGetClockInfo": lambda _, kind: {pynvml.NVML_CLOCK_SM: 345}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda _, kind: {
            pynvml.NVML_CLOCK_SM: 1980,
            pynvml.NVML_CLOCK_MEM: 3201,
        }[kind],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    (gpu,) = list_gpus()
    assert gpu.persistence is True
    assert gpu.power_limit_max_w == 700.0
    assert (gpu.sm_clock_hz, gpu.sm_clock_max_hz) == (345e6, 1980e6)
    assert gpu.memory_clock_max_hz == 3201e6
    assert gpu.power_limit_w is None  # the driver did not say
