"""Threads whose results are taken in order, so that the number of threads changes no result."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

#: More workers than this would need more memory than they save time.
_MOST_WORKERS = 8

_R = TypeVar("_R")


def worker_count(threads: int | None = None) -> int:
    """As many workers as this process may use cores, within reason; or as many as asked for."""
    return threads or min(_MOST_WORKERS, len(os.sched_getaffinity(0)))


def in_order(
    work: Callable[..., _R], tasks: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[_R]:
    """The results of ``work(*task)`` in the order of the tasks, computed by ``workers`` threads.

    Unlike ``Executor.map`` it starts a task only when an earlier result has been taken, so that
    no more than ``workers`` results are ever in memory.
    """
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[_R]] = deque()
        for task in tasks:
            if len(waiting) == workers:
                yield waiting.popleft().result()
            waiting.append(pool.submit(work, *task))
        while waiting:
            yield waiting.popleft().result()
