"""Data paths in host memory: the host backend, where the "device" is another piece of memory.

Every path is run for real, with its buffers, passes and threads, so that a machine without a GPU
exercises everything from plan to plot. What it measures is the host's cost of the path, never a
prediction of a GPU's. A path says how rows get into an output buffer (:class:`HostPath`);
:class:`HostFetcher` owns the buffers and decides in which thread that happens.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.host_gather import HostGather, available_cores, numbers_of_threads
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
from gatherbench.strategies.behind import Behind
from gatherbench.strategies.buffers import RowBuffer, TicketRing
from gatherbench.strategies.host_tuning import EARLIER, TORCH, tuned, way_of

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

    def stage(self, ids: Tensor, between: Tensor, out: Tensor) -> None:
        """The same through a staging buffer, as a copy engine carries the rows on."""
        self.fetch(ids, between)
        self.cpu.copy(between, out)

    def begin(
        self, ids: Tensor, out: Tensor, then: Tensor | None = None
    ) -> Callable[[], object] | None:
        """Begin to write the rows to ``out``, and on to ``then``; what waits for the end.

        ``None``: the path fetches in Python, and whoever fetches ahead by it needs a thread.
        """
        return None

    def begin_and(
        self, ids: Tensor, out: Callable[[], Tensor], behind: Callable[[], None]
    ) -> Callable[[], object] | None:
        """The same, with ``behind`` done by a thread of Python when the rows are there.

        ``out`` is asked only by a path that begins: a thread may be filling what it would grow.
        """
        return None

    def settle(self, under_way: int) -> None:
        """Have nothing write to a buffer but so many fetches that are waited for."""

    def ways(self) -> list[int]:
        """Numbers of threads among which a training may choose, :data:`TORCH` with them."""
        return []

    def take(self, way: int) -> None:
        """Fetch that way from now on."""

    def close(self) -> None:
        """Join the threads."""
        self.cpu.close()


class DirectPath(HostPath):
    """One pass from the table to the output: what a GPU that reads in place does.

    On all cores, until :meth:`PathFetcher.tune` has found how many are fastest.
    """

    def __init__(self, features: Tensor) -> None:
        super().__init__(features)
        self._gather_s, self._by_torch = 0.0, False
        self._behind: Behind | None = None

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        with self._timed():
            if self._by_torch:
                torch.index_select(self.table, 0, ids, out=out)
            else:
                self.cpu.gather(self.table, ids, out)

    def rows(self, ids: Tensor) -> Tensor:
        """The rows in memory of their own; see :meth:`HostGather.rows`."""
        began = time.perf_counter()
        rows = self.cpu.rows(self.table, ids)
        self._gather_s += time.perf_counter() - began
        return rows

    def stage(self, ids: Tensor, between: Tensor, out: Tensor) -> None:
        """A piece is copied on while others are gathered; on torch's pool, when all are."""
        if self._by_torch:
            self.fetch(ids, between)
            out.copy_(between)
            return
        with self._timed():
            self.cpu.gather(self.table, ids, between, then=out)

    def begin(self, ids: Tensor, out: Tensor, then: Tensor | None = None) -> Callable[[], object]:
        begun = self.cpu.begin(self.table, ids, out, then)

        def wait() -> None:
            self._gather_s += begun.result()

        return wait

    def begin_and(
        self, ids: Tensor, out: Callable[[], Tensor], behind: Callable[[], None]
    ) -> Callable[[], object]:
        rows = out()
        if self._behind is None:
            self._behind = Behind(self.cpu.native)

        def ended(seconds: float) -> None:
            self._gather_s += seconds
            behind()

        return self._behind.begin(lambda: self.cpu.begin(self.table, ids, rows), ended)

    def close(self) -> None:
        super().close()
        if self._behind is not None:
            self._behind.join()

    def settle(self, under_way: int) -> None:
        self.cpu.native.settle(under_way)

    def ways(self) -> list[int]:
        return numbers_of_threads(available_cores())

    def take(self, way: int) -> None:
        self._by_torch = way == TORCH
        if way != TORCH:
            self.cpu.threads = way

    def counts(self) -> Mapping[str, float]:
        return {"gather_time": self._gather_s}

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._gather_s += time.perf_counter() - began


