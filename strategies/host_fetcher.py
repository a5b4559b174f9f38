"""Data paths in host memory: the host backend, where the "device" is another piece of memory.

Every path really runs, with its buffers, passes and threads; its cost never predicts a GPU's. A
:class:`HostPath` writes rows to an output buffer; :class:`HostFetcher` owns the buffers and decides
in which thread that happens.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.host_gather import Begun, HostGather, available_cores, numbers_of_threads
from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.modes import plain_torch
from gatherbench.kernels.native_threads import NativeThreads
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

#: Up to this many bytes of rows torch gathers in the calling thread, faster than our own loops.
_LEFT_TO_TORCH = 32 << 10
#: In place of a number of threads: ``torch.index_select`` into the staging buffer, then a copy.
TORCH = 0
#: The part of the fastest step's rate that a cheaper way has to reach: fewer threads, our threads
#: before torch's pool, or a smaller share of a GPU.
ENOUGH = 0.97
#: Steps in a row, rounds, and the seconds within which another round may begin.
_STEPS, _ROUNDS, _ROUNDS_S = 3, 6, 2.0
EARLIER = "found by an earlier process of the run on this machine"


def host_buffer(features: Tensor, *, given_away: bool = False) -> RowBuffer:
    """Make a buffer in host memory for rows; the pages of one that is ``given_away`` once it is
    filled are not prepared."""
    width, dtype = int(features.shape[1]), features.dtype
    if given_away:
        return RowBuffer(lambda count: torch.empty((count, width), dtype=dtype, device="cpu"))
    return RowBuffer(lambda count: empty_table((count, width), dtype))


class HostPath(Observed, ABC):
    """Writes the rows of one minibatch from the table to an output buffer."""

    live: bool = True  #: See ``Fetcher.live``.

    def __init__(self, features: Tensor) -> None:
        self.table = features
        self.cpu = HostGather()
        self.setup: list[SetupStep] = []  #: The costs of opening the path.

    @abstractmethod
    def fetch(self, ids: Tensor, out: Tensor) -> None:
        """Write row ``ids[i]`` of the table to row ``i`` of ``out`` ``[B, D]``."""

    def stage(self, ids: Tensor, between: Tensor, out: Tensor) -> None:
        """Fetch to the staging buffer ``between``, then copy to ``out`` as a copy engine does."""
        self.fetch(ids, between)
        self.cpu.copy(between, out)

    def begin(
        self, ids: Tensor, out: Tensor, then: Tensor | None = None
    ) -> Callable[[], object] | None:
        """Begin to write the rows to ``out``, and on to ``then``; return a call that waits for it,
        or ``None``: the path fetches in Python, so prefetching by it needs a Python thread."""
        return None

    def begin_and(
        self, ids: Tensor, out: Callable[[], Tensor], behind: Callable[[], None]
    ) -> Callable[[], object] | None:
        """Like :meth:`begin`, and a Python thread calls ``behind`` when the rows are complete. Only
        a path that begins calls ``out``, whose buffer another thread may still be filling."""
        return None

    def settle(self, under_way: int) -> None:
        """Wait for abandoned fetches, so that at most ``under_way`` fetches write to buffers."""

    def ways(self) -> list[int]:
        """List the numbers of threads to try while tuning; :data:`TORCH` stands for its pool."""
        return []

    def take(self, way: int) -> None:
        """Fetch by ``way``, one of :meth:`ways`, from now on."""

    def close(self) -> None:
        self.cpu.close()


class Behind(threading.Thread):
    """Runs Python code when the rows of a gather by native threads are complete: it takes Python's
    lock once per job, and ends with the native threads."""

    def __init__(self, native: NativeThreads) -> None:
        super().__init__(name="gatherbench-fetch", daemon=True)
        self._native, self._next = native, native.posted
        self._todo: dict[int, tuple[Begun, Callable[[float], None], Future[None]]] = {}
        self._turn = threading.Lock()
        self.start()

    def begin(
        self, begin: Callable[[], Begun], ended: Callable[[float], None]
    ) -> Callable[[], None]:
        """Begin a gather, then call ``ended`` with its seconds; return a call that awaits both."""
        future = Future[None]()
        with self._turn:  # else it might be done before its entry is stored
            begun = begin()
            self._todo[begun.number] = begun, ended, future
        return future.result

    def run(self) -> None:
        while True:
            self._native.wait(self._next)
            with self._turn:
                todo = self._todo.pop(self._next, None)
            self._next += 1
            if todo is not None:
                begun, ended, future = todo
                try:
                    ended(begun.result())
                    future.set_result(None)
                except BaseException as error:
                    future.set_exception(error)
            if not (self._native.usable or self._todo):
                return


class DirectPath(HostPath):
    """Gathers in one pass from table to output, on all cores until it is tuned."""

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

    def stage(self, ids: Tensor, between: Tensor, out: Tensor) -> None:
        """Copy each piece on while others are gathered; on torch's pool copy after the gather."""
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
    """A fetcher that gets its rows from a :class:`HostPath`, wherever they go from there: with
    lookahead 0 in ``submit``, else in threads of the path (or a Python thread if it has none), in
    the order of submission; ``Ticket.result`` raises their errors."""

    def __init__(
        self, path: HostPath, features: Tensor, device: torch.device, lookahead: int
    ) -> None:
        super().__init__(features, device)
        self.lookahead, self.announced, self.setup = lookahead, path.announced, [*path.setup]
        self.live = path.live
        self._path = path
        self._ring = TicketRing(lookahead + 1)
        self._thread: ThreadPoolExecutor | None = None
        #: By buffer: the call that waits for the native threads that fill it.
        self._begun: dict[int, Callable[[], object]] = {}
        self.tunable = len(path.ways()) > 1
        if self.tunable:
            size = self.row_width * features.element_size()
            self.tuning = f"gather of {size} B, {available_cores()} cores, {lookahead} ahead"

    def tune(self, ids: Tensor, beside: Callable[[], object]) -> list[SetupStep]:
        """Choose the way of gathering with the fastest whole step, training included."""
        steps = tuned(self, self._path.take, self._ways(ids), ids, beside, self._settle)
        self.setup += steps
        return steps

    def recall(self, steps: Sequence[SetupStep]) -> list[SetupStep]:
        self._path.take(way_of(steps))
        recalled = [replace(step, source=f"{step.source}; {EARLIER}") for step in steps]
        self.setup += recalled
        return recalled

    def _ways(self, ids: Tensor) -> list[int]:
        shared = self._path.cpu.shares(ids.numel(), self.row_width * self.dtype.itemsize)
        return self._path.ways() if shared else []

    def _claimed(self) -> int:
        """Claim the next buffer once no fetch, not even an abandoned one, still writes to it."""
        place = self._ring.claim()
        if (left := self._begun.pop(place, None)) is not None:
            with suppress(Exception):  # its own ticket raises the error
                left()
        self._path.settle(self.lookahead)
        return place

    def _settle(self) -> None:
        """Wait until the device has finished its queued work."""

    def _issue(
        self, ids: Tensor, fetch: Callable[[Tensor], None], rows: Callable[[], Tensor]
    ) -> Ticket:
        """Issue the ticket of the claimed buffer; ``rows`` returns its rows after ``fetch``."""
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

    def _issue_begun(
        self, place: int, wait: Callable[[], object], rows: Callable[[], Tensor]
    ) -> Ticket:
        """Issue the ticket of a buffer that native threads fill, which ``wait`` waits for."""
        self._begun[place] = wait

        def finish() -> Tensor:
            wait()
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
    """Runs a :class:`HostPath` into a ring of ``lookahead + 1`` buffers; if ``staged``, rows pass
    through a staging buffer, as with a copy engine."""

    def __init__(
        self, path: HostPath, features: Tensor, lookahead: int, *, staged: bool = False
    ) -> None:
        super().__init__(path, features, torch.device("cpu"), lookahead)
        self._features, self._row_bytes = features, self.row_width * self.dtype.itemsize
        self._in_memory = not staged or type(path) is DirectPath  # what a disk holds is staged
        #: One for each fetch in flight: a thread may begin the next while another ends this one.
        self._staging = [host_buffer(features) for _ in range(lookahead + 1)] if staged else []
        if staged and self.tunable:  # only staged rows use torch's pool
            self.tuning += ", staged"
        self._buffers = [host_buffer(features) for _ in range(lookahead + 1)]

    def _submit(self, ids: Tensor) -> Ticket:
        place = self._claimed()
        out = self._buffers[place].rows(ids.numel())
        between = self._staging[place].rows(ids.numel()) if self._staging else None
        to = (out, None) if between is None else (between, out)
        if self.lookahead and (wait := self._path.begin(copied(ids), *to)) is not None:
            return self._issue_begun(place, wait, lambda: out)

        def fetch(ids: Tensor) -> None:
            if between is None:
                self._path.fetch(ids, out)
            else:
                self._path.stage(ids, between, out)

        return self._issue(ids, fetch, lambda: out)

    def fetch(self, ids: Tensor) -> Tensor:
        """Gather rows of a table in memory straight to fresh memory; torch gathers few rows."""
        plain = isinstance(ids, Tensor) and ids.is_cpu and ids.dtype in ID_DTYPES
        if not (plain and ids.dim() == 1 and self._in_memory):
            return super().fetch(ids)
        with plain_torch():
            self.check_usable()
            self._opened.check(self.live)
            try:
                if ids.numel() * self._row_bytes <= _LEFT_TO_TORCH:
                    try:
                        return torch.index_select(self._features, 0, ids)
                    except RuntimeError:  # torch cannot index this dtype
                        pass
                return self._path.cpu.rows(self._features, ids.contiguous())
            except IndexError:
                check_ids(ids, self.num_rows, self.ids_device)
                raise

    def hand_over(self, rows: Tensor) -> Tensor:
        for place, buffer in enumerate(self._buffers):
            whole = buffer.whole
            if whole.data_ptr() == rows.data_ptr() and 2 * len(rows) >= len(whole):
                self._buffers[place] = host_buffer(self._features, given_away=True)
                return rows
        return super().hand_over(rows)

    def _ways(self, ids: Tensor) -> list[int]:
        ways = super()._ways(ids)
        in_turn = self._staging and not self.lookahead and torch.get_num_threads() > 1
        return [*ways, TORCH] if ways and in_turn else ways

    def _close(self) -> None:
        super()._close()
        self._buffers.clear()


