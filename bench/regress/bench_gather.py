"""Time the host gather, ``torch.index_select`` and memcpy in one run.

``cpu_gather`` is the baseline of every comparison, so it must not be slower than one line of torch.
Each benchmark fetches 25 000 random rows, new ones each time, from a table in huge pages that is
much larger than the caches. It uses as many threads as this process has cores, and checks the rows.
The rounds of one method follow each other and are not interleaved with another's: OpenMP's threads
spin for a while after each operation, on cores that the next method would use.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

from gatherbench.kernels.host_gather import HostGather, available_cores
from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.reference import reference_gather, same_bytes

BATCH, TABLE_BYTES = 25_000, 256 << 20


#: A table, an output of ``BATCH`` rows, several draws of ids, and the gather of all cores.
Setting = tuple[Tensor, Tensor, list[Tensor], HostGather]


@pytest.fixture(scope="module", params=[100, 602])  # ogbn-products, reddit
def setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    rows = TABLE_BYTES // (request.param * 4)
    # float32 represents these row numbers exactly, so a wrong row shows.
    assert rows < 1 << 24
    table, out = (empty_table((count, request.param), torch.float32) for count in (rows, BATCH))
    table.copy_(torch.arange(rows, dtype=torch.float32)[:, None])
    generator = torch.Generator().manual_seed(0)
    draws = [torch.randint(0, rows, (BATCH,), generator=generator) for _ in range(8)]
    before = torch.get_num_threads()
    torch.set_num_threads(available_cores())
    with HostGather() as cpu:
        yield table, out, draws, cpu
    torch.set_num_threads(before)


def measure(
    benchmark: BenchmarkFixture, setting: Setting, fetch: Callable[[Tensor], object], ours: bool
) -> None:
    """Time ``fetch``, which fills ``out``, on changing ids; check the rows of the last call."""
    table, out, draws, _ = setting
    following = itertools.cycle(draws)
    benchmark.group = f"{BATCH} rows of {table.shape[1]} floats"
    benchmark.extra_info.update(payload_bytes=out.nbytes, yardstick=not ours)
    out.zero_()  # it holds rows of another benchmark, perhaps of the same ids
    ids, _ = benchmark.pedantic(
        lambda ids: (ids, fetch(ids)),
        setup=lambda: ((next(following),), {}),
        rounds=25,
        warmup_rounds=5,
    )
    assert same_bytes(out, reference_gather(table, ids)) is None


def test_host_gather(benchmark: BenchmarkFixture, setting: Setting) -> None:
    """Time the gather of ``cpu_gather`` (pinned)."""
    table, out, _, cpu = setting
    measure(benchmark, setting, lambda ids: cpu.gather(table, ids, out), ours=True)


def test_index_select_out(benchmark: BenchmarkFixture, setting: Setting) -> None:
    """Time torch's best: into memory that is reused."""
    table, out, *_ = setting
    measure(benchmark, setting, lambda ids: torch.index_select(table, 0, ids, out=out), ours=False)


def test_memcpy(benchmark: BenchmarkFixture, setting: Setting) -> None:
    """Time the limit: copying as many bytes of contiguous rows, on the same threads."""
    table, out, _, cpu = setting
    starts = range(0, len(table) - BATCH, 2 * BATCH)
    contiguous = table, out, [torch.arange(at, at + BATCH) for at in starts], cpu
    measure(benchmark, contiguous, lambda ids: cpu.copy(table[int(ids[0]) :][:BATCH], out), True)
