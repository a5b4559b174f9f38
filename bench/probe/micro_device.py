"""The GPU's side of the micro-benchmark: one registered table, and a time for each point."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import time
from collections.abc import Callable
from importlib import resources
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from gatherbench.bench.probe.micro_plan import PASSES, READ_BYTES, ROOF_BYTES, Point
from gatherbench.bench.read.micro_row import MicroRow
from gatherbench.kernels.compiler import compile_gather
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.launch import (
    Table,
    architecture,
    gather_into,
    launch_kernel,
    load_kernel,
    policy_point,
)
from gatherbench.kernels.mapped_memory import HostRegistration
from gatherbench.kernels.order import as_order, read_order
from gatherbench.kernels.policies import POLICIES
from gatherbench.strategies.base import check_ids
from gatherbench.strategies.cuda_overlap import blocks_of

_ROOF_BLOCK = 512
_CHECKED_ROWS = 4099
_CHUNK = 1 << 27
#: A quarter of a millisecond at 2 GHz: two launches from Python take less.
_SPIN_CYCLES = 500_000


class Bench:
    """A table of ``span_bytes`` in registered host memory, and room for what is read from it.

    Every eight bytes of the table are different, so a row from a wrong place is noticed.
    """

    def __init__(
        self, span_bytes: int, device: torch.device, report: Callable[[MicroRow], None]
    ) -> None:
        self.device = device
        begin = time.perf_counter()
        self.bytes = empty_table((span_bytes // 8, 1), torch.int64).view(-1)
        for start in range(0, self.bytes.numel(), _CHUNK):
            part = self.bytes[start : start + _CHUNK]
            torch.arange(start, start + part.numel(), out=part)
            part.mul_(-7046029254386353131)  # odd: still all different, and all bytes vary
        self.bytes = self.bytes.view(torch.uint8)
        filled = time.perf_counter() - begin
        self.memory = HostRegistration(self.bytes, device.index)
        self.out = torch.empty(max(ROOF_BYTES, READ_BYTES), dtype=torch.uint8, device=device)
        self._generator = torch.Generator(device).manual_seed(0)
        self._roof_at = 0
        clock = "time.perf_counter"
        for kind, seconds in (("fill", filled), ("cudaHostRegister", self.memory.seconds)):
            report(MicroRow(kind, "", "", 0, span_bytes, 0, 0, span_bytes, seconds, clock))

    def check(self, policy: str, row_bytes: int) -> None:
        """Gather some rows of the whole table and compare them with the host's.

        Raises:
            RuntimeError: they differ.
        """
        stride = POLICIES[policy].row_stride(row_bytes)
        rows = self.bytes.numel() // stride
        ids = self._ids(_CHECKED_ROWS, rows)
        out = self.out[: ids.numel() * row_bytes].view(-1, row_bytes)
        expected = self.bytes[: rows * stride].view(rows, stride)[ids.cpu(), :row_bytes]
        for order, (read, places) in (("given", (ids, None)), ("sorted", torch.sort(ids))):
            out.zero_()
            self._gather(policy, row_bytes, rows, read, places, 0, out)
            if not torch.equal(out.cpu(), expected):
                raise RuntimeError(f"policy {policy}, rows of {row_bytes} B, {order}: wrong rows")

    def seconds(self, point: Point) -> float:
        """Seconds of one launch; everything it needs is made, and done, before."""
        if point.kind == "gather":
            return self._timed(self._gathering(point))
        if point.kind in PASSES:
            return self._pass_seconds(point)
        piece = point.payload_bytes
        begin = self._roof_at * piece % (point.span_bytes - piece + 1) & ~0xFFF
        self._roof_at += 1
        if point.kind == "copy_engine":
            source, target = self.bytes[begin : begin + piece], self.out[:piece]
            return self._timed(lambda: target.copy_(source, non_blocking=True))
        multiprocessors = torch.cuda.get_device_properties(self.device).multi_processor_count
        grid = max(1, point.cap * multiprocessors // 100)
        values = (self.memory.address + begin, piece // 16, 0)
        kinds = (ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p)
        kernel = self._roof_kernel
        return self._timed(
            lambda: launch_kernel(kernel, grid, (_ROOF_BLOCK, 1), values, kinds, self.device)
        )

    def _gathering(self, point: Point) -> Callable[[], object]:
        """The launches of a gather, its ids arranged already."""
        order = read_order(self._ids(point.num_ids, point.num_rows), as_order(point.order))
        out = self.out[: point.payload_bytes].view(-1, point.row_bytes)
        gather = functools.partial(self._gather, point.policy, point.row_bytes, point.num_rows)
        if order.expand is None:
            return functools.partial(gather, order.ids, order.out_rows, point.cap, out)
        expand, width = order.expand, point.row_bytes
        distinct = torch.empty((order.ids.numel(), width), dtype=torch.uint8, device=self.device)
        near = Table(distinct.data_ptr(), order.ids.numel(), width, width)
        item = min(4, width & -width)
        copy = policy_point("unaligned", width, item, 0, out.data_ptr() % 16, 8)

        def both() -> None:
            gather(order.ids, None, point.cap, distinct)
            gather_into(out, near, expand, copy)

        return both

    def _pass_seconds(self, point: Point) -> float:
        """Seconds of a pass over ids; of the check, what the host waits for it."""
        rows = point.span_bytes // point.row_bytes
        ids = self._ids(point.num_ids, rows)
        if point.kind == "sort":
            return self._timed(lambda: read_order(ids, "sorted"))
        if point.kind == "unique":
            return self._timed(lambda: read_order(ids, "unique"))
        torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        check_ids(ids, rows, self.device)
        return time.perf_counter() - begin

    @functools.cached_property
    def _roof_kernel(self) -> Any:
        source = resources.files("gatherbench.kernels").joinpath("read_roof.cu").read_text()
        cubin = compile_gather(GridPoint(), architecture(self.device), source=source)
        return load_kernel(cubin, "read_kernel")

    def _gather(
        self,
        policy: str,
        row_bytes: int,
        num_rows: int,
        ids: Tensor,
        places: Tensor | None,
        cap: int,
        out: Tensor,
    ) -> None:
        stride = POLICIES[policy].row_stride(row_bytes)
        item_bytes = min(4, row_bytes & -row_bytes)
        address = self.memory.address
        point = policy_point(
            policy, row_bytes, item_bytes, address % 16, out.data_ptr() % 16, ids.element_size()
        )
        if cap:
            blocks = blocks_of(cap, point.block_threads, self.device)
            point = dataclasses.replace(point, max_blocks=blocks)
        gather_into(out, Table(address, num_rows, row_bytes, stride), ids, point, places)

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

    def _timed(self, work: Callable[[], object]) -> float:
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        torch.cuda.synchronize(self.device)
        # Hides the time it takes to queue what follows.
        torch.cuda._sleep(_SPIN_CYCLES)  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What has broken CUDA's context tells more than what then fails because of it.
        with contextlib.suppress(*((RuntimeError,) if exc_type is not None else ())):
            torch.cuda.synchronize(self.device)
            self.memory.close()
