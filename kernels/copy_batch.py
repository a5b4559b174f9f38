"""Gather rows by the copy engine: one descriptor for each run of adjacent rows.

``cuMemcpyBatchAsync`` (CUDA 12.8 on) takes many copies in one call, so neither a core nor a
multiprocessor touches a byte. NVIDIA's Python binding makes an object of every address; this module
passes NumPy's arrays directly to the driver.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gatherbench.kernels.cuda_calls import CudaCallError, driver
from gatherbench.kernels.native_threads import memcpy
from gatherbench.reason import Reason, unsupported

_ARRAY, _COUNT, _STREAM = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
_ARGUMENTS = (_ARRAY, _ARRAY, _ARRAY, _COUNT, _ARRAY, _ARRAY, _COUNT)


class Copies(NamedTuple):
    """Descriptors, uint64 ``[K]`` each: byte offsets in output and table, and bytes to copy."""

    to: NDArray[np.uint64]
    source: NDArray[np.uint64]
    size: NDArray[np.uint64]


def row_copies(ids: NDArray[np.integer[Any]], row_bytes: int) -> Copies:
    """Return the copies that bring rows ``ids`` ``[B]``, all in the table, to a dense output.

    Consecutive ids whose rows are adjacent in the table share a copy: the fewest copies possible.
    """
    starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 2) != 1) if ids.size else ids
    rows = np.diff(starts, append=ids.size)
    each = np.uint64(row_bytes)
    to, source, size = (part.astype(np.uint64) * each for part in (starts, ids[starts], rows))
    return Copies(to, source, size)


@njit(nogil=True, cache=True)
def copy_on_host(copies: Copies, table: int, out: int) -> None:
    """Carry out the copies with the processor, from address ``table`` to address ``out``."""
    to, source, size = copies
    for k in range(size.shape[0]):
        memcpy(out + np.intp(to[k]), table + np.intp(source[k]), np.intp(size[k]))


def copy_batch(copies: Copies, table: int, out: int, stream: int) -> None:
    """Queue the copies on ``stream``, a handle other than 0: the default stream takes no batch.

    The driver has read the descriptors when this returns; table and output must stay allocated.

    Raises:
        CudaCallError: the driver lacks the call, or refuses this one.
    """
    count = copies.size.size
    if count == 0:
        return
    module = driver()
    attributes, first = module.CUmemcpyAttributes(), np.zeros(1, np.uint64)
    order = module.CUmemcpySrcAccessOrder
    attributes.srcAccessOrder = order.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    attributes.flags = module.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE
    arrays = [copies.to + np.uint64(out), copies.source + np.uint64(table), copies.size, first]
    to, source, size, at = (array.ctypes.data for array in arrays)
    status = _call()(to, source, size, count, attributes.getPtr(), at, 1, stream)
    if status:
        raise CudaCallError("cuMemcpyBatchAsync", module.CUresult(status).name, f"{count} copies")


def batch_refusal() -> Reason | None:
    """Return why the driver here takes no batch of copies; ``None`` if it does."""
    try:
        _call()
    except CudaCallError as error:
        return unsupported(str(error))
    return None


@functools.cache
def _call() -> Callable[..., int]:
    """Return the driver's function: that of CUDA 13 (``_v2``) if there is one, else that of 12.8
    without its extra argument before the stream (CUDA Driver API, "Memory Management")."""
    name = "cuMemcpyBatchAsync"
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as missing:
        raise CudaCallError(name, "no driver", str(missing)) from missing
    if (now := getattr(library, f"{name}_v2", None)) is not None:
        now.argtypes = (*_ARGUMENTS, _STREAM)
        return now
    if (before := getattr(library, name, None)) is None:
        raise CudaCallError(name, "not there", "the driver is older than CUDA 12.8")
    before.argtypes = (*_ARGUMENTS, ctypes.POINTER(_COUNT), _STREAM)
    return lambda *given: int(before(*given[:-1], ctypes.byref(_COUNT()), given[-1]))
