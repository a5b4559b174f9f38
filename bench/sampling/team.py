"""A few threads that work on one minibatch together, and survive a fork.

A forked ``DataLoader`` worker gets none of its parent's threads, so a pool or a held lock copied
into it would wait for ever. Every team therefore starts afresh in a child.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

_teams: weakref.WeakSet[Team] = weakref.WeakSet()


class Team:
    """The calling thread and helpers that are started when they are first needed.

    Args:
        words: length of each member's :meth:`scratch`.
    """

    def __init__(self, words: int) -> None:
        self._words = words
        self.start_afresh()
        _teams.add(self)

    def start_afresh(self) -> None:
        """Forget threads, lock and scratch, of which a fork copied only the memory."""
        self._lock = threading.Lock()
        self._helpers: ThreadPoolExecutor | None = None
        self._size = 1
        self._scratch: list[NDArray[np.uint64]] = []

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads of this process out until the block ends."""
        with self._lock:
            yield

    def scratch(self, member: int) -> NDArray[np.uint64]:
        """uint64 ``[words]``, all zero unless its last user left something in it."""
        return self._scratch[member]

    def run(self, part: Callable[[int, int, int], None], bounds: Sequence[int]) -> None:
        """Call ``part(member, bounds[member], bounds[member + 1])`` for all members at once.

        Returns when all have ended, also when one of them raised: none is left writing.
        """
        size = len(bounds) - 1
        while len(self._scratch) < size:
            self._scratch.append(np.zeros(self._words, np.uint64))
        if size == 1:
            part(0, bounds[0], bounds[1])
            return
        if self._helpers is None or size > self._size:
            self._helpers = ThreadPoolExecutor(size - 1, thread_name_prefix="gatherbench-sample")
            self._size = size
        others = [
            self._helpers.submit(part, member, bounds[member], bounds[member + 1])
            for member in range(1, size)
        ]
        try:
            part(0, bounds[0], bounds[1])
        finally:
            wait(others)
        for other in others:
            other.result()


def _start_afresh() -> None:
    for team in tuple(_teams):
        team.start_afresh()


os.register_at_fork(after_in_child=_start_afresh)
