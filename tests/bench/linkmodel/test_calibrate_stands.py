"""What a calibration times: on this host for real, and a GPU's part on a stand-in for CUDA."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gatherbench.bench.gpu import micro_device, micro_plan
from gatherbench.bench.linkmodel import calibrate_gpu, calibrate_host
from gatherbench.bench.linkmodel.calibrate_gpu import GpuStand, Ring
from gatherbench.bench.linkmodel.calibrate_host import (
    CalibrationError,
    HostStand,
    filled_table,
    table_bytes,
)
from gatherbench.bench.linkmodel.calibrate_points import (
    UNITS,
    Observation,
    Point,
    Sample,
    gpu_points,
    host_points,
    measure_all,
    thread_counts,
)
from gatherbench.bench.regress.rmat_graph import rmat_graph
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.launch import Table
from gatherbench.kernels.shim.execute import KERNEL_SOURCE

MIB = 1 << 20
HOST = torch.device("cpu")


@pytest.fixture(scope="module")
def host() -> Iterator[HostStand]:
    with HostStand(filled_table(8 * MIB), lambda: rmat_graph(3000, 40_000)) as stand:
        yield stand


@pytest.fixture(scope="module")
def chase_on_host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    program = tmp_path_factory.mktemp("chase") / "chase.so"
    source = KERNEL_SOURCE.with_name("pointer_chase.cu")
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
    command += ["-include", str(KERNEL_SOURCE.parent / "shim" / "cuda_shim.h"), "-x", "c++"]
    subprocess.run([*command, str(source), "-o", str(program)], check=True)
    return ctypes.CDLL(str(program)).chase_kernel


class Event:
    """An event that reads the clock of the host."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: Event) -> float:
        return max(1e-6, 1e3 * (later.at - self.at))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, chase_on_host: Any) -> GpuStand:
    """The GPU's stand with CUDA's edge replaced: the host launches, and its memory is the GPU's."""

    class Registered:
        def __init__(self, tensor: Tensor, device: int | None) -> None:
            self.address, self.seconds, self.tensor = tensor.data_ptr(), 0.0, tensor

        def close(self) -> None: ...

    def gather(
        out: Tensor, table: Table, ids: Tensor, point: GridPoint, out_rows: Tensor | None = None
    ) -> None:
        size = table.num_rows * table.row_stride
        raw = (ctypes.c_uint8 * size).from_address(table.address)
        rows = torch.frombuffer(raw, dtype=torch.uint8).view(table.num_rows, -1)
        out[slice(None) if out_rows is None else out_rows] = rows[ids, : table.row_bytes]

    def launch(
        kernel: str, grid: int, block: Any, values: tuple[Any, ...], kinds: Any, device: Any
    ) -> None:
        if kernel == "chase_kernel":
            assert (grid, block) == (1, (1, 1))
            chase_on_host(*(kind(value) for kind, value in zip(kinds, values, strict=True)))

    empty = torch.empty

    def unpinned(*shape: Any, pin_memory: bool = False, **kinds: Any) -> Tensor:
        return empty(*shape, **kinds)

    monkeypatch.setattr(torch, "empty", unpinned)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    gpu = SimpleNamespace(multi_processor_count=4, max_threads_per_multi_processor=2048)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(micro_device, "HostRegistration", Registered)
    monkeypatch.setattr(micro_device, "gather_into", gather)
    for module in (micro_device, calibrate_gpu):
        monkeypatch.setattr(module, "launch_kernel", launch)
        monkeypatch.setattr(module, "load_kernel", lambda cubin, name: name)
        monkeypatch.setattr(module, "architecture", lambda device: "sm_90")
        monkeypatch.setattr(module, "compile_gather", lambda point, arch, source: b"")
    for module, name, value in (
        (micro_plan, "ROOF_BYTES", 2 * MIB),
        (micro_device, "ROOF_BYTES", 2 * MIB),
        (micro_plan, "READ_BYTES", 2 * MIB),
        (micro_device, "READ_BYTES", 2 * MIB),
        (calibrate_gpu, "BACK_BYTES", 2 * MIB),
        (calibrate_gpu, "MATMUL_SIZE", 64),
        (calibrate_gpu, "HOPS", 1000),
        (calibrate_gpu, "PAGEABLE_ROWS", 1000),
    ):
        monkeypatch.setattr(module, name, value)
    return GpuStand([MIB, 2 * MIB, 4 * MIB], HOST)


def test_every_point_of_the_host_is_measured(host: HostStand) -> None:
    for point in host_points(2, 8 * MIB):
        observed = host.measure(point)
        assert observed.amount > 0
        assert observed.seconds > 0
        assert observed.clock == "time.perf_counter"
        assert point.kind in UNITS


