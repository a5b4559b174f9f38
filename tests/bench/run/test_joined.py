"""What ranks measured makes the rows of their case: each rule worked out by hand."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatherbench.bench.run.joined import joined
from gatherbench.bench.run.part import PartWriter, read_part, rows_of
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.outside import fresh

MAKE = RowMaker("run", "abc", "box", "host", "w", "tiny", "cpu_gather", "pinned", 0)


def of_rank(rank: int, *observations: tuple[str, str, str, float, int]) -> list[Row]:
    make = replace(MAKE, rank=rank)
    return [make.ok(s, m, unit, value, "clock", epoch) for s, m, unit, value, epoch in observations]


def whole(folder: Path, ranks: Iterable[list[Row]]) -> list[Row]:
    path = fresh(folder / "part.jsonl")
    with closing(PartWriter(path)) as out:
        joined(list(ranks), out)
    return rows_of(read_part(path))


def test_an_epoch_is_its_slowest_rank_and_its_stages_are_means(tmp_path):
    times = (((2.0, 1.5), (1.0, 0.75)), ((1.9, 2.0), (1.1, 0.25)))  # by rank and epoch
    ranks = [
        of_rank(rank, *(
            (stage, "wall_time", "s", seconds, epoch)
            for epoch, both in enumerate(of)
            for stage, seconds in zip(("epoch", "fetch"), both, strict=True)
        ))
        for rank, of in enumerate(times)
    ]  # fmt: skip
    rows = whole(tmp_path, ranks)
    assert {(r.stage, r.epoch): (r.value, r.rank) for r in rows} == {
        ("epoch", 0): (2.0, -1),
        ("fetch", 0): (1.75, -1),
        ("epoch", 1): (1.1, -1),
        ("fetch", 1): (0.5, -1),
    }
    assert rows[0].source == "clock; rank 0, the slowest"


@pytest.mark.parametrize(
    ("expected", "how", "metrics"),
    [
        (10, "sum of 4 ranks", "fetch.payload.B epoch.cpu_user.s energy.gpu_energy.J "
         # What a process itself read off a disk adds up.
         "epoch.gpu_power.W epoch.disk_read.B fetch.disk_requests.1"),
        (10, "sum of 4 ranks, what they share counted for each", "epoch.peak_rss.B"),
        (2.5, "mean of 4 ranks", "train.loss.1 wait.wall_time.s harness.overhead.s"),
        (4, "longest of 4 ranks", "setup.open_time.s fetch.disk_latency_99th.s"),
        (1, "as the first rank saw it", "epoch.system_cpu_busy.s epoch.system_cpu_steal.s "
         "epoch.cpu_package_energy.J epoch.cpu_dram_energy.J epoch.disk_read_device.B "
         "epoch.disk_reads_device.1"),
    ],
)  # fmt: skip
def test_what_the_ranks_make_together(expected, how, metrics, tmp_path):
    for metric in metrics.split():
        stage, name, unit = metric.split(".")
        ranks = [of_rank(r, (stage, name, unit, value, -1)) for r, value in enumerate((1, 4, 2, 3))]
        (row,) = whole(tmp_path, ranks)
        assert (row.value, row.source) == (expected, f"clock; {how}"), metric


@pytest.mark.parametrize(
    "metric",
    [
        # Joules of all ranks are over as many epochs as each ran, not over all of theirs together.
        "energy.epochs.1", "all_reduce.payload.B", "fetch.row.B", "fetch.lookahead.1",
        "fetch.gpu_share.1", "fetch.gpu_table.B", "setup.numa_node.1", "check.residency.1",
        "setup.table_load_time.s", "setup.table.B",
    ],
)  # fmt: skip
def test_what_is_alike_is_not_added_up_and_what_nobody_can_add_is_left_out(metric, tmp_path):
    seen = ((*metric.split("."), 3.0, -1), ("epoch", "gpu_temperature", "K", 300.0, 0))
    (row,) = whole(tmp_path, [of_rank(rank, *seen) for rank in (0, 1)])
    assert (f"{row.stage}.{row.metric}.{row.unit}", row.value, row.source) == (metric, 3.0, "clock")


def test_what_one_rank_does_or_lacks_is_so_of_the_case(tmp_path):
    (row,) = whole(tmp_path, [of_rank(0, ("eval", "test_accuracy", "1", 0.5, -1)), []])
    assert (row.value, row.rank, row.source) == (0.5, -1, "clock")
    lacking = replace(MAKE, rank=1).missing("energy", "gpu_energy", "J", "NVML", "no_device: none")
    ranks = [of_rank(0, ("energy", "gpu_energy", "J", 3.0, -1)), [lacking]]
    (row,) = whole(tmp_path, ranks)
    assert (row.value, row.reason, row.rank) == (None, "no_device: none", -1)


@given(times=st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=6))
def test_no_rank_is_slower_than_the_case(times, tmp_path_factory):
    ranks = [of_rank(r, ("epoch", "wall_time", "s", t, 0)) for r, t in enumerate(times)]
    (row,) = whole(tmp_path_factory.mktemp("joined"), ranks)
    assert row.value == max(times)
