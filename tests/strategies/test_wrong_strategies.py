"""Strategies with one mistake each: the conformance checks must reject every one of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from gatherbench.strategies import conformance
from gatherbench.strategies.base import Fetcher, Minibatches, Strategy, Ticket, check_ids
from gatherbench.strategies.buffers import TicketRing
from gatherbench.strategies.conformance import NonconformingError, check_strategy, known_of
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.knowledge import NOTHING, Knowledge

from .right_paths import Made, RightFetcher, WhenUsed

HOST = torch.device("cpu")


class SaysNothingOfWhatIsAhead(RightFetcher):
    lookahead = 1


class OneBuffer(RightFetcher):
    """For whatever is ahead."""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        self.buffer = torch.empty((8192, self.row_width), dtype=self.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        out = self.buffer[: ids.numel()]
        out.copy_(self.table[ids])
        return out


class LateGather(RightFetcher):
    """Gathers when asked for the result, from ids that the caller has changed since."""

    def _submit(self, ids: Tensor) -> Ticket:
        self.ring.claim()
        done: list[Tensor] = []

        def finish() -> Tensor:
            if not done:
                done.append(self.rows(ids))
            return done[0]

        return self.ring.issue(finish)


class CopiesTheTable(RightFetcher):
    """And says nothing of it: later writes do not show."""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        self.table = features.clone()


class MakesRowsWhenAsked(RightFetcher):
    """In the ``result`` of a ticket of its own, which the training calls under whatever mode it has
    switched on; that of :class:`RingTicket` leaves the mode first."""

    def _submit(self, ids: Tensor) -> Ticket:
        inner, made = super()._submit(ids), list[Tensor]()

        class Late:
            def result(self) -> Tensor:
                there = inner.result()
                if not made:
                    made.append(torch.empty(there.shape, dtype=there.dtype).copy_(there))
                return made[0]

        return Late()


class OverwritesUnseen(OneBuffer):
    """By NumPy, of whose writes autograd hears nothing."""

    def rows(self, ids: Tensor) -> Tensor:
        out = self.buffer[: ids.numel()]
        out.view(torch.uint8).numpy()[:] = self.table[ids].view(torch.uint8).numpy()
        return out


class SwallowsBadIds(RightFetcher):
    def submit(self, ids: Tensor) -> Ticket:
        return super().submit(ids.clamp(0, max(self.num_rows - 1, 0)))


class TouchesBeforeItChecks(OneBuffer):
    """Raises as it should, after it has gathered the good ids into the buffer in use."""

    def submit(self, ids: Tensor) -> Ticket:
        if isinstance(ids, Tensor) and ids.dtype in (torch.int32, torch.int64):
            self.buffer.zero_()
        return super().submit(ids)


class NoTicketRules(RightFetcher):
    """Lets any number of fetches be in flight and hands out rows for ever."""

    def _submit(self, ids: Tensor) -> Ticket:
        rows = self.rows(ids)
        return TicketRing(1).issue(lambda: rows)


class FreshTensorEachTime(RightFetcher):
    def _submit(self, ids: Tensor) -> Ticket:
        self.ring.claim()
        ids = ids.clone()
        return self.ring.issue(lambda: self.rows(ids))


class OpenAfterClose(RightFetcher):
    def submit(self, ids: Tensor) -> Ticket:
        check_ids(ids, self.num_rows, self.ids_device)
        return self._submit(ids)


class CountsHitsThatNobodyTold(RightFetcher):
    fetches = 0

    def rows(self, ids: Tensor) -> Tensor:
        self.fetches += 1
        return super().rows(ids)

    def counts(self) -> dict[str, int]:
        return {"rows_on_device": self.fetches}


class GathersWhenUsed(RightFetcher):
    """In the stage ``train``, where no fetch is timed."""

    def rows(self, ids: Tensor) -> Tensor:
        later = torch.empty(0).as_subclass(WhenUsed)  # type: ignore[arg-type]
        ids, known = ids.clone(), functools.cache(lambda: self.table[ids])
        later.gather = known
        return later


def truncated_tail(self: RightFetcher, ids: Tensor) -> Tensor:
    """Copies whole 16 B vectors and forgets what is left of the row."""
    whole = self.row_width * self.table.element_size() // 16 * 16
    out = torch.zeros((ids.numel(), self.row_width), dtype=self.dtype)
    out.view(torch.uint8)[:, :whole] = self.table[ids].view(torch.uint8)[:, :whole]
    return out


def truncated_batch(self: RightFetcher, ids: Tensor) -> Tensor:
    """Leaves out the batch's rows that do not fill a block of 32."""
    out = torch.zeros((ids.numel(), self.row_width), dtype=self.dtype)
    whole = ids.numel() // 32 * 32
    out[:whole] = self.table[ids[:whole]]
    return out


def spoils_the_table(self: RightFetcher, ids: Tensor) -> Tensor:
    rows = self.table[ids]
    if self.num_rows:
        self.table.view(torch.uint8)[0, 0] += 1
    return rows


