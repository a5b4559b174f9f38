"""Keep frequently used rows in host memory, and read the rest off a disk.

The table is larger than the memory, so only a part of it is kept there. A score chooses that part
before training, as in ``cached_zero_copy.py``, or a cache learns it (``row_caches.py``): LRU and
S3-FIFO, as in GraphBolt. Or the minibatches are drawn long before they are fetched, so that future
uses are known: Ginex (Park et al., PVLDB 15(11), 2022) then applies Belady's algorithm.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, cast, get_args

import torch
from torch import Tensor

from gatherbench.kernels.disk_read import RowReader
from gatherbench.kernels.table_file import TableFile
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import Fetcher, Minibatches, SetupStep, Strategy, announcing
from gatherbench.strategies.cached_zero_copy import CachedPath, kept_steps
from gatherbench.strategies.cuda_fetcher import open_staged
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.disk import NOWHERE, OffDisk, engine_step, planned_file, read_path
from gatherbench.strategies.knowledge import NOTHING, Knowledge, Need
from gatherbench.strategies.places import no_room, path_skip
from gatherbench.strategies.row_caches import RowCache, RowPolicy
from gatherbench.strategies.scores import NEEDS, Placed, placed

#: Policies that learn while they fetch.
LEARNING = get_args(RowPolicy)
#: Minibatches that are announced to ``belady``.
SUPERBATCH = 100


@dataclass(frozen=True)
class DiskCached(Strategy):
    """``policy`` sets which rows are kept, ``share`` how many, ``ahead`` how far to prefetch.

    For ``belady`` :data:`SUPERBATCH` minibatches are announced, as any training can do that draws
    its minibatches early. ``start`` sets whether a learning cache keeps its rows from epoch to
    epoch (``warm``).
    """

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
        """Return the cache, or the rows kept for good, for ``num_rows`` rows before any fetch.

        Raises:
            ValueError: the graph has another number of nodes.
        """
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
