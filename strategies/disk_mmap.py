"""The table stays in its file, and the CPU gathers from a memory map of it: OGB's and PyG's way.

A row that is not in memory is a page fault, and the thread that meets it waits for the disk. So no
more reads are under way than threads gather, and what the page cache keeps decides how many there
are. The kernel may be told what to expect (``advice``). It reads ahead by default, which of random
rows brings megabytes that nobody asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gatherbench.kernels.page_cache import mapped_table, require_cold
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.base import Fetcher, Residency, Strategy
from gatherbench.strategies.cuda_fetcher import open_staged
from gatherbench.strategies.data_path import DataPath, staged_path
from gatherbench.strategies.host_fetcher import HostPath, on_disk
from gatherbench.strategies.knowledge import Knowledge


@dataclass(frozen=True)
class DiskMmap(Strategy):
    """``advice``: ``random``, or ``normal``: the kernel reads ahead; ``start``.

    ``warm`` epochs begin with what the page cache has kept, ``cold`` ones
    with no page of the table in memory.
    """

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
    """Gathers from a map of its own: what it tells the kernel holds for no other map.

    Raises:
        PagesRemainError: a cold epoch cannot begin.
    """

    def __init__(self, file: TableFile, dtype: torch.dtype, advice: str, *, cold: bool) -> None:
        super().__init__(mapped_table(file, dtype, advice))
        self._file, self._cold = file, cold
        self._began: tuple[Residency, ...] = ()

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        self.cpu.gather(self.table, ids, out)

    def forget(self) -> None:
        if self._cold:
            require_cold(self._file.path)
            self._began = on_disk(self._file.path)

    def close(self) -> None:
        super().close()
        del self.table  # the map, and with it the open file

    def residency(self) -> tuple[Residency, ...]:
        """Where a cold epoch found the table when it began; a warm one has it where it is."""
        return self._began