class PathFetcher(Fetcher):
    """A fetcher whose rows a :class:`HostPath` brings, wherever they go from there.

    With lookahead 0 ``submit`` does the work. With more, threads of the path do it, or one thread
    of Python where it has none, in the order of submission, while the caller goes on; what they
    raise comes out of ``Ticket.result``.
    """

    def __init__(
        self, path: HostPath, features: Tensor, device: torch.device, lookahead: int
    ) -> None:
        super().__init__(features, device)
        self.lookahead, self.announced, self.setup = lookahead, path.announced, [*path.setup]
        self.live = path.live
        self._path = path
        self._ring = TicketRing(lookahead + 1)
        self._thread: ThreadPoolExecutor | None = None
        #: By buffer: what waits for the native threads that fill it.
        self._begun: dict[int, Callable[[], object]] = {}
        self.tunable = len(path.ways()) > 1
        if self.tunable:
            size = self.row_width * features.element_size()
            self.tuning = f"gather of {size} B, {available_cores()} cores, {lookahead} ahead"

    def tune(self, ids: Tensor, beside: Callable[[], object]) -> list[SetupStep]:
        """Gather as a whole step is fastest, in which training takes its turn or runs beside."""
        steps = tuned(self, self._path, self._ways(ids), ids, beside, self._settle)
        self.setup += steps
        return steps

    def recall(self, found: Sequence[SetupStep]) -> list[SetupStep]:
        self._path.take(way_of(found))
        steps = [replace(step, source=f"{step.source}; {EARLIER}") for step in found]
        self.setup += steps
        return steps

    def _ways(self, ids: Tensor) -> list[int]:
        """Those worth a try for a minibatch of ``ids``: a small one stays in its thread."""
        shared = self._path.cpu.shares(ids.numel(), self.row_width * self.dtype.itemsize)
        return self._path.ways() if shared else []

    def _claimed(self) -> int:
        """The next buffer, to which nothing writes any more: not even a fetch whose rows nobody
        asked for, or one that an interrupt has left."""
        place = self._ring.claim()
        if (left := self._begun.pop(place, None)) is not None:
            with suppress(Exception):  # it came out of its own fetch, if anybody asked
                left()
        self._path.settle(self.lookahead)
        return place

    def _settle(self) -> None:
        """Wait until the device has nothing left to do."""

    def _issue(
        self, ids: Tensor, fetch: Callable[[Tensor], None], rows: Callable[[], Tensor]
    ) -> Ticket:
        """The ticket of the buffer that was claimed; ``rows`` gives them when ``fetch`` is done."""
        if not self.lookahead:
            fetch(ids)
            return self._ring.issue(rows)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "gatherbench-fetch")
        future = self._thread.submit(fetch, copied(ids))

        def finish() -> Tensor:
            try:
                future.result()
            except CancelledError:
                raise RuntimeError("the fetcher was closed before this fetch began") from None
            return rows()

        return self._ring.issue(finish)

    def announce(self, ids: Tensor) -> None:
        self._path.announce(ids)

    def drop_caches(self) -> None:
        self._path.drop_caches()

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
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
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
        #: One for each fetch under way: a thread may begin the next while another ends this one.
        self._staging = [host_buffer(features) for _ in range(lookahead + 1)] if staged else []
        if staged and self.tunable:  # torch's pool is for these alone
            self.tuning += ", staged"
        self._buffers = [host_buffer(features) for _ in range(lookahead + 1)]

    def _submit(self, ids: Tensor) -> Ticket:
        place = self._claimed()
        out = self._buffers[place].rows(ids.numel())
        between = self._staging[place].rows(ids.numel()) if self._staging else None
        if self.lookahead:
            to = (out, None) if between is None else (between, out)
            if (wait := self._path.begin(copied(ids), *to)) is not None:
                self._begun[place] = wait

                def finish() -> Tensor:
                    wait()
                    return out

                return self._ring.issue(finish)

        def fetch(ids: Tensor) -> None:
            if between is None:
                self._path.fetch(ids, out)
            else:
                self._path.stage(ids, between, out)

        return self._issue(ids, fetch, lambda: out)

    def fetch(self, ids: Tensor) -> Tensor:
        """Rows of a table in memory go straight to the caller's, but for many that are staged.

        A few are left to torch: any pass of ours costs more.
        """
        path = self._path
        if (
            type(path) is not DirectPath
            or not isinstance(ids, Tensor)
            or ids.dtype not in ID_DTYPES
            or ids.dim() != 1
            or not ids.is_cpu
            or (self._staging and path.cpu.shares(ids.numel(), self._row_bytes))
        ):
            return super().fetch(ids)
        with plain_torch():
            self.check_usable()
            self._opened.check(self.live)
            try:
                if ids.numel() * self._row_bytes <= _LEFT_TO_TORCH:
                    try:
                        return torch.index_select(path.table, 0, ids)
                    except RuntimeError:  # a dtype that torch stores and does not index
                        pass
                return path.rows(ids.contiguous())
            except IndexError:
                check_ids(ids, self.num_rows, self.ids_device)
                raise

    def hand_over(self, rows: Tensor) -> Tensor:
        for place, buffer in enumerate(self._buffers):
            whole = buffer.whole
            if whole.data_ptr() == rows.data_ptr() and 2 * len(rows) >= len(whole):
                self._buffers[place] = _passing_buffer(self._features)
                return rows
        return super().hand_over(rows)

    def _ways(self, ids: Tensor) -> list[int]:
        """On torch's pool, too, where nothing contends: rows are staged in the caller's turn."""
        ways = super()._ways(ids)
        in_turn = self._staging and not self.lookahead and torch.get_num_threads() > 1
        return [*ways, TORCH] if ways and in_turn else ways

    def _close(self) -> None:
        super()._close()
        self._buffers.clear()
