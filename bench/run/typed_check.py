"""Correctness where each type of nodes has a table of its own: a witness a type.

Rows of each type are compared with its own table, and the places that they claim in the minibatch
with those that its ids have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor

from gatherbench.bench.run.check import SPOT_BATCHES, SPOT_ROWS, Witness, WrongRowsError
from gatherbench.bench.run.loop import Watch
from gatherbench.strategies.by_type import Part, Rows, TypedRows, TypedTable, parted


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
        """See :meth:`Witness.spots`; the same minibatches of each type."""
        drawn = self._each[0].draw.sample(range(batches), min(SPOT_BATCHES, batches))
        return self._watched(when, first, set(drawn).__contains__, SPOT_ROWS)

    def everything(
        self, when: str, first: Callable[[], None] = _nothing
    ) -> AbstractContextManager[Watch]:
        """See :meth:`Witness.everything`."""
        return self._watched(when, first, lambda _number: True, None)

    @contextmanager
    def _watched(
        self, when: str, first: Callable[[], None], chosen: Callable[[int], bool], rows: int | None
    ) -> Iterator[Watch]:
        # The last is left, and so compares, before the others.
        firsts = [*[_nothing] * (len(self._each) - 1), first]
        with ExitStack() as stack:
            opened = (
                one.everything(when, its, chosen, rows)
                for one, its in zip(self._each, firsts, strict=True)
            )
            yield _TypedLook([stack.enter_context(one) for one in opened], self._counts, chosen)


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

    def __init__(
        self, watches: Sequence[Watch], counts: Sequence[int], chosen: Callable[[int], bool]
    ) -> None:
        self._watches, self._counts, self._chosen = watches, counts, chosen
        self._handed: dict[int, list[Part]] = {}

    def handed(self, number: int, ids: Tensor) -> None:
        if self._chosen(number):  # of the others nothing is parted: it takes time
            parts = self._handed[number] = parted(ids, self._counts)
            for watch, part in zip(self._watches, parts, strict=True):
                watch.handed(number, part.ids)

    @contextmanager
    def looked_at(self, number: int, ids: Tensor, x: Rows) -> Iterator[None]:
        said, mine = f"minibatch {number} of the trace", [ids] * len(self._watches)
        if not isinstance(x, TypedRows) or len(x.rows) != len(mine):
            raise WrongRowsError(f"{said}: it has no rows of each type")
        if (handed := self._handed.pop(number, None)) is not None:
            for part, places in zip(handed, x.places, strict=True):
                if not torch.equal(places.cpu(), part.places):
                    raise WrongRowsError(f"{said}: rows of a type have the places of other nodes")
            # What a path does to ids it does to those of the minibatch.
            mine = [part.ids for part in parted(ids, self._counts)]
        with ExitStack() as stack:
            for watch, one, rows in zip(self._watches, mine, x.rows, strict=True):
                stack.enter_context(watch.looked_at(number, one, rows))
            del x, rows  # to be freed by the step, as ever
            yield
