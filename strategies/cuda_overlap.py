"""Gather on CUDA while training runs, within a share of the GPU.

A share caps the grid, as a part of all threads that the GPU can hold: the blocks spread over all
multiprocessors and leave the rest of each to training. ``auto`` finds the best share twice: for a
gather alone, when the path is opened, and by :meth:`tune` beside a real training step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gatherbench.kernels.launch import gather_into
from gatherbench.strategies.base import SetupStep
from gatherbench.strategies.cuda_kernel_fetcher import KernelFetcher
from gatherbench.strategies.host_tuning import ENOUGH, first_good, in_turns
from gatherbench.strategies.page_rate import event_seconds

#: Per cent of the GPU that a sweep tries.
BUDGETS = (1, 2, 5, 10, 15, 25, 50)
#: The paper's final share (10:90, its authors' script), for tables too small to tune on.
USUAL_BUDGET = 10
#: Bytes that one gather of the sweep reads; fewer would be read from the caches.
SWEEP_BYTES = 64 << 20
_SWEEP_ROUNDS = 5
_STEPS = 4


def open_overlapped(
    features: Tensor, device: torch.device, policy: str, budget: str, memory: str = "registered"
) -> OverlappedFetcher:
    """Map the table, to be gathered during training within ``budget`` (per cent or ``auto``)."""
    fetcher = OverlappedFetcher.of(features, device, memory, policy, overlapped=True)
    try:
        if budget != "auto":
            fetcher.take(int(budget), "chosen by the user")
        elif fetcher.memory.size_bytes < SWEEP_BYTES:
            small = f"the table is below {SWEEP_BYTES >> 20} MiB: too small to sweep"
            fetcher.take(USUAL_BUDGET, small)
        else:
            fetcher.tune_alone()
            fetcher.tunable = True
    except BaseException:
        fetcher.close()
        raise
    return fetcher


class OverlappedFetcher(KernelFetcher):
    """A :class:`KernelFetcher` on a separate stream that finds the share of the GPU it needs."""

    def share(self, percent: int) -> str:
        """Gather on ``percent`` of the GPU from now on; return by what means, for ``source``."""
        return share_threads(self, percent)

    def take(self, percent: int, why: str, metric: str = "budget") -> None:
        """Gather on ``percent`` of the GPU from now on, and record that in ``setup``."""
        how = self.share(percent)
        self.setup.append(SetupStep(metric, "1", percent / 100, f"{how}; {why}"))

    def tune_alone(self) -> None:
        """Take the smallest share that reaches :data:`ENOUGH` of the best rate of a gather."""
        count = max(1, SWEEP_BYTES // self.table.row_bytes)
        # Each row once: a repeated row of a small table would come from the GPU's cache.
        rows = torch.arange(count, device="cpu") * self.num_rows // count
        shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu")
        ids = rows[shuffled].to(self.device)
        out = torch.empty((count, self.row_width), dtype=self.dtype, device=self.device)
        seconds = self._sweep(lambda: self._gather_seconds(ids, out))
        source = "median torch.cuda.Event time of one gather, no training beside it"
        self._record("gather_time", seconds, source)
        why = f"smallest that reaches {ENOUGH:.0%} of the best rate, gathering alone"
        self.take(first_good(seconds), why)

    def tune(self, ids: Tensor, beside: Callable[[], object]) -> list[SetupStep]:
        """Take the smallest share that is good by the time of a whole step, training included."""
        known = len(self.setup)
        seconds = self._sweep(lambda: self.step_seconds(ids, beside))
        source = f"median time.perf_counter of a step, training beside the fetch, {_STEPS} in a row"
        self._record("step_time", seconds, source)
        alone = statistics.median(self.alone_seconds(beside) for _ in range(_SWEEP_ROUNDS))
        source = "median time.perf_counter of a training step, no fetch beside it"
        self.setup.append(SetupStep("train_alone_step_time", "s", alone, source))
        fetch = min(self._sweep(lambda: self.step_seconds(ids, lambda: None)).values())
        source = "median time.perf_counter of a fetch, no training beside it, by the fastest share"
        self.setup.append(SetupStep("fetch_alone_step_time", "s", fetch, source))
        why = f"smallest that reaches {ENOUGH:.0%} of the best step; replaces the one found alone"
        self.take(first_good(seconds), why, "budget_beside_training")
        return self.setup[known:]

    def _sweep(self, measure: Callable[[], float]) -> dict[int, float]:
        """Return the median seconds for each of :data:`BUDGETS`, measured in turns."""
        return in_turns(BUDGETS, self.share, measure, _SWEEP_ROUNDS)

    def _record(self, what: str, seconds: dict[int, float], source: str) -> None:
        self.setup += [
            SetupStep(f"budget_{percent}_{what}", "s", value, source)
            for percent, value in seconds.items()
        ]

    def _gather_seconds(self, ids: Tensor, out: Tensor) -> float:
        torch.cuda.synchronize(self.device)  # ids and out were made on another stream
        point = self.points[torch.int64]
        with torch.cuda.device(self.device), torch.cuda.stream(self._side):
            return event_seconds(lambda: gather_into(out, self.table, ids, point), self.device)

    def alone_seconds(self, beside: Callable[[], object]) -> float:
        """Measure the seconds of ``beside`` while nothing else runs."""
        torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        for _ in range(_STEPS):
            beside()
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - begin) / _STEPS

    def step_seconds(self, ids: Tensor, beside: Callable[[], object]) -> float:
        """Measure the seconds of a step that fetches ``ids`` while ``beside`` runs."""
        tickets = [self.submit(ids)]

        def step() -> None:
            tickets.pop().result()
            tickets.append(self.submit(ids))
            beside()

        seconds = self.alone_seconds(step)
        tickets.pop().result()
        return seconds


def share_threads(fetcher: KernelFetcher, percent: int) -> str:
    """Cap the grid at ``percent`` of the threads that the GPU holds; return the means."""
    fetcher.limit(blocks_of(percent, fetcher.points[torch.int64].block_threads, fetcher.device))
    return "capped grid"


def take_usual_share(fetcher: KernelFetcher) -> None:
    """Cap a prefetching fetcher at :data:`USUAL_BUDGET`, and record that in its ``setup``."""
    source = f"{share_threads(fetcher, USUAL_BUDGET)}; the paper's share, as async_zero_copy begins"
    fetcher.setup.append(SetupStep("budget", "1", USUAL_BUDGET / 100, f"{source} with"))


def blocks_of(percent: int, block_threads: int, device: torch.device) -> int:
    """Return the blocks for ``percent`` of the threads that fit on the GPU at once; at least 1."""
    gpu = torch.cuda.get_device_properties(device)
    threads = gpu.multi_processor_count * gpu.max_threads_per_multi_processor
    return max(1, threads * percent // 100 // block_threads)
