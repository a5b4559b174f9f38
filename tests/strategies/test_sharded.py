"""Rows spread over ranks: the same bytes as ever, each row once, and no rank waits for ever."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from host_paths import HOST
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_processes import DIED, on_ranks
from torch import Tensor

import gatherbench
from gatherbench.kernels.host_gather import HostGather
from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import conformance, rank_exchange, sharded
from gatherbench.strategies.base import Fetcher
from gatherbench.strategies.conformance import known_of, open_known, random_table
from gatherbench.strategies.data_path import DataPath, zero_copy_path
from gatherbench.strategies.host_fetcher import HostFetcher
from gatherbench.strategies.knowledge import Knowledge, Ranks
from gatherbench.strategies.rank_exchange import Asked, split
from gatherbench.strategies.registry import build
from gatherbench.strategies.sharded import Sharded, ShardedPath

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

#: Each word of each parameter.
VARIANTS = [Sharded(), Sharded("gpu", "0", "10%")]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Forked ranks find the loops compiled."""
    HostGather().close()


@pytest.mark.parametrize(
    ("world", "strategy"), [(2, VARIANTS[0]), (2, VARIANTS[1]), (3, Sharded(hot="10%"))], ids=str
)
def test_ranks_keep_the_contract(world, strategy, tmp_path, monkeypatch):
    monkeypatch.setattr(rank_exchange, "ROUND_BYTES", 65536)  # 16 rows of 4 KiB

    def work(_rank: int) -> None:
        conformance.check_strategy(strategy, HOST)

    assert on_ranks(world, work, tmp_path) == [None] * world


def minibatches(rank: int, world: int) -> Iterator[Tensor]:
    """Ids below 100, others on each rank: none, all with one rank, repeated, int32 and int64."""
    generator = torch.Generator().manual_seed(rank)
    for step in range(12):
        ids = torch.randint(0, 100, (40 * (rank + 1),), generator=generator)
        if step % 4 == 1:
            ids = ids // world * world + step % world  # all of one rank
            ids = ids[ids < 100]
        elif step % 4 == 2 and rank == step % world:
            ids = ids[:0]
        elif step % 4 == 3:
            ids = ids[:1].repeat(50)
        yield ids.to(torch.int32 if (step + rank) % 2 else torch.int64)


@dataclass(frozen=True)
class Traffic:
    """Bytes of rows that a rank got from each rank, the most at a time, and how often all spoke."""

    bytes_from: list[int]
    most: int
    calls: int


def traffic_of(world: int, work: Callable[[], None]) -> Traffic:
    """What ``all_to_all_single`` brings while ``work`` goes on."""
    came, most, calls = [0] * world, 0, 0
    exchange = dist.all_to_all_single

    def counted(got: Tensor, sent: Tensor, get: list[int], *rest: object) -> None:
        nonlocal most, calls
        exchange(got, sent, get, *rest)
        if got.dtype == torch.uint8:
            calls += 1
            sizes = [count * got.shape[1] for count in get]
            most = max(most, *sizes)
            came[:] = [a + b for a, b in zip(came, sizes, strict=True)]

    dist.all_to_all_single = counted
    try:
        work()
    finally:
        dist.all_to_all_single = exchange
    return Traffic(came, most, calls)


