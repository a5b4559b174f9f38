"""Rows off a disk by a strategy: past the page cache, and as many bytes as it says."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from host_paths import through_the_host

from gatherbench.kernels import read_engines
from gatherbench.kernels.disk_read import DiskReadError
from gatherbench.kernels.table_file import TableFile, pages_in_memory
from gatherbench.strategies import conformance
from gatherbench.strategies.base import Fetcher, Minibatches
from gatherbench.strategies.conformance import NonconformingError, written
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.disk import DiskDirect
from gatherbench.strategies.knowledge import NOTHING, Knowledge
from gatherbench.strategies.registry import build

HOST = torch.device("cpu")
IDS = torch.tensor([4, 4, 1, 9], dtype=torch.int32)


@pytest.fixture
def file(tmp_path: Path) -> TableFile:
    """A thousand rows of 128 floats, row ``i`` full of ``i``, behind a header of 128 B."""
    return written(torch.arange(1000.0).repeat_interleave(128).view(1000, 128), tmp_path)


def opened(strategy: DiskDirect, file: TableFile) -> Fetcher:
    """Given other features than those of the file: whoever reads them is found out."""
    return strategy.open(torch.full((1000, 128), -1.0), HOST, Knowledge(file=file))


def test_declared_by_hand():
    """Rows 4, 4, 1 and 9 of 512 B: block 0 holds the first three askings, block 1 row 9."""
    off_the_disk = {"disk_payload_bytes": 2048, "disk_bytes": 4 * 4096, "disk_requests": 4}
    alone = through_the_host(2048, gpu_requests={}, **off_the_disk)
    assert DiskDirect(merge="no").data_path(IDS, 512) == alone
    together = replace(alone, disk_bytes=2 * 4096, disk_requests=1)
    assert DiskDirect(merge="yes").data_path(IDS, 512) == together


def test_declared_of_the_file_that_is_known():
    """Behind 4095 B of header each row of 512 B lies in two blocks."""
    known = Knowledge(file=TableFile(Path(os.devnull), 4095, 1000, 512))
    batches = [torch.tensor([0]), torch.tensor([0, 8])]  # row 8 in blocks 1 and 2
    paths = list(DiskDirect().data_paths(Minibatches(batches, 512, 1000, known)))
    assert [path.disk_bytes for path in paths] == [2 * 4096, 3 * 4096]
    paths = list(DiskDirect(merge="no").data_paths(Minibatches(batches, 512, 1000, known)))
    assert [path.disk_bytes for path in paths] == [2 * 4096, 4 * 4096]


@pytest.mark.parametrize("ahead", ["0", "1", "4"])
def test_rows_come_from_the_file_and_not_from_its_map(file, ahead):
    with opened(DiskDirect(ahead=ahead), file) as fetcher:  # type: ignore[arg-type]
        tickets = [fetcher.submit(IDS + step) for step in range(int(ahead) + 1)]
        for step, ticket in enumerate(tickets):
            assert ticket.result()[:, 77].tolist() == (IDS + step).tolist()
        latencies, counts = fetcher.latencies(), fetcher.counts()
    assert latencies is not None
    assert latencies.sum() == counts["disk_requests"] > 0


def test_the_row_of_the_engine_says_why_it_is_another(file, monkeypatch):
    with opened(DiskDirect("threads"), file) as fetcher:
        (step,) = fetcher.setup
        assert (step.metric, step.value, step.source) == ("disk_io_uring", 0.0, "threads")
    monkeypatch.setattr(read_engines.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(read_engines, "_SYSTEM_LIBRARY", "liburing-of-nobody.so")
    with opened(DiskDirect("io_uring"), file) as fetcher:
        (step,) = fetcher.setup
        assert step.value == 0.0
        assert step.source.startswith("threads instead of io_uring: there is no liburing")
        assert fetcher.submit(IDS).result()[:, 0].tolist() == IDS.tolist()


@pytest.mark.parametrize("ahead", ["0", "1"])
def test_what_the_disk_refuses_comes_out_and_the_path_goes_on(file, ahead):
    with opened(DiskDirect(ahead=ahead), file) as fetcher:  # type: ignore[arg-type]
        os.truncate(file.path, 300_000)
        with pytest.raises(DiskReadError, match=r"row 999 of .*: it was cut short"):
            fetcher.submit(torch.tensor([3, 999])).result()
        assert fetcher.submit(IDS).result()[:, 0].tolist() == IDS.tolist()


@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_the_page_cache_gets_nothing(file, engine):
    fd = os.open(file.path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if pages_in_memory(file.path):
        pytest.skip("a file system in memory")
    with opened(DiskDirect(engine), file) as fetcher:  # type: ignore[arg-type]
        fetcher.submit(torch.arange(1000)).result()
        assert pages_in_memory(file.path) == 0
    os.pread(fd, 1, 0)  # what a path through the page cache does is seen
    assert pages_in_memory(file.path) > 0
    os.close(fd)


@pytest.mark.parametrize("name", ["disk_direct", "disk_cached", "partition_buffer"])
def test_who_passes_the_page_cache_by_says_so(name):
    table = conformance.random_table(100, 64, torch.float32)
    with conformance.open_known(build(name), table, HOST) as fetcher:
        assert [one.expected for one in fetcher.residency()] == ["the file on disk"]


@dataclass(frozen=True)
class SaysRowsForBlocks(DiskDirect):
    name: ClassVar[str] = "says_rows_for_blocks"

    def data_paths(self, of: Minibatches) -> Iterator[DataPath]:
        paths = super().data_paths(of)
        return (replace(path, disk_bytes=path.disk_payload_bytes) for path in paths)


@dataclass(frozen=True)
class ForgetsTheHeader(DiskDirect):
    name: ClassVar[str] = "forgets_the_header"

    def data_paths(self, of: Minibatches) -> Iterator[DataPath]:
        return super().data_paths(replace(of, knowledge=NOTHING))


@pytest.mark.parametrize("wrong", [SaysRowsForBlocks(), ForgetsTheHeader(merge="no")], ids=str)
def test_what_declares_other_reads_than_it_makes_is_rejected(wrong):
    with pytest.raises(NonconformingError, match=r"\d+ of disk_\w+ were counted, and \d+ declared"):
        conformance.check_data_path(wrong, HOST)
