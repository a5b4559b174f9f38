"""The gather beside training: its share of the GPU, where that comes from, and other threads."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gpu_variants import CUDA, opened

from gatherbench.kernels.compiler import compile_gather
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.launch import architecture, launch_kernel, load_kernel
from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import conformance
from gatherbench.strategies.cuda_overlap import (
    BUDGETS,
    OverlappedFetcher,
    green_skip,
    green_stream,
    share_multiprocessors,
    share_threads,
)

SHARES = {percent / 100 for percent in BUDGETS}


@pytest.mark.parametrize("provider", ["stream", "green_context"])
def test_the_sweep_records_its_curve(provider):
    table = empty_table((1 << 19, 64), torch.float32)  # 128 MiB: large enough to be swept
    with opened("async_zero_copy", table, provider=provider) as fetcher:
        assert isinstance(fetcher, OverlappedFetcher)
        named = {step.metric: step.value for step in fetcher.setup}
        curve = {k: v for k, v in named.items() if k.startswith("budget_")}
        assert len(curve) == len(BUDGETS)
        assert all(v > 0 for v in curve.values())
        assert named["budget"] in SHARES
        assert all(p.max_blocks for p in fetcher.points.values())
        busy = torch.randn(2048, 2048, device=CUDA)
        found = {s.metric: s.value for s in fetcher.tune(torch.arange(9999), lambda: busy @ busy)}
        assert found["budget_beside_training"] in SHARES
        assert found["train_alone_step_time"] > 0
        assert found["fetch_alone_step_time"] > 0
        ids = torch.randperm(1 << 19)[:9999]
        assert same_bytes(fetcher.submit(ids).result(), reference_gather(table, ids)) is None


def test_a_share_of_threads_leaves_the_green_context_of_the_share_before():
    """One fetcher is given both kinds of shares in turn, to compare them."""
    if (reason := green_skip(torch.device("cuda", 0))) is not None:
        pytest.skip(str(reason))
    table = conformance.random_table(5000, 64, torch.float32)
    with opened("async_zero_copy", table, budget="10") as fetcher:
        assert isinstance(fetcher, OverlappedFetcher)
        own = fetcher._side
        share_multiprocessors(fetcher, 10)
        assert fetcher._side != own
        share_threads(fetcher, 10)
        assert fetcher._side == own


@pytest.mark.real_gpu("its multiprocessors have no numbers")
def test_a_gather_in_a_green_context_keeps_to_its_multiprocessors():
    """Which multiprocessors ran is read from ``%smid`` by a kernel on the same stream."""
    if (reason := green_skip(torch.device("cuda", 0))) is not None:
        pytest.skip(str(reason))
    device = torch.device("cuda", torch.cuda.current_device())
    green = green_stream(device, 10)
    source = """extern "C" __global__ void __launch_bounds__(1024) where(unsigned* seen) {
      unsigned id; asm volatile("mov.u32 %0, %smid;" : "=r"(id)); seen[id] = 1; }"""
    kernel = load_kernel(compile_gather(GridPoint(), architecture(device), source=source), "where")
    seen = torch.zeros(1024, dtype=torch.int32, device=device)
    torch.cuda.synchronize()
    with torch.cuda.stream(green.stream):
        launch_kernel(kernel, 4096, (256, 1), (seen.data_ptr(),), (ctypes.c_void_p,), device)
    torch.cuda.synchronize()
    total = torch.cuda.get_device_properties(device).multi_processor_count
    assert total // 10 <= int(seen.sum()) <= green.multiprocessors < total


def test_a_thread_that_has_never_used_the_gpu_can_gather():
    table = conformance.random_table(5000, 64, torch.float32)
    ids = torch.randperm(5000)
    with opened("aligned_zero_copy", table) as fetcher, ThreadPoolExecutor(1) as other:
        rows = other.submit(lambda: fetcher.submit(ids).result().clone()).result()
    assert same_bytes(rows, reference_gather(table, ids)) is None
