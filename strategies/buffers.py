"""Buffers that are filled in turn, and whose rows are in them.

Sampled minibatches differ in size, so a buffer grows to the largest one seen, by half again at
least: a handful of allocations in an epoch, and memory that then stays constant.

A fetcher with ``lookahead`` L owns L + 1 buffers. Fetch ``k + L + 1`` overwrites the buffer of
fetch ``k``. A caller can make two mistakes that would train on the wrong rows without a word: to
submit that fetch before the earlier result was taken, and to ask for the earlier result afterwards.
:class:`TicketRing` raises at both.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class RowBuffer:
    """Room for one minibatch's rows; ``allocate(n)`` returns a tensor ``[n, D]``."""

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        #: All the room there is.
        self.whole = allocate(0)

    def rows(self, count: int) -> Tensor:
        """A view ``[count, D]`` with undefined contents.

        Overwrites what an earlier view shows, unless the buffer had to grow: then the earlier
        memory lives as long as the views of it.
        """
        capacity = self.whole.shape[0]
        if count > capacity:
            self.whole = self._allocate(max(count, capacity + capacity // 2))
        return self.whole[:count]


class RingTicket:
    """The fetch that fills one buffer; ``finish`` waits for it and returns the rows."""

    def __init__(self, finish: Callable[[], Tensor]) -> None:
        self._finish = finish
        self._expired: str | None = None
        self.taken = False

    def result(self) -> Tensor:
        """See :meth:`gatherbench.strategies.base.Ticket.result`."""
        if self._expired is not None:
            raise RuntimeError(f"these rows are gone: {self._expired}")
        self.taken = True
        return self._finish()

    def expire(self, reason: str) -> None:
        """Refuse from now on, because of ``reason``; lets go of the rows."""
        self._expired = reason
        self._finish = _nothing


class TicketRing:
    """The tickets of ``size`` buffers that are filled in turn."""

    def __init__(self, size: int) -> None:
        self._tickets: list[RingTicket | None] = [None] * size
        self._next = 0

    def claim(self) -> int:
        """Take the next buffer for a new fetch: its index. The fetch that held it expires.

        Raises:
            RuntimeError: that fetch's result has not been taken.
        """
        size = len(self._tickets)
        ticket = self._tickets[self._next]
        if ticket is not None:
            if not ticket.taken:
                raise RuntimeError(
                    f"{size} fetches are in flight and the result of the oldest was not taken: "
                    "call result() on its ticket before the next submit()"
                )
            ticket.expire(f"their buffer was given to a later fetch (every {size}th shares it)")
            self._tickets[self._next] = None
        return self._next

    def issue(self, finish: Callable[[], Tensor]) -> RingTicket:
        """The ticket of the buffer that was claimed."""
        ticket = RingTicket(finish)
        self._tickets[self._next] = ticket
        self._next = (self._next + 1) % len(self._tickets)
        return ticket

    def close(self) -> None:
        """Expire every ticket."""
        for ticket in self._tickets:
            if ticket is not None:
                ticket.expire("the fetcher is closed")


def _nothing() -> Tensor:
    raise AssertionError("an expired ticket has nothing to finish")
