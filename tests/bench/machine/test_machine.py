"""The machine's description: complete enough to judge a number, and nothing private in it."""

from __future__ import annotations

import getpass
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gatherbench
from gatherbench.bench.machine import env as machine_module
from gatherbench.bench.machine import gpus
from gatherbench.bench.machine import numa as numa_module
from gatherbench.bench.machine.env import (
    commit_id,
    describe_machine,
    library_versions,
    machine_slug,
)
from gatherbench.bench.machine.gpus import gpu_facts, hash_of_uuid, list_gpus
from gatherbench.bench.machine.numa import (
    bind_case,
    describe_numa,
    node_of_pci,
    parse_cpulist,
    processors_by_node,
)
from gatherbench.bench.machine.pcie import UnknownLinkError, fastest_rate, raw_rate
from gatherbench.bench.run.measure import bound
from gatherbench.kernels.cuda_calls import CudaCallError
from gatherbench.reason import Reason, SensorUnavailableError


@pytest.fixture(scope="module")
def env() -> dict[str, Any]:
    return describe_machine()


def test_it_is_json_and_says_what_matters(env):
    assert json.loads(json.dumps(env)) == env
    assert env["cpu"]["model"]
    assert env["cpu"]["usable_cores"] >= 1
    assert env["memory"]["total"] > 2**28
    assert env["libraries"]["torch"] == importlib.metadata.version("torch")
    assert env["torch"]["threads"] >= 1
    assert "binding" in env["numa"]
    assert bool(env["gpus"]) != bool(env["no_gpu"])  # GPUs, or why there are none


def test_no_name_of_host_or_user_no_path_and_no_address(env):
    private = {socket.gethostname(), getpass.getuser(), str(Path.home()), str(Path.cwd())}
    private |= psutil.net_if_addrs().keys()
    addresses = {a.address for found in psutil.net_if_addrs().values() for a in found}
    for text in json.dumps(env).split('"'):
        assert not private & set(re.split(r"[^\w./-]+", text)), text
        assert not re.search(r"(^|\s)/\w+", text), f"a path: {text}"
        assert not [a for a in addresses - {"00:00:00:00:00:00"} if a in text]


@pytest.mark.parametrize(
    ("model", "cores", "slug"),
    [
        ("AMD EPYC", 2, "cpu-amd-epyc-2c"),
        ("AMD EPYC 9654 96-Core Processor", 192, "cpu-amd-epyc-9654-192c"),
        ("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", 8, "cpu-intel-xeon-platinum-8480c-8c"),
        ("Neoverse-V2", 72, "cpu-neoverse-v2-72c"),
    ],
)
def test_slug_of_a_machine(model, cores, slug):
    described = {"gpus": [], "cpu": {"model": model, "usable_cores": cores}}
    assert machine_slug(described) == slug
    assert machine_slug(described | {"gpus": [{"name": "NVIDIA H200"}] * 2}) == "nvidia-h200"


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_of_a_checkout_and_its_changes(tmp_path, monkeypatch):
    monkeypatch.delenv("GATHERBENCH_COMMIT", raising=False)
    (tmp_path / "bench" / "machine").mkdir(parents=True)
    (tmp_path / "results").mkdir()
    code = tmp_path / "bench" / "machine" / "env.py"
    code.write_text("")
    monkeypatch.setattr(machine_module, "__file__", str(code))
    assert commit_id().startswith("v")  # no checkout
    git(tmp_path, "init")
    assert commit_id().startswith("v")  # no commit yet
    git(tmp_path, "add", "bench")
    git(tmp_path, "commit", "-m", "one")
    clean = commit_id()
    assert re.fullmatch(r"[0-9a-f]{12}", clean)
    (tmp_path / "results" / "rows.csv").write_text("")
    assert commit_id() == clean  # a result does not change the code
    (tmp_path / "bench" / "new.py").write_text("")
    assert commit_id() == f"{clean}+dirty"


def test_without_git_the_version_stands_in(monkeypatch):
    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", absent)
    monkeypatch.delenv("GATHERBENCH_COMMIT", raising=False)
    assert commit_id() == f"v{gatherbench.__version__}"


