"""Plain zero-copy: GPU threads read the scattered rows in host memory themselves.

The CPU only sends the ids, and each byte crosses host memory once (Min et al., PVLDB 14(11)
2021). A warp starts wherever its row starts, so a row that begins inside a 128 B line is read in
more and smaller requests. On the host the path is one pass from the table into the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gatherbench.reason import Reason
from gatherbench.strategies.base import Fetcher, Strategy
from gatherbench.strategies.cuda_kernel_fetcher import KernelFetcher
from gatherbench.strategies.data_path import DataPath, zero_copy_path
from gatherbench.strategies.host_fetcher import DirectPath, HostFetcher
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.places import mapped_skip

#: The launch policy on a GPU.
POLICY = "unaligned"


@dataclass(frozen=True)
class UnifiedZeroCopy(Strategy):
    """``memory`` sets how the GPU gets access to the table.

    ``registered`` page-locks and maps it (cudaHostRegister); ``managed`` is unified memory with
    the CPU as preferred location and the GPU as an accessing device.
    """

    name: ClassVar[str] = "unified_zero_copy"
    summary: ClassVar[str] = "GPU threads read the rows in host memory, unaligned"
    colour: ClassVar[str] = "sky"
    role = "zero_copy"

    memory: Literal["registered", "managed"] = "registered"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        return mapped_skip(device, self.memory)

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return zero_copy_path(ids, row_bytes, POLICY, "given", self.memory)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        if device.type == "cuda":
            return KernelFetcher.of(features, device, self.memory, POLICY)
        return HostFetcher(DirectPath(features), features, lookahead=0)
