"""Memory: what is allocated shows up under its kind, and what cannot be told is not zero."""

import mmap
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gatherbench.bench.meters import memory as memory_module
from gatherbench.bench.meters.base import Reading, closed
from gatherbench.bench.meters.memory import MemoryMeter
from gatherbench.kernels import managed_memory, mapped_memory

from .test_meters import by_metric, value

MIB = 2**20


def window(meter: MemoryMeter | None = None) -> dict[str, Reading]:
    meter = meter or MemoryMeter()
    meter.begin()
    return by_metric(closed(meter))


def test_memory_that_is_touched_is_pageable_and_a_mapped_file_is_not(tmp_path):
    before = window()
    block = np.ones(64 * MIB, np.uint8)
    after = window()
    assert value(after, "host_pageable") - value(before, "host_pageable") >= 60 * MIB
    assert after["host_pageable"].source == "/proc/self/status RssAnon + RssShmem"
    file = tmp_path / "table"
    file.write_bytes(b"x" * (16 * MIB))
    before = window()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[i] for i in range(0, 16 * MIB, 4096))
        during = window()
    assert value(during, "host_file_mapped") - value(before, "host_file_mapped") >= 15 * MIB
    assert value(during, "host_pageable") - value(before, "host_pageable") < 8 * MIB
    del block


def test_without_a_gpu_its_figures_have_a_reason():
    assert not torch.cuda.is_available(), "this test is for a machine without a GPU"
    readings = window()
    for metric in (
        "host_pinned", "host_managed", "gpu_allocated_peak", "gpu_reserved_peak",
    ):  # fmt: skip
        assert str(readings[metric].reason).startswith("no_device: ")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands where torch.cuda does."""
    peaks = {"now": 700}
    fake = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        reset_peak_memory_stats=lambda: peaks.update(now=300),
        max_memory_allocated=lambda: peaks["now"],
        max_memory_reserved=lambda: 2 * peaks["now"],
        host_memory_stats=lambda: {"allocated_bytes.current": 4096},
    )
    monkeypatch.setattr(torch, "cuda", fake)
    return fake


def test_on_a_gpu_peaks_are_those_of_the_window(cuda, monkeypatch):
    monkeypatch.setattr(mapped_memory, "_held", {(4096, 1000): 2, (9000, 24): 1, (1, 5): 1})
    monkeypatch.setattr(mapped_memory, "_foreign", {(1, 5)})
    monkeypatch.setattr(managed_memory, "_spans", {64: managed_memory.Span(64, 77)})
    readings = window()
    assert value(readings, "gpu_allocated_peak") == 300
    assert value(readings, "gpu_reserved_peak") == 600
    assert value(readings, "host_pinned") == 1024 + 4096  # torch's own is in its allocator's count
    assert value(readings, "host_managed") == 77
    assert "less registered bytes" in readings["host_pageable"].source


def test_a_case_that_leaves_the_gpu_alone_does_not_wake_it(cuda):
    cuda.is_initialized = lambda: False
    assert str(window()["gpu_allocated_peak"].reason).startswith("unsupported: ")
    assert cuda.max_memory_allocated() == 700, "nothing was reset"


def test_pageable_memory_is_never_below_nothing(monkeypatch):
    monkeypatch.setattr(mapped_memory, "_held", {(0, 1 << 50): 1})
    assert value(window(), "host_pageable") == 0.0


@pytest.mark.parametrize("content", [None, "VmHWM:\t 100 kB\n"])
def test_a_kernel_that_does_not_say(tmp_path, monkeypatch, content):
    status = tmp_path / "status"
    if content is not None:
        status.write_text(content)
    monkeypatch.setattr(memory_module, "_STATUS", status)
    assert (MemoryMeter().probe() is None) == (content is not None)
    readings = window()
    for metric in ("host_pageable", "host_file_mapped"):
        assert str(readings[metric].reason).startswith("unsupported: ")
