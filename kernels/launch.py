"""Launch kernels on the GPU, above all the gather, on torch's current stream.

A launch copies nothing and does not wait: it is queued behind the current stream's work. The table
may lie anywhere that the GPU can read (``mapped_memory.py``). It is given by address, because on
some machines the GPU has another address for a CPU tensor.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gatherbench.kernels import compiler
from gatherbench.kernels.cuda_calls import (
    CudaCallError,
    call_driver,
    call_runtime,
    driver,
    driver_shortage,
)
from gatherbench.kernels.grid import GridPoint

_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_longlong
#: The arguments of ``gather_kernel`` in gather.cu: table, ids, out, out_rows; num_ids, num_rows,
#: row_stride; row_bytes; bad_id.
_ARGUMENTS = (*[_ADDRESS] * 4, *[_NUMBER] * 3, ctypes.c_int, _ADDRESS)
#: Threads of a block of :func:`launch_threads`.
BLOCK_THREADS = 128


@dataclass(frozen=True, slots=True)
class Table:
    """A feature table as the kernel sees it."""

    address: int  #: the GPU's, of its first byte
    num_rows: int
    row_bytes: int
    row_stride: int  #: bytes from row to row, at least ``row_bytes``


@functools.cache
def architecture(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def load_kernel(cubin: bytes, name: str) -> Any:
    """Load kernel ``name`` of ``cubin``, ready for :func:`launch_kernel` on any device.

    It is loaded as a library, not as a module, so it belongs to no context: the launch uses that of
    its stream. It stays loaded until the process ends.
    """
    call_driver("cuInit", 0)
    try:
        library = call_driver("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
    except CudaCallError as refused:
        if shortage := driver_shortage(int(compiler.compiler_version().partition(".")[0])):
            raise CudaCallError(refused.call, refused.code, "the cubin", shortage) from refused
        raise
    kernel = call_driver("cuLibraryGetKernel", library, name.encode())
    return driver().CUfunction(int(kernel))  # the driver takes either type


@functools.cache
def load_gather(point: GridPoint, arch: str) -> Any:
    """Load the gather kernel of ``point`` for an architecture, and compile it if need be.

    It raises ``CompilerError`` (no compiler, or it refused the source) or ``CudaCallError`` (no
    driver, or it refused the cubin).
    """
    return load_kernel(compiler.compile_gather(point, arch), compiler.KERNEL_NAME)


@functools.cache
def load_from(file: str, name: str, arch: str) -> Any:
    """Load kernel ``name`` of a source file in this folder; raises as :func:`load_gather`."""
    code = compiler.KERNEL_SOURCE.with_name(file).read_text()
    return load_kernel(compiler.compile_source(code, arch, file), name)


def launch_kernel(
    kernel: Any,
    grid: int,
    block: tuple[int, int],
    values: tuple[Any, ...],
    kinds: tuple[Any, ...],
    device: torch.device,
    stream: int | None = None,
) -> None:
    """Queue ``kernel`` on the current stream of ``device``; ``kinds`` are ctypes of ``values``.

    ``stream``, the handle of a stream other than the default one, saves each launch the look-up of
    the current stream and its context. It raises ``CudaCallError`` if the launch is refused.
    """
    launch = functools.partial(call_driver, "cuLaunchKernel", kernel, grid, 1, 1, *block, 1, 0)
    if stream is not None:
        launch(stream, (values, kinds), 0)
        return
    with torch.cuda.device(device):
        bind_context()
        launch(torch.cuda.current_stream(device).cuda_stream, (values, kinds), 0)


def launch_threads(
    kernel: Any,
    threads: int,
    arguments: Sequence[Tensor | int],
    device: torch.device,
    stream: int | None = None,
) -> None:
    """Queue at least ``threads`` threads of ``kernel``, in one dimension, by
    :func:`launch_kernel`. It gets ``threads``, then the arguments: tensors by address, numbers as
    64 bits.
    """
    given = [
        (a.data_ptr(), _ADDRESS)
        if isinstance(a, Tensor)
        else (_NUMBER(a).value, _NUMBER)  # the bits of an unsigned one
        for a in (threads, *arguments)
    ]
    values, kinds = zip(*given, strict=True)
    blocks = -(-threads // BLOCK_THREADS)
    launch_kernel(kernel, blocks, (BLOCK_THREADS, 1), values, kinds, device, stream)


def bind_context() -> None:
    """Give the calling thread the primary context of the current device, if it has none.

    Torch sets it when the device changes, and the driver, unlike the runtime, never does: the first
    launch of a loader's thread would fail with CUDA_ERROR_INVALID_CONTEXT.
    """
    if int(call_driver("cuCtxGetCurrent")) == 0:
        call_runtime("cudaSetDevice", torch.cuda.current_device())


def gather_into(
    out: Tensor,
    table: Table,
    ids: Tensor,
    point: GridPoint,
    out_rows: Tensor | None = None,
    bad_id: Tensor | None = None,
) -> None:
    """Queue ``out[out_rows[p]] = table[ids[p]]`` on the current stream.

    Args:
        out: ``[≥ B, D]`` on the GPU, contiguous, rows of ``table.row_bytes`` bytes.
        ids: ``[B]``, int32 or int64 according to ``point.index_bytes``, on the GPU, contiguous.
        out_rows: int64 ``[B]`` on the GPU, or ``None``: row ``p`` goes to row ``p``.
        bad_id: int64 ``[1]`` on the GPU, 0 before: becomes the largest id (as unsigned) that is
            outside the table, if there is one, and the table has rows. The row of such an id
            becomes zeros. To read this word the host waits, so it reads it after many gathers.

    All tensors must live until the launch has run; on torch's streams its allocator ensures that.

    Raises:
        ValueError: ``point`` cannot read such a table, write such an output or read such ids.
        CompilerError, CudaCallError: as :func:`load_gather` and :func:`launch_kernel`.
    """
    if ids.element_size() != point.index_bytes:
        raise ValueError(f"ids are {ids.dtype}, and {point.kernel} reads {point.index_bytes} B ids")
    point.check(table.row_bytes, table.row_stride, table.address, out.data_ptr())
    blocks = point.blocks(ids.numel(), table.row_bytes)
    if blocks == 0:
        return
    kernel = load_gather(point, architecture(out.device))
    to, bad = (0 if tensor is None else tensor.data_ptr() for tensor in (out_rows, bad_id))
    sizes = ids.numel(), table.num_rows, table.row_stride, table.row_bytes
    values = (table.address, ids.data_ptr(), out.data_ptr(), to, *sizes, bad)
    launch_kernel(kernel, blocks, point.block, values, _ARGUMENTS, out.device)
