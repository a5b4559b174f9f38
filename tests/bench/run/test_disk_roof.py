"""The disk's own reads beside a case: off the disk, or why there are none."""

from pathlib import Path

import numpy as np

from gatherbench.bench.run import untimed
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.untimed import disk_roof
from gatherbench.kernels.table_file import TableFile


def read_bytes() -> int:
    """Off disks, by this process, as the kernel counts."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["read_bytes"])


def roof(job: Job, path: Path, blocks: float) -> list[Row]:
    path.write_bytes(np.random.default_rng(0).bytes(int(4096 * blocks)))
    return disk_roof(TableFile(path, 128, int(4096 * blocks - 128) // 100, 100), job.rows, 1)


def test_every_read_comes_off_the_disk(make_job, tmp_path, monkeypatch):
    monkeypatch.setattr(untimed, "_ROOF_S", 1e-3)
    before = read_bytes()
    reads, time = roof(make_job(), tmp_path / "rows", 100)
    assert (reads.metric, time.metric) == ("disk_roof_reads", "disk_roof_time")
    assert reads.value is not None
    assert reads.value % 1024 == 0
    assert read_bytes() - before >= reads.value * 4096
    assert time.value is not None
    assert time.value >= 1e-3


def test_where_nothing_can_be_read_it_says_why(make_job, tmp_path):
    (small,) = roof(make_job(), tmp_path / "rows", 0.5)
    (gone,) = disk_roof(TableFile(tmp_path / "none", 0, 41, 100), make_job().rows, 1)
    assert (small.value, small.reason) == (None, "unsupported: the file has less than a block")
    assert gone.value is None
    assert f"cannot read the table {tmp_path / 'none'}: No such file" in str(gone.reason)
