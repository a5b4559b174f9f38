"""Read the rows of each minibatch off a disk, and keep none or a part of them in host memory.

``disk_mmap`` gathers on the CPU from a memory map of the table's file, as OGB and PyG do. A row
that is not in memory causes a page fault, and its thread waits for the disk. So at most as many
reads are in flight as threads gather, and the page cache decides how many are needed.

``disk_direct`` reads past the page cache, as GraphBolt's ``DiskBasedFeature`` does without a cache:
every row costs the blocks that it touches at each use. So it is the baseline that every cache in
memory has to beat. With many reads in flight the disk itself is the limit.

``disk_cached`` keeps a part of the table in memory. A score chooses that part before training, as
in ``cached_zero_copy.py``, or a cache learns it (``row_caches.py``): LRU and S3-FIFO, as in
GraphBolt. Or the minibatches are drawn long before they are fetched, so that future uses are known:
Ginex (Park et al., PVLDB 15(11), 2022) then applies Belady's algorithm.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.disk_read import RowReader, reads_of
from gatherbench.kernels.table_file import (
    MINCORE,
    TableFile,
    mapped_table,
    pages_in_memory,
    require_cold,
)
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import (
    Fetcher,
    Minibatches,
    Residency,
    SetupStep,
    Strategy,
    announcing,
)
from gatherbench.strategies.cached_zero_copy import CachedPath, kept_steps
from gatherbench.strategies.cuda_fetcher import open_staged
from gatherbench.strategies.data_path import DataPath, staged_path
from gatherbench.strategies.host_fetcher import HostPath
from gatherbench.strategies.knowledge import NOTHING, Knowledge, Need
from gatherbench.strategies.places import no_room, path_skip
from gatherbench.strategies.row_caches import RowCache, RowPolicy
from gatherbench.strategies.scores import NEEDS, Placed, placed

#: The file of a planned table that is not on this machine: its blocks are 4096 B.
NOWHERE = Path(os.devnull)
LEARNING = get_args(RowPolicy)  #: Policies that learn while they fetch.
SUPERBATCH = 100  #: Minibatches that are announced to ``belady``.


def on_disk(path: Path) -> tuple[Residency, ...]:
    """Report whether any page of the file is in memory; empty if the kernel does not answer."""
    try:
        left = pages_in_memory(path)
    except OSError:
        return ()
    place = f"the page cache ({left} pages)" if left else "the file on disk"
    return (Residency("the file on disk", place, MINCORE),)


@dataclass(frozen=True)
class DiskMmap(Strategy):
    """``advice`` tells the kernel what to expect: ``random``, or ``normal``, its default, by which
    it reads ahead; for random rows that brings megabytes that are never used. Epochs ``start``
    ``warm``, with what the page cache has kept, or ``cold``, with no page of the table in memory.
    """

    name: ClassVar[str] = "disk_mmap"
    summary: ClassVar[str] = "the CPU gathers from a memory-mapped file, then one copy to the GPU"
    colour: ClassVar[str] = "grey"
    needs = frozenset({"file"})

    advice: Literal["random", "normal"] = "random"
    start: Literal["warm", "cold"] = "warm"

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        size = ids.numel() * row_bytes
        path = replace(staged_path(ids, row_bytes), disk_payload_bytes=size)
        return replace(path, disk_bytes=None, disk_requests=None)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        assert knowledge.file is not None
        path = MappedPath(knowledge.file, features.dtype, self.advice, cold=self.start == "cold")
        return open_staged(path, features, device, self.lookahead)


class MappedPath(HostPath):
    """Gathers from a separate map, because advice to the kernel holds for one map only; a cold
    epoch that cannot begin is a ``PagesRemainError``."""

    def __init__(self, file: TableFile, dtype: torch.dtype, advice: str, *, cold: bool) -> None:
        super().__init__(mapped_table(file, dtype, advice))
        self._file, self._cold = file, cold
        self._began: tuple[Residency, ...] = ()

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        self.cpu.gather(self.table, ids, out)

    def drop_caches(self) -> None:
        if self._cold:
            require_cold(self._file.path)
            self._began = on_disk(self._file.path)

    def close(self) -> None:
        super().close()
        del self.table  # unmaps, and closes the file

    def residency(self) -> tuple[Residency, ...]:
        """Return where the table was when a cold epoch began; nothing for warm epochs."""
        return self._began


@dataclass(frozen=True)
class DiskDirect(Strategy):
    """``engine`` keeps ``depth`` reads in flight; with ``merge`` rows of a block share a read;
    ``ahead`` minibatches may be read beyond the one in training."""

    name: ClassVar[str] = "disk_direct"
    summary: ClassVar[str] = "rows read off the disk past the page cache, then one copy to the GPU"
    colour: ClassVar[str] = "purple"
    needs = frozenset({"file"})

    engine: Literal["io_uring", "threads"] = "io_uring"
    merge: Literal["yes", "no"] = "yes"
    depth: Literal["128", "32", "8"] = "128"
    ahead: Literal["1", "0", "4"] = "1"

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        """Assume a table that begins on a block of 4096 B; :meth:`data_paths` knows the file."""
        return read_path(ids, ids, TableFile(NOWHERE, 0, 0, row_bytes), self.merge == "yes")

    def data_paths(self, minibatches: Minibatches) -> Iterator[DataPath]:
        file = planned_file(minibatches)
        return (read_path(ids, ids, file, self.merge == "yes") for ids in minibatches.batches)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        assert knowledge.file is not None
        reader = RowReader(knowledge.file, self.engine, int(self.depth), self.merge == "yes")
        fetcher = open_staged(DiskPath(features, reader), features, device, self.lookahead)
        fetcher.setup.append(engine_step(reader))
        return fetcher


def planned_file(batches: Minibatches) -> TableFile:
    """Return the known file, resized to the table's rows; else one that begins on a block."""
    known = batches.knowledge.file or TableFile(NOWHERE, 0, batches.num_rows, batches.row_bytes)
    return replace(known, num_rows=batches.num_rows, row_bytes=batches.row_bytes)


