"""Guards torch's threads while a case is measured: how many there are, and that they rest.

torch, numba and other libraries share one OpenMP runtime, and whoever sets its threads last wins: a
call that only asked numba for a number gave torch all cores back, and ``prefetch`` shared them with
a pool that spun after each copy of ids. No row is wrong then, and every time is. So each phase of a
case ends with as many threads as it was given, and where that is one, torch's pool has to sleep.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gatherbench.bench.meters.threads import pool_cpu_s
from gatherbench.bench.run.check import WrongRowsError
from gatherbench.kernels.host_gather import available_cores

#: What torch's pool may take beside one declared thread: a share of the cores' time, and seconds.
SHARE, TICK_S = 0.05, 0.02
#: How often, and how many seconds apart, the pool is looked at until it sleeps after what came
#: before, such as the epoch of a path that has all cores: OpenMP's threads spin for some ms then.
LOOKS, LOOK_S = 50, 0.002


class WrongThreadsError(WrongRowsError):
    """The rows are right, and torch had other threads than the case was given."""

    metric, source = "threads", "torch.get_num_threads and the CPU clocks of torch's pool"


class TorchThreads:
    """How many threads torch has on this thread, from now on; OpenMP counts them by thread."""

    def __init__(self) -> None:
        self.given = torch.get_num_threads()

    @contextmanager
    def kept(self, when: str) -> Iterator[None]:
        """
        Raises:
            WrongThreadsError: meanwhile somebody changed the number; it is as it was again.
        """
        try:
            yield
        finally:
            found = torch.get_num_threads()
            if found != self.given:
                torch.set_num_threads(self.given)
        if found != self.given:
            raise WrongThreadsError(
                f"torch had {self.given} threads and now has {found}: a call {when} changed them"
                " (torch, numba and others share OpenMP's), and what is timed holds no more"
            )

    @contextmanager
    def resting(self, when: str, declared: int) -> Iterator[None]:
        """The same, and where ``declared`` is one thread, no pool of torch's may work: it sleeps
        when this begins, and goes on sleeping.

        Raises:
            WrongThreadsError: it did, for more than :data:`SHARE` of the time of all cores.
        """
        if declared != 1:
            with self.kept(when):
                yield
            return
        before, begin = _rested(), _now_s()
        with self.kept(when):
            yield
        wall_s, after = _now_s() - begin, pool_cpu_s()
        # Not of new ones: a thread of Python's that has just ended is nobody's for a moment.
        busy_s = sum(after[thread] - before[thread] for thread in before.keys() & after.keys())
        cores = available_cores()
        if busy_s > SHARE * wall_s * cores + TICK_S:
            raise WrongThreadsError(
                f"threads of torch's pool worked {busy_s:.3f} s {when}, of {wall_s:.3f} s on"
                f" {cores} cores, and the path declares one thread"
            )


def _rested() -> dict[int, float]:
    """The clocks of the pool when it sleeps, or after :data:`LOOKS` in which it did not."""
    before = pool_cpu_s()
    for _ in range(LOOKS):
        time.sleep(LOOK_S)
        if before == (before := pool_cpu_s()):
            break
    return before


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)
