"""The gather beside training: its share of the GPU, where that comes from, and other threads."""

from concurrent.futures import ThreadPoolExecutor

import torch
from gpu_variants import CUDA, opened

from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import conformance
from gatherbench.strategies.cuda_kernel_fetcher import BUDGETS, OverlappedFetcher

SHARES = {percent / 100 for percent in BUDGETS}


def test_the_sweep_records_its_curve():
    table = empty_table((1 << 19, 64), torch.float32)  # 128 MiB: large enough to be swept
    with opened("async_zero_copy", table) as fetcher:
        assert isinstance(fetcher, OverlappedFetcher)
        named = {step.metric: step.value for step in fetcher.setup}
        assert named["budget"] == 0.1
        assert all(p.max_blocks for p in fetcher.points.values())
        busy = torch.randn(2048, 2048, device=CUDA)
        found = {s.metric: s.value for s in fetcher.tune(torch.arange(9999), lambda: busy @ busy)}
        assert found["budget_beside_training"] in SHARES
        curve = {k: v for k, v in found.items() if k.endswith("_step_time")}
        assert len(curve) == len(BUDGETS) + 2, "and of training alone, and of a fetch"
        assert all(v > 0 for v in curve.values())
        ids = torch.randperm(1 << 19)[:9999]
        assert same_bytes(fetcher.submit(ids).result(), reference_gather(table, ids)) is None


def test_a_thread_that_has_never_used_the_gpu_can_gather():
    table = conformance.random_table(5000, 64, torch.float32)
    ids = torch.randperm(5000)
    with opened("aligned_zero_copy", table) as fetcher, ThreadPoolExecutor(1) as other:
        rows = other.submit(lambda: fetcher.submit(ids).result().clone()).result()
    assert same_bytes(rows, reference_gather(table, ids)) is None
