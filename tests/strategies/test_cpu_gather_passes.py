"""What each mode of the baseline does to memory: its passes one by one, and memory it takes anew.

Everything is compared with these paths, and no rate shows whether one copies too little or too
much. Ours are counted where our threads are given them; torch's by the pages they take.
"""

import ctypes
import resource
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gatherbench.kernels.native_threads import Job, NativeThreads
from gatherbench.strategies.cpu_gather import CpuGather

HOST = torch.device("cpu")
TABLE = torch.arange(3000.0).view(300, 10)
IDS = torch.tensor([7, 3, 299, 7])
PAYLOAD = 4 * 10 * 4


def jobs_of(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """What our threads are given from now on."""
    jobs: list[Job] = []
    post = NativeThreads.post
    monkeypatch.setattr(
        NativeThreads,
        "post",
        lambda self, job, *a, **k: (jobs.append(job), post(self, job, *a, **k))[1],
    )
    return jobs


@pytest.mark.parametrize(("mode", "buffers"), [("pinned", 1), ("prefetch", 2)])
def test_rows_are_gathered_into_staging_and_copied_once_into_buffers_that_stay(
    monkeypatch, mode, buffers
):
    jobs, staging, results = jobs_of(monkeypatch), set(), []
    with CpuGather(mode=mode).open(TABLE, HOST) as fetcher:  # type: ignore[arg-type]
        for k in range(3 * buffers):
            jobs.clear()
            rows = fetcher.submit(IDS).result().data_ptr()
            (job,) = jobs
            assert (job.source, job.then) == (TABLE.data_ptr(), rows)
            assert job.total * job.row_bytes == PAYLOAD
            if k >= buffers:  # which the first fetches make
                staging.add(job.out)
                results.append(rows)
    assert len(staging) == buffers
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


@pytest.fixture
def small_pages() -> Iterator[None]:
    """Whether the kernel has a huge page at hand depends on what else runs."""
    prctl, thp_disable = ctypes.CDLL(None).prctl, 41
    prctl(thp_disable, 1, 0, 0, 0)
    yield
    prctl(thp_disable, 0, 0, 0, 0)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize(("mode", "payloads"), [("naive", 2), ("pinned", 0), ("prefetch", 0)])
def test_fresh_memory_of_a_fetch_is_counted_by_its_page_faults(mode, payloads):
    once = faults(lambda: torch.empty(LARGE_PAYLOAD, dtype=torch.uint8).fill_(1))
    with CpuGather(mode=mode).open(LARGE, HOST) as fetcher:  # type: ignore[arg-type]
        for _ in range(3):  # what stays is taken by the first fetches
            fetcher.submit(MANY).result()
        taken = faults(lambda: fetcher.submit(MANY).result()) / once
    assert taken == pytest.approx(payloads, abs=0.4)
