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
from gatherbench.strategies.cuda_zero_copy import USUAL_BUDGET, open_overlapped
from gatherbench.strategies.host_fetcher import DirectPath, HostFetcher
from gatherbench.strategies.places import zero_copy_skip
from gatherbench.strategies.zero_copy_path import zero_copy_path

#: The launch policy on a GPU.
POLICY = "aligned"


@dataclass(frozen=True)
class AsyncZeroCopy(Strategy):
    """``provider``: who gives the gather its share of the GPU, and ``budget``: how much.

    ``stream`` caps the kernel's grid, ``green_context`` reserves multiprocessors within the
    process, ``mps`` runs the gather in a process of its own, as the paper does. ``budget`` is in
    per cent; ``auto`` finds the smallest that suffices when the path is opened, and records what
    each was worth. On the host, where the gather has one thread, it must be left at ``auto``.
    """

    name: ClassVar[str] = "async_zero_copy"
    summary: ClassVar[str] = "aligned zero-copy one batch ahead, beside training, in two buffers"

    provider: Literal["stream", "green_context", "mps"] = "stream"
    budget: Literal["auto", "5", "10", "15", "25", "50"] = "auto"

    def skip(self, device: torch.device, table_bytes: int = 0) -> str | None:
        on_gpu_only = None
        if self.provider != "stream":
            on_gpu_only = f"provider = {self.provider}"
        elif self.budget != "auto":
            on_gpu_only = f"budget = {self.budget}"
        reason = zero_copy_skip(device, on_gpu_only)
        if reason is None and self.provider != "stream":
            return f"unsupported: provider = {self.provider} is not in this version; use stream"
        return reason

    @property
    def lookahead(self) -> int:
        return 1

    @property
    def gpu_share(self) -> float:
        return self._percent / 100

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return zero_copy_path(ids, row_bytes, POLICY, "given")

    def _open(self, features: Tensor, device: torch.device) -> Fetcher:
        if device.type == "cuda":
            return open_overlapped(features, device, POLICY, self.budget)
        return HostFetcher(DirectPath(features), features, self.lookahead)