def sorts_the_ids_of_the_caller(self: RightFetcher, ids: Tensor) -> Tensor:
    """Of large minibatches, to read the table in order."""
    return self.table[ids.copy_(ids.sort().values) if len(ids) > 2000 else ids]


def clears_the_ids_of_the_caller(self: RightFetcher, ids: Tensor) -> Tensor:
    """Once it has read the rows."""
    rows = self.table[ids]
    if len(ids) > 2000:
        ids.zero_()
    return rows


def loses_nan_payloads(self: RightFetcher, ids: Tensor) -> Tensor:
    rows = self.table[ids]
    if not rows.is_floating_point():
        return rows
    return torch.where(rows.isnan(), torch.full_like(rows, float("nan")), rows)


#: What is fetched in place of ``self.table[ids]``.
WRONG_ROWS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "off by one row": lambda self, ids: self.table[(ids + 1).clamp(max=self.num_rows - 1)],
    "last row missed": lambda self, ids: self.table[ids.clamp(max=max(self.num_rows - 2, 0))],
    "sorted and left so": lambda self, ids: self.table[torch.sort(ids).values],
    "unique and left so": lambda self, ids: self.table[torch.unique(ids)],
    "of another dtype": lambda self, ids: self.table[ids].float(),
    "rows to spare": lambda self, ids: torch.cat([self.table[ids], torch.zeros(8, self.row_width)]),
    "elsewhere": lambda self, ids: self.table[ids].to("meta"),
    "truncated tail": truncated_tail,
    "truncated batch": truncated_batch,
    "spoils the table": spoils_the_table,
    "sorts the ids of the caller": sorts_the_ids_of_the_caller,
    "clears the ids of the caller": clears_the_ids_of_the_caller,
    "loses NaN payloads": loses_nan_payloads,
}
ONLY_OF_LARGE_MINIBATCHES = {"sorts the ids of the caller", "clears the ids of the caller"}
#: Other tests change the right path, too.
OURS = [one for one in RightFetcher.__subclasses__() if one.__module__ == __name__]
WRONG_FETCHERS: dict[str, type[Fetcher]] = {
    **{one.__name__: one for one in OURS if one is not OneBuffer},
    **{one.__name__: one for one in (OverwritesUnseen, TouchesBeforeItChecks)},
    **{name: type("Wrong", (RightFetcher,), {"rows": rows}) for name, rows in WRONG_ROWS.items()},
}


