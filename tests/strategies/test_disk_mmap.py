"""A table read through a memory map: cold is cold, and the page cache is not counted."""

from pathlib import Path

import pytest
import torch

from gatherbench.kernels.table_file import TableFile, drop_pages, pages_in_memory
from gatherbench.strategies import disk
from gatherbench.strategies.base import Fetcher
from gatherbench.strategies.conformance import random_table, written
from gatherbench.strategies.disk import DiskMmap, on_disk
from gatherbench.strategies.knowledge import Knowledge

CPU = torch.device("cpu")
ROWS, WIDTH = 640, 128  # rows of 512 B behind a header of 128 B: 81 pages
IDS = torch.tensor([0, 3, 8, 600])  # pages 0, 0, 1 and 75


@pytest.fixture
def file(tmp_path: Path) -> TableFile:
    made = written(random_table(ROWS, WIDTH, torch.float32), tmp_path)
    if drop_pages(made.path, 1.0):
        pytest.skip(f"{tmp_path} lies in memory, or another process reads it")
    return made


def opened(file: TableFile, **params: str) -> Fetcher:
    strategy = DiskMmap(**params)  # type: ignore[arg-type]
    features = random_table(ROWS, WIDTH, torch.float32)
    return strategy.open(features, CPU, Knowledge(file=file))


@pytest.mark.parametrize("advice", ["random", "normal"])
def test_a_cold_epoch_begins_with_no_page_in_memory(file, advice):
    with opened(file, advice=advice, start="cold") as fetcher:
        for _ in range(2):
            fetcher.drop_caches()
            assert pages_in_memory(file.path) == 0
            fetcher.submit(IDS).result()
            found = pages_in_memory(file.path)
            assert found == 3 if advice != "normal" else found >= 3
        (residency,) = fetcher.residency()
        assert residency.found == residency.expected == "the file on disk"


@pytest.mark.parametrize("advice", ["random", "normal"])
def test_a_warm_epoch_keeps_what_was_read_and_claims_nothing(file, advice):
    with opened(file, advice=advice) as fetcher:
        fetcher.submit(IDS).result()
        before = pages_in_memory(file.path)
        fetcher.drop_caches()
        assert pages_in_memory(file.path) == before >= 3
        assert fetcher.residency() == ()


def test_a_cold_epoch_that_would_be_warm_does_not_begin(file, monkeypatch):
    monkeypatch.setattr("gatherbench.kernels.table_file.drop_pages", lambda *_: 7)
    with opened(file, start="cold") as fetcher:
        with pytest.raises(RuntimeError, match="table: 7 pages stay in memory"):
            fetcher.drop_caches()
        assert fetcher.residency() == ()


def test_a_path_that_drops_nothing_is_found_in_memory(file, monkeypatch):
    """Wrong on purpose: what it says of itself is read off the page cache, not believed."""
    monkeypatch.setattr(disk, "require_cold", lambda _path: None)
    with opened(file, start="cold") as fetcher:
        fetcher.submit(IDS).result()
        fetcher.drop_caches()
        (residency,) = fetcher.residency()
        assert residency.found == "the page cache (3 pages)"
        assert residency.found != residency.expected


def test_nothing_is_claimed_where_the_kernel_does_not_tell(tmp_path):
    assert on_disk(tmp_path / "nowhere") == ()


def test_what_the_page_cache_decides_is_not_declared():
    path = DiskMmap().data_path(torch.arange(10), 400)
    assert (path.disk_bytes, path.disk_requests) == (None, None)
    assert path.disk_payload_bytes == path.arriving_bytes == path.payload_bytes == 4000
