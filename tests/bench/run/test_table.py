"""Where a case's table is loaded, and that it is on the host once."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gatherbench.bench.run import table as table_module
from gatherbench.bench.run.session import Session
from gatherbench.bench.run.table import has_room, load_table, table_kind
from gatherbench.datasets.store import open_dataset
from gatherbench.kernels import managed_memory
from gatherbench.kernels.reference import same_bytes
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.registry import build

CPU, GPU = torch.device("cpu"), torch.device("cuda")
REGISTERED, MANAGED = {"memory": "registered"}, {"memory": "managed"}


@pytest.mark.parametrize(
    ("name", "params", "device", "world", "kind"),
    [
        ("cpu_gather", {}, CPU, 1, "anonymous"),
        ("unified_zero_copy", REGISTERED, GPU, 1, "anonymous"),
        ("unified_zero_copy", MANAGED, GPU, 1, "managed"),
        ("cached_zero_copy", MANAGED, GPU, 1, "managed"),
        ("unified_zero_copy", REGISTERED, GPU, 2, "shared"),
        ("unified_zero_copy", REGISTERED, CPU, 2, "anonymous"),
        ("unified_zero_copy", MANAGED, GPU, 2, "managed"),
        ("disk_mmap", {}, GPU, 1, "file"),
    ],
)
def test_the_path_says_where_its_table_is_loaded(name, params, device, world, kind):
    strategy = build(name, params)
    assert table_kind(strategy, device, world) == kind


def test_managed_memory_wants_a_gpu_and_room_for_each_process(make_job, monkeypatch):
    monkeypatch.setattr(managed_memory, "available_bytes", lambda: 100 << 30)
    managed = build("unified_zero_copy", MANAGED)

    def refusal(strategy: Strategy, size: int, device: str, ranks: int) -> str:
        job = make_job()
        workload = replace(job.case.workload, gpus=ranks)
        job = replace(job, case=replace(job.case, workload=workload), device=device)
        session = Session(job)
        session.dataset = replace(
            session.dataset,
            spec=SimpleNamespace(table_bytes=size),  # type: ignore[arg-type]
        )
        return str(session.table_refusal(strategy) or "")

    assert not refusal(build("cpu_gather", {}), 1 << 50, "cpu", 9)
    assert refusal(managed, 1, "cpu", 1).startswith("unsupported: without a GPU")
    assert not refusal(managed, 40 << 30, "cuda", 2)
    assert refusal(managed, 40 << 30, "cuda", 3).startswith("no_memory: 40.0 GiB")


@pytest.mark.parametrize(
    ("kind", "hashed", "most"),
    [("anonymous", False, 0.6), ("anonymous", True, 0.8), ("managed", False, 0.8)],
)
def test_a_table_that_lies_in_memory_or_nowhere_may_take_more_of_it(
    make_job, monkeypatch, kind, hashed, most
):
    """Beside a managed table of 48 GiB, of 126 GiB some 70 are left for a second: an H200's host.

    What is asked before a table is loaded is what the load itself asks.
    """
    dataset = open_dataset(make_job().dataset)
    spec = replace(dataset.spec, hashed=hashed)
    for more, room in ((0.99, False), (1.01, True)):
        there = int(spec.table_bytes / most * more)
        monkeypatch.setattr(table_module, "available_bytes", lambda there=there: there)
        assert has_room(spec, kind) == room
    monkeypatch.setattr(table_module, "available_bytes", lambda: spec.table_bytes)
    if hashed:
        with pytest.raises(MemoryError, match="more than 80% of what is free"):
            load_table(replace(dataset, spec=spec))


@pytest.mark.parametrize("kind", ["anonymous", "shared", "file"])
def test_a_table_is_the_files_rows(make_job, kind):
    dataset = open_dataset(make_job().dataset)
    loaded = load_table(dataset, kind)
    assert same_bytes(loaded.features, torch.from_numpy(dataset.features)) is None
    assert kind in loaded.where


@pytest.mark.parametrize(("available", "stays"), [(88_000, True), (88_002, False)])
def test_a_table_without_room_stays_in_its_file(make_job, monkeypatch, available, stays):
    """One of 52,800 bytes: 0.6 of 88,000."""
    monkeypatch.setattr(table_module, "available_bytes", lambda: available)
    loaded = load_table(open_dataset(make_job().dataset))
    assert loaded.where.startswith("memory-mapped file") is stays


PEAK = """
import gc, sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import torch
from gatherbench.bench.run.table import load_table
from gatherbench.kernels import cuda_calls, managed_memory
from gatherbench.kernels.host_memory import empty_table, tensor_of
from gatherbench.kernels.mapped_memory import ManagedMemory

size, held = 64 << 20, {}
spec = SimpleNamespace(table_bytes=size, hashed=False)

class Runtime:  # as far as a table needs it
    cudaMemAttachGlobal = 1
    cudaMemLocation = SimpleNamespace
    cudaMemLocationType = SimpleNamespace(cudaMemLocationTypeHost=2, cudaMemLocationTypeDevice=1)
    cudaMemoryAdvise = SimpleNamespace(
        cudaMemAdviseSetPreferredLocation=3, cudaMemAdviseSetAccessedBy=5
    )
    cudaMemAdvise = staticmethod(lambda *_: (0,))
    cudaFree = staticmethod(lambda address: (0 * len(held.pop(address)),))

    @staticmethod
    def cudaMallocManaged(size, flags):
        room = np.zeros(size, np.uint8)
        held[room.ctypes.data] = room
        return 0, room.ctypes.data

cuda_calls.runtime = managed_memory.runtime = lambda: Runtime

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) << 10 for x in lines if x.startswith(field))

def features():
    return np.load(sys.argv[1], mmap_mode="r")

def load(kind):
    table = features()
    dataset = SimpleNamespace(features=table, tables=(table,), spec=spec)
    return load_table(dataset, kind).features

ways = {
    "anonymous": lambda: load("anonymous"),
    "shared": lambda: load("shared"),
    "managed": lambda: ManagedMemory(load("managed")).tensor,
    "copied from a map": lambda: empty_table(features().shape, torch.float32).copy_(
        tensor_of(features())
    ),
    "copied to managed": lambda: ManagedMemory(load("anonymous")).tensor,
}
load("anonymous")  # threads, once
for way, make in ways.items():
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    table = make()
    assert int(table[-1, 0]) == 7
    print(way, (resident("VmHWM") - before) / size, sep="=")
    del table
assert not held
"""


def test_a_table_is_in_memory_once(tmp_path):
    """The most that the process ever held while it was opened, in sizes of the table."""
    np.save(tmp_path / "features.npy", np.full((1 << 14, 1 << 10), 7, np.float32))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "features.npy")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peaks = {way: float(peak) for way, peak in (x.split("=") for x in done.stdout.splitlines())}
    for way in ("anonymous", "shared", "managed"):
        assert 0.95 < peaks.pop(way) < 1.2
    for way, peak in peaks.items():  # the wrong ways are seen
        assert peak > 1.8, way
