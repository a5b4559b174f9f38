"""Row buffers that are filled in turn, and the tickets that say whose rows they hold.

Sampled minibatches differ in size, so a buffer grows to the largest one seen, by at least half of
its size. A fetcher with ``lookahead`` L owns L + 1 buffers, and fetch ``k + L + 1`` overwrites the
buffer of fetch ``k``. Two mistakes of a caller would silently train on the wrong rows: submitting
that fetch before reading the earlier result, and reading the earlier result afterwards.
:class:`TicketRing` raises in both cases.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import increment_version

from gatherbench.kernels.modes import plain_torch


class RowBuffer:
    """Room for one minibatch's rows; ``allocate(n)`` returns a tensor ``[n, D]``."""

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        self.whole = allocate(0)

    def rows(self, count: int) -> Tensor:
        """Return a view ``[count, D]`` with undefined contents, for the caller to overwrite.

        Earlier views then show the new rows, too, or keep earlier memory alive if the buffer grows.
        Torch does not see how the view is filled, so this increments its version counter: a
        backward pass that saved an earlier view raises.
        """
        capacity = self.whole.shape[0]
        if count > capacity:
            self.whole = self._allocate(max(count, capacity + capacity // 2))
        else:
            increment_version(self.whole)  # views share the counter
        return self.whole[:count]


class RingTicket:
    """The ticket (``base.Ticket``) of the fetch that fills one buffer."""

    def __init__(self, fetch: _Fetch) -> None:
        self._fetch = fetch

    def result(self) -> Tensor:
        fetch = self._fetch
        if fetch.expired:
            raise RuntimeError(f"these rows are gone: {fetch.expired}")
        fetch.taken = True
        with plain_torch():  # on a GPU, `finish` calls torch to make a stream wait
            return fetch.finish()


@dataclass(slots=True, eq=False)
class _Fetch:
    """A ring's record of a fetch: ``finish`` waits for it and returns the rows."""

    finish: Callable[[], Tensor]
    expired: str = ""
    taken: bool = False
    ticket: weakref.ref[RingTicket] | None = None

    def expire(self, reason: str) -> None:
        """Refuse the result from now on, because of ``reason``, and release the rows."""
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
        """Take the next buffer for a new fetch, and return its index; its earlier fetch expires. If
        that fetch's ticket is lost, as after an interrupt, this waits and discards its rows; if the
        ticket exists and was not read, it raises ``RuntimeError``."""
        size = len(self._fetches)
        if self._pid != os.getpid():  # the parent's threads and tickets do not exist here
            self._begin(size)
        fetch = self._fetches[self._next]
        if fetch is not None:
            if not fetch.taken:
                if fetch.ticket is not None and fetch.ticket() is not None:
                    raise RuntimeError(
                        f"{size} fetches are in flight and the result of the oldest was not taken: "
                        "call result() on its ticket before the next submit()"
                    )
                with suppress(Exception):  # nobody holds the ticket to get the error
                    fetch.finish()
            fetch.expire(f"their buffer was given to a later fetch (every {size}th shares it)")
            self._fetches[self._next] = None
        return self._next

    def issue(self, finish: Callable[[], Tensor]) -> RingTicket:
        fetch = _Fetch(finish)
        ticket = RingTicket(fetch)
        fetch.ticket = weakref.ref(ticket)
        self._fetches[self._next] = fetch
        self._next = (self._next + 1) % len(self._fetches)
        return ticket

    def close(self) -> None:
        for fetch in self._fetches:
            if fetch is not None:
                fetch.expire("the fetcher is closed")


def _nothing() -> Tensor:
    raise AssertionError("an expired ticket has nothing to finish")
