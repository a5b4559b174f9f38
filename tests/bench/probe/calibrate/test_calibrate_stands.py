"""What a calibration times: on this host for real, and a GPU's part on a stand-in for CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gatherbench.bench.machine.nvml import hash_of_uuid
from gatherbench.bench.machine.reason import Reason, SensorUnavailableError
from gatherbench.bench.probe import micro_device, micro_plan
from gatherbench.bench.probe.calibrate import gpu as calibrate_gpu
from gatherbench.bench.probe.calibrate import host as calibrate_host
from gatherbench.bench.probe.calibrate import machine as calibrate_machine
from gatherbench.bench.probe.calibrate import run as calibration
from gatherbench.bench.probe.calibrate.gpu import GpuStand
from gatherbench.bench.probe.calibrate.host import (
    CalibrationError,
    HostStand,
    filled_table,
)
from gatherbench.bench.probe.calibrate.machine import MachineFacts
from gatherbench.bench.probe.calibrate.points import (
    UNITS,
    Point,
    gpu_points,
    host_points,
)
from gatherbench.bench.regress.rmat_graph import rmat_graph
from gatherbench.kernels import cuda_calls
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
            self.closed = 0

        def close(self) -> None:
            self.closed += 1

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


def test_a_gpu_is_calibrated_from_end_to_end(
    gpu: GpuStand, host: HostStand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = MachineFacts("stand-in", "no GPU at all", 2, 1, 24 << 30, 4, 16, 256)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    fitting = (MIB, 2 * MIB, 4 * MIB, 8 * MIB)
    monkeypatch.setattr(calibration, "fitting", lambda spans, free: fitting)
    monkeypatch.setattr(calibration, "ask_gpu", lambda device: facts)
    monkeypatch.setattr(calibration, "HostStand", lambda table: contextlib.nullcontext(host))
    monkeypatch.setattr(calibration, "ROW_BYTES", (32,))
    monkeypatch.setattr(calibration, "HELD_OUT_ROW_BYTES", (400,))

    def opened(spans: Sequence[int], device: torch.device) -> GpuStand:
        if max(spans) > 4 * MIB:  # the largest span is promised, and cannot be had
            raise MemoryError("cannot map it")
        return gpu

    monkeypatch.setattr(calibrate_gpu, "GpuStand", opened)
    monkeypatch.setattr(calibration, "MOST_ROUNDS", 3)
    said: list[str] = []
    done = calibration.calibrate(tmp_path, device="cuda", say=said.append)
    assert done.rounds == 3
    assert "0.000976562, 0.00195312, 0.00390625 GiB" in said[0]
    for key in ("link.raw_rate", "link.round_trip", "read.roof", "gpu.launch", "copy.pageable"):
        section, _, name = key.partition(".")
        constant = getattr(getattr(done.profile, section), name)
        # A host that plays a GPU may be outside of what a GPU can be: then it is not believed.
        assert constant.value is not None or "not believed" in constant.source, key
    assert (tmp_path / "stand-in.samples.csv").read_text().count("round_trip") == 9
    assert gpu.memory.closed == 1  # type: ignore[attr-defined]


def test_a_machine_with_a_gpu_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "0000:1b:00.0"
    folder.mkdir()
    space = bytearray(256)
    space[0x34], space[0x60], space[0x68] = 0x60, 0x10, 1 << 5
    (folder / "config").write_bytes(space)
    gpu = SimpleNamespace(name="NVIDIA H200", total_memory=150 << 30, uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(calibrate_machine, "PCI_DEVICES", tmp_path)
    here, idle = hash_of_uuid("GPU-1234"), hash_of_uuid("GPU-5678")
    gpus = [
        SimpleNamespace(name=name, uuid_hash=uuid, link_gen_current=gen, link_width_current=width)
        for name, uuid, gen, width in (
            ("another", None, 1, 1),
            ("NVIDIA H200", idle, 1, 16),
            ("NVIDIA H200", here, 5, 16),
        )
    ]
    monkeypatch.setattr(calibrate_machine, "list_gpus", lambda: gpus)
    bus = b"0000:1B:00.0".ljust(32, b"\0")
    monkeypatch.setattr(cuda_calls, "call_runtime", lambda *call: bus)
    facts = calibrate_machine.ask_gpu(torch.device("cuda", 0))
    assert (facts.slug, facts.gpus, facts.gpu_memory_bytes) == ("nvidia-h200", 2, 150 << 30)
    assert (facts.link_generation, facts.link_lanes, facts.max_payload) == (5, 16, 256)
    gpu.uuid = "of a partition, which NVML lists under another"
    assert calibrate_machine.ask_gpu(torch.device("cuda", 0)).link_generation is None
    del gpus[1]
    assert calibrate_machine.ask_gpu(torch.device("cuda", 0)).link_generation == 5

    def silent() -> None:
        raise SensorUnavailableError(Reason("no_device", "none"))

    def refused(*call: object) -> None:
        raise cuda_calls.CudaCallError("cudaDeviceGetPCIBusId", "cudaErrorNotSupported", "no")

    monkeypatch.setattr(calibrate_machine, "list_gpus", silent)
    monkeypatch.setattr(cuda_calls, "call_runtime", refused)
    facts = calibrate_machine.ask_gpu(torch.device("cuda", 0))
    assert (facts.link_generation, facts.link_lanes, facts.max_payload) == (None, None, None)


def test_a_chase_that_goes_astray_is_an_error(gpu: GpuStand) -> None:
    point = Point("round_trip", span_bytes=2 * MIB)
    for _ in range(3):
        assert gpu.measure(point).amount == 1000
    gpu._rings[2 * MIB].order = gpu._rings[2 * MIB].order.flip(0)
    with pytest.raises(CalibrationError, match="pointer chase ended at word"):
        gpu.measure(point)
