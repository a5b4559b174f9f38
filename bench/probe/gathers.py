"""Gathers of random host rows by the GPU, over memory kind, table size, kernel and order.

Before a kernel is timed, its rows are compared with the host's, once per width and memory kind.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gatherbench.bench.probe.case import GPU, KERNEL, MANAGED, MINUTE, Scope, case
from gatherbench.bench.probe.host import ROW_BYTES
from gatherbench.bench.probe.points import Point
from gatherbench.bench.probe.rig import (
    GIB,
    MIB,
    Memory,
    Observation,
    RefusedError,
    Rig,
    WrongRowsError,
    fill,
)
from gatherbench.kernels.cuda_calls import call_runtime, runtime
from gatherbench.kernels.launch import Table, gather_into
from gatherbench.kernels.order import read_order
from gatherbench.kernels.policies import POLICIES

#: The default policy: that of aligned and overlapped zero-copy.
OUR_BEST = "aligned"
#: Bytes that one gather reads at least, if the number of ids allows it: this takes milliseconds, so
#: the microseconds of a launch do not matter. More ids would not measure tiny rows better.
READ_BYTES, MAX_IDS = 256 * MIB, 4 << 20
#: For every policy: rows of 1, 4, 16, 64, 100, 128, 353, 602 and 1024 floats.
POLICY_ROW_BYTES = (4, 16, 64, 256, 400, 512, 1412, 2408, 4096)
#: The table sizes for other libraries' kernels; the table whose pages are split.
FOREIGN_SPANS, SPLIT_BYTES = (4 * GIB, 32 * GIB), 2 * GIB
_CHECKED = 4099


def layout(point: Point) -> tuple[int, int]:
    """Return the rows of the point's table, and the bytes from one to the next by its policy."""
    policy = POLICIES.get(point.policy)
    stride = policy.row_stride(point.row_bytes) if policy else point.row_bytes
    return point.span_bytes // stride, stride


def draw(count: int, rows: int, generator: torch.Generator) -> Tensor:
    """Draw ``count`` distinct rows of ``rows`` in random order, like the nodes of a minibatch.

    Drawn with replacement, a launch over 1 GiB could find up to 6 % of its rows in an L2 of 60 MB
    and seem faster than the link. So one row is drawn from each of ``count`` equal parts.
    """
    device = generator.device
    bounds = torch.arange(count + 1, device=device) * rows // count
    within = torch.rand(count, generator=generator, dtype=torch.float64, device=device)
    ids = bounds[:-1] + (within * bounds.diff()).long()
    return ids[torch.randperm(count, generator=generator, device=device)]


