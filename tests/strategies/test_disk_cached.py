"""Rows in memory and off the disk: counted as declared, right after every start, honest to whom."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from host_paths import through_the_host
from torch import Tensor

from gatherbench.kernels.disk_read import DiskReadError, RowReader
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.base import Fetcher, Minibatches, announcing
from gatherbench.strategies.conformance import (
    NonconformingError,
    check_data_path,
    open_known,
    random_table,
    written,
)
from gatherbench.strategies.disk import LEARNING, DiskCached, DiskCachedPath
from gatherbench.strategies.knowledge import Knowledge, adjacency_of
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
