"""Hot rows in GPU memory and the others in host memory, read by one launch of the gather kernel.

CUDA has one address space for both memories. The kernel finds a row at ``table + id × stride``, so
rows that begin a whole number of strides from the table are rows of it under other ids. The hot
rows are placed so, and the launch is given ids that lead to either place. A launch each would have
to know how many ids go where, for which the host would wait.

Ids of host rows come first: the rows that share a warp then lie in one memory, and the requests on
the link are those of a gather of these rows alone, as they are counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from gatherbench.kernels.cuda_calls import pointer_kind
from gatherbench.kernels.launch import Table
from gatherbench.kernels.order import ReadOrder
from gatherbench.strategies.base import Residency, SetupStep
from gatherbench.strategies.cuda_fetcher import RESIDENCY_SOURCE
from gatherbench.strategies.cuda_kernel_fetcher import IdBuffer, KernelFetcher
from gatherbench.strategies.cuda_overlap import take_usual_share
from gatherbench.strategies.scores import Placed
from gatherbench.strategies.set_cache import DeviceSetCache, SetCache

#: Rows that travel at a time when the kept ones are filled.
_FILL_ROWS = 1 << 16


class CachedFetcher(KernelFetcher):
    """A :class:`KernelFetcher` that reads what :meth:`keep` has put into GPU memory there."""

    def keep(self, features: Tensor, kept: Placed | SetCache) -> None:
        """Make room for the rows of ``kept``, and fill it where they are known."""
        row_bytes, count = self.table.row_bytes, kept.capacity
        #: A spare row stands at the end, for what is not to be written.
        self._room = torch.empty((count + 2) * row_bytes, dtype=torch.uint8, device=self.device)
        first = (self.memory.address - self._room.data_ptr()) % row_bytes
        rows = self._room[first : first + (count + 1) * row_bytes]
        self._hot = rows.view(count + 1, row_bytes)
        self._dynamic: DeviceSetCache | None = None
        if isinstance(kept, SetCache):
            self._dynamic = DeviceSetCache(kept.capacity, kept.policy, self.device)
        else:
            self._slots = torch.from_numpy(kept.slots).to(self.device)
            table = features.view(torch.uint8).view(-1, row_bytes) if len(features) else features
            for begin in range(0, count, _FILL_ROWS):
                part = torch.from_numpy(kept.ids[begin : begin + _FILL_ROWS])
                self._hot[begin : begin + len(part)] = table[part].to(self.device)
        self._fill: Tensor | None = None
        self._hits = torch.zeros((), dtype=torch.int64, device=self.device)
        # Rows are counted from whichever place begins first: no id is negative.
        here, there = self._hot.data_ptr(), self.memory.address
        base = min(here, there)
        self._first_here, self._first_there = ((at - base) // row_bytes for at in (here, there))
        ends = self._first_here + count, self._first_there + self.num_rows
        self.table = Table(base, max(ends), row_bytes, row_bytes)

    def residency(self) -> tuple[Residency, ...]:
        kind = pointer_kind(self._hot.data_ptr())
        hot = Residency("Device", kind, RESIDENCY_SOURCE, "the part that is kept")
        return (*super().residency(), hot)

    def counts(self) -> dict[str, int]:
        torch.cuda.synchronize(self.device)
        return {"rows_on_device": int(self._hits)}

    def _arrange(
        self, ids: Tensor, buffer: IdBuffer, stream: torch.cuda.Stream, ready: torch.cuda.Event
    ) -> ReadOrder:
        given = super()._arrange(ids, buffer, stream, ready).ids
        with torch.cuda.stream(stream):
            if self._dynamic is None:
                slots = self._slots[given].long()
            else:
                slots, self._fill = self._dynamic.step(given)
            here = slots >= 0
            self._hits += here.sum()
            rows = torch.where(here, slots + self._first_here, given + self._first_there)
            places = torch.sort(here.to(torch.uint8), stable=True).indices
            return ReadOrder(rows[places], out_rows=places)

    def _gather(self, order: ReadOrder, out: Tensor) -> None:
        super()._gather(order, out)
        if self._fill is not None and out.numel():
            spare = len(self._hot) - 1
            slots = torch.where(self._fill < 0, spare, self._fill)
            self._hot.index_copy_(0, slots, out.view(torch.uint8).view(len(out), -1))


def open_cached(
    features: Tensor,
    device: torch.device,
    policy: str,
    kept: Placed | SetCache,
    setup: Sequence[SetupStep],
    lookahead: int,
) -> CachedFetcher:
    """The table registered, and the rows of ``kept`` in GPU memory."""
    fetcher = CachedFetcher.registered(features, device, policy, overlapped=lookahead > 0)
    try:
        begin = time.perf_counter()
        fetcher.keep(features, kept)
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - begin
        if lookahead:
            take_usual_share(fetcher)
    except BaseException:
        fetcher.close()
        raise
    source = "time.perf_counter, copying the rows to the GPU"
    fetcher.setup += [*setup, SetupStep("fill_time", "s", seconds, source)]
    return fetcher