@pytest.mark.parametrize("strategy", VARIANTS, ids=lambda s: s.variant)
def test_each_row_crosses_once_and_as_declared(strategy, tmp_path, monkeypatch):
    """Other minibatches on each of three ranks: all to themselves, or two on one machine."""
    monkeypatch.setattr(rank_exchange, "ROUND_BYTES", 250)  # two rows of 100 B
    table = random_table(100, 25, torch.float32)

    def work(rank: int) -> tuple[list[int], Traffic]:
        batches = list(minibatches(rank, 3))
        known = replace(known_of(strategy, 100), ranks=Ranks(rank, 3, 1))
        paths = list(strategy.data_paths(batches, 100, 100, known))

        def fetch() -> None:
            for ids in batches:
                rows = fetcher.submit(ids).result()
                assert same_bytes(rows, reference_gather(table, ids)) is None

        with strategy.open(table, HOST, known) as fetcher:
            found = traffic_of(3, fetch)
            kept = sum(path.gpu_memory_bytes for path in paths)
            assert fetcher.counts()["rows_on_device"] == kept // 100
        assert sum(path.peer_bytes for path in paths) == 0, "three machines"
        return [path.network_bytes for path in paths], found

    told = on_ranks(3, work, tmp_path, local_world=1)
    for rank, (declared, found) in enumerate(told):  # type: ignore[misc]
        assert sum(declared) == sum(found.bytes_from) > 0
        assert found.bytes_from[rank] == 0
        assert found.most == 200
    assert len({found.calls for _, found in told}) == 1  # type: ignore[misc]


def test_fetches_that_run_ahead_do_not_mix_with_the_default_group(tmp_path):
    table = random_table(300, 64, torch.float32)

    def work(rank: int) -> list[float]:
        sums = []
        generator = torch.Generator().manual_seed(rank)
        with open_known(Sharded(), table, HOST) as fetcher:
            for step in range(50):
                ids = torch.randint(0, 300, (200,), generator=generator)
                ticket = fetcher.submit(ids)
                gradient = torch.full((1000,), float(step + rank))
                dist.all_reduce(gradient)
                sums += [float(gradient.min()), float(gradient.max())]
                assert same_bytes(ticket.result(), reference_gather(table, ids)) is None
        return sums

    expected = [float(2 * step + 1) for step in range(50) for _ in "ab"]
    assert on_ranks(2, work, tmp_path) == [expected, expected]


def test_a_rank_that_dies_makes_the_others_raise(tmp_path):
    table = random_table(90, 8, torch.float32)

    def work(rank: int) -> None:
        with open_known(Sharded(), table, HOST) as fetcher:
            for step in range(1000):
                if (rank, step) == (1, 5):
                    os.kill(os.getpid(), signal.SIGKILL)
                fetcher.submit(torch.arange(90)).result()

    first, dead, last = on_ranks(3, work, tmp_path, timeout_s=5)
    assert dead == DIED
    assert "RuntimeError" in str(first)
    assert "RuntimeError" in str(last)


def test_a_rank_that_fetches_no_more_makes_the_others_raise_after_the_groups_timeout(tmp_path):
    """The default group's, which a new group does not have of itself."""
    over = tmp_path / "over"

    def work(rank: int) -> None:
        with open_known(Sharded(), random_table(90, 8, torch.float32), HOST) as fetcher:
            fetcher.submit(torch.arange(90)).result()
            if rank == 0:
                try:
                    fetcher.submit(torch.arange(90)).result()
                finally:
                    over.touch()
            while not over.exists():
                time.sleep(0.01)

    silent, quiet = on_ranks(2, work, tmp_path, timeout_s=1)
    assert "Timed out" in str(silent)
    assert quiet is None


def test_a_fetch_that_other_ranks_wait_for_is_not_dropped(tmp_path):
    """One rank closes with fetches in flight, of which the other takes both results."""
    table = random_table(90, 512, torch.float32)

    def work(rank: int) -> None:
        for _ in range(5):
            fetcher = open_known(Sharded(), table, HOST)
            tickets = [fetcher.submit(torch.arange(90)) for _ in range(2)]
            if rank == 0:
                assert all(same_bytes(ticket.result(), table) is None for ticket in tickets)
            fetcher.close()

    assert on_ranks(2, work, tmp_path) == [None, None]


class ForgetsToExpand(ShardedPath):
    """Hands out the distinct rows, in the order in which they came."""

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        split, last = self._part.exchange.split, len(torch.unique(ids)) - 1

        def as_they_come(ids: Tensor, slots: Tensor | None) -> Asked:
            return replace(split(ids, slots), expand=torch.arange(len(ids)).clamp(max=last))

        with patch.object(self._part.exchange, "split", as_they_come):
            super().fetch(ids, out)


