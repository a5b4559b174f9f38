"""What a disk was read for, worked out by hand from rows that were made up."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gatherbench.bench.read.disk_reads import (
    disk_ratios,
    disk_reads,
    disk_strategies,
    disk_workloads,
    in_memory_s,
    over_memory,
)
from gatherbench.bench.read.tables import load_run, only

from ..disk_run import CACHED, DIRECT, FITS, LARGE, MAPPED, write_disk
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


def test_epochs_are_told_over_the_table_in_memory(folder):
    """CPU gather took 1 s on the one workload, and did not run on the other."""
    run = load_run(folder)
    assert disk_workloads(run) == [FITS, LARGE]
    assert in_memory_s(run, FITS) == pytest.approx(1.0)
    assert in_memory_s(run, LARGE) is None
    table = over_memory(run).set_index(["workload", "strategy"])
    assert set(table["family"]) == {"wordnet GraphSAGE", "wordnet GraphSAGE (batch 500)"}
    assert table["epoch"].to_dict() == pytest.approx(
        {
            (FITS, "disk_mmap"): 2, (FITS, "disk_direct"): 4, (FITS, "disk_cached"): 2.5,
            (LARGE, "disk_mmap"): 8, (LARGE, "disk_direct"): 4, (LARGE, "disk_cached"): 2.5,
        }
    )  # fmt: skip
    ends = table.loc[(FITS, "disk_mmap"), ["times", "times_low", "times_high"]]
    assert ends.to_list() == pytest.approx([2, 2, 2])
    assert table.loc[LARGE, "times"].isna().all()


def test_what_is_not_known_has_no_number(make_run):
    table = over_memory(load_run(write_disk(make_run, repeats=1)))
    assert table["epoch"].notna().all()
    assert table[["epoch_low", "epoch_high", "times_low", "times_high"]].isna().all(axis=None)
    run = load_run(write_disk(make_run, "20261123-alone-b"))
    alone = over_memory(only(run, strategies=[DIRECT[0], CACHED[0]]))
    assert alone["times"].isna().all(), "the table was never in memory"
    assert len(alone) == 4


def test_over_a_gather_without_a_quiet_repeat_there_is_no_ratio(make_run):
    """The same where most of the run was disturbed."""
    run = load_run(write_disk(make_run))
    assert over_memory(run)["times"].notna().sum() == 3
    gather = (run.rows["strategy"] == "cpu_gather") & (run.rows["basis"] == "measured")
    every = run.rows["basis"] == "measured"
    for noisy in (gather, every):
        busy = replace(run, rows=run.rows.assign(disturbed=noisy, other_cores=1.5))
        table = over_memory(busy)
        assert table["times"].isna().all()
        assert table["epoch"].notna().all()


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
    assert disk_workloads(run) == []
    assert disk_ratios(run).empty
    assert disk_reads(run).empty
    assert over_memory(run).empty
