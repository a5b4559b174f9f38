"""Data paths in host memory: the host backend, where the "device" is another piece of memory.

Every path is run for real, with its buffers, passes and threads, so that a machine without a GPU
exercises everything from plan to plot. What it measures is the host's cost of the path, never a
prediction of a GPU's. A path says how rows get into an output buffer (:class:`HostPath`);
:class:`HostFetcher` owns the buffers and decides in which thread that happens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import torch
from torch import Tensor

from gatherbench.kernels.host_gather import HostGather
from gatherbench.kernels.host_memory import empty_table
from gatherbench.strategies.base import Fetcher, Ticket
from gatherbench.strategies.buffers import RowBuffer, TicketRing, fetched


def host_buffer(features: Tensor) -> RowBuffer:
    """A reusable buffer in host memory for rows of ``features``."""
    width, dtype = int(features.shape[1]), features.dtype
    return RowBuffer(lambda count: empty_table((count, width), dtype))


class HostPath(ABC):
    """How the rows of one minibatch get from the table into an output buffer."""

    #: Rows that were found in the memory that stands for the device's; ``None``: nobody counts.
    hits: int | None = None
    #: Other ranks take part in each fetch: none that was submitted is dropped, as they wait for it.
    collective: ClassVar[bool] = False

    def __init__(self, features: Tensor) -> None:
        self.table = features
        self.cpu = HostGather()

    @abstractmethod
    def fetch(self, ids: Tensor, out: Tensor) -> None:
        """Write row ``ids[i]`` of the table to row ``i`` of ``out`` ``[B, D]``."""

    def close(self) -> None:
        """Join the threads."""
        self.cpu.close()


class DirectPath(HostPath):
    """One pass from the table to the output: what a GPU that reads in place does."""

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        self.cpu.gather(self.table, ids, out)


class StagedPath(HostPath):
    """Gather into a staging buffer, then copy that as a whole: the conventional path."""

    def __init__(self, features: Tensor) -> None:
        super().__init__(features)
        self._staging = host_buffer(features)

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        staged = self._staging.rows(ids.numel())
        self.cpu.gather(self.table, ids, staged)
        self.cpu.copy(staged, out)


class HostFetcher(Fetcher):
    """Runs a :class:`HostPath` into a ring of ``lookahead + 1`` buffers.

    With lookahead 0 ``submit`` does the work. With more, one thread does it, in the order of
    submission, while the caller goes on; what it raises comes out of ``Ticket.result``.
    """

    def __init__(self, path: HostPath, features: Tensor, lookahead: int) -> None:
        super().__init__(features, torch.device("cpu"))
        self.lookahead = lookahead
        self._path = path
        self._ring = TicketRing(lookahead + 1)
        self._buffers = [host_buffer(features) for _ in range(lookahead + 1)]
        self._worker = ThreadPoolExecutor(1, "gatherbench-fetch") if lookahead else None

    def rows_on_device(self) -> int | None:
        return self._path.hits

    def _submit(self, ids: Tensor) -> Ticket:
        out = self._buffers[self._ring.claim()].rows(ids.numel())
        if self._worker is None:
            self._path.fetch(ids, out)
            return self._ring.issue(lambda: out)
        future = self._worker.submit(self._path.fetch, ids.clone(), out)
        return self._ring.issue(lambda: fetched(future, out))

    def _close(self) -> None:
        self._ring.close()
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=not self._path.collective)
        self._path.close()
        self._buffers.clear()
