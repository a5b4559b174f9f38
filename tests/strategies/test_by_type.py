"""A fetcher a type behind one ticket: each row is its type's, at the place that it had."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gatherbench.strategies import by_type
from gatherbench.strategies.base import Fetcher, Residency, SetupStep, Strategy, Ticket
from gatherbench.strategies.by_type import (
    Part,
    TypedFetcher,
    TypedRows,
    TypedTable,
    gathered,
    opened,
    parted,
    typed_data_paths,
    typed_refusal,
)
from gatherbench.strategies.conformance import random_table
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.registry import build

HOST = torch.device("cpu")
#: Those that fetch at once, ahead, and through a staging buffer.
PATHS = [
    build("cpu_gather"),
    build("cpu_gather", {"mode": "prefetch"}),
    build("aligned_zero_copy", {"order": "unique"}),
    build("all_in_gpu"),
    build("async_zero_copy"),
]
HERE = [path for path in PATHS if path.skip(HOST) is None]


def table_of(counts: list[int], widths: list[int], dtype: torch.dtype = torch.int8) -> TypedTable:
    """Random bytes, other ones in each table."""
    each = enumerate(zip(counts, widths, strict=True))
    parts = tuple(random_table(rows, width, dtype, seed=i) for i, (rows, width) in each)
    return TypedTable(parts, tuple(f"type {i}" for i in range(len(counts))))


def by_hand(table: TypedTable, ids: list[int]) -> tuple[list[list[list[int]]], list[list[int]]]:
    """Rows and places of each type, one id after the other."""
    rows: list[list[list[int]]] = [[] for _ in table.parts]
    places: list[list[int]] = [[] for _ in table.parts]
    for place, one in enumerate(ids):
        kind, start = 0, 0
        while one >= start + len(table.parts[kind]):
            start += len(table.parts[kind])
            kind += 1
        rows[kind].append(table.parts[kind][one - start].tolist())
        places[kind].append(place)
    return rows, places


def check(strategy: Strategy, table: TypedTable, batches: list[list[int]], kind: torch.dtype):
    """All minibatches by the path, as many in flight as it allows, each beside :func:`by_hand`."""
    with opened(strategy, table, HOST) as fetcher:
        flight: list[tuple[list[int], Ticket]] = []
        for ids in batches:
            given = torch.tensor(ids, dtype=kind)
            fetcher.announce(given)
            flight.append((ids, fetcher.submit(given)))
            assert given.tolist() == ids
            given.zero_()
            if len(flight) > fetcher.lookahead:
                compare(table, *flight.pop(0))
        for one in flight:
            compare(table, *one)


def compare(table: TypedTable, ids: list[int], ticket: Ticket) -> None:
    found, (rows, places) = ticket.result(), by_hand(table, ids)
    assert isinstance(found, TypedRows)
    assert [one.tolist() for one in found.rows] == rows
    assert [one.tolist() for one in found.places] == places
    assert [one.shape[1] for one in found.rows] == [one.shape[1] for one in table.parts]


@st.composite
def fetches(draw: st.DrawFn) -> tuple[TypedTable, list[list[int]]]:
    shape = st.tuples(st.integers(0, 9), st.integers(1, 70))
    shapes = draw(st.lists(shape, min_size=1, max_size=4).filter(lambda x: sum(n for n, _ in x)))
    counts, widths = [n for n, _ in shapes], [w for _, w in shapes]
    ids = st.lists(st.integers(0, sum(counts) - 1), max_size=40)
    return table_of(counts, widths), draw(st.lists(ids, min_size=1, max_size=4))


@pytest.mark.parametrize("strategy", HERE, ids=lambda one: f"{one.name}-{one.variant}")
@settings(deadline=None, max_examples=25)
@given(drawn=fetches(), kind=st.sampled_from([torch.int32, torch.int64]))
def test_rows_are_those_of_a_plain_gather_a_type(strategy, drawn, kind):
    check(strategy, *drawn, kind)


TABLE = table_of([3, 4, 2], [5, 5, 5])
IDS = [8, 0, 4, 3, 2, 7, 5]


def test_ids_are_parted_by_hand():
    parts = parted(torch.tensor(IDS), [3, 4, 2])
    assert [part.ids.tolist() for part in parts] == [[0, 2], [1, 0, 2], [1, 0]]
    assert [part.places.tolist() for part in parts] == [[1, 4], [2, 3, 6], [0, 5]]


def unshifted(ids: Tensor, counts: list[int]) -> list[Part]:
    """Wrong: ids of a type are not shifted by its start."""
    right = parted(ids, counts)
    return [Part(one.places, ids[one.places] % n) for one, n in zip(right, counts, strict=True)]


def exchanged(ids: Tensor, counts: list[int]) -> list[Part]:
    """Wrong: two types have each other's places."""
    first, second, *rest = parted(ids, counts)
    return [Part(second.places, first.ids), Part(first.places, second.ids), *rest]


