"""The link's and the GPU's part of a calibration: copies, reads, gathers, round trips, launches.

It stands on the micro-benchmark's bench (``bench/probe/micro_device.py``): one registered table, a
time for each launch. What is added: the copy back, fresh pageable memory as in the paper's
baseline, a chase of pointers, and what the GPU does without the link.

The chase runs along rings that lie in the table, one for each span, a place drawn at random in each
of equal pieces of the span. Nothing else writes to the table while they are walked.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gatherbench.bench.probe import micro_plan
from gatherbench.bench.probe.calibrate.host import CalibrationError
from gatherbench.bench.probe.calibrate.points import POLICY, Observation, Point
from gatherbench.bench.probe.micro_device import Bench
from gatherbench.kernels.compiler import compile_gather
from gatherbench.kernels.grid import LINE_BYTES, GridPoint
from gatherbench.kernels.launch import architecture, launch_kernel, load_kernel

MIB = 1 << 20
BACK_BYTES = 256 * MIB
#: Rows of the gather into fresh memory: an ordinary minibatch.
PAGEABLE_ROWS = 100_000
#: A ring has at most so many places; with one line each, more than a GPU's caches hold.
RING_PLACES = 1 << 20
HOPS = 10_000
MATMUL_SIZE = 8192
#: Layers of the little chain whose forward and backward operations are issued.
CHAIN = 100
SUBMITTED_ROWS = 1000

EVENTS, CLOCK = "torch.cuda.Event", "time.perf_counter"
#: What a launch of the chase takes: table, start, hops, end.
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
            CalibrationError: it did not end where the ring says.
        """
        self._at = (self._at + hops) % len(self.order)
        if end != self.start:
            raise CalibrationError(f"the pointer chase ended at word {end}, not at {self.start}")


class GpuStand(Bench):
    """Times the link and the GPU over a registered table as large as the largest of ``spans``."""

    def __init__(self, spans: Sequence[int], device: torch.device) -> None:
        super().__init__(max(spans), device, lambda row: None)
        draw = torch.Generator().manual_seed(0)
        words = self.bytes.view(torch.int64)
        self._rings = {span: Ring(words, span, i, draw) for i, span in enumerate(sorted(spans))}
        self._host_draw = draw
        self._back = torch.empty(BACK_BYTES, dtype=torch.uint8, pin_memory=True)
        self._end = torch.zeros(1, dtype=torch.int64, device=device)

    def measure(self, point: Point) -> Observation:
        """One observation.

        Raises:
            CalibrationError: the chase went astray.
        """
        return self._PARTS[point.kind](self, point)

    def _micro(self, point: Point) -> Observation:
        kind = {"copy_to_device": "copy_engine", "gpu_gather": "gather"}.get(point.kind, "sm_read")
        gather = kind == "gather"
        known = micro_plan.Point(
            kind,  # type: ignore[arg-type]
            point.span_bytes,
            point.share,
            POLICY if gather else "",
            point.order if gather else "",
            point.row_bytes,
        )
        return Observation(known.payload_bytes, self.seconds(known), EVENTS)

    def _copy_back(self, point: Point) -> Observation:
        source = self.out[:BACK_BYTES]
        seconds = self._timed(lambda: self._back.copy_(source, non_blocking=True))
        return Observation(BACK_BYTES, seconds, EVENTS)

    def _pageable(self, point: Point) -> Observation:
        rows = self.bytes[: self.bytes.numel() // point.row_bytes * point.row_bytes]
        table = rows.view(torch.float32).view(-1, point.row_bytes // 4)
        ids = torch.randint(0, table.shape[0], (PAGEABLE_ROWS,), generator=self._host_draw)
        return self._clocked(PAGEABLE_ROWS * point.row_bytes, lambda: table[ids].to(self.device))

    def _round_trip(self, point: Point) -> Observation:
        ring = self._rings[point.span_bytes]
        values = (self.memory.address, ring.start, HOPS, self._end.data_ptr())
        kernel = self._chase_kernel
        seconds = self._timed(
            lambda: launch_kernel(kernel, 1, (1, 1), values, _CHASE_KINDS, self.device)
        )
        ring.walked(HOPS, int(self._end))
        return Observation(HOPS, seconds, EVENTS)

    def _gpu_copy(self, point: Point) -> Observation:
        half = self.out.numel() // 2
        source, target = self.out[:half], self.out[half : 2 * half]
        return Observation(half, self._timed(lambda: target.copy_(source)), EVENTS)

    def _matmul(self, point: Point) -> Observation:
        left, right, product = self._matrices
        size = left.shape[0]
        seconds = self._timed(lambda: torch.mm(left, right, out=product))
        return Observation(2 * size**3, seconds, EVENTS)

    def _launch(self, point: Point) -> Observation:
        x = torch.ones(64, device=self.device, requires_grad=True)

        def step() -> None:
            y = x
            for _ in range(CHAIN):
                y = torch.relu(y)
            y.backward(torch.ones_like(y))  # type: ignore[no-untyped-call]

        return self._clocked(2 * CHAIN, step)

    def _submit(self, point: Point) -> Observation:
        width = point.row_bytes
        rows = point.span_bytes // width
        ids = torch.randint(0, rows, (SUBMITTED_ROWS,), generator=self._host_draw)
        out = self.out[: SUBMITTED_ROWS * width].view(-1, width)
        torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        self._gather(POLICY, width, rows, ids.to(self.device), None, 0, out)
        seconds = time.perf_counter() - begin
        return Observation(1, seconds, CLOCK)

    _PARTS: Mapping[str, Callable[[Any, Point], Observation]] = MappingProxyType(
        {
            "copy_to_device": _micro,
            "sm_read": _micro,
            "gpu_gather": _micro,
            "copy_to_host": _copy_back,
            "copy_pageable": _pageable,
            "round_trip": _round_trip,
            "gpu_copy": _gpu_copy,
            "gpu_matmul": _matmul,
            "gpu_launch": _launch,
            "gpu_submit": _submit,
        }
    )

    def _clocked(self, amount: float, work: Callable[[], object]) -> Observation:
        """Seconds until the GPU has done ``work``, for what the processor has a part in."""
        torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize(self.device)
        return Observation(amount, time.perf_counter() - begin, CLOCK)

    @functools.cached_property
    def _chase_kernel(self) -> Any:
        source = resources.files("gatherbench.kernels").joinpath("pointer_chase.cu").read_text()
        cubin = compile_gather(GridPoint(), architecture(self.device), source=source)
        return load_kernel(cubin, "chase_kernel")

    @functools.cached_property
    def _matrices(self) -> tuple[Tensor, Tensor, Tensor]:
        left, right, product = (
            torch.rand(MATMUL_SIZE, MATMUL_SIZE, device=self.device) for _ in range(3)
        )
        return left, right, product
