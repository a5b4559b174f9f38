"""The conventional path: the CPU gathers scattered rows into a dense batch, which is then copied.

It accesses host memory three times for each byte that the GPU gets (Min et al., PVLDB 14(11) 2021,
section 2). ``naive`` is the paper's baseline, ``table[ids].to(device)``, with fresh pageable
memory. A fair comparison also needs the path at its best: ``pinned`` reuses a pinned staging buffer
and gathers on the fewest cores that are fastest; ``prefetch`` does the same one batch ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gatherbench.kernels.host_gather import available_cores
from gatherbench.strategies.base import Fetcher, Role, Strategy, Ticket
from gatherbench.strategies.buffers import TicketRing
from gatherbench.strategies.cuda_fetcher import open_staged
from gatherbench.strategies.data_path import DataPath, staged_path
from gatherbench.strategies.host_fetcher import DirectPath
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.places import with_index


@dataclass(frozen=True)
class CpuGather(Strategy):
    """``mode`` is ``pinned``, ``prefetch`` (pinned, one batch ahead) or ``naive``."""

    name: ClassVar[str] = "cpu_gather"
    summary: ClassVar[str] = "the CPU gathers rows into staging memory, then one copy to the GPU"
    colour: ClassVar[str] = "orange"

    mode: Literal["pinned", "prefetch", "naive"] = "pinned"

    @property
    def role(self) -> Role:
        return "baseline" if self.mode == "naive" else "conventional"

    @property
    def lookahead(self) -> int:
        return 1 if self.mode == "prefetch" else 0

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        path = staged_path(ids, row_bytes)
        return replace(path, pageable_bytes=path.payload_bytes) if self.mode == "naive" else path

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        if self.mode == "naive":
            return NaiveFetcher(features, device)
        return open_staged(DirectPath(features), features, device, self.lookahead)


class NaiveFetcher(Fetcher):
    """Computes ``table[ids].to(device)``: two fresh tensors a batch, as in the paper's baseline.

    On the host the copy is forced, so that the path moves the same bytes as with a GPU.
    """

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, with_index(device))
        self._table = features
        self._ring = TicketRing(1)

    def _submit(self, ids: Tensor) -> Ticket:
        self._ring.claim()
        before = torch.get_num_threads()
        # Torch gets all cores, its default: on a GPU the benchmark leaves it one otherwise.
        count = available_cores() if self.device.type == "cuda" else before
        if count != before:
            torch.set_num_threads(count)
        try:
            rows = self._table[ids].to(self.device, copy=True)
        finally:
            if count != before:
                torch.set_num_threads(before)
        return self._ring.issue(lambda: rows)

    def hand_over(self, rows: Tensor) -> Tensor:
        return rows  # they are already in memory of their own

    def _close(self) -> None:
        self._ring.close()
        del self._table
