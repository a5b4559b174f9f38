"""Launches the gather kernel on the GPU, on torch's current stream.

Nothing is copied and nothing waits: a launch is queued behind what the current stream holds. The
table may lie anywhere that the GPU can read (``mapped_memory.py``). It is given by address, because
on some machines a CPU tensor has another address for the GPU.

The caller checks the ids. The kernel never follows a bad id: its row becomes zeros, and its
position is written to ``first_bad`` where that is given. To read that word back the host would wait
for the gather, so the strategies check ids before the launch: on the CPU if they come from there,
by a reduction on the GPU (and a wait for the current stream) if not.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gatherbench.kernels.compiler import KERNEL_NAME, compile_gather
from gatherbench.kernels.cuda_calls import call_driver, call_runtime, driver
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.policies import policy
from gatherbench.kernels.reference import byte_rows

#: The kernel's arguments in the order of ``gather_kernel`` in gather.cu.
_ARGUMENTS = (
    ctypes.c_void_p,  # table
    ctypes.c_void_p,  # ids
    ctypes.c_void_p,  # out
    ctypes.c_void_p,  # out_rows
    ctypes.c_longlong,  # num_ids
    ctypes.c_longlong,  # num_rows
    ctypes.c_longlong,  # row_stride
    ctypes.c_int,  # row_bytes
    ctypes.c_void_p,  # first_bad
)


@dataclass(frozen=True, slots=True)
class Table:
    """A feature table as the kernel sees it: the GPU's ``address`` of its first byte, and sizes.

    ``row_stride`` is the bytes from row to row, at least ``row_bytes``.
    """

    address: int
    num_rows: int
    row_bytes: int
    row_stride: int


@functools.cache
def architecture(device: torch.device) -> str:
    """The real architecture of a CUDA device, e.g. ``sm_90``."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@functools.cache
