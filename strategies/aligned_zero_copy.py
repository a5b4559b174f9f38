"""Zero-copy with every warp starting on a 128 B line, by the paper's circular shift.

The shift changes nothing for the host, which has no warps; the order of the ids does. ``sorted``
reads the table in ascending order and writes each row to its place, which on a GPU gave DGL four
times the bandwidth on a large table (DGL #6635). ``unique`` reads a row that is asked for several
times once, and expands the batch on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gatherbench.strategies.base import DataPath, Fetcher, Strategy
from gatherbench.strategies.host_fetcher import DirectPath, HostFetcher, HostPath, host_buffer
from gatherbench.strategies.places import zero_copy_skip


@dataclass(frozen=True)
class AlignedZeroCopy(Strategy):
    """``order``: in which the rows are read: as ``given``, ``sorted``, or each ``unique`` once."""

    name: ClassVar[str] = "aligned_zero_copy"
    summary: ClassVar[str] = "the same, every warp starting on a 128 B line (circular shift)"

    order: Literal["given", "sorted", "unique"] = "given"

    def skip(self, device: torch.device, table_bytes: int = 0) -> str | None:
        return zero_copy_skip(device, None)

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        rows = torch.unique(ids).numel() if self.order == "unique" else ids.numel()
        return DataPath(
            payload_bytes=ids.numel() * row_bytes,
            copy_engine_bytes=ids.numel() * ids.element_size(),
            gpu_link_read_bytes=rows * row_bytes,
        )

    def _open(self, features: Tensor, device: torch.device) -> Fetcher:
        paths: dict[str, type[HostPath]] = {
            "given": DirectPath,
            "sorted": SortedPath,
            "unique": UniquePath,
        }
        return HostFetcher(paths[self.order](features), features, lookahead=0)


class SortedPath(HostPath):
    """Reads in ascending order of the ids, writes each row to the place it was asked for."""

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        ascending, positions = torch.sort(ids)
        self.cpu.gather(self.table, ascending, out, positions)


class UniquePath(HostPath):
    """Reads each distinct row once, in ascending order, then expands from what was read."""

    def __init__(self, features: Tensor) -> None:
        super().__init__(features)
        self._distinct = host_buffer(features)

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        distinct, inverse = torch.unique(ids, return_inverse=True)
        rows = self._distinct.rows(distinct.numel())
        self.cpu.gather(self.table, distinct, rows)
        self.cpu.gather(rows, inverse, out)
