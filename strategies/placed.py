"""Rows that stay where they were put, and what places and caches have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Rows that stay: ``ids`` (``[capacity]``, ascending) in this order, and the slot of each row.

    ``slots`` is int32 ``[N]``, -1 where a row is not kept.
    """

    ids: NDArray[np.int64]
    slots: NDArray[np.int32]

    @property
    def capacity(self) -> int:
        return len(self.ids)

    @property
    def state_bytes(self) -> int:
        return self.slots.nbytes

    def step(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.slots[ids].astype(np.int64), np.empty(0, np.int64)


class Kept(Protocol):
    """Which rows are kept, and where: for good, or as they are asked for."""

    @property
    def capacity(self) -> int:
        """Slots that rows are kept in."""

    @property
    def state_bytes(self) -> int:
        """Memory of the bookkeeping itself."""

    def step(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``SetCache.step``; of rows that stay no slot is filled."""
