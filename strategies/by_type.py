"""A table for each type of nodes, of a width of its own: a fetcher a type behind one ticket.

Any strategy opens each table as if there were no other. Types of nodes follow one another in one
range of numbers; a minibatch's ids are parted by type here, on the host, and its rows come back a
type, with the places that they have in the minibatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatherbench.kernels.reference import reference_gather
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import Fetcher, Residency, Strategy, Ticket
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.knowledge import NOTHING, Knowledge


@dataclass(frozen=True, slots=True, eq=False)
class TypedRows:
    """The rows of a minibatch of ``B`` nodes.

    Attributes:
        rows: ``[B_t, D_t]`` of each type, in the minibatch's order.
        places: int64 ``[B_t]``, where in the minibatch they are; on the device of the rows.
    """

    rows: tuple[Tensor, ...]
    places: tuple[Tensor, ...]

    def float(self) -> TypedRows:
        """The rows as float32."""
        return replace(self, rows=tuple(rows.float() for rows in self.rows))

    def to(self, device: torch.device) -> TypedRows:
        """Rows and places there."""
        return TypedRows(
            tuple(rows.to(device) for rows in self.rows),
            tuple(places.to(device) for places in self.places),
        )


@dataclass(frozen=True, slots=True)
class Part:
    """What a minibatch wants of one type.

    Attributes:
        places: int64 ``[B_t]``, ascending: which of its nodes are of that type.
        ids: ``[B_t]``, rows of the type's own table, of the dtype that was given.
    """

    places: Tensor
    ids: Tensor


def parted(ids: Tensor, counts: Sequence[int]) -> list[Part]:
    """A minibatch's ids ``[B]``, on the host, by types of so many nodes; all are of one of them."""
    stops = np.cumsum(counts)
    kinds = np.searchsorted(stops, ids.numpy(), side="right").astype(np.int16)
    order = np.argsort(kinds, kind="stable")
    places = np.split(order, np.searchsorted(kinds[order], np.arange(1, len(stops))))
    starts = (stops - counts).tolist()
    each = ((torch.from_numpy(one), start) for one, start in zip(places, starts, strict=True))
    return [Part(place, ids[place] - start) for place, start in each]


@dataclass(frozen=True, slots=True, eq=False)
class TypedTable:
    """The table of each type ``[N_t, D_t]`` in host memory, one dtype for all; and its name."""

    parts: tuple[Tensor, ...]
    names: tuple[str, ...]

    @property
    def counts(self) -> list[int]:
        """Nodes of each type."""
        return [len(part) for part in self.parts]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


#: What a fetch brings: the rows of one table, or those of a table a type.
Rows = Tensor | TypedRows


def gathered(table: Tensor | TypedTable, ids: Tensor) -> Rows:
    """Rows of ``ids`` ``[B]``, on the host, past all paths: the reference."""
    if isinstance(table, Tensor):
        return reference_gather(table, ids)
    wanted = parted(ids, table.counts)
    rows = (reference_gather(t, one.ids) for t, one in zip(table.parts, wanted, strict=True))
    return TypedRows(tuple(rows), tuple(one.places for one in wanted))


def typed_refusal(strategy: Strategy, device: torch.device) -> Reason | None:
    """Why a path cannot be opened for each type beside the others."""
    if strategy.needs:
        told = ", ".join(sorted(strategy.needs))
        return unsupported(f"it has to know of all nodes, and each type has its own table: {told}")
    if strategy.collective or strategy.role == "choice":
        return unsupported("it is measured with one table for all nodes")
    if device.type == "cuda" and strategy.gpu_share:
        return unsupported("it takes a part of the GPU, and would for each type of nodes")
    return None


def typed_data_paths(
    strategy: Strategy, batches: Iterable[Tensor], tables: Sequence[tuple[int, int]]
) -> Iterator[DataPath]:
    """How minibatches travel: the paths of each type, for tables of so many rows and row bytes.

    The batches are iterated once for each type.
    """
    counts = [rows for rows, _ in tables]

    def of(number: int) -> Iterator[Tensor]:
        return (parted(ids.cpu(), counts)[number].ids for ids in batches)

    return chain.from_iterable(
        strategy.data_paths(of(number), row_bytes, rows)
        for number, (rows, row_bytes) in enumerate(tables)
    )


