"""Reads a second when a path opens: what is read, by what clock, over which part of the table."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor

from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.launch import Table
from gatherbench.strategies import page_rate
from gatherbench.strategies.page_rate import GATHERS, NEAR_BYTES, page_visit_steps, random_reads

HOST = torch.device("cpu")


@pytest.fixture
def gathers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Table, Tensor]]:
    """Each gather's clock, table and ids: as many ms as its number, ten times over the whole."""
    seen: list[tuple[int, Table, Tensor]] = []
    clock = [0.0]

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = clock[0]

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    def gather(out: Tensor, table: Table, ids: Tensor, point: GridPoint) -> None:
        assert point.index_bytes == ids.element_size()
        assert out.shape == (len(ids), table.row_bytes)
        seen.append((len(seen), table, ids))
        clock[0] += (len(seen) % GATHERS or 4) * (10 if table.num_rows > NEAR_BYTES // 64 else 1)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(page_rate, "gather_into", gather)
    monkeypatch.setattr(page_rate, "READS", 1000)
    return seen


def test_the_whole_table_stands_beside_windows_of_it(gathers):
    """Of 1, 2, 3 and 4 ms the first warms up: 1000 reads in 3 ms near, in 30 over the whole."""
    size = 8 << 30
    whole, near = page_visit_steps(1 << 20, size, HOST)
    assert (whole.metric, whole.unit, whole.reason) == ("page_visit_rate", "1/s", "")
    assert whole.value == pytest.approx(1000 / 30e-3)
    assert (near.metric, near.value) == ("page_visit_rate_near", pytest.approx(1000 / 3e-3))
    tables = [table for _, table, _ in gathers]
    assert tables[:GATHERS] == [Table(1 << 20, size // 64, 64, 64)] * GATHERS
    begins = [(1 << 20) + number * NEAR_BYTES for number in range(GATHERS)]
    assert [table.address for table in tables[GATHERS:]] == begins, "never what the cache has"
    drawn = [ids for _, _, ids in gathers[:GATHERS]]
    assert not torch.equal(drawn[0], drawn[1])


def test_reads_are_random_and_none_is_twice(monkeypatch):
    monkeypatch.setattr(page_rate, "READS", 1000)
    ids = random_reads(5000, 3, HOST)
    assert (int(ids.min()) >= 0, int(ids.max()) < 5000, len(ids.unique())) == (True, True, 1000)
    pages = ids * 64 // 4096
    assert int((pages.diff() != 0).sum()) > 900, "nearly each is on another page"
    assert torch.equal(ids, random_reads(5000, 3, HOST))


def test_a_small_table_has_a_reason(gathers):
    for step in page_visit_steps(0, GATHERS * NEAR_BYTES - 1, HOST):
        assert step.value is None
        assert step.reason == "unsupported: the table is below 256 MiB, which caches may hold"
    assert gathers == []
