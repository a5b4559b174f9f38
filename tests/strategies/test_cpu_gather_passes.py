"""What each mode of the baseline does to memory: its passes one by one, and memory it takes anew.

Everything is compared with these paths, and no rate shows whether one copies too little or too
much. Ours are counted where they are made, in the compiled loops; torch's by the pages they take.
"""

import resource
from typing import Any

import pytest
import torch

from gatherbench.kernels import host_gather
from gatherbench.strategies.cpu_gather import CpuGather

HOST = torch.device("cpu")
TABLE = torch.arange(3000.0).view(300, 10)
IDS = torch.tensor([7, 3, 299, 7])
PAYLOAD = 4 * 10 * 4


def gathered_and_copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Address read, address written and bytes of each pass of our loops; one call for few rows."""
    noted: list[tuple[int, ...]] = []
    gather_rows, copy_bytes = host_gather.gather_rows, host_gather.copy_bytes
    monkeypatch.setattr(
        host_gather,
        "gather_rows",
        lambda *a: (noted.append((a[0], a[6], a[2] * len(a[3]))), gather_rows(*a))[1],
    )
    monkeypatch.setattr(
        host_gather, "copy_bytes", lambda *a: (noted.append(a[:3]), copy_bytes(*a))[1]
    )
    return noted


@pytest.mark.parametrize(("mode", "buffers"), [("pinned", 1), ("prefetch", 2)])
def test_rows_are_gathered_into_staging_and_copied_once_into_buffers_that_stay(
    monkeypatch, mode, buffers
):
    passes, staging, results = gathered_and_copied(monkeypatch), set(), []
    with CpuGather(mode=mode).open(TABLE, HOST) as fetcher:  # type: ignore[arg-type]
        for k in range(3 * buffers):
            passes.clear()
            rows = fetcher.submit(IDS).result().data_ptr()
            (source, between, gathered), (again, target, copied) = passes
            assert (source, again, target) == (TABLE.data_ptr(), between, rows)
            assert gathered == copied == PAYLOAD
            if k >= buffers:  # which the first fetches make
                staging.add(between)
                results.append(rows)
    assert len(staging) == 1
    assert len(set(results)) == buffers
    assert not staging & {*results, TABLE.data_ptr()}


#: More than the C library ever keeps of what is freed: each allocation is fresh memory.
LARGE = torch.zeros(1024, 4096)
MANY = torch.arange(4096) % 1024
LARGE_PAYLOAD = 64 << 20


def faults(work: Any) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.parametrize(("mode", "payloads"), [("naive", 2), ("pinned", 0), ("prefetch", 0)])
def test_fresh_memory_of_a_fetch_is_counted_by_its_page_faults(mode, payloads):
    once = faults(lambda: torch.empty(LARGE_PAYLOAD, dtype=torch.uint8).fill_(1))
    with CpuGather(mode=mode).open(LARGE, HOST) as fetcher:  # type: ignore[arg-type]
        for _ in range(3):  # what stays is taken by the first fetches
            fetcher.submit(MANY).result()
        taken = faults(lambda: fetcher.submit(MANY).result()) / once
    assert taken == pytest.approx(payloads, abs=0.4)
