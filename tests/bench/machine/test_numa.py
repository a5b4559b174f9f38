"""NUMA: a case is bound to its GPU's node, or says why not; on fake trees of the kernel."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatherbench.bench.machine import numa as numa_module
from gatherbench.bench.machine.numa import (
    Binding,
    Topology,
    bind_case,
    parse_cpulist,
    share_on_node,
)
from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run.job import run_maker
from gatherbench.kernels.cuda_calls import CudaCallError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ADDRESS = "0000:C1:00.0"


class Machine:
    """Two nodes of four processors, a GPU on one of them, and what was asked of the kernel."""

    def __init__(self, sys_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sys, self.topology = sys_folder, Topology(sys_folder)
        self.allowed = set(range(8))
        self.calls: list[tuple[Any, ...]] = []
        self.refusal = 0
        self.asked_of = 0
        for node, listed in (("node0", "0-1,4-5"), ("node1", "2-3,6-7")):
            folder = sys_folder / "devices/system/node" / node
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(listed + "\n")
        self.gpu_on("1")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(self.allowed))
        monkeypatch.setattr(os, "sched_setaffinity", self.set_affinity)
        monkeypatch.setattr(numa_module, "_call", self.call)
        monkeypatch.setattr(numa_module, "call_runtime", self.bus_id)

    def gpu_on(self, node: str) -> None:
        folder = self.sys / "bus/pci/devices" / ADDRESS.lower()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "numa_node").write_text(node + "\n")

    def set_affinity(self, _pid: int, cores: list[int]) -> None:
        self.allowed = set(cores)

    def call(self, name: str, *arguments: Any) -> int:
        self.calls.append((name, *arguments))
        return self.refusal

    def bus_id(self, name: str, length: int, device: int) -> bytes:
        assert (name, device) == ("cudaDeviceGetPCIBusId", self.asked_of)
        assert length > len(ADDRESS)
        return (ADDRESS.encode() + b"\0").ljust(length)  # as cuda-bindings fills its buffer


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "sys", monkeypatch)


def test_a_case_runs_on_the_node_of_its_gpu(machine: Machine) -> None:
    binding = bind_case(CUDA, 0, topology=machine.topology)
    assert (binding.node, binding.reason) == (1, None)
    assert machine.allowed == {2, 3, 6, 7}
    ((name, policy, mask, bits),) = machine.calls
    assert (name, policy) == ("set_mempolicy", 1)
    assert [i for i in range(1024) if mask[i // 64] >> i % 64 & 1] == [1]
    assert bits > 1  # the kernel reads one bit less than it is told
    assert "4 processors" in binding.how
    assert "set_mempolicy" in binding.how


def test_fewer_threads_are_taken_from_the_node(machine: Machine) -> None:
    bind_case(CUDA, 3, topology=machine.topology)
    assert machine.allowed == {2, 3, 6}


def test_cores_that_are_forbidden_stay_so(machine: Machine) -> None:
    machine.allowed = {0, 1, 6}
    bind_case(CUDA, 0, topology=machine.topology)
    assert machine.allowed == {6}


def test_a_container_that_refuses_the_memory_policy_still_binds_threads(machine: Machine) -> None:
    machine.refusal = 1  # EPERM
    binding = bind_case(CUDA, 0, topology=machine.topology)
    assert binding.node == 1
    assert "first touch (set_mempolicy: Operation not permitted)" in binding.how


@pytest.mark.parametrize("node", ["-1", "7", "what?"])
def test_a_gpu_of_no_known_node(machine: Machine, node: str) -> None:
    machine.gpu_on(node)
    binding = bind_case(CUDA, 0, topology=machine.topology)
    assert binding.node is None
    assert "not bound" in str(binding.reason)
    assert machine.allowed == set(range(8))
    assert machine.calls == []


def test_a_node_without_a_core_for_us(machine: Machine) -> None:
    machine.allowed = {0, 1}
    assert str(bind_case(CUDA, 0, topology=machine.topology).reason).startswith("no_permission: ")
    assert machine.allowed == {0, 1}


@pytest.mark.parametrize("listed", ["\n", "everything\n", "2-x\n", None])
def test_a_node_of_memory_alone_or_one_that_is_not_understood_costs_no_case(
    machine: Machine, listed: str | None
) -> None:
    cpulist = machine.sys / "devices/system/node/node1/cpulist"
    cpulist.unlink()
    if listed is not None:
        cpulist.write_text(listed)
    binding = bind_case(CUDA, 0, topology=machine.topology)
    assert binding.node is None
    assert binding.reason
    assert machine.allowed == set(range(8))


@pytest.mark.parametrize(
    ("parts", "threads", "cores"),
    [
        (2, 0, [{2, 3}, {6, 7}]),
        (3, 0, [{2}, {3}, {6, 7}]),
        (2, 3, [{2}, {3, 6}]),  # the plan's threads are those of all ranks
        (5, 0, [{2, 3, 6, 7}] * 5),  # too few for one each
    ],
)
def test_ranks_divide_the_cores_of_their_node(
    machine: Machine, parts: int, threads: int, cores: list[set[int]]
) -> None:
    asked: list[int | None] = []

    def take(part: int, device: torch.device = CUDA) -> set[int]:
        def part_of(node: int | None) -> tuple[int, int]:
            asked.append(node)
            return part, parts

        machine.allowed = set(range(8))
        bind_case(device, threads, "gpu", machine.topology, part_of)
        return machine.allowed

    assert [take(part) for part in range(parts)] == cores
    assert set(asked) == {1}
    take(0, CPU)
    assert asked[-1] is None


def test_the_plan_may_leave_a_case_unbound(machine: Machine) -> None:
    binding = bind_case(CUDA, 2, numa="none", topology=machine.topology)
    assert "numa = none" in str(binding.reason)
    assert machine.allowed == {0, 1}


def test_a_case_on_the_host_has_no_gpu_to_be_near_to(machine: Machine) -> None:
    assert str(bind_case(CPU, 0, topology=machine.topology).reason).startswith("no_device: ")


def test_one_node_needs_no_binding(machine: Machine) -> None:
    (machine.sys / "devices/system/node/node1/cpulist").unlink()
    assert "one NUMA node" in str(bind_case(CUDA, 0, topology=machine.topology).reason)
    assert "one NUMA node" in str(bind_case(CUDA, 0, topology=Topology(Path("/nowhere"))).reason)


def test_the_gpu_asked_is_the_cases_own(machine: Machine) -> None:
    machine.asked_of = 3
    assert bind_case(torch.device("cuda", 3), 0, topology=machine.topology).node == 1


def test_a_driver_that_fails_leaves_the_case_unbound(machine: Machine, monkeypatch) -> None:
    def refuse(*_: object) -> bytes:
        raise CudaCallError("cudaDeviceGetPCIBusId", "cudaErrorNoDevice", "no device")

    monkeypatch.setattr(numa_module, "call_runtime", refuse)
    reason = str(bind_case(CUDA, 0, topology=machine.topology).reason)
    assert "not bound: cudaDeviceGetPCIBusId failed" in reason


@given(st.sets(st.integers(0, 300), max_size=40))
def test_cpulist_reads_what_the_kernel_writes(numbers: set[int]) -> None:
    parts: list[str] = []
    ordered = sorted(numbers)
    while ordered:
        first = last = ordered.pop(0)
        while ordered and ordered[0] == last + 1:
            last = ordered.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    assert parse_cpulist(",".join(parts) + "\n") == numbers


def test_share_of_a_table_on_a_node(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.ones(100 * 4096 // 4)
    last = table.data_ptr() + table.nbytes

    def pages(name: str, _pid: int, count: int, addresses: Any, _to: None, where: Any, _f: int):
        assert name == "move_pages"
        for i in range(count):
            assert addresses[i] % 4096 == 0
            assert table.data_ptr() - 4096 < addresses[i] < last
            where[i] = (1, 0, 0, -2)[i % 4]  # -2 (ENOENT): never touched
        return 0

    monkeypatch.setattr(numa_module, "_call", pages)
    assert share_on_node(table, 1, pages=40) == pytest.approx(1 / 3)
    assert share_on_node(table, 0, pages=40) == pytest.approx(2 / 3)
    assert share_on_node(table[:1], 1) == 1.0


@pytest.mark.parametrize(
    ("error", "page", "reason"),
    [
        (errno.EPERM, 0, "no_permission: move_pages is refused"),
        (errno.ENOSYS, 0, "unsupported: move_pages: "),
        (0, -errno.ENOENT, "unsupported: no page of the table is in memory"),
    ],
)
def test_a_share_that_nobody_knows_says_why(monkeypatch, error, page, reason) -> None:
    def refuse(_name: str, _pid: int, count: int, _of: Any, _to: None, where: Any, _f: int) -> int:
        where[:] = [page] * count
        return error

    monkeypatch.setattr(numa_module, "_call", refuse)
    assert str(share_on_node(torch.ones(4096), 1)).startswith(reason)


@pytest.mark.skipif(not Topology().nodes(), reason="this kernel names no NUMA nodes")
def test_the_real_kernel_agrees() -> None:
    """In a thread of its own: a memory policy stays with its thread."""
    node, cores = next(iter(Topology().nodes().items()))
    assert cores
    with ThreadPoolExecutor(1) as own:
        error = own.submit(numa_module._prefer_memory_of, node).result()
        share = own.submit(lambda: share_on_node(torch.ones(1 << 20), node)).result()
    assert error is None or "not permitted" in error or "not implemented" in error
    if len(Topology().nodes()) == 1 and error is None:
        assert share == 1.0


def test_rows_say_where_a_case_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_module, "share_on_node", lambda *_: 0.75)
    make, table = run_maker("run", "abc", "box"), torch.ones(4)
    nowhere = Binding(None, "", Reason("no_device", "not bound: no GPU"))
    (row,) = measure_module._binding_rows(nowhere, table, make)
    assert (row.metric, row.value, row.reason) == (
        "numa_node",
        None,
        "no_device: not bound: no GPU",
    )
    node, share = measure_module._binding_rows(Binding(1, "by hand", None), table, make)
    assert (node.metric, node.value, node.source) == ("numa_node", 1.0, "by hand")
    assert (share.metric, share.value) == ("table_on_node", 0.75)
    monkeypatch.setattr(measure_module, "share_on_node", lambda *_: Reason("unsupported", "no"))
    _, share = measure_module._binding_rows(Binding(1, "by hand", None), table, make)
    assert (share.value, share.reason) == (None, "unsupported: no")
