"""A case's managed memory has its rows last; a case without any has none."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.store import PartWriter, read_part, rows_of
from gatherbench.kernels import mapped_memory


def measured(job: Any) -> list[Row]:
    with closing(PartWriter(job.part)) as out:
        assert measure_module.measure(job, out) is None
    return list(rows_of(read_part(job.part)))


def test_a_case_without_managed_memory_says_nothing_of_it(make_job: Any) -> None:
    rows = measured(make_job())
    assert rows
    assert "uvm" not in {row.stage for row in rows}


def test_what_cannot_be_counted_is_said_after_all_that_is_measured(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mapped_memory._managed, 64, 4096)
    rows = measured(make_job())
    before, last = rows[:-6], rows[-6:-1]
    assert rows[-1].stage == "check", "how many rows were compared, when all is over"
    assert [row.stage for row in last] == ["uvm"] * 5
    assert "uvm" not in {row.stage for row in before}
    for row in last:
        assert row.value is None
        assert str(row.reason).startswith("no_device: ")
        assert (row.status, row.epoch) == ("skipped", -1)
