"""The two bounds of every comparison: all rows on the device, and no row fetched at all.

``all_in_gpu`` keeps the whole table on the device, so only the ids cross the link. On the host the
"device" table is a second copy in host memory.

``no_fetch`` is the limit: rows of the right shape are already on the device. Its epoch is the time
of sampling, training and the loop alone: the excess of another path's epoch is due to that path.
The rows are the table's first ones, repeated if need be, so that they are known and as finite as
the table's: position ``p`` of a minibatch holds row ``p`` modulo the number of rows, whatever the
ids are (:func:`ready_ids`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.reference import byte_rows, reference_gather
from gatherbench.reason import Reason
from gatherbench.strategies.base import Fetcher, Strategy, Ticket
from gatherbench.strategies.buffers import RowBuffer, TicketRing
from gatherbench.strategies.cuda_kernel_fetcher import KernelFetcher
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.host_fetcher import DirectPath, HostFetcher
from gatherbench.strategies.knowledge import NOTHING, Knowledge
from gatherbench.strategies.places import kernel_skip, no_room, with_index

_MARK = 0xA5


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
        rows, width = features.shape
        path = DirectPath(empty_table((rows, width), features.dtype).copy_(features))
        path.live = False
        return HostFetcher(path, features, lookahead=0)


@dataclass(frozen=True)
class NoFetch(Strategy):
    """Hands out one buffer, which grows to the largest minibatch during the warm-up."""

    name: ClassVar[str] = "no_fetch"
    summary: ClassVar[str] = "no row is fetched: the limit of harness, sampler and training"
    colour: ClassVar[str] = "pale"
    role = "no_fetch"

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return DataPath(payload_bytes=0, gpu_requests={})

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        return ReadyRows(features, device)


class ReadyRows(Fetcher):
    """Returns a view of rows that were gathered once."""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, with_index(device))
        self.ids_device = self.device  # the ids are not used
        self._ready = RowBuffer(
            lambda count: reference_gather(features, ready_ids(count, len(features))).to(device)
        )
        self._ring = TicketRing(1)

    def _submit(self, ids: Tensor) -> Ticket:
        self._ring.claim()
        rows = self._ready.rows(ids.numel())
        return self._ring.issue(lambda: rows)

    def _close(self) -> None:
        self._ring.close()
        del self._ready


def ready_ids(count: int, num_rows: int) -> Tensor:
    """Return the ids of the rows that the limit hands out, int64 ``[count]``, of ``num_rows``."""
    return torch.arange(count, device="cpu") % max(1, num_rows)


def writes_rows(fetcher: Fetcher, ids: Tensor) -> bool:
    """Tell whether a fetch writes the rows that it hands out, which the no-fetch limit must not:
    those of one fetch of ``ids`` are overwritten with a mark until after another."""
    rows = byte_rows(fetcher.submit(ids).result())
    before = rows.clone()
    rows.fill_(_MARK)
    again = byte_rows(fetcher.submit(ids.flip(0)).result())
    wrote = bool((again != _MARK).any())
    rows.copy_(before)
    return wrote
