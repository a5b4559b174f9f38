"""The host gather against ``torch.index_select``, plain indexing and memcpy, in one run.

``cpu_gather`` is the baseline of every comparison, so it must not be slower than one line of torch.
Run with::

    pytest bench/regress -o python_files='bench_*.py' --benchmark-only --benchmark-group-by=group

Each benchmark fetches 100 000 random rows (25 000 for ``make regress-against``), new ones each
time, from a table much larger than the caches. It uses as many threads as this process has cores,
and checks the rows. ``extra_info`` holds the bytes it moved.

The rounds of one method follow each other and are not interleaved with another's. That favours a
method that shares no cores with torch: interleaved round by round on two cores, ours fell behind
``index_select`` for rows of 100 and 128 floats, and tied with it again under
``OMP_WAIT_POLICY=PASSIVE``. The likely cause is that OpenMP's threads spin for a while after each
operation, on cores that the next method would have used. Run it on an idle machine.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

from gatherbench.kernels.host_gather import HostGather, available_cores
from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.reference import reference_gather, same_bytes

#: ``make regress-against`` sets this: it fills tables anew in each of many processes.
SMALL = bool(os.environ.get("GATHERBENCH_REGRESS_SMALL"))
BATCH = 25_000 if SMALL else 100_000
TABLE_BYTES = (256 << 20) if SMALL else (2 << 30)
#: Share of the free memory for a table: table, output and a copy of the output must fit.
MEMORY_SHARE = 0.4
WIDTHS = (100, 602) if SMALL else (100, 128, 602)  # ogbn-products, ogbn-papers100M, reddit
ROUNDS = 25


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A table, an output of ``BATCH`` rows on pages of the same kind, and several draws of ids."""

    name: str
    table: Tensor
    out: Tensor
    ids: tuple[Tensor, ...]
    #: Bytes in huge pages that the table and the output added to this process.
    huge_page_bytes: int

    @property
    def payload_bytes(self) -> int:
        return self.out.numel() * self.out.element_size()


@pytest.fixture(scope="module", autouse=True)
def every_core() -> Iterator[None]:
    """Let torch use as many threads as ``HostGather``."""
    before = torch.get_num_threads()
    torch.set_num_threads(available_cores())
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cpu() -> Iterator[HostGather]:
    with HostGather() as gather:
        yield gather


@pytest.fixture(
    scope="module",
    params=list(itertools.product(WIDTHS, ("normal", "huge"))),
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def setting(request: pytest.FixtureRequest) -> Setting:
    width, pages = request.param
    size = min(TABLE_BYTES, int(psutil.virtual_memory().available * MEMORY_SHARE))
    rows = size // (width * 4)
    # float32 represents these row numbers exactly, so a wrong row shows.
    assert rows < 1 << 24
    make: Callable[[tuple[int, int], torch.dtype], Tensor]
    make = empty_table if pages == "huge" else lambda shape, dtype: torch.zeros(shape, dtype=dtype)
    before = huge_page_bytes()
    table, out = make((rows, width), torch.float32), make((BATCH, width), torch.float32)
    table.copy_(torch.arange(rows, dtype=torch.float32)[:, None])
    generator = torch.Generator().manual_seed(0)
    ids = tuple(torch.randint(0, rows, (BATCH,), generator=generator) for _ in range(8))
    more = huge_page_bytes() - before
    return Setting(f"{width} floats, {pages} pages", table, out, ids, more)


def huge_page_bytes() -> int:
    """Return the bytes of this process's memory in transparent huge pages."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(rollup.split("AnonHugePages:")[1].split()[0])


def measure(
    benchmark: BenchmarkFixture,
    setting: Setting,
    fetch: Callable[[Tensor], Tensor],
    read_and_written: int,
) -> None:
    """Time ``fetch`` on changing ids, record the bytes, and check the rows of the last call."""
    draws = itertools.cycle(setting.ids)
    last: list[Tensor] = []

    def setup() -> tuple[tuple[Tensor], dict[str, object]]:
        last[:] = [next(draws)]
        return (last[0],), {}

    benchmark.group = setting.name
    benchmark.extra_info.update(
        payload_bytes=setting.payload_bytes,
        bytes_read_and_written=read_and_written,
        table_bytes=setting.table.nbytes,
        huge_page_bytes=setting.huge_page_bytes,
        threads=available_cores(),
    )
    pedantic: Any = benchmark.pedantic
    rows = pedantic(fetch, setup=setup, rounds=ROUNDS, warmup_rounds=5)
    assert same_bytes(rows, reference_gather(setting.table, last[0])) is None


def test_host_gather(benchmark: BenchmarkFixture, setting: Setting, cpu: HostGather) -> None:
    """Time the gather of ``cpu_gather`` (pinned)."""

    def fetch(ids: Tensor) -> Tensor:
        cpu.gather(setting.table, ids, setting.out)
        return setting.out

    measure(benchmark, setting, fetch, 2 * setting.payload_bytes)


def test_index_select_out(benchmark: BenchmarkFixture, setting: Setting) -> None:
    """Time torch's best: into memory that is reused."""
    benchmark.extra_info["yardstick"] = True

    def fetch(ids: Tensor) -> Tensor:
        return torch.index_select(setting.table, 0, ids, out=setting.out)

    measure(benchmark, setting, fetch, 2 * setting.payload_bytes)


def test_indexing(benchmark: BenchmarkFixture, setting: Setting) -> None:
    """Time the gather of ``cpu_gather`` (naive): into a fresh tensor, including page faults."""
    benchmark.extra_info["yardstick"] = True
    measure(benchmark, setting, lambda ids: setting.table[ids], 2 * setting.payload_bytes)


def test_memcpy(benchmark: BenchmarkFixture, setting: Setting, cpu: HostGather) -> None:
    """Time the limit: copying as many bytes of contiguous rows, on the same threads."""
    starts = range(0, setting.table.shape[0] - BATCH, 2 * BATCH)
    neighbours = tuple(torch.arange(start, start + BATCH) for start in starts)

    def fetch(ids: Tensor) -> Tensor:
        start = int(ids[0])
        cpu.copy(setting.table[start : start + BATCH], setting.out)
        return setting.out

    measure(benchmark, replace(setting, ids=neighbours), fetch, 2 * setting.payload_bytes)
