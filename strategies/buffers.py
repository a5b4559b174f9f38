"""Buffers that are filled in turn, and whose rows are in them.

Sampled minibatches differ in size, so a buffer grows to the largest one seen, by half again at
least: a handful of allocations in an epoch, and memory that then stays constant.

A fetcher with ``lookahead`` L owns L + 1 buffers. Fetch ``k + L + 1`` overwrites the buffer of
fetch ``k``. A caller can make two mistakes that would train on the wrong rows without a word: to
submit that fetch before the earlier result was taken, and to ask for the earlier result afterwards.
:class:`TicketRing` raises at both.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress

from torch import Tensor
from torch.autograd.graph import increment_version

from gatherbench.kernels.modes import plain_torch


class RowBuffer:
    """Room for one minibatch's rows; ``allocate(n)`` returns a tensor ``[n, D]``."""

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        #: All the room there is.
        self.whole = allocate(0)

    def rows(self, count: int) -> Tensor:
        """A view ``[count, D]`` with undefined contents, to be overwritten by whoever asks for it.

        An earlier view shows that, too, unless the buffer had to grow: then the earlier memory
        lives as long as the views of it. Torch does not see what fills the view, so it is told
        here: a backward pass that has saved an earlier view raises, where it would have taken the
        later rows for the earlier.
        """
        capacity = self.whole.shape[0]
        if count > capacity:
            self.whole = self._allocate(max(count, capacity + capacity // 2))
        else:
            increment_version(self.whole)  # views share the counter
        return self.whole[:count]


class RingTicket:
    """The fetch that fills one buffer; ``finish`` waits for it and returns the rows."""

    def __init__(self, fetch: _Fetch) -> None:
        self._fetch = fetch

    def result(self) -> Tensor:
        """See :meth:`gatherbench.strategies.base.Ticket.result`."""
        fetch = self._fetch
        if fetch.expired is not None:
            raise RuntimeError(f"these rows are gone: {fetch.expired}")
        fetch.taken = True
        with plain_torch():  # a path to a GPU has its stream wait: calls of torch
            return fetch.finish()


class _Fetch:
    """What a ring knows of a fetch: it holds the ticket itself weakly."""

    __slots__ = ("expired", "finish", "taken", "ticket")

    def __init__(self, finish: Callable[[], Tensor]) -> None:
        self.finish = finish
        self.expired: str | None = None
        self.taken = False
        self.ticket: weakref.ref[RingTicket] | None = None

    def expire(self, reason: str) -> None:
        """Refuse from now on, because of ``reason``; lets go of the rows."""
        self.expired = reason
        self.finish = _nothing


class TicketRing:
    """The tickets of ``size`` buffers that are filled in turn."""

    def __init__(self, size: int) -> None:
        self._begin(size)

    def _begin(self, size: int) -> None:
        self._fetches: list[_Fetch | None] = [None] * size
        self._next = 0
        self._pid = os.getpid()

    def claim(self) -> int:
        """Take the next buffer for a new fetch: its index. The fetch that held it expires.

        A fetch whose ticket nobody holds any more, as after an interrupt, is waited for in vain.

        Raises:
            RuntimeError: that fetch's result has not been taken, and still can be.
        """
        size = len(self._fetches)
        if self._pid != os.getpid():  # the parent's other threads, and their tickets, are not here
            self._begin(size)
        fetch = self._fetches[self._next]
        if fetch is not None:
            if not fetch.taken:
                if fetch.ticket is not None and fetch.ticket() is not None:
                    raise RuntimeError(
                        f"{size} fetches are in flight and the result of the oldest was not taken: "
                        "call result() on its ticket before the next submit()"
                    )
                with suppress(Exception):  # whatever went wrong was nobody's
                    fetch.finish()
            fetch.expire(f"their buffer was given to a later fetch (every {size}th shares it)")
            self._fetches[self._next] = None
        return self._next

    def issue(self, finish: Callable[[], Tensor]) -> RingTicket:
        """The ticket of the buffer that was claimed."""
        fetch = _Fetch(finish)
        ticket = RingTicket(fetch)
        fetch.ticket = weakref.ref(ticket)
        self._fetches[self._next] = fetch
        self._next = (self._next + 1) % len(self._fetches)
        return ticket

    def close(self) -> None:
        """Expire every ticket."""
        for fetch in self._fetches:
            if fetch is not None:
                fetch.expire("the fetcher is closed")


def _nothing() -> Tensor:
    raise AssertionError("an expired ticket has nothing to finish")
