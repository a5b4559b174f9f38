"""Draw minibatches ahead of the loop: on a GPU, or in threads, like a training program's loader.

Threads suffice: the sampler's loops are compiled and release Python's lock, and their results
need no copy from another process. A fork in a process with CUDA or gloo is unsafe.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

#: Minibatches of a worker or a GPU that are ready or being drawn, beyond the one in the loop.
AHEAD = 2


def begun_ahead(
    begin: Callable[..., Callable[[], T]],
    tasks: Iterable[tuple[Any, ...]],
    ahead: int = AHEAD,
    waited: Callable[[float], None] = lambda _seconds: None,
) -> Iterator[T]:
    """Give each task's minibatch in order; it begins up to ``ahead`` minibatches in advance.
    ``begin`` returns what waits for it; ``waited`` is called with the seconds of each wait."""
    left = iter(tasks)
    under_way = deque(begin(*task) for task in itertools.islice(left, ahead))
    while under_way:
        since = time.perf_counter()
        ready = [under_way.popleft()()]
        waited(time.perf_counter() - since)
        under_way.extend(begin(*task) for task in itertools.islice(left, 1))
        yield ready.pop()  # without a reference here, the loop frees it within its step


def drawn_ahead(
    workers: Sequence[Callable[..., T]], tasks: Iterable[tuple[Any, ...]]
) -> Iterator[T]:
    """Give each task's minibatch in order; each is drawn by a thread of one of the workers.

    Threads start with the request for the first minibatch. All have ended when the iterator has
    ended, raised or was closed; unneeded minibatches are cancelled before they begin. A worker is
    called by one thread at a time; its error comes in place of the minibatch that it could not
    draw. ``tasks`` are read by the thread that iterates.
    """
    idle = list(workers)

    def draw(*task: Any) -> T:
        worker = idle.pop()  # one per thread, so there is one
        try:
            return worker(*task)
        finally:
            idle.append(worker)

    pool = ThreadPoolExecutor(len(workers), thread_name_prefix="gatherbench-sample")
    try:
        ahead = AHEAD * len(workers)
        yield from begun_ahead(lambda *task: pool.submit(draw, *task).result, tasks, ahead)
    finally:
        pool.shutdown(cancel_futures=True)