class SendsTheRowBefore(ShardedPath):
    def _serve(self, wanted: Tensor) -> Tensor:
        return super()._serve((wanted - 1).clamp(0))


class DropsTheLastRounds(ShardedPath):
    def fetch(self, ids: Tensor, out: Tensor) -> None:
        rounds = self._part.exchange.rounds
        with patch.object(self._part.exchange, "rounds", lambda asked: rounds(asked)[:1]):
            super().fetch(ids, out)


@dataclass(frozen=True)
class Wrong(Sharded):
    """Opens what ``path`` says."""

    path: Callable[..., ShardedPath] = ShardedPath

    def __post_init__(self) -> None: ...

    def _fetcher(self, part, features, device, setup) -> Fetcher:  # type: ignore[no-untyped-def]
        return HostFetcher(self.path(part, False), features, self.lookahead)


@dataclass(frozen=True)
class PeersTooFew(Sharded):
    """Declares that a row of another rank was there already."""

    def _path(self, ids: Tensor, row_bytes: int, ranks: Ranks, slots: Tensor | None) -> DataPath:
        path = super()._path(ids, row_bytes, ranks, slots)
        less = min(row_bytes, path.peer_bytes)
        return replace(
            path, peer_bytes=path.peer_bytes - less, gpu_memory_bytes=path.gpu_memory_bytes + less
        )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Wrong(path=ForgetsToExpand), "rows differ"),
        (Wrong(path=SendsTheRowBefore), "rows differ"),
        (Wrong(path=DropsTheLastRounds), "rows differ"),
        (PeersTooFew(), "rows came from the device's memory|come from GPU memory"),
    ],
)
def test_wrong_variants_are_rejected_by_the_ranks(wrong, said, tmp_path, monkeypatch):
    monkeypatch.setattr(rank_exchange, "ROUND_BYTES", 4096)

    def work(_rank: int) -> None:
        for check in (
            conformance.check_data_path,
            conformance.check_knowledge,
            lambda *what: conformance.check_rows(*what, torch.float32, 400),
        ):
            check(wrong, HOST)

    found = on_ranks(2, work, tmp_path, timeout_s=5)
    assert None not in found
    assert [one for one in found if re.match(f"NonconformingError: .*({said})", str(one))]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 60), max_size=80),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sets(st.integers(0, 60), max_size=20),
    st.data(),
)
def test_who_has_what(ids, world, rows_a_round, hot, data):
    """Against a plain list of the rows in the order in which they have to come."""
    rank = data.draw(st.integers(0, world - 1))
    kept = sorted(hot)
    slots = torch.full((61,), -1, dtype=torch.int32)
    slots[kept] = torch.arange(len(kept), dtype=torch.int32)
    kind = data.draw(st.sampled_from([torch.int32, torch.int64]))
    asked = split(
        torch.tensor(ids, dtype=kind), Ranks(rank, world, 1), rows_a_round, slots if kept else None
    )
    cold = [i for i in sorted(set(ids)) if i not in hot]
    of = [[i for i in cold if i % world == r] for r in range(world)]
    others = [[] if r == rank else of[r] for r in range(world)]
    come = [
        i
        for begin in range(0, 61, rows_a_round)
        for rows in others
        for i in rows[begin : begin + rows_a_round]
    ]
    hit = [i for i in sorted(set(ids)) if i in hot]
    order = [*come, *of[rank], *hit]
    numbers = [i // world for i in (*come, *of[rank])] + [kept.index(i) for i in hit]
    assert asked.rows.tolist() == numbers
    assert [order[k] for k in asked.expand.tolist()] == ids
    assert asked.counts.tolist() == [len(rows) for rows in others]
    assert (asked.sent, asked.own, asked.hot) == (len(come), len(of[rank]), len(hit))
    assert {t.dtype for t in (asked.rows, asked.expand, asked.counts)} == {torch.int64}


IDS = torch.tensor([5, 5, 2, 3, 0, 9, 10], dtype=torch.int32)
#: Rank 1 of four has rows 1, 5, 9; rank 0, of the same machine, has row 0.
SECOND_OF_FOUR = Knowledge(ranks=Ranks(1, 4, 2))


def test_the_path_of_a_minibatch_by_hand():
    (path,) = Sharded().data_paths([IDS], 400, 11, SECOND_OF_FOUR)
    read = zero_copy_path(torch.tensor([1, 2]), 400, "aligned", "given")  # 5 and 9, in its part
    assert path == DataPath(
        payload_bytes=2800,
        copy_engine_bytes=7 * 4,
        gpu_link_read_bytes=800,
        gpu_memory_bytes=400,  # 5 again
        peer_bytes=400,  # 0
        network_bytes=1200,  # 2, 3 and 10
        gpu_requests=read.gpu_requests,
        gpu_page_visits=1,
    )
    (path,) = Sharded("gpu").data_paths([IDS], 400, 11, SECOND_OF_FOUR)
    assert path == DataPath(
        payload_bytes=2800,
        copy_engine_bytes=28,
        gpu_memory_bytes=1200,
        peer_bytes=400,
        network_bytes=1200,
        gpu_requests={},
    )


def test_hot_rows_are_not_asked_for():
    """Of 20 rows two are kept: 2, and 5, which this rank has as well."""
    known = replace(
        known_of(Sharded(hot="10%"), 20),
        earlier=lambda _epoch: [torch.tensor([2, 5]), torch.tensor([5, 2])],
        ranks=SECOND_OF_FOUR.ranks,
    )
    (path,) = Sharded(hot="10%").data_paths([IDS], 400, 20, known)
    assert (path.gpu_link_read_bytes, path.peer_bytes, path.network_bytes) == (400, 400, 800)
    assert path.gpu_memory_bytes == 3 * 400  # 5, 5 and 2
    assert path.arriving_bytes == path.payload_bytes


def test_one_rank_reads_each_row_where_it_lies():
    for ids in (IDS, IDS[:0]):
        assert Sharded().data_path(ids, 400) == zero_copy_path(ids, 400, "aligned", "unique")
    assert Sharded("gpu").data_path(IDS, 400) == build("all_in_gpu").data_path(IDS, 400)


@pytest.mark.parametrize(
    ("strategy", "world", "kept"),
    [
        (Sharded(), 4, 0),
        (Sharded("gpu"), 4, 250),
        (Sharded("gpu"), 3, 334),
        (Sharded(hot="10%"), 4, 100),
        (Sharded("gpu", hot="10%"), 4, 350),
        (Sharded("gpu", hot="10%"), 1, 1000),  # nothing is kept twice
        (Sharded(hot="10%"), 1, 100),
    ],
)
def test_how_much_a_gpu_keeps(strategy, world, kept):
    assert strategy.gpu_table_bytes(1000, Knowledge(ranks=Ranks(0, world, 1))) == kept


def test_ranks_without_a_group_are_told_what_is_missing():
    with pytest.raises(ValueError, match="init_process_group"):
        Sharded().open(torch.zeros(3, 2), HOST, Knowledge(ranks=Ranks(0, 2, 2)))


def test_one_rank_in_a_loop_of_ones_own(monkeypatch):
    table, ids = torch.randn(10, 4), torch.tensor([3, 8, 3])
    with gatherbench.unified(table, "sharded") as features:
        assert torch.equal(features[ids], table[ids])
    assert sharded.own_rows(table, Ranks(0, 1, 1)) is table
    monkeypatch.setattr(
        sharded, "no_room", lambda device, size, what: f"{what}: {size} on {device}"
    )
    assert Sharded().skip(HOST, 10) == "the part that a rank keeps: 0 on cpu"
