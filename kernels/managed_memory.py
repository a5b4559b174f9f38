"""Managed memory that stays on the host: a table that a GPU reads in place, by large pages.

Registered memory is mapped for the GPU in pages of 4 KiB, whatever pages the host uses. The driver
of managed memory (UVM) takes it from the host in chunks of 2 MiB, 64 KiB or 4 KiB and maps a whole
chunk as one page, since driver 530.30.02 (NVIDIA's open kernel modules, ``uvm_va_block.c``). It
does not retry for chunks above 4 KiB (``__GFP_NORETRY`` in ``uvm_pmm_sysmem.c``): a host with
fragmented memory silently gives small ones.

Preferred location CPU keeps a page from moving to the GPU that reads it, and accessed-by maps it
beforehand (CUDA C++ Programming Guide, "Data Usage Hints"); a fault then adds a mapping and moves
nothing. So a table may be larger than GPU memory. The advice is given before the pages exist. They
cannot be swapped out, belong to one process, and do not exist in a fork.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gatherbench.kernels.cuda_calls import CudaCallError, call_runtime, device_attribute, runtime
from gatherbench.kernels.host_memory import available_bytes, empty_table, size_of, touch
from gatherbench.kernels.modes import plain_torch
from gatherbench.reason import Reason, unsupported

#: The kinds of a table's memory, as plans and :func:`empty` name them.
Memory = Literal["managed", "anonymous", "shared"]
#: The part of the available memory that managed tables may take.
SHARE_OF_HOST = 0.9
_REGISTERED = 'memory = "registered" reads the table where it lies'


@dataclass(slots=True)
class Span:
    """Managed memory of this process, and the GPUs that have it mapped."""

    address: int
    size_bytes: int
    devices: set[int] = field(default_factory=set)


_spans: dict[int, Span] = {}


def managed_bytes() -> int:
    return sum(span.size_bytes for span in list(_spans.values()))


def span_of(table: Tensor) -> Span | None:
    """Return the managed memory that holds all of ``table``; ``None`` if it lies elsewhere."""
    start, end = table.data_ptr(), table.data_ptr() + table.nbytes
    spans = list(_spans.values())  # in one step: a garbage collection meanwhile may free some
    within = (s for s in spans if s.address <= start and end <= s.address + s.size_bytes)
    return next(within, None) if table.device.type == "cpu" else None


def managed_refusal(device: int) -> Reason | None:
    """Return why CUDA device ``device`` cannot read managed memory in place; ``None`` if it can."""
    if device_attribute("cudaDevAttrConcurrentManagedAccess", device):
        return None
    return unsupported(
        f"CPU and cuda:{device} cannot use managed memory at the same time"
        f" (cudaDevAttrConcurrentManagedAccess is 0); {_REGISTERED}"
    )


def managed_room(size_bytes: int, processes: int = 1) -> Reason | None:
    """Return why the host has no room for a managed table of that size in each of ``processes``,
    which cannot share it; ``None`` if it has."""
    there, wanted = available_bytes(), size_bytes * processes
    if wanted <= SHARE_OF_HOST * there:
        return None
    each = f" in each of {processes} processes" if processes > 1 else ""
    return Reason(
        "no_memory",
        f"{size_bytes / 2**30:.1f} GiB of managed memory{each} are more than"
        f" {SHARE_OF_HOST:.0%} of the {there / 2**30:.1f} GiB that the host has available; they"
        f" cannot be swapped out, so swap does not help: {_REGISTERED}",
    )


def managed_table(shape: tuple[int, int], dtype: torch.dtype, device: int = 0) -> Tensor:
    """Allocate a zeroed table ``[N, D]`` on the CPU in managed memory, mapped for ``device``.

    It is freed with the last tensor that uses it: no kernel may read it then.

    Raises:
        ValueError: a negative extent.
        MemoryError: see :func:`managed_room`; or the driver has no addresses. If memory for a page
            is missing later, the process is killed, as with ordinary memory.
        CudaCallError: no driver, or ``device`` does not support managed memory.
    """
    if (size := size_of(shape, dtype)) == 0:
        return torch.zeros(shape, dtype=dtype, device="cpu")
    if (reason := managed_room(size)) is not None:
        raise MemoryError(reason)
    try:
        address = int(call_runtime("cudaMallocManaged", size, runtime().cudaMemAttachGlobal))
    except CudaCallError as error:
        if error.code != "cudaErrorMemoryAllocation":
            raise
        raise MemoryError(f"no_memory: {error}; {_REGISTERED}") from error
    span = _spans[address] = Span(address, size)
    raw = (ctypes.c_uint8 * size).from_address(address)
    release = weakref.finalize(raw, _free, address, os.getpid())  # the tensor holds the buffer
    try:
        # Its pages stay where they are while the device reads them.
        _advise(span, "cudaMemAdviseSetPreferredLocation", None)
        map_for(span, device)
        flat = torch.frombuffer(raw, dtype=torch.uint8)
        touch(flat)
    except BaseException:
        release()
        raise
    return flat.view(dtype).view(shape)


def map_for(span: Span, device: int) -> None:
    """Map ``span`` for ``device``, which then reads it in place."""
    if device not in span.devices:
        _advise(span, "cudaMemAdviseSetAccessedBy", device)
        span.devices.add(device)


def empty(
    shape: tuple[int, int],
    dtype: torch.dtype = torch.float32,
    *,
    memory: Memory = "managed",
    device: int | None = None,
) -> Tensor:
    """Allocate a zeroed table ``[N, D]`` on the CPU; fill it for :func:`gatherbench.unified`.

    Args:
        memory: ``managed``: strategies with ``memory="managed"`` read it in place, without a copy;
            a process that is forked later cannot use it. ``anonymous``: ordinary memory, in huge
            pages where the kernel grants them; ``shared``: the same, shared with forked processes.
        device: the GPU that will read it (only for ``managed``; by default the current one).

    Raises:
        ValueError: another value of ``memory``, or a negative extent.
        MemoryError: the machine does not have that much memory.
        CudaCallError: ``managed`` without a driver, or on a GPU that does not support it.
    """
    if memory in ("anonymous", "shared"):
        return empty_table(shape, dtype, shared=memory == "shared")
    if memory != "managed":
        raise ValueError(f"memory = {memory!r} is not one of managed, anonymous, shared")
    if device is None:
        device = torch.cuda.current_device() if torch.cuda.is_available() else 0
    with plain_torch():
        return managed_table(shape, dtype, device)


def _advise(span: Span, advice: str, device: int | None) -> None:
    """Advise the driver about ``span`` and a GPU, or the host (``None``)."""
    cuda = runtime()
    place, kinds = cuda.cudaMemLocation(), cuda.cudaMemLocationType
    place.id = device or 0
    place.type = (
        kinds.cudaMemLocationTypeHost if device is None else kinds.cudaMemLocationTypeDevice
    )
    # CUDA 12's function of this name takes a device's number; a second one takes a location.
    name = "cudaMemAdvise_v2" if hasattr(cuda, "cudaMemAdvise_v2") else "cudaMemAdvise"
    call_runtime(name, span.address, span.size_bytes, getattr(cuda.cudaMemoryAdvise, advice), place)


def _free(address: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has no CUDA context
        _spans.pop(address, None)
        call_runtime("cudaFree", address)
