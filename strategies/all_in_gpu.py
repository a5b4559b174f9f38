"""Keep the whole table on the device: an upper bound for paths that move rows.

Only the ids cross the link. On the host the "device" table is a second copy in host memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gatherbench.kernels.host_memory import resident_copy
from gatherbench.reason import Reason
from gatherbench.strategies.base import Fetcher, Strategy
from gatherbench.strategies.cuda_kernel_fetcher import KernelFetcher
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.host_fetcher import DirectPath, HostFetcher
from gatherbench.strategies.knowledge import NOTHING, Knowledge
from gatherbench.strategies.places import kernel_skip, no_room


@dataclass(frozen=True)
class AllInGpu(Strategy):
    """Copies the table to the device once, when it is opened."""

    name: ClassVar[str] = "all_in_gpu"
    summary: ClassVar[str] = "the table in GPU memory: an upper bound, no row crosses the link"
    colour: ClassVar[str] = "purple"
    role = "upper_bound"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        return kernel_skip(device) or no_room(device, table_bytes)

    def kept_bytes(self, table_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        return table_bytes

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return DataPath(
            payload_bytes=ids.numel() * row_bytes,
            copy_engine_bytes=ids.numel() * ids.element_size(),
            gpu_memory_bytes=ids.numel() * row_bytes,
            gpu_requests={},
        )

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        if device.type == "cuda":
            return KernelFetcher.of(features, device, "resident", "unaligned")
        path = DirectPath(resident_copy(features))
        path.live = False
        return HostFetcher(path, features, lookahead=0)
