"""Data paths in host memory: the host backend, where the "device" is another piece of memory.

Every path is run for real, with its buffers, passes and threads, so that a machine without a GPU
exercises everything from plan to plot. What it measures is the host's cost of the path, never a
prediction of a GPU's. A path says how rows get into an output buffer (:class:`HostPath`);
:class:`HostFetcher` owns the buffers and decides in which thread that happens.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.host_gather import TUNED_WITH, HostGather, tuned_rows
from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.modes import plain_torch
from gatherbench.kernels.page_cache import SOURCE as MINCORE
from gatherbench.kernels.page_cache import pages_in_memory
from gatherbench.strategies.base import (
    ID_DTYPES,
    Fetcher,
    Observed,
    Residency,
    SetupStep,
    Ticket,
    check_ids,
    copied,
)
from gatherbench.strategies.buffers import RowBuffer, TicketRing

#: Up to so many bytes of rows torch gathers in the calling thread, and sooner than we are asked.
_LEFT_TO_TORCH = 32 << 10


def host_buffer(features: Tensor) -> RowBuffer:
    """A reusable buffer in host memory for rows of ``features``."""
    width, dtype = int(features.shape[1]), features.dtype
    return RowBuffer(lambda count: empty_table((count, width), dtype))


def _passing_buffer(features: Tensor) -> RowBuffer:
    """One that is given away when it is filled, and so has no pages worth preparing."""
    width, dtype = int(features.shape[1]), features.dtype
    return RowBuffer(lambda count: torch.empty((count, width), dtype=dtype, device="cpu"))


def on_disk(path: Path) -> tuple[Residency, ...]:
    """That no page of the file is in memory: what a path claims whose reads pass the page cache by.

    Nothing where the kernel does not tell.
    """
    try:
        left = pages_in_memory(path)
    except OSError:
        return ()
    found = f"the page cache ({left} pages)" if left else "the file on disk"
    return (Residency("the file on disk", found, MINCORE),)


class HostPath(Observed, ABC):
    """How the rows of one minibatch get from the table into an output buffer."""

    #: See ``Fetcher.live``.
    live: bool = True

    def __init__(self, features: Tensor) -> None:
        self.table = features
        self.cpu = HostGather()
        #: What making the path ready has told.
        self.setup: list[SetupStep] = []

    @abstractmethod
    def fetch(self, ids: Tensor, out: Tensor) -> None:
        """Write row ``ids[i]`` of the table to row ``i`` of ``out`` ``[B, D]``."""

    def close(self) -> None:
        """Join the threads."""
        self.cpu.close()


class DirectPath(HostPath):
    """One pass from the table to the output: what a GPU that reads in place does.

    On as many threads as do that fastest.
    """

    def __init__(self, features: Tensor) -> None:
        super().__init__(features)
        seconds = self.cpu.tune(features)
        source = f"median time.perf_counter, {TUNED_WITH:,} B of random rows, all in turns"
        self.setup = [
            SetupStep(f"gather_{threads}_threads_time", "s", median, source)
            for threads, median in seconds.items()
        ]
        how = (
            "as few as gather within a tenth of the fastest" if seconds else "all cores, none tried"
        )
        self.setup.append(SetupStep("gather_threads", "1", self.cpu.threads, how))
        if seconds:
            size, alone = tuned_rows(features) * features[0].nbytes, seconds[self.cpu.threads]
            self.setup.append(SetupStep("gather_time", "s", alone, f"{source}; those threads"))
            self.setup.append(SetupStep("gathered", "B", size, "rows × bytes of a row"))
        self._gather_s = 0.0

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        began = time.perf_counter()
        self.cpu.gather(self.table, ids, out)
        self._gather_s += time.perf_counter() - began

    def counts(self) -> Mapping[str, float]:
        return {"gather_time": self._gather_s}


class PathFetcher(Fetcher):
    """A fetcher whose rows a :class:`HostPath` brings, wherever they go from there.

    With lookahead 0 ``submit`` does the work. With more, one thread does it, in the order of
    submission, while the caller goes on; what it raises comes out of ``Ticket.result``.
    """

    def __init__(
        self, path: HostPath, features: Tensor, device: torch.device, lookahead: int
    ) -> None:
        super().__init__(features, device)
        self.lookahead, self.announced, self.setup = lookahead, path.announced, [*path.setup]
        self.live = path.live
        self._path = path
        self._ring = TicketRing(lookahead + 1)
        self._worker = ThreadPoolExecutor(1, "gatherbench-fetch") if lookahead else None

    def _issue(
        self, ids: Tensor, fetch: Callable[[Tensor], None], rows: Callable[[], Tensor]
    ) -> Ticket:
        """The ticket of the buffer that was claimed; ``rows`` gives them when ``fetch`` is done."""
        if self._worker is None:
            fetch(ids)
            return self._ring.issue(rows)
        future = self._worker.submit(fetch, copied(ids))

        def finish() -> Tensor:
            try:
                future.result()
            except CancelledError:
                raise RuntimeError("the fetcher was closed before this fetch began") from None
            return rows()

        return self._ring.issue(finish)

    def announce(self, ids: Tensor) -> None:
        self._path.announce(ids)

    def forget(self) -> None:
        self._path.forget()

    def begin_epoch(self) -> None:
        self._path.begin_epoch()

    def counts(self) -> Mapping[str, float]:
        return self._path.counts()

    def latencies(self) -> NDArray[np.int64] | None:
        return self._path.latencies()

    def residency(self) -> tuple[Residency, ...]:
        return self._path.residency()

    def _close(self) -> None:
        self._ring.close()
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
        self._path.close()


class HostFetcher(PathFetcher):
    """Runs a :class:`HostPath` into a ring of ``lookahead + 1`` buffers.

    Args:
        staged: the rows pass a staging buffer on their way, as those do that a copy engine carries.
    """

    def __init__(
        self, path: HostPath, features: Tensor, lookahead: int, *, staged: bool = False
    ) -> None:
        super().__init__(path, features, torch.device("cpu"), lookahead)
        self._features, self._row_bytes = features, self.row_width * self.dtype.itemsize
        self._staging = host_buffer(features) if staged else None
        self._buffers = [host_buffer(features) for _ in range(lookahead + 1)]

    def _submit(self, ids: Tensor) -> Ticket:
        out = self._buffers[self._ring.claim()].rows(ids.numel())
        return self._issue(ids, lambda ids: self._fetch(ids, out), lambda: out)

    def fetch(self, ids: Tensor) -> Tensor:
        """A few rows of a table in memory are left to torch: any pass of ours costs more."""
        if (
            type(self._path) is DirectPath
            and isinstance(ids, Tensor)
            and ids.dtype in ID_DTYPES
            and ids.dim() == 1
            and ids.device.type == "cpu"
            and ids.numel() * self._row_bytes <= _LEFT_TO_TORCH
        ):
            with plain_torch():
                self.check_usable()
                self._opened.check(self.live)
                try:
                    return torch.index_select(self._path.table, 0, ids)
                except IndexError:
                    check_ids(ids, self.num_rows, self.ids_device)
                    raise
                except RuntimeError:  # a dtype that torch stores and does not index
                    pass
        return super().fetch(ids)

    def hand_over(self, rows: Tensor) -> Tensor:
        for place, buffer in enumerate(self._buffers):
            whole = buffer.whole
            if whole.data_ptr() == rows.data_ptr() and 2 * len(rows) >= len(whole):
                self._buffers[place] = _passing_buffer(self._features)
                return rows
        return super().hand_over(rows)

    def _fetch(self, ids: Tensor, out: Tensor) -> None:
        if self._staging is None:
            self._path.fetch(ids, out)
        else:
            staged = self._staging.rows(ids.numel())
            self._path.fetch(ids, staged)
            self._path.cpu.copy(staged, out)

    def _close(self) -> None:
        super()._close()
        self._buffers.clear()
