"""Find how the CPU gathers fastest in the loop: on how many threads, or on torch's own pool.

The time of a gather alone misleads: threads that spin after a training step take cores from the
next gather, and with a GPU every thread takes one from the thread that launches the training. So
each way is tried for some whole steps, in turns, with other rows each time, which no cache holds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gatherbench.strategies.base import Fetcher, SetupStep

#: In place of a number of threads: ``torch.index_select`` into the staging buffer, then a copy.
TORCH = 0
#: The part of the fastest step's rate that a cheaper way has to reach: fewer threads, our threads
#: before torch's pool, or a smaller share of a GPU.
ENOUGH = 0.97
#: Steps in a row, rounds, and the seconds within which another round may begin.
_STEPS, _ROUNDS, _ROUNDS_S = 3, 6, 2.0
EARLIER = "found by an earlier process of the run on this machine"


def tuned(
    fetcher: Fetcher,
    take: Callable[[int], None],
    ways: Sequence[int],
    ids: Tensor,
    beside: Callable[[], object],
    settle: Callable[[], None],
) -> list[SetupStep]:
    """Have the path ``take`` the first of ``ways`` whose step is good; return the measurements.

    Args:
        ids: of a typical minibatch.
        beside: does, or queues, one training step.
        settle: waits for the queued work.
    """
    if not ways:
        return [SetupStep("gather_threads", "1", 1, "a minibatch is too small to share")]
    draw = np.random.default_rng(0)

    def others() -> Tensor:
        shift = int(draw.integers(fetcher.num_rows))
        moved = (ids.cpu().numpy().astype(np.int64) + shift) % fetcher.num_rows
        return torch.from_numpy(moved).to(ids.device, ids.dtype)

    def seconds() -> float:
        minibatches = [others() for _ in range(_STEPS + 1)]
        ticket = fetcher.submit(minibatches.pop())
        settle()
        began = time.perf_counter()
        for minibatch in minibatches:
            ticket.result()
            ticket = fetcher.submit(minibatch)
            beside()
        ticket.result()
        settle()
        return (time.perf_counter() - began) / _STEPS

    medians = in_turns(ways, take, seconds, _ROUNDS, _ROUNDS_S)
    chosen = first_good(medians)
    take(chosen)
    before = fetcher.counts()["gather_time"]
    for _ in range(_ROUNDS):
        fetcher.submit(others()).result()
    alone_s = fetcher.counts()["gather_time"] - before
    source = f"median time.perf_counter of a step, training in it, {_STEPS} in a row, in turns"
    how = f"the first that reaches {ENOUGH:.0%} of the best step: fewest threads, torch's pool last"
    size = _ROUNDS * ids.numel() * fetcher.row_width * fetcher.dtype.itemsize
    alone = f"the path's own gather_time over {_ROUNDS} fetches with no training between them"
    names = {way: "torch_pool" if way == TORCH else f"{way}_threads" for way in medians}
    return [
        *(
            SetupStep(f"gather_{names[way]}_step_time", "s", s, source)
            for way, s in medians.items()
        ),
        SetupStep("gather_threads", "1", chosen or torch.get_num_threads(), how),
        SetupStep("gather_on_torch_pool", "1", float(chosen == TORCH), how),
        SetupStep("gather_time", "s", alone_s, alone),
        SetupStep("gathered", "B", size, "rows × bytes of a row"),
    ]


def in_turns(
    ways: Sequence[int],
    take: Callable[[int], object],
    measure: Callable[[], float],
    rounds: int,
    limit_s: float = math.inf,
) -> dict[int, float]:
    """Measure the ways in turns, after a round that warms up; return the median of each.

    No round begins later than after ``limit_s`` seconds.
    """
    taken: dict[int, list[float]] = {way: [] for way in ways}
    deadline = time.perf_counter() + limit_s
    for number in range(1 + rounds):
        for way, seconds in taken.items():
            take(way)
            seconds.append(measure())
        if number and time.perf_counter() > deadline:
            break
    return {way: statistics.median(seconds[1:]) for way, seconds in taken.items()}


def first_good(seconds: Mapping[int, float]) -> int:
    """Return the first way that takes at most 1 / :data:`ENOUGH` times the shortest time."""
    best = min(seconds.values())
    return next(way for way, value in seconds.items() if best >= ENOUGH * value)


def way_of(steps: Sequence[SetupStep]) -> int:
    """Return the way that :func:`tuned` chose."""
    values = {step.metric: step.value for step in steps}
    return TORCH if values.get("gather_on_torch_pool") else int(values["gather_threads"] or 1)