def learns_without_a_word(self: Strategy, of: Minibatches) -> Iterator[DataPath]:
    """Once a minibatch was fetched, the CPU reads less."""
    saved = sum(len(ids) for ids in of.before) > 0
    for ids in of.batches:
        path = self.data_path(ids, of.row_bytes)
        yield replace(path, cpu_read_bytes=path.cpu_read_bytes // (1 + saved))


def opens_without_a_graph(
    self: Any, features: Tensor, device: torch.device, knowledge: Knowledge = NOTHING
) -> Fetcher:
    return Made.open(self, features, device, known_of(self, len(features)))


def takes_any_table(
    self: Any, features: Any, device: torch.device, knowledge: Knowledge = NOTHING
) -> Fetcher:
    """A transposed one by copying it, unasked."""
    table = features.contiguous() if isinstance(features, Tensor) else features
    return Made.open(self, table, device, knowledge)


def path(
    of: Callable[[Tensor, int], DataPath],
) -> dict[str, Callable[[Strategy, Tensor, int], DataPath]]:
    return {"data_path": lambda _self, ids, row_bytes: of(ids, row_bytes)}


#: What is other than in :class:`Made`.
WRONG_STRATEGIES: dict[str, dict[str, Any]] = {
    "one batch ahead and one buffer for both": {
        "lookahead": 1,
        "fetcher": type("Ahead", (OneBuffer,), {"lookahead": 1}),
    },
    "payload of one row": path(lambda _, size: DataPath(size, copy_engine_bytes=size)),
    "nothing crosses": path(lambda ids, size: DataPath(ids.numel() * size)),
    "has every row on the GPU, where it takes no memory": path(
        lambda ids, size: DataPath(ids.numel() * size, copy_engine_bytes=8 * ids.numel())
    ),
    "the CPU writes rows that it does not read": path(
        lambda ids, size: replace(Made().data_path(ids, size), cpu_read_bytes=0)
    ),
    "knows what is measured": {"needs": frozenset({"measured"})},
    "opens without a graph": {"needs": frozenset({"graph"}), "open": opens_without_a_graph},
    "learns without a word": {"data_paths": learns_without_a_word},
    "any table": {"open": takes_any_table},
    "any device": {"skip": lambda _self, device, table_bytes=0: None},
    "reason in prose": {
        "skip": lambda _self, device, table_bytes=0: "host only" if device.type != "cpu" else None
    },
    "keeps more than there is": {"kept_bytes": lambda _self, size, knowledge=NOTHING: size + 1},
    "loses one": {"data_paths": lambda self, of: islice(Made.data_paths(self, of), 1, None)},
}


def test_the_fetcher_that_the_wrong_ones_spoil_is_right():
    check_strategy(Made(), HOST)


@dataclass(frozen=True)
class FirstRowsKept(Made):
    """Brings the rows from ``FIRST`` on; the others lie on the GPU."""

    FIRST: ClassVar[int] = 100
    SAID: ClassVar[int] = 100 * 129

    def kept_bytes(self, table_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        return self.SAID

    def data_paths(self, of: Minibatches) -> Iterator[DataPath]:
        for ids in of.batches:
            path = self.data_path(ids[ids >= self.FIRST], of.row_bytes)
            sent = path.copy_engine_bytes + 8 * ids.numel()
            payload = ids.numel() * of.row_bytes
            here = payload - path.payload_bytes
            yield replace(
                path, payload_bytes=payload, copy_engine_bytes=sent, gpu_memory_bytes=here
            )


def test_a_path_that_keeps_some_rows_is_right_if_it_says_how_much_that_is():
    conformance.check_data_path(FirstRowsKept(), HOST)
    forgets = type("Forgets", (FirstRowsKept,), {"SAID": 99 * 129})
    with pytest.raises(NonconformingError, match="12900 B of distinct rows come from GPU memory"):
        conformance.check_data_path(forgets(), HOST)


WRONG: dict[str, Strategy] = {
    **{name: type("Wrong", (Made,), {"fetcher": one})() for name, one in WRONG_FETCHERS.items()},
    **{name: type("Wrong", (Made,), members)() for name, members in WRONG_STRATEGIES.items()},
}


def rejects(check: Callable[[Strategy, torch.device], None], name: str) -> bool:
    """Whether the check by itself rejects a wrong strategy."""
    try:
        check(WRONG[name], HOST)
    except NonconformingError as error:
        return str(error).startswith("made (default): ")
    except Exception:
        return False
    return False


#: Mistakes of what a strategy declares.
DECLARED = (*list(WRONG_STRATEGIES)[1:8], *list(WRONG_STRATEGIES)[-2:])
#: Which check is meant for which mistakes.
MEANT: dict[Callable[[Strategy, torch.device], None], tuple[str, ...]] = {
    conformance.check_shapes: (*WRONG_ROWS.keys() - ONLY_OF_LARGE_MINIBATCHES, "GathersWhenUsed"),
    conformance.check_pipeline: (
        *ONLY_OF_LARGE_MINIBATCHES,
        *("SaysNothingOfWhatIsAhead", "LateGather", "FreshTensorEachTime"),
        "one batch ahead and one buffer for both",
    ),
    conformance.check_flight_rules: ("NoTicketRules", "OpenAfterClose"),
    conformance.check_bad_ids: ("SwallowsBadIds", "TouchesBeforeItChecks"),
    conformance.check_bad_tables: ("any table", "any device", "reason in prose"),
    conformance.check_data_path: ("CountsHitsThatNobodyTold", *DECLARED),
    conformance.check_modes: ("MakesRowsWhenAsked",),
    conformance.check_changes: ("CopiesTheTable", "OverwritesUnseen"),
}


@pytest.mark.parametrize(
    ("check", "name"), [(check, name) for check in MEANT for name in sorted(MEANT[check])]
)
def test_what_is_wrong_is_rejected_by_the_check_that_is_meant_for_it(check, name):
    assert rejects(check, name)


def test_each_check_is_needed_and_each_mistake_has_its_check():
    assert list(MEANT) == conformance.CHECKS
    assert sorted(name for names in MEANT.values() for name in names) == sorted(WRONG)


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (
            lambda ids, rows: rows.dtype == torch.bfloat16,
            "empty torch.int32 ids, torch.bfloat16 rows of 100 B: RuntimeError: Got unsupported",
        ),
        (
            lambda ids, rows: ids.dtype == torch.int32 and len(ids) > 1,
            "repeated torch.int32 ids, torch.int8 rows of 1 B: RuntimeError: Got unsupported",
        ),
        (lambda ids, rows: len(ids) == 5000, "fetches in flight, of changing size, from one ids"),
    ],
    ids=["dtype", "ids", "many"],
)
def test_an_error_of_the_path_says_what_it_was_given(fails, said):
    def rows(self: RightFetcher, ids: Tensor) -> Tensor:
        if fails(ids, self.table):
            raise RuntimeError("Got unsupported ScalarType BFloat16")
        return self.table[ids]

    fetcher = type("Fails", (RightFetcher,), {"rows": rows})
    with pytest.raises(NonconformingError) as caught:
        check_strategy(type("Wrong", (Made,), {"fetcher": fetcher})(), HOST)
    assert said in str(caught.value)
    assert "Got unsupported ScalarType BFloat16" in str(caught.value)