def sorted_rows(ids: Tensor, counts: list[int]) -> list[Part]:
    """Wrong: rows of a type lie in the order of the table."""
    return [Part(one.places, one.ids.sort().values) for one in parted(ids, counts)]


WRONG = [unshifted, exchanged, sorted_rows]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_ways_to_part_are_rejected(wrong, monkeypatch):
    check(HERE[0], TABLE, [IDS], torch.int64)
    monkeypatch.setattr(by_type, "parted", wrong)
    with pytest.raises(AssertionError):
        check(HERE[0], TABLE, [IDS], torch.int64)


def test_rows_of_other_types_are_rejected(monkeypatch):
    """As many of each type, and as wide, but of each other's tables."""
    monkeypatch.setattr(TypedFetcher, "_submit", swapped(TypedFetcher._submit))
    table = table_of([2, 2], [3, 3])
    with pytest.raises(AssertionError):
        check(HERE[0], table, [[0, 2]], torch.int64)


def swapped(submit):
    def wrong(self: TypedFetcher, ids: Tensor) -> Ticket:
        ticket = submit(self, ids)
        return mock.Mock(result=lambda: TypedRows(ticket.result().rows[::-1], ticket.places))

    return wrong


@pytest.mark.parametrize("strategy", HERE, ids=lambda one: f"{one.name}-{one.variant}")
def test_what_is_declared_is_the_sum_over_types(strategy):
    batches, tables = [torch.tensor(IDS), torch.tensor([8, 8])], [(3, 20), (4, 132), (2, 7)]
    ways = list(typed_data_paths(strategy, batches, tables))
    # Rows of each type: 2, 3 and 2 of the first minibatch; none, none and 2 of the second.
    assert sum(one.payload_bytes for one in ways) == 2 * 20 + 3 * 132 + 4 * 7
    assert sum(one.arriving_bytes for one in ways) == 2 * 20 + 3 * 132 + 4 * 7
    alone = strategy.data_path(torch.tensor([1, 0, 2]), 132)
    assert alone in ways
    assert [one.payload_bytes for one in ways] == [40, 0, 396, 0, 14, 14]


@pytest.mark.parametrize("bad", [-1, 9])
def test_a_bad_id_raises_before_anything_is_fetched(bad):
    with opened(HERE[0], TABLE, HOST) as fetcher:
        assert isinstance(fetcher, TypedFetcher)
        with pytest.raises(IndexError, match=rf"ids\[1\] = {bad}: the table has rows 0\.\.8"):
            fetcher.submit(torch.tensor([0, bad]))
        assert fetcher.fetched == [0, 0, 0]
        compare(TABLE, IDS, fetcher.submit(torch.tensor(IDS)))
        assert fetcher.fetched == [2, 3, 2]
        fetcher.begin_epoch()
        assert fetcher.fetched == [0, 0, 0]


def test_results_are_gone_with_their_buffers_and_with_the_fetcher():
    with opened(HERE[0], TABLE, HOST) as fetcher:
        first = fetcher.submit(torch.tensor([1, 5]))
        with pytest.raises(RuntimeError, match="1 fetches are in flight"):
            fetcher.submit(torch.tensor([1, 5]))
        first.result()
        last = fetcher.submit(torch.tensor([0]))
        with pytest.raises(RuntimeError, match="these rows are gone"):
            first.result()
    with pytest.raises(RuntimeError, match="closed"):
        last.result()
    with pytest.raises(RuntimeError, match="closed"):
        fetcher.submit(torch.tensor([0]))


