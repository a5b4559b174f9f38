"""Gather on the CPU from a memory map of the table's file, as OGB and PyG do.

A row that is not in memory causes a page fault, and its thread waits for the disk. So at most as
many reads are in flight as threads gather, and the page cache decides how many are needed.
``advice`` tells the kernel what to expect: by default it reads ahead, which for random rows brings
megabytes that are never used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gatherbench.kernels.table_file import TableFile, mapped_table, require_cold
from gatherbench.strategies.base import Fetcher, Residency, Strategy
from gatherbench.strategies.cuda_fetcher import open_staged
from gatherbench.strategies.data_path import DataPath, staged_path
from gatherbench.strategies.host_fetcher import HostPath, on_disk
from gatherbench.strategies.knowledge import Knowledge


@dataclass(frozen=True)
class DiskMmap(Strategy):
    """``advice`` is ``random`` or ``normal`` (the kernel reads ahead). Epochs ``start`` ``warm``,
    with what the page cache has kept, or ``cold``, with no page of the table in memory."""

    name: ClassVar[str] = "disk_mmap"
    summary: ClassVar[str] = "the CPU gathers from a memory-mapped file, then one copy to the GPU"
    colour: ClassVar[str] = "grey"
    needs = frozenset({"file"})

    advice: Literal["random", "normal"] = "random"
    start: Literal["warm", "cold"] = "warm"

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        path = staged_path(ids, row_bytes)
        return replace(
            path, disk_payload_bytes=path.payload_bytes, disk_bytes=None, disk_requests=None
        )

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        assert knowledge.file is not None
        path = MappedPath(knowledge.file, features.dtype, self.advice, cold=self.start == "cold")
        return open_staged(path, features, device, self.lookahead)


class MappedPath(HostPath):
    """Gathers from a separate map, because advice to the kernel holds for one map only.

    Raises:
        PagesRemainError: a cold epoch cannot begin.
    """

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
