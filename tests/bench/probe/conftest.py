"""A GPU for the probe's tests: CUDA's edge replaced by the host, whose memory is the GPU's."""

from __future__ import annotations

import ctypes
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gatherbench.bench.run.models  # noqa: F401 - before torch.device is another
from gatherbench.bench.probe import case, gathers, gpu, host, rig
from gatherbench.bench.probe.rig import MIB
from gatherbench.bench.sampling import device_sampler
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables, graph and file that take no time."""
    monkeypatch.setattr(rig, "HOST_SPANS", SPANS)
    monkeypatch.setattr(rig, "LEAST_BYTES", MIB)
    sizes = {"COPY_BYTES": MIB, "GATHER_BYTES": MIB, "NODES": 3000, "EDGES": 40_000}
    for name, value in sizes.items():
        monkeypatch.setattr(host, name, value)


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
    monkeypatch: pytest.MonkeyPatch, small: None, free: list[int], asked: list[tuple[str, int]]
) -> torch.device:
    """CUDA on the host, with sizes that take no time; the device that stands for a GPU."""
    empty, device = torch.empty, torch.device

    def unpinned(*shape: Any, pin_memory: bool = False, **kinds: Any) -> Tensor:
        return empty(*shape, **kinds)

    def managed(shape: tuple[int, int], dtype: torch.dtype, _: int) -> Tensor:
        asked.append(("managed", shape[0] * shape[1]))
        return empty(shape, dtype=dtype)

    def call(name: str, address: int, size: int, advice: str, place: Any) -> None:
        assert (name, advice, place.type) == ("cudaMemAdvise", "unset accessed by", "device")
        asked.append(("left out", size))

    runtime = SimpleNamespace(
        cudaMemLocation=SimpleNamespace,
        cudaMemLocationType=SimpleNamespace(cudaMemLocationTypeDevice="device"),
        cudaMemoryAdvise=SimpleNamespace(cudaMemAdviseUnsetAccessedBy="unset accessed by"),
    )
    chip = SimpleNamespace(multi_processor_count=4, name="a stand-in", total_memory=24 << 30)
    cuda_calls = {
        **{"is_available": lambda: True, "current_device": lambda: 0, "device_count": lambda: 1},
        **{"Event": Event, "synchronize": lambda device=None: None, "_sleep": lambda cycles: None},
        "get_device_properties": lambda device: chip,
        "mem_get_info": lambda device: (free[0], 24 << 30),
    }
    replaced: dict[Any, dict[str, Any]] = {
        torch: {"empty": unpinned, "device": lambda kind, index=None: device("cpu")},
        torch.cuda: cuda_calls,
        rig: {
            **{"SPANS": SPANS, "OUT_BYTES": 8 * MIB, "HostRegistration": Registered},
            "managed_table": managed,
            "managed_bytes": lambda: sum(n for what, n in asked if what == "managed"),
        },
        gathers: {
            **{"READ_BYTES": MIB, "MAX_IDS": 5000, "_CHECKED": 99, "SPLIT_BYTES": 2 * MIB},
            **{"FOREIGN_SPANS": (2 * MIB, 32 * MIB), "gather_into": gather},
            **{"as_cuda_tensor": seen, "runtime": lambda: runtime, "call_runtime": call},
        },
        gpu: {
            **{"ROOF_BYTES": MIB, "MATMUL_SIZE": 64, "PAGEABLE_ROWS": 1000},
            "launch_kernel": lambda *_: None,
            "load_from": lambda file, name, arch: name,
            "architecture": lambda device: "sm_90",
        },
        device_sampler: {"DeviceSampler": DrawsOnHost},
    }
    for module, values in replaced.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    for need in ("compiler", "managed"):
        monkeypatch.setitem(case.NEEDS, need, lambda: None)
    return device("cpu")


class DrawsOnHost:
    """Stands in for the GPU's sampler: each minibatch is asked for once, in order."""

    def __init__(self, indptr: Any, indices: Any, fanouts: Any, device: object) -> None:
        self._sampler, self.fanouts = NeighborSampler(indptr, indices, fanouts), fanouts
        self.begun: list[int] = []

    def begin(self, seeds: Tensor, seed: int) -> Any:
        self.begun.append(seed)
        return lambda: self._sampler.sample(seeds, seed)
