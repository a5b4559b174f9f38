"""A GPU for the probe's tests: CUDA's edge replaced by the host, whose memory is the GPU's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.shim.execute import SHIM
from torch import Tensor

import gatherbench.bench.run.models  # noqa: F401 - before torch.device is another
from gatherbench.bench.probe import case, gathers, gpu, host, rig
from gatherbench.bench.probe.rig import MIB
from gatherbench.bench.sampling import device_sampler
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.kernels.compiler import KERNEL_SOURCE
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.launch import Table

SPANS = (MIB, 2 * MIB, 4 * MIB)


class Event:
    """An event that reads the clock of the host."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: object = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: Event) -> float:
        return max(1e-6, 1e3 * (later.at - self.at))


class Registered:
    """Stands for registered memory."""

    def __init__(self, tensor: Tensor, device: int | None) -> None:
        self.address, self.tensor, self.closed = tensor.data_ptr(), tensor, 0

    def close(self) -> None:
        self.closed += 1


def seen(address: int, shape: tuple[int, int], device: object = None) -> Tensor:
    """Memory at an address as float32."""
    raw = (ctypes.c_uint8 * (4 * shape[0] * shape[1])).from_address(address)
    return torch.frombuffer(raw, dtype=torch.float32).view(shape)


def gather(
    out: Tensor, table: Table, ids: Tensor, point: GridPoint, out_rows: Tensor | None = None
) -> None:
    """What the kernel does."""
    raw = (ctypes.c_uint8 * (table.num_rows * table.row_stride)).from_address(table.address)
    rows = torch.frombuffer(raw, dtype=torch.uint8).view(table.num_rows, -1)
    flat = out.view(torch.uint8).view(out.shape[0], -1)
    flat[slice(None) if out_rows is None else out_rows] = rows[ids, : table.row_bytes]


@pytest.fixture(scope="session")
def chase_on_host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernel that chases pointers, compiled for the host."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    program = tmp_path_factory.mktemp("chase") / "chase.so"
    source = KERNEL_SOURCE.with_name("pointer_chase.cu")
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
    command += ["-include", str(SHIM / "cuda_shim.h"), "-x", "c++"]
    subprocess.run([*command, str(source), "-o", str(program)], check=True)
    return ctypes.CDLL(str(program)).chase_kernel


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables, graph and file that take no time."""
    for module, name, value in (
        (rig, "HOST_SPANS", SPANS),
        (rig, "LEAST_BYTES", MIB),
        (host, "COPY_BYTES", MIB),
        (host, "GATHER_BYTES", MIB),
        (host, "NODES", 3000),
        (host, "EDGES", 40_000),
        (host, "FILE_BYTES", 32 * MIB),
        (host, "LEAST_BYTES", MIB),
        (host, "_SECONDS", 1e-6),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def free() -> list[int]:
    """What of the GPU's memory is free."""
    return [rig.LEFT_BYTES + 64 * MIB]


@pytest.fixture
def asked() -> list[tuple[str, int]]:
    """Managed memory that was asked for, and advice that was given, in bytes."""
    return []


@pytest.fixture
def cuda(
    monkeypatch: pytest.MonkeyPatch,
    chase_on_host: Any,
    small: None,
    free: list[int],
    asked: list[tuple[str, int]],
) -> torch.device:
    """CUDA on the host, with sizes that take no time; the device that stands for a GPU."""
    empty, device = torch.empty, torch.device

    def unpinned(*shape: Any, pin_memory: bool = False, **kinds: Any) -> Tensor:
        return empty(*shape, **kinds)

    def launch(
        kernel: str, grid: int, block: Any, values: tuple[Any, ...], kinds: Any, where: Any
    ) -> None:
        if kernel == "chase_kernel":
            assert (grid, block) == (1, (1, 1))
            chase_on_host(*(kind(value) for kind, value in zip(kinds, values, strict=True)))

    def managed(shape: tuple[int, int], dtype: torch.dtype, _: int) -> Tensor:
        asked.append(("managed", shape[0] * shape[1]))
        return empty(shape, dtype=dtype)

    def call(name: str, address: int, size: int, advice: str, place: Any) -> None:
        assert (name, advice) == ("cudaMemAdvise", "unset accessed by")
        assert place.type == "device"
        asked.append(("left out", size))

    runtime = SimpleNamespace(
        cudaMemLocation=SimpleNamespace,
        cudaMemLocationType=SimpleNamespace(cudaMemLocationTypeDevice="device"),
        cudaMemoryAdvise=SimpleNamespace(cudaMemAdviseUnsetAccessedBy="unset accessed by"),
    )
    chip = SimpleNamespace(
        multi_processor_count=4,
        max_threads_per_multi_processor=2048,
        name="a stand-in",
        total_memory=24 << 30,
    )
    monkeypatch.setattr(torch, "empty", unpinned)
    monkeypatch.setattr(torch, "device", lambda kind, index=None: device("cpu"))
    for name, value in (
        ("is_available", lambda: True),
        ("current_device", lambda: 0),
        ("device_count", lambda: 1),
        ("Event", Event),
        ("synchronize", lambda device=None: None),
        ("_sleep", lambda cycles: None),
        ("get_device_properties", lambda device: chip),
        ("mem_get_info", lambda device: (free[0], 24 << 30)),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    for module, name, value in (  # type: ignore[assignment]
        (rig, "SPANS", SPANS),
        (rig, "OUT_BYTES", 8 * MIB),
        (rig, "HostRegistration", Registered),
        (rig, "managed_table", managed),
        (rig, "managed_bytes", lambda: sum(n for what, n in asked if what == "managed")),
        (gathers, "READ_BYTES", MIB),
        (gathers, "MAX_IDS", 5000),
        (gathers, "_CHECKED", 99),
        (gathers, "FOREIGN_SPANS", (2 * MIB, 32 * MIB)),
        (gathers, "SPLIT_BYTES", 2 * MIB),
        (gathers, "gather_into", gather),
        (gathers, "as_cuda_tensor", seen),
        (gathers, "runtime", lambda: runtime),
        (gathers, "call_runtime", call),
        (gpu, "launch_kernel", launch),
        (gpu, "load_from", lambda file, name, arch: name),
        (gpu, "architecture", lambda device: "sm_90"),
        (gpu, "ROOF_BYTES", MIB),
        (gpu, "MATMUL_SIZE", 64),
        (gpu, "HOPS", 1000),
        (gpu, "PAGEABLE_ROWS", 1000),
        (device_sampler, "DeviceSampler", DrawsOnHost),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setitem(case.NEEDS, "compiler", lambda: None)
    monkeypatch.setitem(case.NEEDS, "managed", lambda: None)
    return device("cpu")


class DrawsOnHost:
    """Stands in for the GPU's sampler: each minibatch is asked for once, in order."""

    def __init__(self, indptr: Any, indices: Any, fanouts: Any, device: object) -> None:
        self._sampler, self.fanouts = NeighborSampler(indptr, indices, fanouts), fanouts
        self.begun: list[int] = []

    def begin(self, seeds: Tensor, seed: int) -> Any:
        self.begun.append(seed)
        return SimpleNamespace(result=lambda: self._sampler.sample(seeds, seed))
