"""NUMA: a case is bound to its GPU's node, or says why not; on fake trees of the kernel."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatherbench.bench.machine import numa as numa_module
from gatherbench.bench.machine.numa import (
    bind_case,
    describe_numa,
    node_of_pci,
    parse_cpulist,
    processors_by_node,
)
from gatherbench.bench.run.measure import bound
from gatherbench.kernels.cuda_calls import CudaCallError
from gatherbench.reason import Reason

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ADDRESS = "0000:C1:00.0"


class Machine:
    """Two nodes of four processors, a GPU on one of them, and what was asked of the kernel."""

    def __init__(self, sys_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sys = sys_folder
        self.allowed = set(range(8))
        self.asked_of = 0
        for node, listed in (("node0", "0-1,4-5"), ("node1", "2-3,6-7")):
            folder = sys_folder / "devices/system/node" / node
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(listed + "\n")
        self.gpu_on("1")
        monkeypatch.setattr(numa_module, "SYS", sys_folder)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(self.allowed))
        monkeypatch.setattr(os, "sched_setaffinity", self.set_affinity)
        monkeypatch.setattr(numa_module, "call_runtime", self.bus_id)

    def gpu_on(self, node: str) -> None:
        folder = self.sys / "bus/pci/devices" / ADDRESS.lower()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "numa_node").write_text(node + "\n")

    def set_affinity(self, _pid: int, cores: list[int]) -> None:
        self.allowed = set(cores)

    def bus_id(self, name: str, length: int, device: int) -> bytes:
        assert (name, device) == ("cudaDeviceGetPCIBusId", self.asked_of)
        assert length > len(ADDRESS)
        return (ADDRESS.encode() + b"\0").ljust(length)  # as cuda-bindings fills its buffer


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "sys", monkeypatch)


@pytest.mark.parametrize("gpu", [0, 3])
def test_a_case_runs_on_the_node_of_its_gpu(machine, gpu):
    machine.asked_of = gpu
    how = "sched_setaffinity to 4 processors, memory by first touch"
    assert bind_case(torch.device("cuda", gpu), 0) == (1, how)
    assert machine.allowed == {2, 3, 6, 7}


@pytest.mark.parametrize(
    ("allowed", "threads", "left"), [(range(8), 3, {2, 3, 6}), ({0, 1, 6}, 0, {6})]
)
def test_fewer_threads_are_taken_and_forbidden_cores_stay_so(machine, allowed, threads, left):
    machine.allowed = set(allowed)
    bind_case(CUDA, threads)
    assert machine.allowed == left


NODE1 = "devices/system/node/node1/cpulist"
NUMA_NODE = f"bus/pci/devices/{ADDRESS.lower()}/numa_node"


@pytest.mark.parametrize(
    ("file", "text", "device", "numa", "why"),
    [
        (NUMA_NODE, "-1", CUDA, "gpu", "unsupported: not bound: the kernel hides the GPU"),
        (NUMA_NODE, "7", CUDA, "gpu", "unsupported: not bound: the kernel hides the GPU"),
        (NUMA_NODE, "what?", CUDA, "gpu", "unsupported: not bound: the kernel hides the GPU"),
        (NODE1, "", CUDA, "gpu", "no_permission: not bound: no core of node 1"),
        (NODE1, "everything", CUDA, "gpu", "unsupported: not bound: the machine has one"),
        (NODE1, None, CUDA, "gpu", "unsupported: not bound: the machine has one"),
        (NODE1, "8-9", CUDA, "gpu", "no_permission: not bound: no core of node 1 may be used"),
        (NODE1, "2-3", CUDA, "none", "unsupported: not bound: the plan says numa = none"),
        (NODE1, "2-3", CPU, "gpu", "no_device: not bound: the case runs on the host"),
        ("driver", "", CUDA, "gpu", "unsupported: not bound: cudaDeviceGetPCIBusId failed"),
    ],
)
def test_a_case_that_cannot_be_bound_runs_and_says_why(
    machine, monkeypatch, file, text, device, numa, why
):
    def refuse(*_: object) -> bytes:
        raise CudaCallError("cudaDeviceGetPCIBusId", "cudaErrorNoDevice", "no device")

    if file == "driver":
        monkeypatch.setattr(numa_module, "call_runtime", refuse)
    elif text is None:
        (machine.sys / file).unlink()
    else:
        (machine.sys / file).write_text(text + "\n")
    reason, how = bind_case(device, 0, numa)
    assert isinstance(reason, Reason)
    assert str(reason).startswith(why)
    assert (how, machine.allowed) == ("", set(range(8)))


@pytest.mark.parametrize(
    ("parts", "threads", "cores"),
    [
        (2, 0, [{2, 3}, {6, 7}]),
        (3, 0, [{2}, {3}, {6, 7}]),
        (2, 3, [{2}, {3, 6}]),  # the plan's threads are those of all ranks
        (5, 0, [{2, 3, 6, 7}] * 5),  # too few for one each
    ],
)
def test_ranks_divide_the_cores_of_their_node(machine, parts, threads, cores):
    asked: list[int | None] = []

    def take(part: int, device: torch.device = CUDA) -> set[int]:
        def part_of(node: int | None) -> tuple[int, int]:
            asked.append(node)
            return part, parts

        machine.allowed = set(range(8))
        bind_case(device, threads, "gpu", part_of)
        return machine.allowed

    assert [take(part) for part in range(parts)] == cores
    assert set(asked) == {1}
    take(0, CPU)
    assert asked[-1] is None


@given(st.sets(st.integers(0, 300), max_size=40))
def test_cpulist_reads_what_the_kernel_writes(numbers):
    parts: list[str] = []
    ordered = sorted(numbers)
    while ordered:
        first = last = ordered.pop(0)
        while ordered and ordered[0] == last + 1:
            last = ordered.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    assert parse_cpulist(",".join(parts) + "\n") == numbers


@pytest.mark.skipif(not processors_by_node(), reason="this kernel names no NUMA nodes")
def test_the_real_kernel_agrees():
    node, cores = next(iter(processors_by_node().items()))
    assert node >= 0
    assert cores


@pytest.mark.parametrize(
    ("nodes", "gpu_nodes", "binding"),
    [
        (1, [0], "not bound: one NUMA node"),
        (0, [], "not bound: one NUMA node"),
        (2, [], "not bound: this machine lacks"),
        (2, [1, None], "not bound: the kernel hides a GPU"),
        (2, [1, 0], "a case on a GPU is bound to its node"),
    ],
)
def test_the_description_says_whether_cases_are_bound(machine, nodes, gpu_nodes, binding):
    for node in range(nodes, 2):
        (machine.sys / f"devices/system/node/node{node}/cpulist").unlink()
    described = describe_numa(gpu_nodes)
    assert described["binding"].startswith(binding)
    assert described["bound"] == (binding[:3] != "not")
    assert described["processors_by_node"] == {str(node): 4 for node in range(nodes)}
    assert json.loads(json.dumps(described)) == described


def test_rows_say_where_a_case_ran():
    step = bound(Reason("no_device", "not bound: no GPU"), "")
    assert (step.metric, step.value) == ("numa_node", None)
    assert step.reason == "no_device: not bound: no GPU"
    step = bound(1, "by hand")
    assert (step.metric, step.value, step.source) == ("numa_node", 1.0, "by hand")


def test_a_node_that_the_firmware_does_not_know_is_unknown(tmp_path, monkeypatch):
    file = tmp_path / "bus/pci/devices/0000:a5:00.0/numa_node"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr("gatherbench.bench.machine.numa.SYS", tmp_path)
    for text, node in (("-1\n", None), ("1\n", 1)):
        file.write_text(text)
        assert node_of_pci("0000:A5:00.0") == node
