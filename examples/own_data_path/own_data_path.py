"""A data path of one's own: torch's `index_select` into staging memory, then one copy.

It tests whether the CPU reads scattered rows faster in ascending order. The path includes the costs
of that: sorting the ids, and restoring the minibatch's order of rows on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gatherbench.strategies.base import Fetcher, Strategy, Ticket
from gatherbench.strategies.buffers import RowBuffer, TicketRing
from gatherbench.strategies.cuda_fetcher import after
from gatherbench.strategies.data_path import DataPath, staged_path
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.places import with_index


@dataclass(frozen=True)
class OwnRows(Strategy):
    """Rows by `index_select`; ``order``: the CPU reads them as ``given`` or ``ascending``."""

    name: ClassVar[str] = "own_rows"
    summary: ClassVar[str] = "torch's index_select into staging memory, then one copy"
    colour: ClassVar[str] = "grey"

    order: Literal["given", "ascending"] = "given"

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        path = staged_path(ids, row_bytes)
        places = 8 * ids.numel() if self.order == "ascending" else 0  # int64 for each row
        return replace(path, copy_engine_bytes=path.copy_engine_bytes + places)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        return OwnRowsFetcher(features, device, self.order == "ascending")


class OwnRowsFetcher(Fetcher):
    """Fetch rows, and block until the staged ones are copied and the staging memory is free."""

    def __init__(self, features: Tensor, device: torch.device, ascending: bool) -> None:
        super().__init__(features, with_index(device))
        on_gpu = device.type == "cuda"
        self._table, self._ascending = features, ascending
        self._staging = RowBuffer(
            lambda rows: torch.empty((rows, self.row_width), dtype=self.dtype, pin_memory=on_gpu)
        )
        self._ring = TicketRing(1)

    def _submit(self, ids: Tensor) -> Ticket:
        self._ring.claim()
        places = None
        if self._ascending:
            ids, places = ids.sort()
        staged = self._staging.rows(ids.numel())
        torch.index_select(self._table, 0, ids, out=staged)
        rows = staged.to(self.device, copy=True)
        if places is not None:
            rows = torch.empty_like(rows).index_copy_(0, places.to(self.device), rows)
        if self.device.type == "cpu":
            return self._ring.issue(lambda: rows)
        # The caller may use the result on another stream than this copy's.
        queued = torch.cuda.current_stream(self.device).record_event()
        return self._ring.issue(lambda: after(queued, rows))

    def _close(self) -> None:
        self._ring.close()
        del self._table, self._staging
