"""Data paths to a GPU on which the project's kernel gathers, wherever the table lies.

The table is registered or managed host memory (zero-copy) or GPU memory; to the kernel it is an
address. Only the ids travel by the copy engine. Blocking fetches are queued on the caller's stream,
whose order protects every buffer. Overlapped fetches run on a separate stream, and events keep the
order:

- the gather waits for an event on the caller's stream, recorded at ``submit``: by the contract of
  ``Ticket`` all readers of the buffer's earlier rows have been queued there by then, and so has
  whatever made ids that lie on the GPU;
- the caller's stream waits, in ``result``, for the event behind the gather;
- every fetch waits for the previous one, because fetches share the buffers of the order pass;
- the host fills a page-locked id buffer again only when its last copy has passed.

Ids from the host are checked there. Ids on the GPU stay there: for a bad id the kernel reads no row
and stores the id, which the host reads once after many fetches.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.launch import Table, architecture, gather_into, load_gather
from gatherbench.kernels.mapped_memory import (
    DeviceCopy,
    HostRegistration,
    ManagedMemory,
    MappedMemory,
)
from gatherbench.kernels.order import Order, ReadOrder, read_order
from gatherbench.kernels.policies import policy
from gatherbench.strategies.base import ID_DTYPES, Fetcher, Residency, SetupStep, Ticket, rows_of
from gatherbench.strategies.buffers import TicketRing
from gatherbench.strategies.cuda_fetcher import Staging, after, device_rows, event, found_at
from gatherbench.strategies.host_fetcher import ENOUGH, first_good, in_turns
from gatherbench.strategies.places import with_index

ON_DEVICE_POLICY = "unaligned"  #: The launch policy for rows that lie in GPU memory.
#: The paper's final share of the GPU, in per cent (10:90, its authors' script), for a gather beside
#: training: before tuning, and where it is not tuned.
USUAL_BUDGET = 10
BUDGETS = (1, 2, 5, 10, 15, 25, 50)  #: Per cent of the GPU that a sweep tries.
#: Bytes of a table from which on a sweep decides: the GPU's caches may hold a smaller one.
SWEEP_BYTES = 64 << 20
_SWEEP_ROUNDS, _STEPS = 5, 4

#: The ways to let a GPU read a table: register it in place, use managed memory (the table is copied
#: there if need be), or copy it to the GPU. With each: the metrics for its seconds and bytes.
Metric = tuple[str, str]
MEMORIES: dict[str, tuple[Callable[[Tensor, int], MappedMemory], Metric, Metric]] = {
    "registered": (
        HostRegistration,
        ("register_time", "time.perf_counter, cudaHostRegister"),
        ("registered", "bytes given to cudaHostRegister"),
    ),
    "managed": (
        ManagedMemory,
        ("managed_time", "time.perf_counter, the copy where there is one"),
        ("managed", "bytes of the table in managed memory"),
    ),
    "resident": (
        DeviceCopy,
        ("device_copy_time", "time.perf_counter, copy to the GPU"),
        ("device_copy", "tensor.nbytes"),
    ),
}


class IdBuffer:
    """Buffers for the ids of one fetch: one pinned on the host, one on the GPU."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._staging = Staging((), dtype)
        self._on_device = device_rows((), dtype, device)

    def send(self, ids: Tensor, stream: torch.cuda.Stream) -> Tensor:
        """Queue the copy of host ``ids`` on ``stream``, the current one; return the GPU's ids."""
        # NumPy copies: torch's pool would spin on every core (see ``base.check_ids``).
        np.copyto(self._staging.rows(ids.numel()).numpy(), ids.numpy())
        on_device = self._on_device.rows(ids.numel())
        on_device.record_stream(stream)
        self._staging.copy_to(on_device, stream)
        return on_device