def measure(rig: Rig, memory: Memory, point: Point) -> Observation:
    """Time one gather; its ids are drawn and ordered before the timing starts."""
    size = memory.bytes.numel()
    if point.span_bytes > size:
        raise RefusedError(f"no_memory: there are {size >> 20} MiB of {memory.kind} memory")
    rig.once(check, rig, memory, dataclasses.replace(point, span_bytes=size))
    rows, width = layout(point)[0], point.row_bytes
    count = min(MAX_IDS, rows, max(1, READ_BYTES // width))
    ids = draw(count, rows, rig.once(torch.Generator, rig.device))
    return rig.timed(count * width, gathering(rig, memory.address, point, ids))


def check(rig: Rig, memory: Memory, point: Point) -> None:
    """Compare a sample of rows of the whole table with the host's.

    Raises:
        WrongRowsError: the rows differ, or the launch is refused.
    """
    width, (rows, stride) = point.row_bytes, layout(point)
    ids = draw(min(_CHECKED, rows), rows, rig.once(torch.Generator, rig.device))
    expected = memory.bytes[: rows * stride].view(rows, stride)[ids.cpu(), :width]
    message = f"wrong rows of {width} B of {memory.kind} memory by {point.policy}, {point.order}"
    try:
        rig.out[: len(ids) * width].zero_()
        rows_read = gathering(rig, memory.address, point, ids)().view(torch.uint8).cpu()
    except (RuntimeError, ValueError) as error:
        torch.cuda.synchronize(rig.device)  # raises if CUDA's context is lost
        raise WrongRowsError(f"{message}: {error}") from error
    if not torch.equal(rows_read.view(len(ids), width), expected):
        raise WrongRowsError(message)


def gathering(rig: Rig, address: int, point: Point, ids: Tensor) -> Callable[[], Tensor]:
    """Return a function that launches a gather of ``ids`` and returns the rows."""
    width, (rows, stride) = point.row_bytes, layout(point)
    if point.policy not in POLICIES:
        table_view = as_cuda_tensor(address, (rows, width // 4), ids.device)
        return functools.partial(rig.once(kernels, rig)[point.policy], table_view, ids)
    order = read_order(ids, point.order)
    out = rig.out[: len(ids) * width].view(-1, width)
    item = min(4, width & -width)
    places = {"table_address": address, "out_address": out.data_ptr()}
    grid = POLICIES[point.policy].point(width, item, **places)
    table = Table(address, rows, width, stride)

    def work() -> Tensor:
        gather_into(out, table, order.ids, grid, order.out_rows)
        return out

    return work


def ours(case: str, width: int, span: int, policy: str = OUR_BEST, order: str = "given") -> Point:
    """Return the point of a gather by a policy on its default grid."""
    return Point(case, width, span, policy=policy, order=order)


def _own(name: str, rig: Rig, scope: Scope) -> list[Point]:
    """Return points for the best policy: random rows, every table size."""
    return [ours(name, width, span) for span, width in product(rig.spans, ROW_BYTES)]


def _policies(name: str, rig: Rig, scope: Scope) -> list[Point]:
    """Return points for every policy; only gatherbench's own are tried in two orders."""
    return [
        ours("gpu_gather", width, span, policy.name, order)
        for span, width, policy in product(rig.spans, POLICY_ROW_BYTES, POLICIES.values())
        for order in (
            ("given", "sorted") if policy.system == "gatherbench" else (policy.order_of(width),)
        )
    ]


# ---- by other libraries' kernels ---------------------------------------------------------------


def kernels(rig: Rig) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Return torch's kernel, and WholeGraph's where ``examples/peers`` is installed.

    Arguments: a table ``[N, D]`` and ids, both CUDA tensors to torch.
    """
    by_name = {"torch.index_select": lambda table, ids: table.index_select(0, ids)}
    try:
        importlib.import_module("pylibwholegraph")
        peer = importlib.import_module("gatherbench_peers").WholeGraph()
    except ImportError as missing:
        rig.say(f"WholeGraph is left out: {missing}; pip install ./examples/peers")
        return by_name
    rig.callback(peer.close)
    return by_name | {f"WholeGraph {peer.version}": peer.gather_from}


def as_cuda_tensor(address: int, shape: tuple[int, int], device: torch.device) -> Tensor:
    """Wrap host memory that the GPU reads in place as a float32 tensor that torch treats as CUDA's.

    Raises:
        RuntimeError: torch made a copy.
    """
    interface = {"shape": shape, "typestr": "<f4", "data": (address, False), "version": 3}
    tensor = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface), device=device)
    if tensor.data_ptr() != address:
        raise RuntimeError(f"torch copied the memory at {address:#x} instead of using it in place")
    return tensor


def _others(name: str, rig: Rig, scope: Scope) -> list[Point]:
    spans = [span for span in FOREIGN_SPANS if span <= rig.spans[-1]]
    return [
        ours(name, width, span, kernel, "its own")
        for span, width, kernel in product(spans, ROW_BYTES, rig.once(kernels, rig))
    ]


# ---- managed memory with split pages -----------------------------------------------------------


def split(rig: Rig, piece: int) -> Memory:
    """Return managed memory whose every second piece has other advice, so pages fit a piece."""
    memory = rig.largest([SPLIT_BYTES], rig.managed_table)
    fill(memory.bytes)
    place: Any = runtime().cudaMemLocation()
    place.type = runtime().cudaMemLocationType.cudaMemLocationTypeDevice
    place.id = rig.index
    advice = runtime().cudaMemoryAdvise.cudaMemAdviseUnsetAccessedBy
    for begin in range(0, SPLIT_BYTES, 2 * piece):
        call_runtime("cudaMemAdvise", memory.address + begin, piece, advice, place)
    return memory


def _split(name: str, rig: Rig, scope: Scope) -> list[Point]:
    return [ours(name, width, SPLIT_BYTES) for width in ROW_BYTES]


# ---- the cases ---------------------------------------------------------------------------------

_BY_ALL = "bytes of the same rows, by every policy and order"
_ON_HOST = "bytes of random rows of managed memory on the host, read by the GPU"
_BY_OTHERS = "random rows of {} memory, by torch and WholeGraph"


@case("B", "bytes of random rows of registered memory, read by the GPU", KERNEL, MINUTE, _own)
@case("B", _BY_ALL, KERNEL, points=_policies, name="gpu_policies")
def gpu_gather(rig: Rig, point: Point) -> Observation:
    return measure(rig, rig.registered, point)


@case("B", _ON_HOST, MANAGED, MINUTE, _own)
def managed_gather(rig: Rig, point: Point) -> Observation:
    return measure(rig, rig.managed, point)


@case("B", _BY_OTHERS.format("registered"), GPU, points=_others)
def foreign_registered(rig: Rig, point: Point) -> Observation:
    return measure(rig, rig.registered, point)


@case("B", _BY_OTHERS.format("managed"), ("gpu", "managed"), points=_others)
def foreign_managed(rig: Rig, point: Point) -> Observation:
    return measure(rig, rig.managed, point)


@case("B", "rows of managed memory in pages of 64 KiB", MANAGED, points=_split)
def split_64k(rig: Rig, point: Point) -> Observation:
    return measure(rig, rig.once(split, rig, 64 << 10), point)


@case("B", "rows of managed memory in pages of 4 KiB", MANAGED, points=_split)
def split_4k(rig: Rig, point: Point) -> Observation:
    return measure(rig, rig.once(split, rig, 4 << 10), point)