class Noted(Fetcher):
    """Notes what it hears."""

    announced = 2

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        self.lookahead, self.heard = 1, list[object]()
        self.setup = [SetupStep("copy", "B", features.nbytes, "nbytes")]

    def residency(self) -> tuple[Residency, ...]:
        return (Residency("Host", "Host", "asked"),)

    def announce(self, ids: Tensor) -> None:
        self.heard.append(ids.tolist())

    def expect(self, minibatches: int) -> None:
        self.heard.append(minibatches)

    def forget(self) -> None:
        self.heard.append("forget")

    def begin_epoch(self) -> None:
        self.heard.append("begin")

    def check_fetched(self) -> None:
        self.heard.append("check")

    def counts(self) -> dict[str, float]:
        return {"swaps": 0, "gather_time": len(self.heard)}

    def _submit(self, ids: Tensor) -> Ticket:
        raise AssertionError("nothing is fetched here")

    def _close(self) -> None:
        self.heard.append("close")


@dataclass(frozen=True)
class Hears(Strategy):
    name: ClassVar[str] = "hears"
    summary: ClassVar[str] = "for tests"
    most: ClassVar[int] = 3
    fetchers: ClassVar[list[Noted]] = []

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return DataPath(0)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        if len(self.fetchers) == self.most:
            raise MemoryError("no room for one more")
        self.fetchers.append(Noted(features, device))
        return self.fetchers[-1]


def test_what_the_loop_says_reaches_each_type(monkeypatch):
    monkeypatch.setattr(Hears, "fetchers", [])
    with opened(Hears(), TABLE, HOST) as fetcher:
        assert (fetcher.lookahead, fetcher.announced) == (1, 2)
        fetcher.expect(7)
        fetcher.forget()
        fetcher.begin_epoch()
        fetcher.announce(torch.tensor(IDS))
        fetcher.check_fetched()
        assert fetcher.counts() == {"swaps": 0, "gather_time": 15}
    for one, ids in zip(Hears.fetchers, [[0, 2], [1, 0, 2], [1, 0]], strict=True):
        assert one.heard == [7, "forget", "begin", ids, "check", "close"]


def test_a_type_that_cannot_be_opened_closes_the_others(monkeypatch):
    monkeypatch.setattr(Hears, "fetchers", [])
    monkeypatch.setattr(Hears, "most", 2)
    with pytest.raises(MemoryError), ExitStack() as stack:
        stack.enter_context(opened(Hears(), TABLE, HOST))
    assert [one.heard for one in Hears.fetchers] == [["close"], ["close"]]


def test_where_each_table_lies_and_what_opening_cost_is_told_a_type(monkeypatch):
    monkeypatch.setattr(Hears, "fetchers", [])
    with opened(Hears(), TABLE, HOST) as fetcher:
        costs = [(step.metric, step.value) for step in fetcher.setup]
        parts = [one.part for one in fetcher.residency()]
    assert costs == [("copy of type 0", 15), ("copy of type 1", 20), ("copy of type 2", 10)]
    assert parts == ["the table of type 0", "the table of type 1", "the table of type 2"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cached_zero_copy", "it has to know of all nodes, and each type has its own table: earl"),
        ("disk_direct", "it has to know of all nodes, and each type has its own table: file"),
        ("auto", "it is measured with one table for all nodes"),
    ],
)
def test_a_path_of_all_nodes_is_refused(name, said):
    assert str(typed_refusal(build(name), HOST)).startswith(f"unsupported: {said}")
    with pytest.raises(ValueError, match=said):
        opened(build(name), TABLE, HOST)


def test_a_share_of_a_gpu_is_taken_once():
    path = build("async_zero_copy")
    assert typed_refusal(path, HOST) is None
    assert "part of the GPU" in str(typed_refusal(path, torch.device("cuda")))


def test_one_table_is_opened_and_gathered_as_ever():
    table = TABLE.parts[1]
    with opened(HERE[0], table, HOST) as fetcher:
        assert not isinstance(fetcher, TypedFetcher)
        rows = fetcher.submit(torch.tensor([3, 1])).result()
    assert torch.equal(rows, table[[3, 1]])
    assert torch.equal(gathered(table, torch.tensor([3, 1])), rows)