class KernelFetcher(Fetcher):
    """Fetches with the project's kernel; the module's docstring explains the order of the streams.

    A path that takes some rows from elsewhere derives from this: ``_arrange`` returns which ids are
    read from the table and where they belong, ``_gather`` queues the reads. Anything else that
    those methods send needs two buffers, used in turn like those of the ids.

    Args:
        memory, setup: where the kernel reads the table (closed with the fetcher); what it cost.
        policy, order: the launch policy on the table, and the pass over the ids.
        overlapped: fetch on a separate stream, one batch ahead.
    """

    def __init__(
        self,
        features: Tensor,
        device: torch.device,
        memory: MappedMemory,
        setup: list[SetupStep],
        policy: str,
        order: Order = "given",
        *,
        overlapped: bool = False,
    ) -> None:
        super().__init__(features, with_index(device))
        self.ids_device = self.device
        self.lookahead = 1 if overlapped else 0
        self.memory = memory
        self.live = self.live and memory.in_place
        row_bytes = self.row_width * self.dtype.itemsize
        self.table = Table(memory.address, self.num_rows, row_bytes, row_bytes)
        self.points = {kind: self._point(policy, memory.address, kind) for kind in ID_DTYPES}
        self._expansion = self._point(ON_DEVICE_POLICY, 0, torch.int64)
        self._order = order
        stream: Any = torch.cuda.Stream
        self._side = stream(self.device) if overlapped else None
        self._ordering = stream(self.device) if order == "unique" else None
        places = self.lookahead + 1
        shape = (self.row_width,)
        self._rows = [device_rows(shape, self.dtype, self.device) for _ in range(places)]
        self._distinct = device_rows(shape, self.dtype, self.device)
        self._ids = [{k: IdBuffer(k, self.device) for k in ID_DTYPES} for _ in range(2)]
        self._gathered, self._ready, self._found = (
            [event() for _ in range(places)] for _ in range(3)
        )
        #: The event behind the last fetch, and the stream that it ran on.
        self._last: tuple[torch.cuda.Event, torch.cuda.Stream] | None = None
        self._bad_id = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._unchecked = False
        #: Where the gather stores a bad id; ``None`` in a path that has checked the ids before.
        self._gather_tells: Tensor | None = self._bad_id
        self._ring = TicketRing(places)
        self._submitted = 0

        begin = time.perf_counter()
        for point in (*self.points.values(), self._expansion):
            load_gather(point, architecture(self.device))
        compiling = time.perf_counter() - begin
        clock = "time.perf_counter around compiling (or finding) and loading the kernels"
        self.setup = [*setup, SetupStep("kernel_load_time", "s", compiling, clock)]

    @classmethod
    def of(
        cls,
        features: Tensor,
        device: torch.device,
        memory: str,
        policy: str,
        order: Order = "given",
        *,
        overlapped: bool = False,
    ) -> Self:
        """Open a fetcher on the table in one of :data:`MEMORIES`."""
        device = with_index(device)
        make, (time_metric, clock), (size_metric, size_source) = MEMORIES[memory]
        mapped = make(features, device.index)
        setup = [
            SetupStep(time_metric, "s", mapped.seconds, clock),
            SetupStep(size_metric, "B", mapped.size_bytes, size_source),
        ]
        if memory == "managed":
            text = "bytes of the table that lay elsewhere, and now lie twice on the host"
            setup.append(SetupStep("managed_copy", "B", mapped.copied, text))
        try:
            return cls(features, device, mapped, setup, policy, order, overlapped=overlapped)
        except BaseException:
            mapped.close()
            raise

    def limit(self, percent: int) -> None:
        """Gather on ``percent`` of the GPU's threads from now on."""
        blocks = blocks_of(percent, self.points[torch.int64].block_threads, self.device)
        for kind, point in self.points.items():
            self.points[kind] = dataclasses.replace(point, max_blocks=blocks)

    def take(self, percent: int, why: str, metric: str = "budget") -> None:
        """Gather on ``percent`` of the GPU from now on, and record that in ``setup``."""
        self.limit(percent)
        self.setup.append(SetupStep(metric, "1", percent / 100, f"capped grid; {why}"))

    def residency(self) -> tuple[Residency, ...]:
        here = self.memory
        return (found_at(here.address, here.kind),) if here.size_bytes else ()

    def _submit(self, ids: Tensor) -> Ticket:
        place = self._ring.claim()
        current = torch.cuda.current_stream(self.device)
        stream = current if self._side is None else self._side
        out = self._rows[place].rows(ids.numel())
        # Memory belongs to the stream on which it was allocated: without this mark it could be
        # reused, once freed, while another stream still writes it.
        out.record_stream(stream)
        on_gpu = ids.device.type != "cpu"
        self._unchecked |= on_gpu
        if on_gpu and stream != current:
            ids = ids.clone()  # the caller may change them; queued before the event below
            ids.record_stream(stream)
        ready = self._ready[place]
        if stream != current or self._ordering is not None:
            ready.record(current)
        if stream != current:
            stream.wait_event(ready)
        if self._last is not None and self._last[1] != stream:
            stream.wait_event(self._last[0])
        buffer = self._ids[self._submitted % 2][ids.dtype]
        self._submitted += 1
        order = self._arrange(ids, buffer, stream, place)
        with torch.cuda.stream(stream):
            self._gather(order, out)
        gathered = self._gathered[place]
        gathered.record(stream)
        self._last = gathered, stream
        return self._ring.issue(lambda: after(gathered, out))

    def check_fetched(self) -> None:
        if self._unchecked:
            self._unchecked = False
            torch.cuda.synchronize(self.device)
            bad = int(self._bad_id)
            if bad:
                self._bad_id.zero_()
                raise IndexError(f"ids on {self.device} hold {bad}: {rows_of(self.num_rows)}")

    def _arrange(
        self, ids: Tensor, buffer: IdBuffer, stream: torch.cuda.Stream, place: int
    ) -> ReadOrder:
        """Bring the ids to the GPU in the order of reading, for use on ``stream``.

        To find the distinct ids the host waits for the GPU, on a stream without queued training,
        whose memory is the result: unmarked, the next minibatch's ids would overwrite it too early.
        """
        ordering = self._ordering or stream
        with torch.cuda.stream(ordering):
            on_gpu = ids.device.type != "cpu"
            if on_gpu and ordering != stream:
                ordering.wait_event(self._ready[place])
            order = read_order(ids if on_gpu else buffer.send(ids, ordering), self._order)
            if ordering == stream:
                return order
            self._found[place].record(ordering)
            stream.wait_event(self._found[place])  # ids, too, are kept until then
        for tensor in (order.ids, order.expand):
            assert tensor is not None
            tensor.record_stream(stream)
        return order

    def _gather(self, order: ReadOrder, out: Tensor) -> None:
        point = self.points[order.ids.dtype]
        if order.expand is None:
            gather_into(out, self.table, order.ids, point, order.out_rows, self._gather_tells)
            return
        count = order.ids.numel()
        distinct = self._distinct.rows(count)
        distinct.record_stream(torch.cuda.current_stream(self.device))
        gather_into(distinct, self.table, order.ids, point, None, self._gather_tells)
        row_bytes = self.table.row_bytes
        read = Table(distinct.data_ptr(), count, row_bytes, row_bytes)
        gather_into(out, read, order.expand, self._expansion)

    def _close(self) -> None:
        self._ring.close()
        try:
            torch.cuda.synchronize(self.device)  # from here on nothing reads table or ids
            self.check_fetched()
        finally:
            self._rows.clear()
            self._ids.clear()
            self.memory.close()

    def _point(self, name: str, address: int, ids: torch.dtype) -> GridPoint:
        """Return the launch for a table at ``address``; torch aligns its own memory to 256 B."""
        row_bytes, item_bytes = self.table.row_bytes, self.dtype.itemsize
        place = {"table_address": address, "index_bytes": ids.itemsize}
        return policy(name).point(row_bytes, item_bytes, **place)


