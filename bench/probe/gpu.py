"""Times the link and the GPU: one registered table in host memory, and a time for each launch.

``round_trip`` chases pointers along rings that lie in the table, one for each span, a place drawn
at random in each of equal pieces of the span. Nothing else writes to the table while they are
walked.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gatherbench.bench.probe import cases
from gatherbench.bench.probe.cases import CASES, MIB, OUR_BEST, amount_of, num_ids, num_rows
from gatherbench.bench.probe.stand import CLOCK, EVENTS, Observation, ProbeError, filled_table
from gatherbench.bench.read.points import Point
from gatherbench.kernels.grid import LINE_BYTES
from gatherbench.kernels.launch import (
    Table,
    architecture,
    gather_into,
    launch_kernel,
    load_from,
    policy_point,
)
from gatherbench.kernels.managed_memory import managed_table
from gatherbench.kernels.mapped_memory import HostRegistration
from gatherbench.kernels.order import read_order
from gatherbench.kernels.policies import POLICIES
from gatherbench.strategies.base import check_ids
from gatherbench.strategies.cuda_overlap import blocks_of

if TYPE_CHECKING:
    from gatherbench.bench.probe.host import HostStand
    from gatherbench.bench.run.captured import CapturedTrainer
    from gatherbench.bench.run.models import Trainer
    from gatherbench.bench.sampling.device_sampler import DeviceSampler
    from gatherbench.bench.sampling.minibatch import MiniBatch

_ROOF_BLOCK = 512
_CHECKED_ROWS = 4099
#: A quarter of a millisecond at 2 GHz: two launches from Python take less.
_SPIN_CYCLES = 500_000
BACK_BYTES = 256 * MIB
#: Rows of the gather into fresh memory: an ordinary minibatch.
PAGEABLE_ROWS = 100_000
#: A ring has at most so many places; with one line each, more than a GPU's caches hold.
RING_PLACES = 1 << 20
HOPS = 10_000
MATMUL_SIZE = 8192
#: Layers of the little chain whose forward and backward operations are issued.
CHAIN = 100
#: Steps of an observation of what issuing takes.
STEPS = 5
SUBMITTED_ROWS = 1000

#: What a launch of the roof takes (begin, 16-byte words, sink), and one of the chase (table, start,
#: hops, end).
_ROOF_KINDS = (ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p)
_CHASE_KINDS = (ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_void_p)


class Ring:
    """Places in the first ``span`` bytes of ``words`` (int64), each holding the next one.

    ``column`` is the word within a line of 128 B, so that several rings fit the same lines.
    """

    def __init__(self, words: Tensor, span: int, column: int, generator: torch.Generator) -> None:
        lines = span // LINE_BYTES
        count = min(RING_PLACES, lines)
        bounds = torch.arange(count + 1) * lines // count
        within = torch.rand(count, generator=generator, dtype=torch.float64) * bounds.diff()
        places = (bounds[:-1] + within.long()) * (LINE_BYTES // 8) + column
        self.order = places[torch.randperm(count, generator=generator)]
        words[self.order] = self.order.roll(-1)
        self._at = 0

    @property
    def start(self) -> int:
        """The word on which the next walk begins."""
        return int(self.order[self._at])

    def walked(self, hops: int, end: int) -> None:
        """Take note of a walk.

        Raises:
            ProbeError: it did not end where the ring says.
        """
        self._at = (self._at + hops) % len(self.order)
        if end != self.start:
            raise ProbeError(f"the pointer chase ended at word {end}, not at {self.start}")


class GpuStand(contextlib.ExitStack):
    """Measures every case of the GPU, and of the host, over a table as large as ``max(spans)``.

    Setting up is timed, too: ``setup`` has what filling and registering the table took.
    """

    def __init__(self, spans: Sequence[int], device: torch.device) -> None:
        super().__init__()
        self.device, self.spans = device, sorted(spans)
        size = self.spans[-1]
        begin = time.perf_counter()
        self.bytes = filled_table(size)
        filled = time.perf_counter() - begin
        self.memory = HostRegistration(self.bytes, device.index)
        self.push(self._unregister)
        self.setup = {
            Point("table_fill", span_bytes=size): Observation(size, filled, CLOCK),
            Point("table_register", span_bytes=size): Observation(size, self.memory.seconds, CLOCK),
        }
        room = max(cases.ROOF_BYTES, cases.READ_BYTES)
        self.out = torch.empty(room, dtype=torch.uint8, device=device)
        self._generator = torch.Generator(device).manual_seed(0)
        self._host_draw = torch.Generator().manual_seed(0)
        self._rings: dict[int, Ring] = {}
        self._host: HostStand | None = None
        self._roof_at = 0
        self._managed: Tensor | None = None

    def bring_managed(self, size: int) -> None:
        """A copy of the first ``size`` bytes in managed memory that stays on the host.

        Raises:
            CudaCallError, MemoryError: there is none, or not so much.
        """
        self._managed = managed_table((1, size), torch.uint8, self.device.index)[0]
        self._managed.copy_(self.bytes[:size])

    def measure(self, point: Point) -> Observation:
        """One observation; everything that the launch needs is made, and done, before.

        Raises:
            ProbeError: the processor gathered wrong rows, or the chase went astray.
        """
        if not CASES[point.case].needs:
            if self._host is None:
                from gatherbench.bench.probe.host import HostStand

                self._host = self.enter_context(HostStand(self.bytes))
            return self._host.measure(point)
        part = "id_pass" if point.case in cases.PASSES else point.case
        seen: Observation = getattr(self, f"_{part}")(point)
        return seen

    def check(self, policy: str, row_bytes: int, *, managed: bool = False) -> None:
        """Gather some rows of the whole table, or of managed memory, and compare with the host's.

        Raises:
            RuntimeError: they differ.
        """
        stride = POLICIES[policy].row_stride(row_bytes)
        held = self._table(managed)
        rows = held.numel() // stride
        ids = self._ids(_CHECKED_ROWS, rows)
        out = self.out[: ids.numel() * row_bytes].view(-1, row_bytes)
        expected = held[: rows * stride].view(rows, stride)[ids.cpu(), :row_bytes]
        for order, (read, places) in (("given", (ids, None)), ("sorted", torch.sort(ids))):
            out.zero_()
            self.gather(policy, row_bytes, read, out, places=places, managed=managed)
            if not torch.equal(out.cpu(), expected):
                raise RuntimeError(f"policy {policy}, rows of {row_bytes} B, {order}: wrong rows")

    def _piece(self, size: int, span: int) -> int:
        """Where the next piece of ``size`` bytes begins, on a page, somewhere else each time."""
        begin = self._roof_at * size % (span - size + 1) & ~0xFFF
        self._roof_at += 1
        return begin

    def _copy_to_device(self, point: Point) -> Observation:
        size = amount_of(point)
        begin = self._piece(size, point.span_bytes)
        source, target = self.bytes[begin : begin + size], self.out[:size]
        return self._timed(size, lambda: target.copy_(source, non_blocking=True))

    def _sm_read(self, point: Point) -> Observation:
        size = amount_of(point)
        multiprocessors = torch.cuda.get_device_properties(self.device).multi_processor_count
        grid = max(1, point.grid_percent * multiprocessors // 100)
        values = (self.memory.address + self._piece(size, point.span_bytes), size // 16, 0)
        kernel, block = self._roof_kernel, (_ROOF_BLOCK, 1)
        return self._timed(
            size, lambda: launch_kernel(kernel, grid, block, values, _ROOF_KINDS, self.device)
        )

    def _gpu_gather(self, point: Point) -> Observation:
        return self._timed(amount_of(point), self._gathering(point))

    def _managed_gather(self, point: Point) -> Observation:
        return self._timed(amount_of(point), self._gathering(point))

    def _table(self, managed: bool) -> Tensor:
        if not managed:
            return self.bytes
        if self._managed is None:
            raise ProbeError("no managed memory was brought")
        return self._managed

    def _gathering(self, point: Point) -> Callable[[], object]:
        """The launches of a gather, its ids arranged already."""
        size, width, rows = amount_of(point), point.row_bytes, num_rows(point)
        order = read_order(self._ids(num_ids(point), rows), point.order)
        out = self.out[:size].view(-1, width)
        gather = functools.partial(
            self.gather,
            point.policy,
            width,
            rows=rows,
            grid_percent=point.grid_percent,
            managed=point.case == "managed_gather",
        )
        if order.expand is None:
            return functools.partial(gather, order.ids, out, places=order.out_rows)
        expand = order.expand
        distinct = torch.empty((order.ids.numel(), width), dtype=torch.uint8, device=self.device)
        near = Table(distinct.data_ptr(), order.ids.numel(), width, width)
        item = min(4, width & -width)
        copy = policy_point("unaligned", width, item, 0, out.data_ptr() % 16, 8)

        def both() -> None:
            gather(order.ids, distinct)
            gather_into(out, near, expand, copy)

        return both

    def _id_pass(self, point: Point) -> Observation:
        rows, count = point.span_bytes // point.row_bytes, num_ids(point)
        ids = self._ids(count, rows)
        if point.case == "check_ids":
            return self._clocked(count, lambda: check_ids(ids, rows, self.device), wait=False)
        order = "sorted" if point.case == "sort_ids" else "unique"
        return self._timed(count, lambda: read_order(ids, order))

    def _copy_to_host(self, point: Point) -> Observation:
        size = min(self._back.numel(), self.out.numel())
        source, target = self.out[:size], self._back[:size]
        return self._timed(size, lambda: target.copy_(source, non_blocking=True))

    def _copy_pageable(self, point: Point) -> Observation:
        """The paper's baseline: a gather by the processor into fresh memory, and its copy."""
        rows = self.bytes[: self.bytes.numel() // point.row_bytes * point.row_bytes]
        table = rows.view(torch.float32).view(-1, point.row_bytes // 4)
        ids = torch.randint(0, table.shape[0], (PAGEABLE_ROWS,), generator=self._host_draw)
        return self._clocked(PAGEABLE_ROWS * point.row_bytes, lambda: table[ids].to(self.device))

    def _round_trip(self, point: Point) -> Observation:
        span = point.span_bytes
        if span not in self._rings:
            words, column = self.bytes.view(torch.int64), self.spans.index(span)
            self._rings[span] = Ring(words, span, column, self._host_draw)
        ring, kernel = self._rings[span], self._chase_kernel
        end = torch.zeros(1, dtype=torch.int64, device=self.device)
        values = (self.memory.address, ring.start, HOPS, end.data_ptr())
        seen = self._timed(
            HOPS, lambda: launch_kernel(kernel, 1, (1, 1), values, _CHASE_KINDS, self.device)
        )
        ring.walked(HOPS, int(end))
        return seen

    def _gpu_copy(self, point: Point) -> Observation:
        half = self.out.numel() // 2
        source, target = self.out[:half], self.out[half : 2 * half]
        return self._timed(half, lambda: target.copy_(source))

    def _gpu_matmul(self, point: Point) -> Observation:
        left, right, product = self._matrices
        operations = 2 * left.shape[0] ** 3
        return self._timed(operations, lambda: torch.mm(left, right, out=product))

    def _gpu_launch(self, point: Point) -> Observation:
        x = torch.ones(64, device=self.device, requires_grad=True)

        def step() -> None:
            y = x
            for _ in range(CHAIN):
                y = torch.relu(y)
            y.backward(torch.ones_like(y))  # type: ignore[no-untyped-call]

        return self._clocked(2 * CHAIN, step)

    def _gpu_issue(self, point: Point) -> Observation:
        issued, _, minibatch, launches = self._training

        def steps() -> None:
            for _ in range(STEPS):
                issued.step(*minibatch)

        return self._clocked(STEPS * launches, steps)

    def _gpu_replay(self, point: Point) -> Observation:
        _, captured, minibatch, launches = self._training

        def replays() -> None:
            for _ in range(STEPS):
                captured.replay()

        captured.step(*minibatch)
        return self._timed(STEPS * launches, replays)

    def _gpu_draw(self, point: Point) -> Observation:
        sampler, seeds = self._sampler
        begun = deque(sampler.begin(seeds, seed) for seed in range(2))  # as the training loop does

        def draws() -> None:
            for seed in range(STEPS):
                begun.append(sampler.begin(seeds, seed))
                begun.popleft().result()

        return self._clocked(STEPS * len(sampler.fanouts), draws)

    def _gpu_submit(self, point: Point) -> Observation:
        width = point.row_bytes
        rows = point.span_bytes // width
        ids = torch.randint(0, rows, (SUBMITTED_ROWS,), generator=self._host_draw)
        out = self.out[: SUBMITTED_ROWS * width].view(-1, width)

        return self._clocked(
            1,
            lambda: self.gather(OUR_BEST, width, ids.to(self.device), out, rows=rows),
            wait=False,
        )

    def gather(
        self,
        policy: str,
        row_bytes: int,
        ids: Tensor,
        out: Tensor,
        *,
        rows: int = 0,
        places: Tensor | None = None,
        grid_percent: int = 0,
        managed: bool = False,
    ) -> None:
        """Launch a gather of rows ``[B, row_bytes]`` of the table into ``out``.

        Args:
            rows: that the table is taken to have (0: as many as fit).
            places: rows of ``out``, if not in the order of ``ids``.
            grid_percent: per cent of the GPU's threads (0: the policy's own grid).
            managed: of the table in managed memory.
        """
        stride = POLICIES[policy].row_stride(row_bytes)
        item_bytes = min(4, row_bytes & -row_bytes)
        held = self._table(managed)
        address = held.data_ptr() if managed else self.memory.address
        point = policy_point(
            policy, row_bytes, item_bytes, address % 16, out.data_ptr() % 16, ids.element_size()
        )
        if grid_percent:
            blocks = blocks_of(grid_percent, point.block_threads, self.device)
            point = dataclasses.replace(point, max_blocks=blocks)
        table = Table(address, rows or held.numel() // stride, row_bytes, stride)
        gather_into(out, table, ids, point, places)

    def _ids(self, count: int, rows: int) -> Tensor:
        """``count`` rows in random order, each once, like the nodes of a minibatch.

        Drawn with replacement, a launch over 1 GiB could find up to 6 % of its rows in an L2 of
        60 MB, and seem faster than the link. So one row of each of ``count`` parts is drawn.
        """
        draw, device = self._generator, self.device
        bounds = torch.arange(count + 1, device=device) * rows // count
        within = torch.rand(count, generator=draw, dtype=torch.float64, device=device)
        ids = bounds[:-1] + (within * bounds.diff()).long()
        return ids[torch.randperm(count, generator=draw, device=device)]

    def _timed(self, amount: float, work: Callable[[], object]) -> Observation:
        return Observation(amount, event_seconds(work, self.device), EVENTS)

    def _clocked(
        self, amount: float, work: Callable[[], object], *, wait: bool = True
    ) -> Observation:
        """Seconds of the host until ``work`` returns or, with ``wait``, until the GPU has done it.

        For what the processor has a part in.
        """
        torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        work()
        if wait:
            torch.cuda.synchronize(self.device)
        return Observation(amount, time.perf_counter() - begin, CLOCK)

    @functools.cached_property
    def _roof_kernel(self) -> Any:
        return load_from("read_roof.cu", "read_kernel", architecture(self.device))

    @functools.cached_property
    def _chase_kernel(self) -> Any:
        return load_from("pointer_chase.cu", "chase_kernel", architecture(self.device))

    @functools.cached_property
    def _back(self) -> Tensor:
        return torch.empty(BACK_BYTES, dtype=torch.uint8, pin_memory=True)

    @functools.cached_property
    def _matrices(self) -> tuple[Tensor, Tensor, Tensor]:
        left, right, product = (
            torch.rand(MATMUL_SIZE, MATMUL_SIZE, device=self.device) for _ in range(3)
        )
        return left, right, product

    @functools.cached_property
    def _training(self) -> tuple[Trainer, CapturedTrainer, tuple[Tensor, MiniBatch], float]:
        """GraphSAGE, issued and captured, a minibatch of nodes so few that the GPU waits for the
        host, and the operations of a step."""
        # PyG takes seconds to load, and who measures gathers alone may not have it.
        from gatherbench.bench.plan.workload import Workload
        from gatherbench.bench.run.captured import CapturedTrainer, StepInputs
        from gatherbench.bench.run.models import Trainer, build_model
        from gatherbench.bench.run.training_cost import training_cost
        from gatherbench.bench.sampling.minibatch import MiniBatch

        nodes, width, hidden, classes = (16, 32, 64, 128), 32, 16, 8
        workload = Workload("few", fanouts=(2, 2, 2), hidden=hidden)
        ids = torch.arange(nodes[-1], device=self.device)
        edges = tuple(
            torch.stack((ids[:of].repeat(2) * 2, ids[:of].repeat(2))) for of in nodes[:-1]
        )
        sizes = np.array([nodes]), np.array([[block.shape[1] for block in edges]])
        inputs = StepInputs.of(*sizes, width, self.device)
        model, same = (build_model(workload, width, classes) for _ in range(2))
        issued = Trainer(model, ids % classes, self.device)
        captured = CapturedTrainer(same, ids % classes, self.device, inputs)
        x, batch = torch.rand(nodes[-1], width, device=self.device), MiniBatch(ids, edges, nodes)
        cost = training_cost("sage", width, hidden, classes, nodes, [2 * n for n in nodes[:-1]])
        return issued, captured, (x, batch), cost.launches

    @functools.cached_property
    def _sampler(self) -> tuple[DeviceSampler, Tensor]:
        """Of a graph so small that issuing a draw is what it takes, and seed nodes."""
        from gatherbench.bench.sampling.device_sampler import DeviceSampler

        nodes = 128
        indptr, indices = np.arange(0, 2 * nodes + 1, 2), np.arange(2 * nodes) % nodes
        sampler = DeviceSampler(indptr, indices, (2, 2, 2), self.device)
        return sampler, torch.arange(16)

    def _unregister(self, exc_type: object, *_: object) -> None:
        # What has broken CUDA's context tells more than what then fails because of it.
        with contextlib.suppress(*((RuntimeError,) if exc_type is not None else ())):
            torch.cuda.synchronize(self.device)
            self.memory.close()


def event_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds on the GPU of what ``work`` queues on the current stream."""
    begin, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    torch.cuda.synchronize(device)
    # Hides the time it takes to queue what follows.
    torch.cuda._sleep(_SPIN_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
