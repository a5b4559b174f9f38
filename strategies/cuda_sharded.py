"""A rank's rows read by our kernel, for itself and for the other ranks; what is sent, NCCL sends.

Ids go to the GPU and are arranged there, on a stream that holds nothing else, as for ``unique``
rows. The host waits for it to learn how many rows there are, and for all ranks to tell each other.
Everything is submitted by the caller's thread, in the same order on all ranks: NCCL asks for that
where a program has several groups, and DDP has one of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gatherbench.kernels.cuda_calls import pointer_kind
from gatherbench.kernels.launch import Table, gather_into
from gatherbench.kernels.mapped_memory import DeviceCopy
from gatherbench.kernels.order import ReadOrder
from gatherbench.strategies.base import Residency, SetupStep
from gatherbench.strategies.cuda_fetcher import RESIDENCY_SOURCE
from gatherbench.strategies.cuda_kernel_fetcher import KernelFetcher
from gatherbench.strategies.cuda_overlap import take_usual_share
from gatherbench.strategies.rank_exchange import Asked, Exchange, Part, Round


class ShardedFetcher(KernelFetcher):
    """A :class:`KernelFetcher` of this rank's rows that :meth:`join` makes one of all rows."""

    _exchange: Exchange
    _asked: Asked
    _rounds: list[Round]

    def join(self, part: Part, in_gpu: bool) -> None:
        """Fetch rows of the whole table from now on."""
        self.num_rows, self._exchange, self._in_gpu = part.num_rows, part.exchange, in_gpu
        self._hot = DeviceCopy(part.hot, self.device)
        self._slots = None if part.slots is None else part.slots.to(self.device)
        self._served = self._buffer()
        self._hits = 0

    def residency(self) -> tuple[Residency, ...]:
        found = super().residency()
        if self._hot.size_bytes == 0:
            return found
        kind = pointer_kind(self._hot.address)
        return (*found, Residency("Device", kind, RESIDENCY_SOURCE, "the part that is kept"))

    def counts(self) -> dict[str, int]:
        return {"rows_on_device": self._hits}

    def _ordered(self, ids: Tensor) -> ReadOrder:
        asked = self._asked = self._exchange.split(ids, self._slots)
        self._rounds = self._exchange.rounds(asked)
        self._hits += len(ids) - asked.sent - (0 if self._in_gpu else asked.own)
        return ReadOrder(asked.rows, expand=asked.expand)

    def _gather(self, order: ReadOrder, out: Tensor) -> None:
        assert order.expand is not None
        asked, stream, row_bytes = (
            self._asked,
            torch.cuda.current_stream(self.device),
            self.table.row_bytes,
        )
        rows = self._distinct.rows(len(asked.rows))
        rows.record_stream(stream)
        self._exchange.bring(asked, self._rounds, rows, self._serve)
        _, own, hot = asked.parts
        gather_into(rows[own], self.table, asked.rows[own], self.points[torch.int64])
        for read, ids, to in (
            (self._hot.tensor, asked.rows[hot], rows[hot]),
            (rows, order.expand, out),
        ):
            table = Table(read.data_ptr(), len(read), row_bytes, row_bytes)
            gather_into(to, table, ids, self._expansion)

    def _serve(self, wanted: Tensor) -> Tensor:
        rows = self._served.rows(len(wanted))
        rows.record_stream(torch.cuda.current_stream(self.device))
        gather_into(rows, self.table, wanted, self.points[torch.int64])
        return rows

    def _close(self) -> None:
        try:
            super()._close()
        finally:
            self._hot.close()
            self._exchange.close()


def open_sharded(
    part: Part,
    device: torch.device,
    policy: str,
    setup: list[SetupStep],
    *,
    in_gpu: bool,
    ahead: int,
) -> ShardedFetcher:
    """This rank's rows registered, or copied into GPU memory, and the hot ones there, too."""
    opened = ShardedFetcher.resident if in_gpu else ShardedFetcher.registered
    fetcher = opened(part.rows, device, policy, "unique", overlapped=ahead > 0)
    fetcher.join(part, in_gpu)
    fetcher.setup += setup
    if ahead:
        take_usual_share(fetcher)
    return fetcher