def tuned(
    fetcher: Fetcher,
    take: Callable[[int], None],
    ways: Sequence[int],
    ids: Tensor,
    beside: Callable[[], object],
    settle: Callable[[], None],
) -> list[SetupStep]:
    """Have the path ``take`` the first of ``ways`` whose step is good; return the measurements.

    The time of a gather alone misleads: threads that spin after a training step take cores from the
    next gather, and with a GPU every thread takes one from the thread that launches the training.
    So each way is tried for some whole steps, in turns, with other rows each time, which no cache
    holds. ``beside`` does, or queues, one training step; ``settle`` waits for the queued work.
    """
    if not ways:
        return [SetupStep("gather_threads", "1", 1, "a minibatch is too small to share")]
    draw = np.random.default_rng(0)

    def others() -> Tensor:
        shift = int(draw.integers(fetcher.num_rows))
        moved = (ids.cpu().numpy().astype(np.int64) + shift) % fetcher.num_rows
        return torch.from_numpy(moved).to(ids.device, ids.dtype)

    def seconds() -> float:
        minibatches = [others() for _ in range(_STEPS + 1)]
        ticket = fetcher.submit(minibatches.pop())
        settle()
        began = time.perf_counter()
        for minibatch in minibatches:
            ticket.result()
            ticket = fetcher.submit(minibatch)
            beside()
        ticket.result()
        settle()
        return (time.perf_counter() - began) / _STEPS

    medians = in_turns(ways, take, seconds, _ROUNDS, _ROUNDS_S)
    chosen = first_good(medians)
    take(chosen)
    before = fetcher.counts()["gather_time"]
    for _ in range(_ROUNDS):
        fetcher.submit(others()).result()
    alone_s = fetcher.counts()["gather_time"] - before
    source = f"median time.perf_counter of a step, training in it, {_STEPS} in a row, in turns"
    how = f"the first that reaches {ENOUGH:.0%} of the best step: fewest threads, torch's pool last"
    size = _ROUNDS * ids.numel() * fetcher.row_width * fetcher.dtype.itemsize
    alone = f"the path's own gather_time over {_ROUNDS} fetches with no training between them"
    names = {way: "torch_pool" if way == TORCH else f"{way}_threads" for way in medians}
    return [
        *(SetupStep(f"gather_{names[k]}_step_time", "s", s, source) for k, s in medians.items()),
        SetupStep("gather_threads", "1", chosen or torch.get_num_threads(), how),
        SetupStep("gather_on_torch_pool", "1", float(chosen == TORCH), how),
        SetupStep("gather_time", "s", alone_s, alone),
        SetupStep("gathered", "B", size, "rows × bytes of a row"),
    ]


def in_turns(
    ways: Sequence[int],
    take: Callable[[int], object],
    measure: Callable[[], float],
    rounds: int,
    limit_s: float = math.inf,
) -> dict[int, float]:
    """Measure the ways in turns, after a round that warms up, in rounds of which none begins later
    than after ``limit_s`` seconds; return the median of each."""
    taken: dict[int, list[float]] = {way: [] for way in ways}
    deadline = time.perf_counter() + limit_s
    for number in range(1 + rounds):
        for way, seconds in taken.items():
            take(way)
            seconds.append(measure())
        if number and time.perf_counter() > deadline:
            break
    return {way: statistics.median(seconds[1:]) for way, seconds in taken.items()}


def first_good(seconds: Mapping[int, float]) -> int:
    """Return the first way that takes at most 1 / :data:`ENOUGH` times the shortest time."""
    best = min(seconds.values())
    return next(way for way, value in seconds.items() if best >= ENOUGH * value)


def way_of(steps: Sequence[SetupStep]) -> int:
    """Return the way that :func:`tuned` chose."""
    values = {step.metric: step.value for step in steps}
    return TORCH if values.get("gather_on_torch_pool") else int(values["gather_threads"] or 1)
