"""Minibatches had ahead of the loop: by a GPU, or by threads, as a training program's loader does.

Threads will do: the sampler's loops are compiled and let others run meanwhile, and what they draw
needs no copy from another process. A fork beside CUDA or gloo is a trap.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ts = TypeVarTuple("Ts")

#: Minibatches of a worker, or of a GPU, that are ready or being drawn, beside the one that the loop
#: has.
AHEAD = 2

#: Of each worker's thread that has ended: the kernel's number of it, and the core-seconds that it
#: had used when it had its last minibatch. The kernel forgets a thread's clock with the thread.
ended: list[tuple[int, float]] = []


class Pending(Protocol[T_co]):
    """What has been begun."""

    def result(self) -> T_co:
        """Wait for it."""


def begun_ahead(
    begin: Callable[[*Ts], Pending[T]],
    tasks: Iterable[tuple[*Ts]],
    ahead: int = AHEAD,
    waited: Callable[[float], None] = lambda _seconds: None,
) -> Iterator[T]:
    """The minibatch of each task, in the tasks' order, each begun when ``ahead`` before it are.

    Args:
        waited: told for how long each was waited for, s.
    """
    left = iter(tasks)
    under_way = deque(begin(*task) for task in itertools.islice(left, ahead))
    while under_way:
        asked = time.perf_counter()
        ready = [under_way.popleft().result()]
        waited(time.perf_counter() - asked)
        under_way.extend(begin(*task) for task in itertools.islice(left, 1))
        yield ready.pop()  # and is not kept: the loop frees it within its step


def drawn_ahead(workers: Sequence[Callable[[*Ts], T]], tasks: Iterable[tuple[*Ts]]) -> Iterator[T]:
    """The minibatch of each task, in the tasks' order, each had by one of the workers' threads.

    Threads start when the first minibatch is asked for. None is left when the iterator has ended,
    has raised or was closed; what is not wanted any more is not begun.

    Args:
        workers: what has a minibatch; each is called by one thread at a time.
        tasks: the arguments for each minibatch; read by the thread that iterates.

    Raises:
        Exception: of a worker, in place of the minibatch that it could not have.
    """
    idle = list(workers)
    clocks: dict[int, float] = {}

    def draw(*task: *Ts) -> T:
        worker = idle.pop()  # as many as threads, so there is one
        try:
            return worker(*task)
        finally:
            idle.append(worker)
            clocks[threading.get_native_id()] = time.thread_time()

    pool = ThreadPoolExecutor(len(workers), thread_name_prefix="gatherbench-sample")
    try:
        begin: Callable[[*Ts], Pending[T]] = lambda *task: pool.submit(draw, *task)  # noqa: E731
        yield from begun_ahead(begin, tasks, AHEAD * len(workers))
    finally:
        pool.shutdown(cancel_futures=True)
        ended.extend(clocks.items())
