"""What a disk was read for, worked out by hand from rows that were made up."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from gatherbench.bench.read.disk import (
    disk_ratios,
    disk_reads,
    disk_strategies,
)
from gatherbench.bench.read.tables import load_run

from ..disk_run import CACHED, DIRECT, LARGE, MAPPED, write_disk
from ..written_run import edit

MakeRun = Callable[..., Path]
NAN = pytest.approx(math.nan, nan_ok=True)


@pytest.fixture
def folder(make_run: MakeRun) -> Path:
    return write_disk(make_run)


def test_bytes_requests_and_hits_are_set_against_the_rows_that_were_read(folder):
    table = disk_reads(load_run(folder)).set_index(["workload", "strategy"])
    assert set(table.index.get_level_values("strategy")) == {"disk_mmap", "disk_direct", CACHED[0]}
    direct, cached, mapped = (table.loc[(LARGE, s[0])] for s in (DIRECT, CACHED, MAPPED))
    # 16 GB for 2 GB; 12 GB for the 3 M rows of 500 B that the cache did not have, declared 1.6 GB.
    assert (direct["amplification"], direct["declared"]) == (8, 8)
    assert (cached["amplification"], cached["declared"]) == (8, 7.5)
    assert (direct["process"], direct["device"]) == (8, 8)
    assert (cached["process"], cached["device"]) == pytest.approx((8, 8.4))
    assert (mapped["process"], mapped["device"]) == pytest.approx((1.5, 1.6))
    assert mapped[["amplification", "declared", "in_memory", "iops"]].isna().all()
    assert (cached["in_memory"], direct["in_memory"]) == (0.25, NAN)
    # 4 M reads in a fetch of 0.8 × 4 s; 3 M in an epoch of 2.5 s, which the fetches run ahead of.
    assert direct["iops"] == pytest.approx(4e6 / 3.2)
    assert cached["iops"] == pytest.approx(3e6 / 2.5)
    # Little's law, reads of 100 µs: 1.25 M and 1.2 M a second.
    assert (direct["in_flight"], cached["in_flight"]) == (pytest.approx(125), pytest.approx(120))
    assert (direct["roof"], mapped["roof"]) == (pytest.approx(6e5 / 0.4), NAN)
    assert (direct["over"], cached["over"]) == ("fetch", "epoch")
    assert (cached["latency_median"], cached["latency_99th"]) == (9e-5, 4e-4)
    assert (direct["engine"], cached["engine"]) == ("io_uring", "threads")
    # 80 MB of rows of 500 B; 4 M of them in 40 minibatches.
    assert (direct["row_bytes"], direct["rows"], direct["ids"]) == (500, 160_000, 100_000)


def test_a_path_that_found_every_row_has_no_bytes_for_a_byte(folder):
    def all_kept(row: dict[str, str]) -> None:
        if row["metric"] == "rows_in_memory":
            row["value"] = "4e6"

    edit(folder, all_kept)
    found = disk_reads(load_run(folder)).set_index("strategy").loc[CACHED[0]]
    assert (found["in_memory"] == 1).all()
    assert found["amplification"].isna().all()


def test_a_run_without_a_disk_has_no_lines(make_run):
    run = load_run(make_run(declared=True))
    assert disk_strategies(run) == []
    assert disk_ratios(run).empty
    assert disk_reads(run).empty