def test_a_gather_that_delivers_wrong_rows_is_not_timed(
    host: HostStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy:
        def gather(self, table: Tensor, ids: Tensor, out: Tensor) -> None:
            out.zero_()

    monkeypatch.setattr(host, "_gathers", {1: Lazy()})
    with pytest.raises(CalibrationError, match="rows of 400 B delivered wrong rows"):
        host.measure(Point("host_gather", 400, 1))


def test_reading_reads_every_word() -> None:
    words = torch.randint(-(2**62), 2**62, (10_001,)).numpy()
    folded = 0
    for word in words:
        folded ^= int(word)
    assert int(calibrate_host.fold_words(words)) == folded


def test_every_point_of_a_gpu_is_measured(gpu: GpuStand) -> None:
    for width in (32, 400):
        gpu.check("aligned", width)
    for point in gpu_points([MIB, 2 * MIB, 4 * MIB], 2):
        observed = gpu.measure(point)
        assert observed.amount > 0
        assert observed.seconds > 0


def test_a_chase_that_goes_astray_is_an_error(gpu: GpuStand) -> None:
    point = Point("round_trip", span_bytes=2 * MIB)
    for _ in range(3):
        assert gpu.measure(point).amount == 1000
    gpu._rings[2 * MIB].order = gpu._rings[2 * MIB].order.flip(0)
    with pytest.raises(CalibrationError, match="pointer chase ended at word"):
        gpu.measure(point)


@pytest.mark.parametrize("span", [MIB, 3 * MIB, 8 * MIB])
def test_a_ring_meets_each_of_its_places_once_all_over_the_span(
    span: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate_gpu, "RING_PLACES", 10_000)
    words = torch.full((MIB,), -1)
    rings = [Ring(words, span, column, torch.Generator().manual_seed(1)) for column in (0, 1)]
    for column, ring in enumerate(rings):
        at, met = ring.start, []
        for _ in range(len(ring.order)):
            met.append(at)
            at = int(words[at])
        assert at == ring.start
        assert len(set(met)) == len(met) == min(10_000, span // 128)
        assert {place % 16 for place in met} == {column}
        assert max(met) * 8 < span
        assert max(met) * 8 > 0.99 * span


def test_rounds_are_shuffled_and_the_first_is_dropped() -> None:
    points = host_points(4, MIB)
    seen: list[Point] = []
    kept: list[Sample] = []

    class Counting:
        def measure(self, point: Point) -> Observation:
            seen.append(point)
            return Observation(1, 1, "none")

    def ended() -> bool:
        return len(seen) >= 3 * len(points) + 5

    whole = measure_all(points, Counting(), most_rounds=9, out_of_time=ended, report=kept.append)
    assert whole == 2
    assert len(kept) == 2 * len(points) + 5
    assert {sample.round for sample in kept} == {1, 2, 3}
    size = len(points)
    assert set(seen[:size]) == set(seen[size : 2 * size]) == set(points)
    assert seen[:size] != seen[size : 2 * size]


def test_rounds_end_when_there_are_enough() -> None:
    points = [Point("gpu_copy"), Point("gpu_matmul")]

    class Known:
        def measure(self, point: Point) -> Observation:
            return Observation(1, 1, "none")

    kept: list[Sample] = []
    whole = measure_all(
        points, Known(), most_rounds=3, out_of_time=lambda: False, report=kept.append
    )
    assert (whole, len(kept)) == (3, 6)


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 16, 24, 96])
def test_points_are_distinct_and_some_are_held_out(cores: int) -> None:
    threads = thread_counts(cores)
    assert threads[0] == 1
    assert threads[-1] == cores
    points = [*host_points(cores, MIB), *gpu_points([MIB, 2 * MIB, 4 * MIB], cores)]
    assert len(set(points)) == len(points)
    held = [p for p in points if p.held_out]
    plain = {(p.kind, p.row_bytes, p.threads, p.share, p.span_bytes) for p in held}
    fitted = {
        (p.kind, p.row_bytes, p.threads, p.share, p.span_bytes) for p in points if not p.held_out
    }
    assert not plain & fitted
    assert {p.kind for p in held} == {"host_gather", "gpu_gather", "sm_read"}


def test_too_little_memory_is_said() -> None:
    assert table_bytes(64 << 30) == 2 << 30
    assert table_bytes(4 << 30) == 1 << 30
    with pytest.raises(CalibrationError, match="close other programs"):
        table_bytes(900 * MIB)
