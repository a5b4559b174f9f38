"""Zero-copy beside training: the next batch is read while the model trains on this one.

Reading over the link needs few of a GPU's multiprocessors (Min et al., PVLDB 14(11) 2021: 10 to
15 % saturate PCIe), so gather and training run side by side over two buffers, used in turn. On
the host a thread gathers in the background, which takes cores from training just as the gather
kernel takes multiprocessors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gatherbench.strategies.base import DataPath, Fetcher, Strategy
from gatherbench.strategies.host_fetcher import DirectPath, HostFetcher
from gatherbench.strategies.places import zero_copy_skip


@dataclass(frozen=True)
class AsyncZeroCopy(Strategy):
    """``provider``: who gives the gather its share of the GPU.

    ``stream`` caps the kernel's grid, ``green_context`` reserves multiprocessors within the
    process, ``mps`` runs the gather in a process of its own, as the paper does.
    """

    name: ClassVar[str] = "async_zero_copy"
    summary: ClassVar[str] = "aligned zero-copy one batch ahead, beside training, in two buffers"

    provider: Literal["stream", "green_context", "mps"] = "stream"

    def skip(self, device: torch.device, table_bytes: int = 0) -> str | None:
        partition = f"provider = {self.provider}" if self.provider != "stream" else None
        return zero_copy_skip(device, partition)

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        payload = ids.numel() * row_bytes
        return DataPath(
            payload_bytes=payload,
            copy_engine_bytes=ids.numel() * ids.element_size(),
            gpu_link_read_bytes=payload,
        )

    def _open(self, features: Tensor, device: torch.device) -> Fetcher:
        return HostFetcher(DirectPath(features), features, lookahead=1)