def opened(
    strategy: Strategy,
    table: Tensor | TypedTable,
    device: torch.device,
    knowledge: Knowledge = NOTHING,
) -> Fetcher:
    """Open the path, for each type where each has a table.

    Raises:
        ValueError: :func:`typed_refusal` says why; see ``Strategy.open``.
    """
    if isinstance(table, Tensor):
        return strategy.open(table, device, knowledge)
    if (reason := typed_refusal(strategy, device)) is not None:
        raise ValueError(f"{strategy.name} ({strategy.variant}): {reason}")
    with ExitStack() as opening:
        fetchers = [opening.enter_context(strategy.open(part, device)) for part in table.parts]
        closing = opening.pop_all()
    return TypedFetcher(fetchers, table, closing)


class TypedFetcher(Fetcher):
    """A fetcher a type, all of one strategy: each minibatch is a fetch of every one of them.

    So their buffers are used in step. ``result()`` of its tickets are :class:`TypedRows`.

    Attributes:
        fetched: rows of each type that were asked for in this epoch.
    """

    def __init__(self, fetchers: Sequence[Fetcher], table: TypedTable, closing: ExitStack) -> None:
        super().__init__(table.parts[0], fetchers[0].device)
        self._each, self._table, self._closing = tuple(fetchers), table, closing
        self.num_rows = sum(table.counts)
        self.lookahead, self.announced = fetchers[0].lookahead, fetchers[0].announced
        steps = (one.setup for one in fetchers)
        self.setup = [
            replace(step, metric=f"{step.metric} of {name}")
            for name, mine in zip(table.names, steps, strict=True)
            for step in mine
        ]
        self.fetched = [0] * len(fetchers)

    def parts(self, ids: Tensor) -> list[tuple[Fetcher, Tensor, Tensor]]:
        """Each type's fetcher, table, and its ids of a minibatch on the host."""
        wanted = parted(ids, self._table.counts)
        each = zip(self._each, self._table.parts, wanted, strict=True)
        return [(one, table, part.ids) for one, table, part in each]

    def _submit(self, ids: Tensor) -> Ticket:
        wanted = parted(ids, self._table.counts)
        tickets = [one.submit(part.ids) for one, part in zip(self._each, wanted, strict=True)]
        for number, part in enumerate(wanted):
            self.fetched[number] += len(part.ids)
        return _TypedTicket(tickets, tuple(part.places for part in wanted), self.device)

    def announce(self, ids: Tensor) -> None:
        for one, _, mine in self.parts(ids):
            one.announce(mine)

    def forget(self) -> None:
        for one in self._each:
            one.forget()

    def expect(self, minibatches: int) -> None:
        for one in self._each:
            one.expect(minibatches)

    def begin_epoch(self) -> None:
        self.fetched = [0] * len(self._each)
        for one in self._each:
            one.begin_epoch()

    def check_fetched(self) -> None:
        for one in self._each:
            one.check_fetched()

    def counts(self) -> Mapping[str, float]:
        each = [one.counts() for one in self._each]
        return {name: sum(counts[name] for counts in each) for name in each[0]}

    def residency(self) -> tuple[Residency, ...]:
        named = zip(self._table.names, self._each, strict=True)
        return tuple(
            replace(one, part=f"{one.part} of {name}")
            for name, fetcher in named
            for one in fetcher.residency()
        )

    def _close(self) -> None:
        self._closing.close()


@dataclass(frozen=True, slots=True)
class _TypedTicket:
    """The fetches of all types; the places of their rows are on the host until they are asked for.

    From pageable memory the copy would wait for what is queued on the training's stream.
    """

    tickets: Sequence[Ticket]
    places: tuple[Tensor, ...]
    device: torch.device

    def result(self) -> Any:
        """:class:`TypedRows`, which only what is told of types can take."""
        rows, places = tuple(ticket.result() for ticket in self.tickets), self.places
        if self.device.type == "cuda":
            locked = (one.pin_memory() for one in places)
            places = tuple(one.to(self.device, non_blocking=True) for one in locked)
        return TypedRows(rows, places)
