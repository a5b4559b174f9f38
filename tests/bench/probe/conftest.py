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
from torch import Tensor

import gatherbench.bench.run.models  # noqa: F401 - before torch.device is another
from gatherbench.bench.probe import calibrate as calibration
from gatherbench.bench.probe import cases, gpu, host
from gatherbench.bench.probe.cases import GIB, host_points
from gatherbench.bench.probe.machine import MachineFacts
from gatherbench.bench.probe.stand import Observation
from gatherbench.bench.read.points import Point
from gatherbench.bench.sampling import device_sampler
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.kernels.compiler import KERNEL_SOURCE
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.launch import Table
from tools.shim.execute import SHIM

MIB = 1 << 20


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
        self.address, self.seconds, self.tensor = tensor.data_ptr(), 1e-3, tensor
        self.closed = 0

    def __enter__(self) -> Registered:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed += 1


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
def cuda(monkeypatch: pytest.MonkeyPatch, chase_on_host: Any) -> None:
    """CUDA on the host, with sizes that take no time."""
    empty, device = torch.empty, torch.device

    def unpinned(*shape: Any, pin_memory: bool = False, **kinds: Any) -> Tensor:
        return empty(*shape, **kinds)

    def launch(
        kernel: str, grid: int, block: Any, values: tuple[Any, ...], kinds: Any, where: Any
    ) -> None:
        if kernel == "chase_kernel":
            assert (grid, block) == (1, (1, 1))
            chase_on_host(*(kind(value) for kind, value in zip(kinds, values, strict=True)))

    chip = SimpleNamespace(
        multi_processor_count=4,
        max_threads_per_multi_processor=2048,
        name="a stand-in",
        L2_cache_size=1,
    )
    monkeypatch.setattr(torch, "empty", unpinned)
    monkeypatch.setattr(torch, "device", lambda kind, index=None: device("cpu"))
    for name, value in (
        ("is_available", lambda: True),
        ("current_device", lambda: 0),
        ("Event", Event),
        ("synchronize", lambda device=None: None),
        ("_sleep", lambda cycles: None),
        ("get_device_properties", lambda device: chip),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    for name, value in (
        ("HostRegistration", Registered),
        ("gather_into", gather),
        ("launch_kernel", launch),
        ("load_from", lambda file, name, arch: name),
        ("architecture", lambda device: "sm_90"),
        ("BACK_BYTES", MIB),
        ("MATMUL_SIZE", 64),
        ("HOPS", 1000),
        ("PAGEABLE_ROWS", 1000),
        ("_CHECKED_ROWS", 99),
    ):
        monkeypatch.setattr(gpu, name, value)
    for module, name, value in (
        (cases, "ROOF_BYTES", MIB),
        (cases, "READ_BYTES", MIB),
        (cases, "MAX_IDS", 5000),
        (host, "NODES", 3000),
        (host, "EDGES", 40_000),
        (device_sampler, "DeviceSampler", DrawsOnHost),
    ):
        monkeypatch.setattr(module, name, value)


class DrawsOnHost:
    """Stands in for the GPU's sampler: each minibatch is asked for once, in order."""

    def __init__(self, indptr: Any, indices: Any, fanouts: Any, device: object) -> None:
        self._sampler, self.fanouts = NeighborSampler(indptr, indices, fanouts), fanouts
        self.begun: list[int] = []

    def begin(self, seeds: Tensor, seed: int) -> Any:
        self.begun.append(seed)
        return SimpleNamespace(result=lambda: self._sampler.sample(seeds, seed))


#: A host that is asked and not there.
FACTS = MachineFacts("a-host", "two cores", 2)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> list[Point]:
    """The points of a host that is steady; three rounds of them are enough."""
    points = host_points(2, GIB)

    def measure(point: Point) -> Observation:
        return Observation(1e6, 1e-3, "made up")

    monkeypatch.setattr(calibration, "_host_stand", lambda stack: (measure, points, lambda: FACTS))
    monkeypatch.setattr(calibration, "MOST_ROUNDS", 3)
    return points
