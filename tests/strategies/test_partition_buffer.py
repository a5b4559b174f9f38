"""Partitions: how many swaps an order takes and who meets, rows bit for bit, and reads as told."""

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gatherbench.kernels.disk_read import DiskReadError
from gatherbench.kernels.reference import same_bytes
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies import conformance, partition_buffer
from gatherbench.strategies.base import Fetcher, Minibatches
from gatherbench.strategies.conformance import NonconformingError, random_table
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.partition_buffer import BufferPath, PartitionBuffer
from gatherbench.strategies.partition_orders import ORDERS, Partitions, State, beta

HOST = torch.device("cpu")
Open = Callable[..., tuple[Fetcher, Knowledge]]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Opens the strategy for a table that is written to a file behind a header."""

    def make(
        table: torch.Tensor, parts: Partitions, ahead: str = "0", header: int = 128
    ) -> tuple[Fetcher, Knowledge]:
        row_bytes = table.shape[1] * table.element_size()
        file = TableFile(tmp_path / f"table{header}", header, len(table), row_bytes)
        file.path.write_bytes(bytes(header) + table.view(torch.uint8).numpy().tobytes())
        known = Knowledge(file=file, partitions=parts)
        return PartitionBuffer(ahead=ahead).open(table, HOST, known), known  # type: ignore[arg-type]

    return make


def test_reads_by_hand(opened):
    """Partitions of two rows, each a block of its own: 8192 B in a read."""
    table = random_table(8, 1024, torch.float32)
    fetcher, _ = opened(table, Partitions(4, 2, "sequential"), header=4096)

    def after(*ids: int) -> tuple[int, ...]:
        fetcher.submit(torch.tensor(ids, dtype=torch.int32)).result()
        counted = fetcher.counts()
        names = ("rows_in_memory", "disk_read", "disk_requests", "swaps")
        return tuple(counted[name] for name in names)

    with fetcher:
        assert after(0, 1, 2) == (0, 2 * 8192, 2, 0)
        assert after(3) == (1, 2 * 8192, 2, 0)
        assert after() == (1, 2 * 8192, 2, 0)
        assert after(7, 4, 4) == (1, 4 * 8192, 4, 2)
        fetcher.begin_epoch()
        assert after(0) == (1, 6 * 8192, 6, 2)
        assert after(*range(8)) == (5, 8 * 8192, 8, 4), "of no one state: 2 and 3 out of turn"
        assert after(1) == (5, 10 * 8192, 10, 6), "and 0 and 1 again"
    assert {step.metric: step.value for step in fetcher.setup}["buffer"] == 4 * 4096


def test_partitions_longer_than_a_read(opened, monkeypatch):
    """Header 128 B, two partitions of 10 × 1000 B: blocks 0 to 2, and 2 to 4."""
    monkeypatch.setattr(partition_buffer, "READ_BYTES", 4096)
    table = random_table(20, 250, torch.float32)
    fetcher, _ = opened(table, Partitions(2, 1, "sequential"))
    with fetcher:
        for ids in (torch.arange(10), torch.arange(10, 20)):
            assert same_bytes(fetcher.submit(ids).result(), table[ids]) is None
        assert fetcher.counts() == {
            "rows_in_memory": 0,
            "disk_read": (3 + 3) * 4096,
            "disk_requests": 6,
            "swaps": 1,
        }


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 256), max_size=30), min_size=1, max_size=6),
    st.sampled_from(ORDERS),
    st.sampled_from(["0", "1"]),
)
def test_any_rows_in_any_order_are_served_and_counted_as_told(batches, order, ahead):
    strategy = PartitionBuffer(ahead=ahead)  # type: ignore[arg-type]
    table = random_table(257, 3, torch.float32)
    parts = Partitions(8, 4, order)
    ids = [torch.tensor(batch, dtype=torch.int64) for batch in batches]
    with pytest.MonkeyPatch.context() as patch:
        plain = conformance.known_of
        patch.setattr(
            conformance, "known_of", lambda *given: replace(plain(*given), partitions=parts)
        )
        of = Minibatches(ids, 12, 257, conformance.known_of(strategy, 257))
        told = list(strategy.data_paths(of))
        with conformance.open_known(strategy, table, HOST) as fetcher:
            for batch, path in zip(ids, told, strict=True):
                before = fetcher.counts()
                rows = fetcher.submit(batch).result()
                assert same_bytes(rows, table[batch]) is None
                after = fetcher.counts()
                assert after["disk_read"] - before["disk_read"] == path.disk_bytes
                assert after["disk_requests"] - before["disk_requests"] == path.disk_requests
                kept = after["rows_in_memory"] - before["rows_in_memory"]
                assert path.disk_payload_bytes == 12 * (batch.numel() - kept)
                timed = fetcher.latencies()
                assert timed is not None
                assert timed.sum() == after["disk_requests"]


def test_a_file_that_was_cut_short_is_named_and_nothing_stale_is_served(opened):
    table = random_table(100, 250, torch.float32)
    fetcher, known = opened(table, Partitions(4, 2, "sequential"))
    assert known.file is not None
    whole = known.file.path.read_bytes()
    with fetcher:
        fetcher.submit(torch.arange(50)).result()
        os.truncate(known.file.path, 80_000)
        with pytest.raises(DiskReadError, match=r"byte 80000 could not be read.*cut short"):
            fetcher.submit(torch.arange(50, 100)).result()
        known.file.path.write_bytes(whole)
        ids = torch.arange(50, 100)
        rows = fetcher.submit(ids).result()
        assert same_bytes(rows, table[ids]) is None


def test_a_buffer_that_reads_half_of_a_partition_is_rejected(monkeypatch):
    plain = BufferPath._load

    def load(self: BufferPath, part: int, place: int) -> None:
        begin, end = self._walk.extents[part]
        self._walk.extents[part] = (begin, (begin + end) // 2)
        plain(self, part, place)
        self._walk.extents[part] = (begin, end)

    monkeypatch.setattr(BufferPath, "_load", load)
    with pytest.raises(NonconformingError):
        conformance.check_rows(PartitionBuffer(ahead="0"), HOST, torch.float32, 400)


def swaps(states: tuple[State, ...]) -> int:
    return sum(len({*new} - {*old}) for old, new in pairwise(states))


def by_formula(p: int, c: int) -> int:
    """Of BETA; (x + 1) x is even."""
    x = (p - c) // (c - 1)
    return (p - c) + (x + 1) * (p - c) - (x + 1) * x * (c - 1) // 2


def met(states: tuple[State, ...]) -> set[tuple[int, int]]:
    return {pair for state in states for pair in combinations(sorted(state), 2)}


sizes = st.integers(2, 24).flatmap(lambda p: st.tuples(st.just(p), st.integers(2, p)))


@pytest.mark.parametrize(
    ("p", "c", "count", "least"), [(16, 4, 42, 38), (32, 8, 78, 67), (128, 16, 588, 534)]
)
def test_beta_takes_the_published_number_of_swaps(p, c, count, least):
    assert by_formula(p, c) == swaps(Partitions(p, c, "beta").states()) == count
    assert -(-(p * (p - 1) - c * (c - 1)) // (2 * (c - 1))) == least


@given(sizes, st.integers(0, 5))
def test_beta_has_every_two_partitions_meet_by_single_swaps(size, seed):
    p, c = size
    states = Partitions(p, c, "beta", seed).states()
    assert met(states) == set(combinations(range(p), 2))
    assert all(len({*new} - {*old}) == 1 for old, new in pairwise(states))
    assert {len({*state}) for state in states} == {c}
    assert swaps(states) == by_formula(p, c)


def test_beta_by_hand():
    """0 stays while 2 and 3 pass; then 1, which has not met them, is there with both."""
    states = [{*state} for state in beta([0, 1, 2, 3], 2)]
    assert states == [{0, 1}, {0, 2}, {0, 3}, {1, 3}, {1, 2}, {3, 2}]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 5))
def test_comet_has_every_two_partitions_meet_by_groups(half, times, seed):
    c, p = 2 * half, half * (times + 1)
    states = Partitions(p, c, "comet", seed).states()
    assert met(states) == set(combinations(range(p), 2))
    assert all(len({*new} - {*old}) == half for old, new in pairwise(states))
    if times > 1:
        assert swaps(states) == half * by_formula(times + 1, 2)


@given(sizes)
def test_a_single_pass_brings_each_partition_once(size):
    p, c = size
    states = Partitions(p, c, "sequential").states()
    assert {part for state in states for part in state} == set(range(p))
    assert swaps(states) == p - c
    assert len(states) == -(-p // c)


def test_what_is_random_is_the_seeds():
    first, again, other = (Partitions(16, 4, "beta", seed).states() for seed in (1, 1, 2))
    assert first == again != other
    # A hash does not change: written down once.
    assert Partitions(8, 8, "beta", 0).states() == ((4, 0, 6, 7, 2, 1, 5, 3),)


@given(st.integers(1, 9), st.integers(1, 60))
def test_partitions_are_alike_in_size_and_hold_every_row_once(p, rows):
    assume(p <= rows)
    parts = Partitions(p, p, "sequential")
    bounds = parts.bounds(rows)
    assert (bounds[0], bounds[-1]) == (0, rows)
    assert set(np.diff(bounds)) <= {rows // p, -(-rows // p)}
    of = parts.of(np.arange(rows, dtype=np.int32), rows)
    assert of.tolist() == [k for k in range(p) for _ in range(bounds[k], bounds[k + 1])]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((16, 4, "bta"), "no order is called 'bta'; there are beta, comet, sequential"),
        ((4, 16, "beta"), "a buffer of 16 of 4 partitions: expected 1 to 4"),
        ((4, 0, "sequential"), "a buffer of 0 of 4 partitions: expected 1 to 4"),
        ((4, 1, "beta"), "a buffer of 1 is too small"),
        ((16, 3, "comet"), "3 must be even, and its half divide 16"),
        ((16, 6, "comet"), "6 must be even, and its half divide 16"),
    ],
)
def test_numbers_that_make_no_order_are_refused(numbers, said):
    with pytest.raises(ValueError, match=said):
        Partitions(*numbers)


def test_more_partitions_than_rows_are_refused():
    with pytest.raises(ValueError, match="a table of 15 rows has no 16 partitions: take fewer"):
        Partitions(16, 4, "beta").bounds(15)
