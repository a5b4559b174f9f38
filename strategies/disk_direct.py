"""Read the rows of each minibatch off a disk, past the page cache and without keeping any.

GraphBolt's ``DiskBasedFeature`` does the same without a cache: every row costs the blocks that it
touches at each use. So it is the baseline that every cache in memory has to beat. With many reads
in flight the disk itself is the limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.disk_read import RowReader, reads_of
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.base import Fetcher, Minibatches, Residency, SetupStep, Strategy
from gatherbench.strategies.cuda_fetcher import open_staged
from gatherbench.strategies.data_path import DataPath, staged_path
from gatherbench.strategies.host_fetcher import HostPath, on_disk
from gatherbench.strategies.knowledge import Knowledge

#: The file of a planned table that is not on this machine: its blocks are 4096 B.
NOWHERE = Path(os.devnull)


@dataclass(frozen=True)
class DiskDirect(Strategy):
    """``engine`` keeps ``depth`` reads in flight; with ``merge`` rows of a block share a read.

    ``ahead`` is the number of minibatches that may be read beyond the one in training.
    """

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


def read_path(ids: Tensor, missing: Tensor, file: TableFile, merge: bool) -> DataPath:
    """Describe how a minibatch travels by way of the CPU, with rows ``missing`` off the disk."""
    disk_bytes, requests = reads_of(_numbers(missing), file, merge)
    return replace(
        staged_path(ids, file.row_bytes),
        disk_payload_bytes=missing.numel() * file.row_bytes,
        disk_bytes=disk_bytes,
        disk_requests=requests,
    )


class DiskPath(HostPath):
    """Reads every row of every minibatch off the disk."""

    def __init__(self, features: Tensor, reader: RowReader) -> None:
        super().__init__(features)
        self._reader = reader

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        self._reader.read(_numbers(ids), out.view(torch.uint8).numpy())

    def residency(self) -> tuple[Residency, ...]:
        return on_disk(self._reader.file.path)

    def counts(self) -> dict[str, int]:
        return self._reader.counts()

    def latencies(self) -> NDArray[np.int64]:
        return self._reader.latencies()

    def close(self) -> None:
        self._reader.close()
        super().close()


def engine_step(reader: RowReader) -> SetupStep:
    """Report whether io_uring keeps the reads in flight, and the reason for any fallback."""
    text = reader.engine + (f" instead of io_uring: {reader.reason}" if reader.reason else "")
    return SetupStep("disk_io_uring", "1", float(reader.engine == "io_uring"), text)


def _numbers(ids: Tensor) -> NDArray[np.int64]:
    return ids.cpu().long().numpy()
