"""Managed memory against the stand-in for CUDA: calls in their order, one copy, what is refused.

A table is opened as a case opens it, by the real bindings' types; the stand-in writes down what is
asked of it, and how much of the memory was there when it was asked to bring it in.
"""

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gpu_variants import CUDA

from gatherbench.bench.run.table import TableKind, load_table
from gatherbench.kernels import managed_memory
from gatherbench.kernels.cuda_calls import CudaCallError
from gatherbench.kernels.managed_memory import empty, managed_bytes, managed_table
from gatherbench.strategies.registry import build

pytestmark = pytest.mark.skipif(
    not os.environ.get("STANDIN_KERNELS"), reason="only the stand-in for CUDA writes calls down"
)
#: The test of peaks was also run with tables of 2 GiB.
MIB = int(os.environ.get("STANDIN_TABLE_MIB", "128"))
#: ``cudaError_t``, ``cudaMemoryAdvise``.
NO_MEMORY, NOT_SUPPORTED, PREFERRED, ACCESSED_BY = 2, 801, 3, 5
#: Every path that reads managed memory.
PATHS = [
    ("unified_zero_copy", {}),
    ("aligned_zero_copy", {"order": "sorted"}),
    ("async_zero_copy", {}),
    ("cached_zero_copy", {"policy": "random"}),
]


def library() -> ctypes.CDLL:
    return ctypes.CDLL("libcudart.so.13")


def asked() -> list[str]:
    """What was asked of managed memory since this was last called."""
    gc.collect()
    text = ctypes.create_string_buffer(1 << 16)
    library().standin_managed(text, ctypes.c_size_t(len(text)))
    return text.value.decode().splitlines()


def right_way(size: int) -> list[str]:
    """Allocated, advised twice while nothing of it was there (the last number)."""
    return [
        f"allocate {size}",
        f"advise {PREFERRED} host 0 {size} 0",
        f"advise {ACCESSED_BY} device 0 {size} 0",
    ]


@pytest.fixture(autouse=True)
def fault() -> Iterator[Callable[[str, int], None]]:
    """Have a call answer with a status until the test is over."""
    gc.collect()
    asked()
    calls = set()

    def wanted(call: str, status: int) -> None:
        calls.add(call)
        library().standin_fault(call.encode(), status)

    yield wanted
    for call in calls:
        library().standin_fault(call.encode(), 0)
    gc.collect()
    assert managed_bytes() == 0


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Rows of 4 KiB, each its own number."""
    file = tmp_path_factory.mktemp("table") / "features.npy"
    rows = MIB << 8
    table = np.lib.format.open_memmap(file, "w+", np.float32, (rows, 1024))
    table[:] = np.arange(rows, dtype=np.float32)[:, None]
    table.flush()
    spec = SimpleNamespace(name="table", table_bytes=MIB << 20, hashed=False)
    features = np.load(file, mmap_mode="r")
    return SimpleNamespace(features=features, tables=(features,), spec=spec)


@pytest.mark.parametrize(("name", "params"), PATHS, ids=str)
def test_a_table_is_advised_brought_in_filled_and_read_in_place(dataset, name, params):
    strategy = build(name, {**params, "memory": "managed"})
    table: Any = load_table(dataset, "managed", CUDA)
    assert asked() == right_way(MIB << 20)
    ids = torch.randint(len(table.features), (500,))
    with strategy.open(table.features, CUDA) as fetcher:
        rows = fetcher.submit(ids).result().cpu()
        assert asked() == [], "neither a second copy nor advice again"
    assert torch.equal(rows[:, 0], ids.float())
    del table, fetcher
    assert asked() == [f"free {MIB << 20}"]


REAL_ADVISE = managed_memory._advise


def advice_left_out(which: str) -> Callable[..., None]:
    return lambda *given: None if which in given[1] else REAL_ADVISE(*given)


def filled_before(span: Any, advice: str, place: object) -> None:
    ctypes.memset(span.address, 1, span.size_bytes)
    REAL_ADVISE(span, advice, place)


@pytest.mark.parametrize(
    "wrong",
    [advice_left_out("Preferred"), advice_left_out("AccessedBy"), filled_before],
    ids=["no place preferred", "no GPU mapped", "filled before"],
)
def test_a_wrong_way_is_told_from_the_right_one(monkeypatch, wrong):
    size = 1 << 20
    _ = managed_table((256, 1024), torch.float32)
    assert asked()[:3] == right_way(size)
    monkeypatch.setattr(managed_memory, "_advise", wrong)
    _ = managed_table((256, 1024), torch.float32)
    assert asked()[1:4] != right_way(size)


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


#: Table kind, path, and how many copies the host holds while it is opened.
WAYS: list[tuple[TableKind, str, dict[str, str], float]] = [
    ("anonymous", "cpu_gather", {"mode": "pinned"}, 1),
    ("anonymous", "aligned_zero_copy", {"memory": "registered"}, 1),
    ("shared", "aligned_zero_copy", {"memory": "registered"}, 1),
    ("managed", "aligned_zero_copy", {"memory": "managed"}, 1),
    ("managed", "unified_zero_copy", {"memory": "managed"}, 1),
    ("managed", "async_zero_copy", {"memory": "managed"}, 1),
    ("managed", "cpu_gather", {"mode": "pinned"}, 1),
    ("anonymous", "aligned_zero_copy", {"memory": "managed"}, 2),
]


@pytest.mark.parametrize(("kind", "name", "params", "copies"), WAYS, ids=str)
def test_the_host_holds_a_table_once(dataset, kind, name, params, copies):
    """The most that the process held from before the table was loaded until the path was open."""
    small = empty((64, 1024), memory="managed" if kind == "managed" else "anonymous")
    with build(name, params).open(small, CUDA):  # what is loaded once
        pass
    del small
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    table = load_table(dataset, kind, CUDA).features
    with build(name, params).open(table, CUDA) as fetcher:
        peak = (resident("VmHWM") - before) / (MIB << 20)
        assert int(fetcher.submit(torch.tensor([7])).result()[0, 0]) == 7
    print(f"{kind} {name} {params}: {peak:.2f} tables")
    assert copies - 0.05 < peak < copies + 0.3


def test_no_memory_is_a_reason_and_nothing_is_kept(fault):
    fault("cudaMallocManaged", NO_MEMORY)
    with pytest.raises(MemoryError, match=r'no_memory: cudaMa.*memory = "registered" reads'):
        managed_table((256, 1024), torch.float32)
    assert asked() == []


def test_advice_that_is_refused_is_an_error_and_nothing_is_kept(fault):
    fault("cudaMemAdvise", NOT_SUPPORTED)
    with pytest.raises(CudaCallError, match="cudaMemAdvise"):
        managed_table((256, 1024), torch.float32)
    assert asked() == [f"allocate {1 << 20}", f"free {1 << 20}"]