class OverlappedFetcher(KernelFetcher):
    """Finds the share of a GPU that a gather on a separate stream needs while training runs: a cap
    of the grid as a part of all threads that the GPU can hold. The blocks spread over all
    multiprocessors and leave the rest of each to training."""

    def begin_with(self, budget: str) -> None:
        """Gather within ``budget``: per cent, or ``auto``, which may be tuned."""
        chosen = budget != "auto"
        self.tunable = not chosen and self.memory.size_bytes >= SWEEP_BYTES
        percent = int(budget) if chosen else USUAL_BUDGET
        self.take(percent, "chosen by the user" if chosen else "the paper's share")

    def tune(self, ids: Tensor, beside: Callable[[], object]) -> list[SetupStep]:
        """Take the smallest share that is good by the time of a whole step, training included."""
        known = len(self.setup)
        measure = functools.partial(self.step_seconds, ids, beside)
        shares = in_turns(BUDGETS, self.limit, measure, _SWEEP_ROUNDS)
        source = f"median time.perf_counter of a step, training beside the fetch, {_STEPS} in a row"
        self.setup += [
            SetupStep(f"budget_{percent}_step_time", "s", seconds, source)
            for percent, seconds in shares.items()
        ]
        alone = statistics.median(self.alone_seconds(beside) for _ in range(_SWEEP_ROUNDS))
        source = "median time.perf_counter of a training step, no fetch beside it"
        self.setup.append(SetupStep("train_alone_step_time", "s", alone, source))
        fetching = functools.partial(self.step_seconds, ids, lambda: None)
        fetch = min(in_turns(BUDGETS, self.limit, fetching, _SWEEP_ROUNDS).values())
        source = "median time.perf_counter of a fetch, no training beside it, by the fastest share"
        self.setup.append(SetupStep("fetch_alone_step_time", "s", fetch, source))
        why = f"smallest that reaches {ENOUGH:.0%} of the best step; replaces the paper's share"
        self.take(first_good(shares), why, "budget_beside_training")
        return self.setup[known:]

    def alone_seconds(self, beside: Callable[[], object]) -> float:
        """Measure the seconds of ``beside`` while nothing else runs."""
        torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        for _ in range(_STEPS):
            beside()
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - begin) / _STEPS

    def step_seconds(self, ids: Tensor, beside: Callable[[], object]) -> float:
        """Measure the seconds of a step that fetches ``ids`` while ``beside`` runs."""
        tickets = [self.submit(ids)]

        def step() -> None:
            tickets.pop().result()
            tickets.append(self.submit(ids))
            beside()

        seconds = self.alone_seconds(step)
        tickets.pop().result()
        return seconds


def blocks_of(percent: int, block_threads: int, device: torch.device) -> int:
    """Return the blocks for ``percent`` of the threads that fit on the GPU at once; at least 1."""
    gpu = torch.cuda.get_device_properties(device)
    threads = gpu.multi_processor_count * gpu.max_threads_per_multi_processor
    return max(1, threads * percent // 100 // block_threads)
