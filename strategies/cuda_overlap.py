"""Find the share of a GPU that a gather needs while training runs.

A share caps the grid, as a part of all threads that the GPU can hold: the blocks spread over all
multiprocessors and leave the rest of each to training. ``auto`` begins with the paper's share.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gatherbench.strategies.base import SetupStep
from gatherbench.strategies.cuda_kernel_fetcher import USUAL_BUDGET, KernelFetcher
from gatherbench.strategies.host_tuning import ENOUGH, first_good, in_turns

#: Per cent of the GPU that a sweep tries.
BUDGETS = (1, 2, 5, 10, 15, 25, 50)
#: Bytes of a table from which on a sweep decides: the GPU's caches may hold a smaller one.
SWEEP_BYTES = 64 << 20
_SWEEP_ROUNDS = 5
_STEPS = 4


class OverlappedFetcher(KernelFetcher):
    """A :class:`KernelFetcher` on a separate stream that finds the share of the GPU it needs."""

    def begin_with(self, budget: str) -> None:
        """Gather within ``budget``: per cent, or ``auto``, which may be tuned."""
        chosen = budget != "auto"
        self.tunable = not chosen and self.memory.size_bytes >= SWEEP_BYTES
        percent = int(budget) if chosen else USUAL_BUDGET
        self.take(percent, "chosen by the user" if chosen else "the paper's share")

    def tune(self, ids: Tensor, beside: Callable[[], object]) -> list[SetupStep]:
        """Take the smallest share that is good by the time of a whole step, training included."""
        known = len(self.setup)
        measure = functools.partial(self.step_seconds, ids, beside)
        shares = in_turns(BUDGETS, self.limit, measure, _SWEEP_ROUNDS)
        source = f"median time.perf_counter of a step, training beside the fetch, {_STEPS} in a row"
        self.setup += [
            SetupStep(f"budget_{percent}_step_time", "s", seconds, source)
            for percent, seconds in shares.items()
        ]
        alone = statistics.median(self.alone_seconds(beside) for _ in range(_SWEEP_ROUNDS))
        source = "median time.perf_counter of a training step, no fetch beside it"
        self.setup.append(SetupStep("train_alone_step_time", "s", alone, source))
        fetching = functools.partial(self.step_seconds, ids, lambda: None)
        fetch = min(in_turns(BUDGETS, self.limit, fetching, _SWEEP_ROUNDS).values())
        source = "median time.perf_counter of a fetch, no training beside it, by the fastest share"
        self.setup.append(SetupStep("fetch_alone_step_time", "s", fetch, source))
        why = f"smallest that reaches {ENOUGH:.0%} of the best step; replaces the paper's share"
        self.take(first_good(shares), why, "budget_beside_training")
        return self.setup[known:]

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
