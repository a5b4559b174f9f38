"""Correctness where each type of nodes has a table of its own: a witness a type.

Rows of each type are compared with its own table, and the places that they claim in the minibatch
with those that its ids have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor

from gatherbench.bench.run.check import Witness, WrongRowsError
from gatherbench.bench.run.loop import Watch
from gatherbench.strategies.by_type import Part, Rows, TypedRows, TypedTable, parted

#: Opens the watch of a type's witness; ``first`` is what it calls before it compares.
_Open = Callable[[Witness, Callable[[], None]], AbstractContextManager[Watch]]


def _nothing() -> None:
    pass


class TypedWitness:
    """As :class:`~gatherbench.bench.run.check.Witness`, of tables of all types."""

    def __init__(
        self,
        table: TypedTable,
        device: torch.device,
        delivered: Callable[[Tensor], Tensor],
        *,
        floor: bool,
    ) -> None:
        self._each = [Witness(part, device, delivered, floor=floor) for part in table.parts]
        self._counts, self.floor = table.counts, floor
        for one in self._each:
            one.aside_bytes //= len(self._each)

    @property
    def rows(self) -> int:
        """How many have been compared."""
        return sum(one.rows for one in self._each)

    def spots(
        self, batches: int, when: str, first: Callable[[], None] = _nothing
    ) -> AbstractContextManager[Watch]:
        """See :meth:`Witness.spots`; some minibatches of each type."""
        return self._watched(first, lambda one, first: one.spots(batches, when, first))

    def everything(
        self, when: str, first: Callable[[], None] = _nothing
    ) -> AbstractContextManager[Watch]:
        """See :meth:`Witness.everything`."""
        return self._watched(first, lambda one, first: one.everything(when, first))

    @contextmanager
    def _watched(self, first: Callable[[], None], opened: _Open) -> Iterator[Watch]:
        with ExitStack() as stack:
            watches = [stack.enter_context(opened(one, _nothing)) for one in self._each[:-1]]
            # The last is left, and so compares, before the others.
            watches.append(stack.enter_context(opened(self._each[-1], first)))
            yield _TypedLook(watches, self._counts)


def witness_of(
    truth: Tensor | TypedTable,
    device: torch.device,
    delivered: Callable[[Tensor], Tensor],
    *,
    floor: bool,
) -> Witness | TypedWitness:
    """Who compares with the one table, or with one a type."""
    if isinstance(truth, TypedTable):
        return TypedWitness(truth, device, delivered, floor=floor)
    return Witness(truth, device, delivered, floor=floor)


class _TypedLook(Watch):
    """Shows each type's watch what there is of that type in a minibatch."""

    def __init__(self, watches: Sequence[Watch], counts: Sequence[int]) -> None:
        self._watches, self._counts = watches, counts
        self._handed: dict[int, list[Part]] = {}

    def handed(self, number: int, ids: Tensor) -> None:
        parts = self._handed[number] = parted(ids.clone(), self._counts)
        for watch, part in zip(self._watches, parts, strict=True):
            watch.handed(number, part.ids)

    @contextmanager
    def looked_at(self, number: int, ids: Tensor, x: Rows) -> Iterator[None]:
        parts, said = self._handed.pop(number), f"minibatch {number} of the trace"
        if not isinstance(x, TypedRows) or len(x.rows) != len(parts):
            raise WrongRowsError(f"{said}: it has no rows of each type")
        for part, places in zip(parts, x.places, strict=True):
            if not torch.equal(places.cpu(), part.places):
                raise WrongRowsError(f"{said}: rows of a type have the places of other nodes")
        with ExitStack() as stack:
            # What a path does to ids it does to those of the minibatch.
            left = parted(ids, self._counts)
            for watch, part, rows in zip(self._watches, left, x.rows, strict=True):
                stack.enter_context(watch.looked_at(number, part.ids, rows))
            del x  # to be freed by the step, as ever
            yield
