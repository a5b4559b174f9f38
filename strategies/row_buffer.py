"""Buffers that are reused from batch to batch, so that no fetch pays for fresh memory.

Sampled minibatches differ in size, so a buffer grows to the largest one seen, by half again at
least: a handful of allocations in an epoch, and memory that then stays constant.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

#: Makes a buffer of so many rows.
Allocate = Callable[[int], Tensor]


class RowBuffer:
    """Room for one minibatch's rows; ``allocate(n)`` returns a tensor ``[n, D]``."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._whole = allocate(0)

    @property
    def whole(self) -> Tensor:
        """All the room there is."""
        return self._whole

    def rows(self, count: int) -> Tensor:
        """A view ``[count, D]`` with undefined contents.

        Overwrites what an earlier view shows, unless the buffer had to grow: then the earlier
        memory lives as long as the views of it.
        """
        capacity = self._whole.shape[0]
        if count > capacity:
            self._whole = self._allocate(max(count, capacity + capacity // 2))
        return self._whole[:count]
