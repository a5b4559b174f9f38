"""Time random reads of 4 KiB past the page cache by each engine, on one file of 256 MiB.

Each row is one read, copied to its place.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from gatherbench.kernels.disk_read import RowReader
from gatherbench.kernels.table_file import TableFile

BLOCK, DEPTH, READS = 4096, 128, 8192
ROWS = (256 << 20) // BLOCK


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableFile]:
    """Write a table to disk; each row begins with its number, so that a wrong one is noticed."""
    path = tmp_path_factory.mktemp("disk") / "rows.bin"
    rows = np.random.default_rng(0).integers(0, 1 << 62, (ROWS, BLOCK // 8))
    rows[:, 0] = np.arange(ROWS)
    with path.open("wb") as out:
        rows.tofile(out)
        os.fsync(out.fileno())
    yield TableFile(path, 0, ROWS, BLOCK)
    path.unlink()


@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_engine(benchmark: BenchmarkFixture, table: TableFile, engine: str) -> None:
    """Time reads of changing rows by an engine of ``disk_direct``; check those of the last call."""
    draws = np.random.default_rng(1)
    ids = draws.integers(0, ROWS, READS)
    memory = mmap.mmap(-1, READS * BLOCK)  # aligned for direct reads into it
    out = np.frombuffer(memory, np.uint8).reshape(READS, BLOCK)
    out[:] = 0

    def setup() -> None:
        ids[:] = draws.integers(0, ROWS, READS)

    benchmark.group = f"{READS} random reads of {BLOCK} B, {DEPTH} in flight"
    with contextlib.closing(RowReader(table, engine, DEPTH, merge=False)) as reader:
        if reader.reason:
            pytest.skip(reader.reason)
        benchmark.pedantic(reader.read, args=(ids, out), setup=setup, rounds=8, warmup_rounds=1)
    np.testing.assert_array_equal(out[:, :8].view(np.int64)[:, 0], ids)