def load_kernel(cubin: bytes, name: str) -> Any:
    """The kernel ``name`` of ``cubin``, ready for :func:`launch_kernel` on any device.

    Loaded as a library, not as a module, so it belongs to no context: the launch takes the one of
    its stream. It stays loaded until the process ends.

    Raises:
        CudaCallError: there is no driver, or it refuses the cubin.
    """
    call_driver("cuInit", 0)
    library = call_driver("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
    kernel = call_driver("cuLibraryGetKernel", library, name.encode())
    return driver().CUfunction(int(kernel))  # the driver takes either


@functools.cache
def load_gather(point: GridPoint, arch: str) -> Any:
    """The gather kernel of ``point`` for an architecture, compiled if need be.

    Raises:
        CompilerError: there is no compiler, or it refused the source.
        CudaCallError: there is no driver, or it refuses the cubin.
    """
    alike = as_compiled(point)
    if alike != point:
        return load_gather(alike, arch)
    return load_kernel(compile_gather(point, arch), KERNEL_NAME)


def launch_kernel(
    kernel: Any,
    grid: int,
    block: tuple[int, int],
    values: tuple[Any, ...],
    kinds: tuple[Any, ...],
    device: torch.device,
) -> None:
    """Queue ``kernel`` on the current stream of ``device``; ``kinds`` are ctypes of ``values``.

    Raises:
        CudaCallError: the launch was refused.
    """
    with torch.cuda.device(device):
        _bind_context(device)
        stream = torch.cuda.current_stream(device)
        shape = (grid, 1, 1, *block, 1)
        call_driver("cuLaunchKernel", kernel, *shape, 0, stream.cuda_stream, (values, kinds), 0)


def _bind_context(device: torch.device) -> None:
    """Give the calling thread the device's primary context, where it has none.

    A launch on the default stream runs in the thread's context, and a thread that has only ever
    asked torch which device is current has none: torch sets it when the device changes, and the
    driver, unlike the runtime, never does. Without this the first launch of a loader's thread fails
    with CUDA_ERROR_INVALID_CONTEXT.
    """
    if int(call_driver("cuCtxGetCurrent")) == 0:
        call_runtime("cudaSetDevice", torch.cuda.current_device())


def gather_into(
    out: Tensor,
    table: Table,
    ids: Tensor,
    point: GridPoint,
    out_rows: Tensor | None = None,
    first_bad: Tensor | None = None,
) -> None:
    """Queue ``out[out_rows[p]] = table[ids[p]]`` on the current stream.

    Args:
        out: ``[≥ B, D]`` on the GPU, contiguous, rows of ``table.row_bytes`` bytes.
        ids: ``[B]``, int32 or int64 as ``point.index_bytes`` says, on the GPU, contiguous.
        point: what to launch.
        out_rows: int64 ``[B]`` on the GPU, or ``None``: row ``p`` goes to row ``p``.
        first_bad: int64 ``[1]`` on the GPU, set to -1 before: becomes the first position of an id
            that is outside the table, if there is one.

    All tensors must live until the launch has run; on torch's streams that is the allocator's rule.

    Raises:
        ValueError: ``point`` cannot read such a table or write such an output, or its ids have
            another dtype.
        CompilerError, CudaCallError: as :func:`load_gather` and :func:`launch_kernel`.
    """
    if ids.element_size() != point.index_bytes:
        raise ValueError(f"ids are {ids.dtype}, and {point.kernel} reads {point.index_bytes} B ids")
    point.check(table.row_bytes, table.row_stride, table.address, out.data_ptr())
    blocks = point.blocks(ids.numel(), table.row_bytes)
    if blocks == 0:
        return
    kernel = load_gather(point, architecture(out.device))
    values = (
        table.address,
        ids.data_ptr(),
        out.data_ptr(),
        0 if out_rows is None else out_rows.data_ptr(),
        ids.numel(),
        table.num_rows,
        table.row_stride,
        table.row_bytes,
        0 if first_bad is None else first_bad.data_ptr(),
    )
    launch_kernel(kernel, blocks, point.block, values, _ARGUMENTS, out.device)


def as_compiled(point: GridPoint) -> GridPoint:
    """``point`` with the default shape of a launch: those that share a kernel become one."""
    lanes = 0 if point.flat else 32
    shape = (point.shift, point.width, lanes, point.rows, point.loads, point.index_bytes)
    return GridPoint(*shape)


@functools.lru_cache(maxsize=256)
def policy_point(
    name: str, row_bytes: int, item_bytes: int, table_phase: int, out_phase: int, index_bytes: int
) -> GridPoint:
    """``policy(name).point(...)``, remembered; addresses matter modulo 16 B only."""
    phases = {"table_address": table_phase, "out_address": out_phase}
    return policy(name).point(row_bytes, item_bytes, **phases, index_bytes=index_bytes)


@torch.library.custom_op("gatherbench::gather_rows", mutates_args=("out",), device_types="cuda")
def gather_rows(
    table: Tensor,
    ids: Tensor,
    out: Tensor,
    out_rows: Tensor | None,
    address: int,
    launch_policy: str,
) -> None:
    """``out[out_rows[p]] = table[ids[p]]`` for torch, traceable by ``torch.compile``.

    ``table`` ``[N, D]`` may be a host tensor if ``address`` is where the GPU sees it; for a table
    in GPU memory ``address`` is 0. Ids are not checked: a bad one gives a row of zeros.
    """
    _require(table, ids, out, out_rows)
    if table.device.type == "cpu" and address == 0 and table.numel():
        raise ValueError("a table in host memory needs the address at which the GPU sees it")
    where = address or table.data_ptr()
    row_bytes = int(table.shape[1]) * table.element_size()
    phases = where % 16, out.data_ptr() % 16
    item, index = table.element_size(), ids.element_size()
    point = policy_point(launch_policy, row_bytes, item, *phases, index)
    gather_into(out, Table(where, int(table.shape[0]), row_bytes, row_bytes), ids, point, out_rows)


@gather_rows.register_kernel("cpu")
def _on_the_cpu(
    table: Tensor, ids: Tensor, out: Tensor, out_rows: Tensor | None, *_: object
) -> None:
    _require(table, ids, out, out_rows)
    rows = byte_rows(table)[ids]
    places = slice(ids.numel()) if out_rows is None else out_rows
    byte_rows(out)[places] = rows


@gather_rows.register_fake
def _shapes_only(
    table: Tensor, ids: Tensor, out: Tensor, out_rows: Tensor | None, *_: object
) -> None:
    _require(table, ids, out, out_rows)


def _require(table: Tensor, ids: Tensor, out: Tensor, out_rows: Tensor | None) -> None:
    """What every implementation of the operator demands of its tensors."""
    if table.dim() != 2 or out.dim() != 2 or table.shape[1] != out.shape[1]:
        raise ValueError("table [N, D] and out [B, D] must have rows of the same width")
    if table.dtype != out.dtype:
        raise ValueError(f"table is {table.dtype} and out {out.dtype}")
    if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"ids: expected int32 or int64 [B], got {ids.dtype}")
    if ids.device != out.device:
        raise ValueError(f"ids lie on {ids.device}, out on {out.device}")
    if out_rows is not None and (out_rows.dtype != torch.int64 or out_rows.shape != ids.shape):
        raise ValueError("out_rows: expected int64, one for each id")
    if out_rows is not None and out_rows.device != out.device:
        raise ValueError(f"out_rows lie on {out_rows.device}, out on {out.device}")
    if out_rows is None and out.shape[0] < ids.shape[0]:  # the kernel would write behind its end
        raise ValueError(f"out has {out.shape[0]} rows, too few for {ids.shape[0]} ids")
    for name, tensor in (("table", table), ("ids", ids), ("out", out), ("out_rows", out_rows)):
        if tensor is not None and not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous")
