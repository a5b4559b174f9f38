"""Random reads of 4 KiB past the page cache: two engines of gatherbench, and threads of preadv.

Run with::

    pytest bench/regress/bench_disk.py -o python_files='bench_*.py' --benchmark-only

File, block size and depth are the same for all, and the rows change each time; only ratios within
one run are meaningful. Each benchmark reads ``READS`` blocks of a file of 256 MiB; the engines also
copy each row to its place. Another library's reader is in docs/guide.md.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from gatherbench.kernels.disk_read import RowReader, open_direct
from gatherbench.kernels.table_file import TableFile

BLOCK, DEPTH, READS, ROUNDS = 4096, 128, 8192, 8
FILE_BYTES = 256 << 20
ROWS = FILE_BYTES // BLOCK

#: Reads rows ``ids`` into ``out`` uint8 ``[READS, BLOCK]``.
Read = Callable[[NDArray[np.int64], NDArray[np.uint8]], None]


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


@pytest.fixture
def direct(table: TableFile) -> Iterator[int]:
    fd = open_direct(table.path)
    yield fd
    os.close(fd)


def measure(benchmark: BenchmarkFixture, table: TableFile, read: Read, *, roof: bool) -> None:
    """Time ``read`` on changing ids, and check the rows of the last call."""
    rng = np.random.default_rng(1)
    memory = mmap.mmap(-1, READS * BLOCK)  # aligned for direct reads into it
    out = np.frombuffer(memory, np.uint8).reshape(READS, BLOCK)
    out[:] = 0
    ids = rng.integers(0, ROWS, READS)

    def setup() -> None:
        ids[:] = rng.integers(0, ROWS, READS)

    benchmark.group = f"{READS} random reads of {BLOCK} B, {DEPTH} in flight"
    benchmark.extra_info.update(payload_bytes=READS * BLOCK, file_bytes=FILE_BYTES, yardstick=roof)
    pedantic: Any = benchmark.pedantic
    pedantic(lambda: read(ids, out), setup=setup, rounds=ROUNDS, warmup_rounds=1)
    np.testing.assert_array_equal(out[:, :8].view(np.int64)[:, 0], ids)


@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_engine(benchmark: BenchmarkFixture, table: TableFile, engine: str) -> None:
    """Time an engine of ``disk_direct``; each row is one read, as for the other benchmarks."""
    reader = RowReader(table, engine, DEPTH, merge=False)
    try:
        if reader.reason:
            pytest.skip(reader.reason)
        measure(benchmark, table, reader.read, roof=False)
    finally:
        reader.close()


def test_preadv(benchmark: BenchmarkFixture, table: TableFile, direct: int) -> None:
    """Time as many Python threads as reads in flight, each with its share of the reads."""
    with ThreadPoolExecutor(DEPTH) as pool:

        def share(part: tuple[NDArray[np.int64], NDArray[np.uint8]]) -> None:
            for row, to in zip(*part, strict=True):
                os.preadv(direct, [memoryview(to)], int(row) * BLOCK)

        def read(ids: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
            parts = zip(np.array_split(ids, DEPTH), np.array_split(out, DEPTH), strict=True)
            list(pool.map(share, parts))

        measure(benchmark, table, read, roof=True)
