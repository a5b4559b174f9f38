"""Partitions of a table on disk pass through a buffer in host memory: MariusGNN's way.

The workload says how many partitions there are, how many the buffer holds and in which order they
come (``partition_orders.py``); a minibatch uses only rows of partitions that are there together.
The path reads whole partitions past the page cache. It goes on, state by state, to the next one
that holds all rows of a minibatch, and reads what is new in each. Rows that no further state has
together are served from partitions that are read out of turn.

An epoch begins with an empty buffer, as in MariusGNN. The reads that first fill it are no swaps,
for the orders' formulas, too. States after the last minibatch's are never entered.

Marius++ / MariusGNN: Waleffe et al., EuroSys 2023, sections 3 and 5.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.disk_read import DiskReadError, block_bytes, open_direct
from gatherbench.kernels.host_memory import HUGE_PAGE, empty_table
from gatherbench.kernels.read_engines import latency_bin
from gatherbench.kernels.table_file import LATENCY_BINS, TableFile
from gatherbench.strategies.base import Fetcher, Minibatches, Residency, SetupStep, Strategy
from gatherbench.strategies.cuda_fetcher import open_staged
from gatherbench.strategies.data_path import DataPath, staged_path
from gatherbench.strategies.disk import on_disk, planned_file
from gatherbench.strategies.host_fetcher import HostPath
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.partition_orders import Partitions

#: Bytes that are read at a time, at most.
READ_BYTES = 4 << 20


@dataclass(frozen=True)
class PartitionBuffer(Strategy):
    """With ``ahead`` one minibatch is fetched ahead, and with it what is new in its state."""

    name: ClassVar[str] = "partition_buffer"
    summary: ClassVar[str] = "partitions of a table on disk pass through a buffer in host memory"
    colour: ClassVar[str] = "green"
    needs = frozenset({"file", "partitions"})

    ahead: Literal["1", "0"] = "1"

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        # What is read is as the minibatches before it will have it.
        return replace(staged_path(ids, row_bytes), disk_bytes=None, disk_requests=None)

    def data_paths(self, minibatches: Minibatches) -> Iterator[DataPath]:
        parts = minibatches.knowledge.partitions
        if parts is None or minibatches.knowledge.file is None:
            yield from super().data_paths(minibatches)
            return
        walk = Walk(parts, planned_file(minibatches))
        for ids in minibatches.batches:
            before = walk.counts()
            list(walk.steps(parts.of(ids.numpy(), minibatches.num_rows)))
            taken = {name: count - before[name] for name, count in walk.counts().items()}
            yield replace(
                self.data_path(ids, minibatches.row_bytes),
                disk_payload_bytes=(ids.numel() - taken["rows_in_memory"]) * minibatches.row_bytes,
                disk_bytes=taken["disk_read"],
                disk_requests=taken["disk_requests"],
            )

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        assert knowledge.partitions is not None
        assert knowledge.file is not None
        path = BufferPath(features, knowledge.file, knowledge.partitions)
        return open_staged(path, features, device, self.lookahead)


#: A partition, and the place of the buffer into which it is read.
Load = tuple[int, int]


class Step(NamedTuple):
    loads: list[Load]
    served: frozenset[int]  #: Rows of these partitions are gathered then.


class Walk:
    """The steps of an epoch's minibatches, and their counts: declaring and fetching take them."""

    def __init__(self, partitions: Partitions, file: TableFile) -> None:
        self._held = partitions.held
        self._states = [frozenset(state) for state in partitions.states()]
        #: Bytes of the file, from and to, of each partition.
        self.extents = [
            (file.offset + int(begin) * file.row_bytes, file.offset + int(end) * file.row_bytes)
            for begin, end in pairwise(partitions.bounds(file.num_rows))
        ]
        block = block_bytes(file.path)
        #: The whole blocks that hold them, which are read.
        self.reads = [
            (begin // block * block, -(-end // block) * block) for begin, end in self.extents
        ]
        self._counts = dict.fromkeys(("rows_in_memory", "disk_read", "disk_requests", "swaps"), 0)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Empty the buffer, before the first state."""
        self.where: dict[int, int] = {}  #: Place of each partition that is there.
        self._free = list(range(self._held))
        self._state, self._astray, self._loaded = -1, False, 0

    def counts(self) -> dict[str, int]:
        return self._counts.copy()

    def steps(self, parts: NDArray[np.int64]) -> Iterator[Step]:
        """Take the steps of a minibatch whose rows are of ``parts``, int64 ``[B]``."""
        counts = np.bincount(parts)
        rows = {int(part): int(counts[part]) for part in np.flatnonzero(counts)}
        if not rows:
            return
        wanted, new = frozenset(rows), set[int]()
        for step in self._steps(wanted):
            new.update(part for part, _ in step.loads)
            self._counts["rows_in_memory"] += sum(rows[part] for part in step.served - new)
            yield step

    def _steps(self, wanted: frozenset[int]) -> Iterator[Step]:
        left = range(max(0, self._state), len(self._states))
        goal = next((k for k in left if wanted <= self._states[k]), None)
        if goal is None:
            self._astray = True  # serve what is there, then the rest by as much as the buffer holds
            if here := wanted & self.where.keys():
                yield Step([], here)
            rest = sorted(wanted - here)
            for k in range(0, len(rest), self._held):
                served = frozenset(rest[k : k + self._held])
                yield Step(self._hold(served), served)
            return
        for state in range(left.start, goal + 1):
            loads = list[Load]()
            if state != self._state or self._astray:
                self._state, self._astray = state, False
                loads = self._hold(self._states[state])
            yield Step(loads, wanted if state == goal else frozenset())

    def _hold(self, parts: frozenset[int]) -> list[Load]:
        for part in self.where.keys() - parts:
            self._free.append(self.where.pop(part))
        loads = [(part, self._free.pop()) for part in sorted(parts - self.where.keys())]
        for part, place in loads:
            self.where[part] = place
            begin, end = self.reads[part]
            self._counts["disk_read"] += end - begin
            self._counts["disk_requests"] += -(-(end - begin) // READ_BYTES)
            self._counts["swaps"] += self._loaded >= self._held  # what fills the buffer is none
            self._loaded += 1
        return loads


class BufferPath(HostPath):
    """Brings partitions into the buffer, and rows out of it. More partitions than rows are a
    ``ValueError``; a file that cannot be opened for direct reads is a ``DiskReadError``."""

    live = False

    def __init__(self, features: Tensor, file: TableFile, partitions: Partitions) -> None:
        self._walk = Walk(partitions, file)
        super().__init__(features)
        self._file, self._partitions = file, partitions
        self._bounds = partitions.bounds(file.num_rows)
        self._most = int(np.diff(self._bounds).max())
        width = int(features.shape[1])
        self._buffer = empty_table((partitions.held * self._most, width), features.dtype)
        self._bytes = self._buffer.view(torch.uint8).numpy().reshape(-1)
        # Direct reads want aligned memory: what is as long as a huge page begins at one.
        self._read = empty_table((max(READ_BYTES, HUGE_PAGE), 1), torch.uint8).numpy()[:, 0]
        self._fd = open_direct(file.path)
        self._latencies = np.zeros(LATENCY_BINS, np.int64)
        self.setup = [SetupStep("buffer", "B", self._bytes.size, "places for partitions")]

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        array = ids.numpy()
        parts = self._partitions.of(array, self._file.num_rows)
        try:
            for step in self._walk.steps(parts):
                for part, place in step.loads:
                    self._load(part, place)
                if not step.served:
                    continue
                shift = np.zeros(self._partitions.count, np.int64)
                for part in step.served:
                    shift[part] = self._walk.where[part] * self._most - self._bounds[part]
                served = np.flatnonzero(np.isin(parts, list(step.served)))
                rows = torch.from_numpy(array[served] + shift[parts[served]])
                self.cpu.gather(self._buffer, rows, out, torch.from_numpy(served))
        except BaseException:  # what the walk believes to be there may not be
            self.begin_epoch()
            raise

    def _load(self, part: int, place: int) -> None:
        begin, end = self._walk.extents[part]
        start = place * self._most * self._file.row_bytes - begin
        first, stop = self._walk.reads[part]
        for at in range(first, stop, READ_BYTES):
            size = min(READ_BYTES, stop - at)
            begin_ns = time.perf_counter_ns()
            got = os.preadv(self._fd, [self._read[:size].data], at)
            self._latencies[latency_bin(time.perf_counter_ns() - begin_ns)] += 1
            low, high = max(at, begin), min(at + size, end)
            if at + got < high:
                raise DiskReadError(
                    f"{self._file.path}: byte {at + got} could not be read, and the table ends at"
                    f" {self._file.end}: it was cut short; write it anew"
                )
            self._bytes[start + low : start + high] = self._read[low - at : high - at]

    def begin_epoch(self) -> None:
        self._walk.begin_epoch()

    def residency(self) -> tuple[Residency, ...]:
        return on_disk(self._file.path)

    def counts(self) -> dict[str, int]:
        return self._walk.counts()

    def latencies(self) -> NDArray[np.int64]:
        return self._latencies.copy()

    def close(self) -> None:
        os.close(self._fd)
        super().close()