def test_files_without_history_or_installation_are_described_too(monkeypatch, tmp_path):
    """As they lie on a GPU machine to which they were copied."""

    def not_installed(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", not_installed)
    versions = library_versions()
    assert {"torch", "numba", "nvidia-ml-py", "ogb", "cuda-bindings"} <= set(versions)
    assert versions["torch"]
    assert "pytest" not in versions
    monkeypatch.setattr(machine_module, "__file__", str(tmp_path / "bench" / "machine" / "env.py"))
    monkeypatch.delenv("GATHERBENCH_COMMIT", raising=False)
    assert library_versions() == {}
    assert re.fullmatch(r"v\d+\.\d+.*", commit_id())
    monkeypatch.setenv("GATHERBENCH_COMMIT", "0123456789ab")
    assert commit_id() == "0123456789ab"
    monkeypatch.undo()
    monkeypatch.setenv("GATHERBENCH_COMMIT", "0123456789ab")
    assert commit_id() == "0123456789ab", "files that lie on top of another checkout"


def test_a_gpu_is_described_as_far_as_nvml_says_and_without_its_uuid(monkeypatch):
    def unsupported(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name in dir(pynvml):
        if name.startswith(("nvmlDeviceGet", "nvmlSystemGet")):
            monkeypatch.setattr(pynvml, name, unsupported)
    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetName": lambda _: "NVIDIA H200",
        "nvmlDeviceGetUUID": lambda i: f"GPU-secret-{i}",
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
        "nvmlSystemGetCudaDriverVersion": lambda: 13010,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 1,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
        "nvmlDeviceGetMaxClockInfo": lambda _, kind: {pynvml.NVML_CLOCK_SM: 1980}[kind],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    gpu, other = list_gpus()
    told = {name: value for name, value in gpu.items() if value is not None}
    assert told.pop("uuid_hash") != other["uuid_hash"]
    assert "secret" not in str(gpu)
    assert told == {
        "name": "NVIDIA H200", "cuda_driver": "13.1", "compute_capability": "9.0",
        "link_gen_current": 1, "link_gen_max": 5, "sm_clock_max_hz": 1980e6,
    }  # fmt: skip


# The GPU that CUDA uses, which NVML may not list, or list among others.

NO_NVML = Reason("no_device", "NVML says 'Shared Library Not Found'", "install the driver")
HASH = hash_of_uuid("GPU-01020304-0506-0708-090a-0b0c0d0e0f10")
OURS = gpu_facts(name="NVIDIA H200", uuid_hash=HASH)
NEIGHBOUR = gpu_facts(name="NVIDIA T400", uuid_hash="of another")


class Driver:
    """Answers as CUDA's driver does, with padded texts; refuses what opens a context."""

    def __init__(self) -> None:
        self.refused = ""
        self.identity = bytes(range(1, 17))

    def call(self, name: str, *arguments: Any) -> Any:
        if name == self.refused:
            raise CudaCallError(name, "CUDA_ERROR_NOT_SUPPORTED", "no")
        return {
            "cuInit": lambda flags: None,
            "cuDeviceGet": lambda number: number,
            "cuDeviceGetName": lambda room, device: b"NVIDIA H200".ljust(room, b"\0"),
            "cuDeviceGetUuid": lambda device: SimpleNamespace(bytes=self.identity),
        }[name](*arguments)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(gpus, "call_driver", made.call)
    return made


@pytest.mark.parametrize("refused", ["", "cuInit", "cuDeviceGet"])
def test_without_nvml_a_machine_goes_by_its_gpu_or_nvml_says_why_there_is_none(
    driver, monkeypatch, refused
):
    def silent() -> None:
        raise SensorUnavailableError(NO_NVML)

    monkeypatch.setattr(gpus, "list_gpus", silent)
    driver.refused = refused
    env = describe_machine()
    assert env["no_nvml"] == str(NO_NVML)
    if refused:
        assert (env["gpus"], env["gpu_in_use"], env["gpu_source"]) == ([], None, None)
        assert env["no_gpu"] == str(NO_NVML)
        return
    assert machine_slug(env) == "nvidia-h200"
    assert (env["gpu_source"], env["no_gpu"]) == ("CUDA driver API", None)
    assert env["gpus"] == [OURS]
    assert env["gpu_in_use"] == HASH
    assert json.loads(json.dumps(env)) == env


@pytest.mark.parametrize("refused", ["", "cuInit", "cuDeviceGetUuid", "MIG"])
def test_of_several_gpus_the_one_that_cuda_leaves_is_the_runs(driver, monkeypatch, refused):
    """NVML lists both, whatever CUDA_VISIBLE_DEVICES says; an instance (MIG) is none of them."""
    monkeypatch.setattr(gpus, "list_gpus", lambda: [NEIGHBOUR, OURS])
    driver.refused = refused
    if refused == "MIG":
        driver.identity = bytes(16)
    env = describe_machine()
    assert env["gpu_source"] == "NVML"
    if refused:  # CUDA does not say: NVML's order stands, and nothing is claimed
        assert [gpu["name"] for gpu in env["gpus"]] == ["NVIDIA T400", "NVIDIA H200"]
        assert env["gpu_in_use"] is None
        return
    assert [gpu["name"] for gpu in env["gpus"]] == ["NVIDIA H200", "NVIDIA T400"]
    assert env["gpu_in_use"] == HASH
    assert machine_slug(env) == "nvidia-h200"


# Rates of PCI Express links.

#: GB/s of sixteen lanes, one direction.
PUBLISHED = {1: 4.0, 2: 8.0, 3: 15.75, 4: 31.51, 5: 63.02, 6: 128.0}


@pytest.mark.parametrize(("generation", "gigabytes"), PUBLISHED.items())
def test_raw_rates_are_those_of_the_standard(generation, gigabytes):
    assert raw_rate(generation) == pytest.approx(gigabytes * 1e9, rel=1e-3)
    assert raw_rate(generation, 4) == pytest.approx(raw_rate(generation) / 4)
    assert raw_rate(generation) <= fastest_rate()


@pytest.mark.parametrize(
    ("generation", "lanes", "reason"),
    [(0, 16, "generation 0"), (7, 16, "generation 7"), (4, 5, "x5"), (4, 0, "x0")],
)
def test_a_link_of_which_nothing_is_known_has_no_rate_and_a_reason(generation, lanes, reason):
    with pytest.raises(UnknownLinkError, match=f"^unsupported: PCIe {reason}"):
        raw_rate(generation, lanes)


def test_bindings_that_another_package_hides_are_named_with_the_remedy(tmp_path):
    """As pynvml 11.5 does, whose folder stands before the module of nvidia-ml-py."""
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml" / "__init__.py").write_text("class NVMLError(Exception): ...")
    code = (
        "from gatherbench.bench.probe import doctor\n"
        "from gatherbench.bench.meters.nvml_device import no_gpu_reason\n"
        "print(no_gpu_reason())"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    said = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert said.startswith(f"not_installed: {tmp_path}/pynvml/__init__.py is not nvidia-ml-py")
    assert "pip uninstall pynvml" in said


# ---- nodes of memory -----------------------------------------------------------------------------


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