def read_path(ids: Tensor, missing: Tensor, file: TableFile, merge: bool = True) -> DataPath:
    """Describe how a minibatch travels by way of the CPU, with rows ``missing`` off the disk."""
    disk_bytes, requests = reads_of(_numbers(missing), file, merge)
    return replace(
        staged_path(ids, file.row_bytes),
        disk_payload_bytes=missing.numel() * file.row_bytes,
        disk_bytes=disk_bytes,
        disk_requests=requests,
    )


class OffDisk(HostPath):
    """A path with rows off a disk by a :class:`RowReader`, which it owns."""

    _reader: RowReader

    def read(self, ids: Tensor, out: Tensor, places: Tensor | None = None) -> None:
        """Read row ``ids[i]`` into row ``places[i]`` (or ``i``) of ``out``."""
        at = None if places is None else places.numpy()
        self._reader.read(_numbers(ids), out.view(torch.uint8).numpy(), at)

    def residency(self) -> tuple[Residency, ...]:
        return on_disk(self._reader.file.path)

    def counts(self) -> Mapping[str, float]:
        return {**super().counts(), **self._reader.counts()}

    def latencies(self) -> NDArray[np.int64]:
        return self._reader.latencies()

    def close(self) -> None:
        self._reader.close()
        super().close()


class DiskPath(OffDisk):
    """Reads every row of every minibatch off the disk."""

    def __init__(self, features: Tensor, reader: RowReader) -> None:
        super().__init__(features)
        self._reader = reader

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        self.read(ids, out)


def engine_step(reader: RowReader) -> SetupStep:
    """Report whether io_uring keeps the reads in flight, and the reason for any fallback."""
    text = reader.engine + (f" instead of io_uring: {reader.reason}" if reader.reason else "")
    return SetupStep("disk_io_uring", "1", float(reader.engine == "io_uring"), text)


def _numbers(ids: Tensor) -> NDArray[np.int64]:
    return ids.cpu().long().numpy()


