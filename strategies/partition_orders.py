"""The orders in which partitions of a table on disk come into memory, and who is there together.

A graph that does not fit in memory can be trained part by part: ``p`` partitions of nodes lie on
disk, ``c`` of them in a buffer, and a minibatch sees only what the buffer holds. The sequence of
the buffer's contents decides how much is read and which neighbours meet. The sampler needs it to
draw the minibatches, and the data path to bring the rows.

- ``beta``: every two partitions meet. ``c - 1`` stay while all that have not met them pass through
  the last place, one swap a state; then they are replaced, one by one, and never come back. It
  takes (p-c) + (x+1)[(p-c) - x(c-1)/2] swaps, x = ⌊(p-c)/(c-1)⌋, where ⌈(p(p-1) - c(c-1)) /
  (2(c-1))⌉ is the least that any order takes (Marius, OSDI 2021, section 4).
- ``comet``: partitions are put into random groups, and ``beta`` goes over the groups (MariusGNN,
  EuroSys 2023, section 5). Here a group has ``c/2`` partitions, so that the buffer holds two; the
  paper also chooses the size of groups, and draws them anew in each epoch.
- ``sequential``: ``c`` after ``c``, in the table's order: ⌈p/c⌉ states, all of them replaced at
  once. Every partition is there, hardly any two meet. The paper's order of this name wants a table
  that begins with all training nodes, and has one state an epoch; our tables are not sorted so.

What is random depends on the seed alone, and is the same in every epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

State = tuple[int, ...]  #: The numbers of the partitions that a buffer holds at one time.
ORDERS = ("beta", "comet", "sequential")  #: How the states of an epoch follow each other.


@dataclass(frozen=True, slots=True)
class Partitions:
    """``count`` parts of a table's rows, alike in size, of which a buffer holds ``held``, in an
    ``order`` of :data:`ORDERS`, whose random choices ``seed`` decides.

    Raises:
        ValueError: there is no such order, or none for such numbers.
    """

    count: int
    held: int
    order: str
    seed: int = 0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"no order is called {self.order!r}; there are {', '.join(ORDERS)}")
        if not 1 <= self.held <= self.count:
            raise ValueError(
                f"a buffer of {self.held} of {self.count} partitions: expected 1 to {self.count}"
            )
        if self.order == "beta" and self.held < 2 <= self.count:
            raise ValueError("beta has every two partitions meet: a buffer of 1 is too small")
        if self.order == "comet" and (self.held % 2 or self.count % (self.held // 2)):
            raise ValueError(
                f"comet makes groups of half a buffer: {self.held} must be even, and its half"
                f" divide {self.count}"
            )

    def states(self) -> tuple[State, ...]:
        """What the buffer holds in an epoch, ``held`` partitions at a time."""
        if self.order == "sequential":
            # The last ones stay with some before them.
            begins = np.minimum(range(0, self.count, self.held), self.count - self.held).tolist()
            return tuple(tuple(range(begin, begin + self.held)) for begin in begins)
        # By a hash, as no library promises its next version's random order.
        hashes = [hashlib.sha256(f"{self.seed}/{k}".encode()).digest() for k in range(self.count)]
        shuffled = sorted(range(self.count), key=hashes.__getitem__)
        if self.order == "beta":
            return tuple(beta(shuffled, self.held))
        size = max(1, self.held // 2)
        groups = [tuple(shuffled[k : k + size]) for k in range(0, self.count, size)]
        pairs = beta(list(range(len(groups))), 2)
        return tuple(sum((groups[k] for k in pair), ()) for pair in pairs)

    def bounds(self, num_rows: int) -> NDArray[np.int64]:
        """Where each partition begins, and where the last one ends: int64 ``[count + 1]``; raises
        ``ValueError`` for a table with fewer rows than partitions."""
        if max(1, num_rows) < self.count:
            table = f"a table of {num_rows} rows"
            raise ValueError(f"{table} has no {self.count} partitions: take fewer")
        return np.arange(self.count + 1, dtype=np.int64) * num_rows // self.count

    def of(self, ids: NDArray[Any], num_rows: int) -> NDArray[np.int64]:
        """The partition of each row id: int64, of the shape of ``ids``."""
        last = (ids.astype(np.int64) + 1) * self.count - 1
        return np.asarray(last // max(1, num_rows))


def beta(parts: list[int], held: int) -> Iterator[State]:
    """BETA's states over ``parts``, of which the buffer holds ``held``, at least 2 if not all."""
    buffer, waiting = parts[:held], parts[held:]
    yield tuple(buffer)
    while waiting:
        for k in range(len(waiting)):
            buffer[-1], waiting[k] = waiting[k], buffer[-1]
            yield tuple(buffer)
        replaced = min(held - 1, len(waiting))
        for k in range(replaced):
            buffer[k] = waiting[k]
            yield tuple(buffer)
        del waiting[:replaced]
