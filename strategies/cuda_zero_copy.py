"""Opens the zero-copy paths on CUDA: brings the table into the GPU's sight, then fetches from it.

The share of the GPU that an overlapped gather gets is a cap on its grid, in threads of all those
that the GPU can hold. That is no partition: the blocks spread over all multiprocessors, a few on
each, and leave the rest of each to the training.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

from gatherbench.kernels.host_registration import HostRegistration, ManagedCopy
from gatherbench.kernels.launch import gather_into
from gatherbench.kernels.order import Order
from gatherbench.strategies.base import SetupStep
from gatherbench.strategies.cuda_fetcher import with_index
from gatherbench.strategies.cuda_kernel_fetcher import DeviceCopy, KernelFetcher

#: Per cent of the GPU's threads that a sweep tries.
BUDGETS = (5, 10, 15, 25, 50)
#: What the paper used in the end, for tables too small to tell (10:90, its authors' script).
USUAL_BUDGET = 10
#: The least of the best rate that a smaller budget has to reach to be preferred.
ENOUGH = 0.97
#: Bytes that one gather of the sweep reads; a smaller table would be read from the caches.
SWEEP_BYTES = 64 << 20
_SWEEP_ROUNDS = 5


def open_registered(
    features: Tensor,
    device: torch.device,
    policy: str,
    order: Order = "given",
    *,
    overlapped: bool = False,
) -> KernelFetcher:
    """The table registered where it lies."""
    device = with_index(device)
    memory = HostRegistration(features, device.index)
    setup = [
        SetupStep("register_time", "s", memory.seconds, "time.perf_counter, cudaHostRegister"),
        SetupStep("registered", "B", memory.size_bytes, "bytes given to cudaHostRegister"),
    ]
    try:
        return KernelFetcher(features, device, memory, setup, policy, order, overlapped=overlapped)
    except BaseException:
        memory.close()
        raise


def open_managed(features: Tensor, device: torch.device, policy: str) -> KernelFetcher:
    """A copy of the table in managed memory that stays on the CPU."""
    device = with_index(device)
    memory = ManagedCopy(features, device.index)
    setup = [
        SetupStep("managed_time", "s", memory.seconds, "time.perf_counter, allocation and copy"),
        SetupStep("managed", "B", memory.size_bytes, "bytes given to cudaMallocManaged"),
    ]
    try:
        return KernelFetcher(features, device, memory, setup, policy)
    except BaseException:
        memory.close()
        raise


def open_resident(features: Tensor, device: torch.device, policy: str) -> KernelFetcher:
    """A copy of the table in GPU memory."""
    memory = DeviceCopy(features, with_index(device))
    setup = [
        SetupStep("device_copy_time", "s", memory.seconds, "time.perf_counter, copy to the GPU"),
        SetupStep("device_copy", "B", memory.size_bytes, "tensor.nbytes"),
    ]
    return KernelFetcher(features, device, memory, setup, policy)


def open_overlapped(
    features: Tensor, device: torch.device, policy: str, budget: str
) -> KernelFetcher:
    """The table registered, and gathered beside training within ``budget`` (per cent or auto).

    ``auto`` takes the smallest budget that reaches :data:`ENOUGH` of the best rate when the gather
    runs alone, and leaves the whole curve in ``setup``.
    """
    fetcher = open_registered(features, device, policy, overlapped=True)
    try:
        chosen = USUAL_BUDGET if budget == "auto" else int(budget)
        source = "chosen by the user"
        if budget == "auto" and fetcher.memory.size_bytes < SWEEP_BYTES:
            source = f"the table is below {SWEEP_BYTES >> 20} MiB: too small to sweep"
        elif budget == "auto":
            seconds = sweep(fetcher)
            chosen = smallest_good_budget(seconds)
            source = f"smallest that reaches {ENOUGH:.0%} of the best rate, gathering alone"
            what = "median torch.cuda.Event time of one gather, no training beside it"
            fetcher.setup += [
                SetupStep(f"budget_{percent}_gather_time", "s", value, what)
                for percent, value in seconds.items()
            ]
        fetcher.setup.append(SetupStep("budget", "1", chosen / 100, source))
        fetcher.limit(blocks_of(chosen, fetcher.points[torch.int64].block_threads, fetcher.device))
    except BaseException:
        fetcher.close()
        raise
    return fetcher


def blocks_of(percent: int, block_threads: int, device: torch.device) -> int:
    """Blocks that hold ``percent`` of the threads that fit on the GPU at once; at least 1."""
    gpu = torch.cuda.get_device_properties(device)
    threads = gpu.multi_processor_count * gpu.max_threads_per_multi_processor
    return max(1, threads * percent // 100 // block_threads)


def smallest_good_budget(seconds: dict[int, float]) -> int:
    """The smallest budget whose time is within 1 / :data:`ENOUGH` of the shortest."""
    best = min(seconds.values())
    return min(percent for percent, value in seconds.items() if best >= ENOUGH * value)


def sweep(fetcher: KernelFetcher) -> dict[int, float]:
    """Seconds of one gather of random rows for each of :data:`BUDGETS`, taken in turns."""
    count = max(1, SWEEP_BYTES // fetcher.table.row_bytes)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, fetcher.num_rows, (count,), generator=generator).to(fetcher.device)
    out = torch.empty((count, fetcher.row_width), dtype=fetcher.dtype, device=fetcher.device)
    times: dict[int, list[float]] = {percent: [] for percent in BUDGETS}
    for _ in range(_SWEEP_ROUNDS):
        for percent, values in times.items():
            point = fetcher.points[torch.int64]
            fetcher.limit(blocks_of(percent, point.block_threads, fetcher.device))
            values.append(_seconds(fetcher, ids, out))
    return {percent: statistics.median(values[1:]) for percent, values in times.items()}


def _seconds(fetcher: KernelFetcher, ids: Tensor, out: Tensor) -> float:
    begin, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    with torch.cuda.device(fetcher.device):
        begin.record()
        gather_into(out, fetcher.table, ids, fetcher.points[torch.int64])
        end.record()
        end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