@dataclass(frozen=True)
class DiskCached(Strategy):
    """``policy`` sets which rows are kept, ``share`` how many, ``ahead`` how far to prefetch;
    ``start`` sets whether a learning cache keeps its rows from epoch to epoch (``warm``). For
    ``belady`` :data:`SUPERBATCH` minibatches are announced, as any training can do that draws its
    minibatches early."""

    name: ClassVar[str] = "disk_cached"
    summary: ClassVar[str] = "hot rows kept in host memory, the rest read off the disk"
    colour: ClassVar[str] = "sky"

    policy: Literal["presampled", "degree", "reverse_pagerank", "lru", "s3-fifo", "belady"] = (
        "presampled"
    )
    share: Literal["10%", "1%", "5%", "20%", "50%"] = "10%"
    start: Literal["warm", "cold"] = "warm"
    ahead: Literal["1", "0"] = "1"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        if (reason := path_skip(device)) is not None:
            return reason
        if self.start == "cold" and self.policy not in LEARNING:
            return unsupported(f"start = cold: {self.policy} learns nothing that it could forget")
        return no_room(torch.device("cpu"), self._part(table_bytes), "the part that is kept")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset((*NEEDS.get(self.policy, ()), "file"))

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        """Describe a minibatch without kept rows, from a table as ``disk_direct`` assumes it."""
        return read_path(ids, ids, TableFile(NOWHERE, 0, 0, row_bytes))

    def data_paths(self, minibatches: Minibatches) -> Iterator[DataPath]:
        file = planned_file(minibatches)
        kept = self.kept(minibatches.num_rows, minibatches.knowledge)

        def epoch(batches: Iterable[Tensor]) -> Iterable[Tensor]:
            if not isinstance(kept, RowCache):
                return batches
            return announcing(batches, kept.ahead, lambda ids: kept.announce(ids.numpy()))

        if self.policy in LEARNING and self.start == "warm":
            for ids in itertools.chain.from_iterable(map(epoch, minibatches.before)):
                kept.step(ids.numpy())
        for ids in epoch(minibatches.batches):
            missing = ids[torch.from_numpy(kept.step(ids.numpy())[0] < 0)]
            yield read_path(ids, missing, file)

    def _part(self, whole: int) -> int:
        return whole * int(self.share.removesuffix("%")) // 100

    def kept(self, num_rows: int, knowledge: Knowledge = NOTHING) -> Placed | RowCache:
        """Return the cache, or the rows kept for good, for ``num_rows`` rows before any fetch."""
        count = self._part(num_rows)
        if self.policy not in LEARNING:
            return placed(self.policy, count, num_rows, knowledge)
        ahead = SUPERBATCH if self.policy == "belady" else 0
        return RowCache(cast("RowPolicy", self.policy), count, num_rows, ahead)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        assert knowledge.file is not None
        begin = time.perf_counter()
        kept = self.kept(len(features), knowledge)
        chosen_s = time.perf_counter() - begin
        reader = RowReader(knowledge.file)
        path = DiskCachedPath(features, kept, reader, forgets=self.start == "cold")
        fetcher = open_staged(path, features, device, self.lookahead)
        steps = kept_steps(kept, knowledge.file.row_bytes, chosen_s, path.fill_seconds)
        fetcher.setup += [engine_step(reader), *steps]
        if path.announced:
            source = "minibatches; each of their ids takes 8 B until its turn comes, then 4 B"
            fetcher.setup.append(SetupStep("announced", "1", path.announced, source))
        return fetcher


class DiskCachedPath(OffDisk, CachedPath):
    """Reads rows that are not kept off the disk; a cache that ``forgets`` begins epochs cold."""

    counted: ClassVar[str] = "rows_in_memory"

    def __init__(
        self, features: Tensor, kept: Placed | RowCache, reader: RowReader, *, forgets: bool
    ) -> None:
        self._reader, self._forgets, self._failed = reader, forgets, False
        try:
            super().__init__(features, kept)
        except BaseException:
            reader.close()
            raise
        self._cache = kept if isinstance(kept, RowCache) else None
        self.announced = self._cache.ahead if self._cache else 0

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        if self._failed:
            raise RuntimeError("a read has failed, and rows are missing in memory: open it again")
        self._failed = True
        super().fetch(ids, out)
        self._failed = False

    def announce(self, ids: Tensor) -> None:
        if self._cache is not None and self.announced:
            self._cache.announce(ids.numpy())

    def drop_caches(self) -> None:
        if self._cache is not None and self._forgets:
            self._cache.drop_caches()
