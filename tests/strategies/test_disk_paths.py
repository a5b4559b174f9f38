"""Paths off a disk: rows of the file, reads as declared, right after every start, and cold ones."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import psutil
import pytest
import torch
from host_paths import through_the_host
from torch import Tensor

from gatherbench.kernels import read_engines
from gatherbench.kernels.disk_read import DiskReadError, RowReader
from gatherbench.kernels.table_file import TableFile, drop_pages, pages_in_memory
from gatherbench.strategies import conformance, disk
from gatherbench.strategies.base import Fetcher, Minibatches, announcing
from gatherbench.strategies.conformance import (
    NonconformingError,
    check_data_path,
    open_known,
    random_table,
    written,
)
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.disk import (
    LEARNING,
    DiskCached,
    DiskCachedPath,
    DiskDirect,
    DiskMmap,
    on_disk,
)
from gatherbench.strategies.knowledge import NOTHING, Knowledge, adjacency_of
from gatherbench.strategies.registry import build, variants
from gatherbench.strategies.row_caches import RowCache

HOST = torch.device("cpu")
ROWS = 257
#: Node 3 is a source five times, 1 twice, 0 once.
EDGES = torch.tensor([[3, 3, 3, 3, 3, 1, 1, 0], [0, 1, 2, 4, 9, 9, 2, 5]])
GRAPH = adjacency_of(EDGES, ROWS)


def cached(**params: str) -> DiskCached:
    strategy = build("disk_cached", params)
    assert isinstance(strategy, DiskCached)
    return strategy


def fetched(fetcher: Fetcher, epoch: Sequence[Tensor]) -> Iterator[tuple[Tensor, dict[str, int]]]:
    """An epoch as the loop runs it: ids, and what each minibatch was counted to take."""
    fetcher.drop_caches()
    before = fetcher.counts()
    for ids in announcing(epoch, fetcher.announced, fetcher.announce):
        rows = fetcher.submit(ids).result()
        assert len(rows) == len(ids)
        after = fetcher.counts()
        yield rows, {name: after[name] - before[name] for name in after}
        before = after


def skewed(batches: int = 30, seed: int = 5) -> list[Tensor]:
    """Minibatches of distinct rows, low ones often."""
    draw = np.random.default_rng(seed)
    drawn = (np.unique((ROWS * draw.random(60) ** 2).astype(np.int64)) for _ in range(batches))
    return [torch.from_numpy(draw.permutation(ids)) for ids in drawn]


def test_the_path_of_a_minibatch_by_hand():
    """Rows of 400 B behind a header of 128 B: 5 lies in the first block, and 35 in the fourth."""
    edges = torch.cat([EDGES, torch.tensor([[3], [39]])], 1)
    file = TableFile(Path(os.devnull), 128, 40, 400)
    known = Knowledge(graph=adjacency_of(edges, 40), file=file)
    ids = torch.tensor([3, 5, 1, 3, 35], dtype=torch.int32)  # of two kept rows 3, 1 and 3 again
    (path,) = cached(policy="degree", share="5%").data_paths(Minibatches([ids], 400, 40, known))
    off_the_disk = {"disk_payload_bytes": 800, "disk_bytes": 2 * 4096, "disk_requests": 2}
    assert path == through_the_host(2000, gpu_requests={}, **off_the_disk)


@pytest.mark.parametrize("policy", ["lru", "belady"])
def test_without_a_start_from_memory_each_epoch_begins_with_nothing(policy):
    epoch = skewed(10)
    hits: dict[str, list[int]] = {}
    for start in ("warm", "cold"):
        strategy = cached(policy=policy, share="50%", start=start)
        with open_known(strategy, random_table(ROWS, 5, torch.float16), HOST) as fetcher:
            hits[start] = [
                sum(counted["rows_in_memory"] for _, counted in fetched(fetcher, epoch))
                for _ in range(2)
            ]
    assert hits["cold"][0] == hits["cold"][1] == hits["warm"][0] < hits["warm"][1]


def test_rows_come_from_the_file_and_not_from_its_map(tmp_path):
    rows = random_table(ROWS, 16, torch.int8)
    file = written(rows, tmp_path)
    ids = torch.arange(ROWS)
    for policy in ("degree", "lru", "belady"):
        with cached(policy=policy).open(
            torch.zeros(ROWS, 16, dtype=torch.int8), HOST, Knowledge(graph=GRAPH, file=file)
        ) as fetcher:
            for _ in range(3):
                assert torch.equal(fetcher.submit(ids).result(), rows)


@pytest.mark.parametrize("policy", ["degree", "s3-fifo", "belady"])
def test_after_a_read_that_failed_nothing_more_is_fetched(policy, tmp_path):
    """The cache has slots that no row was written to."""
    table = torch.zeros(ROWS, 64, dtype=torch.uint8)
    file = written(table, tmp_path)
    with cached(policy=policy, ahead="0").open(
        table, HOST, Knowledge(graph=GRAPH, file=file)
    ) as fetcher:
        os.truncate(file.path, 0)
        with pytest.raises(DiskReadError):
            fetcher.submit(torch.arange(ROWS))
        with pytest.raises(RuntimeError, match="a read has failed"):
            fetcher.submit(torch.arange(1))


def test_a_path_that_cannot_be_filled_leaves_nothing_open(tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise DiskReadError("an input/output error")

    monkeypatch.setattr(RowReader, "read", broken)
    table = torch.zeros(ROWS, 64, dtype=torch.uint8)
    known = Knowledge(graph=GRAPH, file=written(table, tmp_path))
    before = psutil.Process().num_fds()
    with pytest.raises(DiskReadError) as held:
        cached(policy="degree").open(table, HOST, known)
    assert psutil.Process().num_fds() == before
    assert held.value.__traceback__ is not None, "nothing is closed by being forgotten"


def forgetful(path: DiskCachedPath, ids: Tensor, out: Tensor) -> None:
    """Keeps nothing beyond a minibatch."""
    RIGHT(path, ids, out)
    assert isinstance(path._kept, RowCache)
    path._kept.drop_caches()


def boastful(path: DiskCachedPath, ids: Tensor, out: Tensor) -> None:
    """Counts a hit more."""
    RIGHT(path, ids, out)
    path._hits += 1


def wasteful(path: DiskCachedPath, ids: Tensor, out: Tensor) -> None:
    """Reads a row that nobody asked for."""
    RIGHT(path, ids, out)
    path.read(torch.zeros(1, dtype=torch.int64), out.new_empty(1, out.shape[1]))


RIGHT = DiskCachedPath.fetch


@pytest.mark.parametrize("policy", ["lru", "belady"])
@pytest.mark.parametrize("wrong", [forgetful, boastful, wasteful])
def test_what_does_otherwise_than_it_declares_is_found_out(wrong, policy, monkeypatch):
    monkeypatch.setattr(DiskCachedPath, "fetch", wrong)
    with pytest.raises(NonconformingError, match="were counted, and"):
        check_data_path(cached(policy=policy, share="50%"), HOST)


def test_no_variant_runs_under_two_names():
    runs = [one for one in variants(DiskCached) if one.skip(HOST) is None]
    shares, aheads, static = 5, 2, 3
    assert len(runs) == shares * aheads * (static + 2 * len(LEARNING))
    assert "degree learns nothing" in str(cached(policy="degree", start="cold").skip(HOST))
    said = cached(policy="degree", start="cold").skip(torch.device("cuda", 127))
    assert str(said).startswith("no_device: ")


def test_what_opening_takes_is_told():
    table = random_table(ROWS, 4, torch.float32)
    with open_known(cached(policy="belady", share="20%"), table, HOST) as fetcher:
        told = {step.metric: step.value for step in fetcher.setup}
    assert told["kept"] == (ROWS // 5) * 16
    assert told["announced"] == 100
    assert told["location"] > ROWS * 12
    assert {"score_time", "fill_time", "disk_io_uring"} < set(told)
    with open_known(cached(policy="degree"), table, HOST) as fetcher:
        told = {step.metric: step.value for step in fetcher.setup}
    assert (told["location"], "announced" in told) == (ROWS * 4, False)


# ---- past the page cache -------------------------------------------------------------------------


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
def test_rows_come_from_the_disk(file, ahead):
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


# ---- through a memory map ------------------------------------------------------------------------


#: Of rows of 512 B behind a header of 128 B: in pages 0, 0, 1 and 75 of 126.
PAGED = torch.tensor([0, 3, 8, 600])


@pytest.fixture
def cold(file: TableFile) -> TableFile:
    if drop_pages(file.path, 1.0):
        pytest.skip(f"{file.path} lies in memory, or another process reads it")
    return file


@pytest.mark.parametrize("advice", ["random", "normal"])
def test_a_cold_epoch_begins_with_no_page_in_memory(cold, advice):
    with opened(DiskMmap(advice=advice, start="cold"), cold) as fetcher:
        for _ in range(2):
            fetcher.drop_caches()
            assert pages_in_memory(cold.path) == 0
            fetcher.submit(PAGED).result()
            found = pages_in_memory(cold.path)
            assert found == 3 if advice != "normal" else found >= 3
        (residency,) = fetcher.residency()
        assert residency.found == residency.expected == "the file on disk"


@pytest.mark.parametrize("advice", ["random", "normal"])
def test_a_warm_epoch_keeps_what_was_read_and_claims_nothing(cold, advice):
    with opened(DiskMmap(advice=advice), cold) as fetcher:
        fetcher.submit(PAGED).result()
        before = pages_in_memory(cold.path)
        fetcher.drop_caches()
        assert pages_in_memory(cold.path) == before >= 3
        assert fetcher.residency() == ()


def test_a_cold_epoch_that_would_be_warm_does_not_begin(cold, monkeypatch):
    monkeypatch.setattr("gatherbench.kernels.table_file.drop_pages", lambda *_: 7)
    with opened(DiskMmap(start="cold"), cold) as fetcher:
        with pytest.raises(RuntimeError, match="table: 7 pages stay in memory"):
            fetcher.drop_caches()
        assert fetcher.residency() == ()


def test_a_path_that_drops_nothing_is_found_in_memory(cold, monkeypatch):
    """Wrong on purpose: what it says of itself is read off the page cache, not believed."""
    monkeypatch.setattr(disk, "require_cold", lambda _path: None)
    with opened(DiskMmap(start="cold"), cold) as fetcher:
        fetcher.submit(PAGED).result()
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
