"""Managed memory that stays on the host: a table that a GPU reads in place, by large pages.

Memory that is registered is mapped for the GPU in pages of 4 KiB, however the host has it. The
driver of managed memory (UVM) takes it from the host in chunks of 2 MiB, 64 KiB or 4 KiB and maps a
whole chunk as one page, since driver 530.30.02 (NVIDIA's open kernel modules, ``uvm_va_block.c``).
Larger chunks than 4 KiB are not tried hard for (``__GFP_NORETRY`` in ``uvm_pmm_sysmem.c``): a host
whose memory is in pieces gives small ones, and nobody says so. How fast the GPU goes from page to
page is therefore measured when a path opens (``strategies/page_rate.py``).

Preferred location CPU keeps a page from moving to the GPU that reads it, accessed-by maps it
beforehand (CUDA C++ Programming Guide, "Data Usage Hints"); a fault then adds a mapping and moves
nothing. So a table may be larger than GPU memory. The advice comes before the pages are there, and
they are there before the table is read into them.

Pages of managed memory cannot be swapped out, belong to one process, and are gone from a fork.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gatherbench.kernels.cuda_calls import CudaCallError, call_runtime, device_attribute, runtime
from gatherbench.kernels.host_memory import available_bytes, empty_table, touch
from gatherbench.kernels.modes import plain_torch
from gatherbench.reason import Reason, unsupported

#: How a table's memory is had, as plans and :func:`empty` call it.
Memory = Literal["managed", "anonymous", "shared"]
#: Of the memory that is to be had, what managed tables may take: none of it can be swapped out.
SHARE_OF_HOST = 0.9
_REGISTERED = 'memory = "registered" reads the table where it lies'


@dataclass(slots=True)
class Span:
    """Managed memory of this process.

    Attributes:
        devices: the GPUs for which it is mapped.
    """

    address: int
    size_bytes: int
    devices: set[int] = field(default_factory=set)


_spans: dict[int, Span] = {}


def _held() -> list[Span]:
    """At once: a collection meanwhile may free some."""
    return list(_spans.values())


def managed_bytes() -> int:
    """Bytes of managed memory that this process holds."""
    return sum(span.size_bytes for span in _held())


def span_of(table: Tensor) -> Span | None:
    """The managed memory that holds all of ``table``; ``None``: it lies elsewhere."""
    start, end = table.data_ptr(), table.data_ptr() + table.nbytes
    within = (s for s in _held() if s.address <= start and end <= s.address + s.size_bytes)
    return next(within, None) if table.device.type == "cpu" else None


def managed_refusal(device: int) -> Reason | None:
    """Why CUDA device ``device`` cannot read managed memory in place, or ``None``."""
    if device_attribute("cudaDevAttrConcurrentManagedAccess", device):
        return None
    return unsupported(
        f"CPU and cuda:{device} cannot use managed memory at the same time"
        f" (cudaDevAttrConcurrentManagedAccess is 0); {_REGISTERED}"
    )


def managed_room(size_bytes: int, processes: int = 1) -> Reason | None:
    """Why the host has no room for managed tables of that size, or ``None``.

    Args:
        processes: of this machine that are to have one each: they cannot share it.
    """
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
    """A zeroed table ``[N, D]`` on the CPU in managed memory, mapped for CUDA device ``device``.

    Freed with the last tensor that uses it: no kernel may read it then.

    Raises:
        ValueError: a negative extent.
        MemoryError: see :func:`managed_room`; or the driver has no addresses. A page for which
            there is no memory after all ends the process, as of ordinary memory.
        CudaCallError: no driver, or managed memory is not supported there.
    """
    rows, width = shape
    if rows < 0 or width < 0:
        raise ValueError(f"shape {shape}: expected two extents of 0 or more")
    size = rows * width * dtype.itemsize
    if size == 0:
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
        stay_on_host(span, device)
        flat = torch.frombuffer(raw, dtype=torch.uint8)
        touch(flat)
    except BaseException:
        release()
        raise
    return flat.view(dtype).view(rows, width)


def stay_on_host(span: Span, device: int) -> None:
    """Have its pages stay where they are while ``device`` reads them."""
    _advise(span, "cudaMemAdviseSetPreferredLocation", _place(None))
    map_for(span, device)


def map_for(span: Span, device: int) -> None:
    """Have ``device`` read it in place."""
    if device in span.devices:
        return
    _advise(span, "cudaMemAdviseSetAccessedBy", _place(device))
    span.devices.add(device)


def empty(
    shape: tuple[int, int],
    dtype: torch.dtype = torch.float32,
    *,
    memory: Memory = "managed",
    device: int | None = None,
) -> Tensor:
    """A zeroed table ``[N, D]`` on the CPU, to be filled and given to :func:`gatherbench.unified`.

    Args:
        memory: ``managed``: what ``memory="managed"`` reads in place, without a copy; a process
            that is forked later cannot touch it. ``anonymous``: ordinary memory, in huge pages
            where the kernel grants them; ``shared``: the same, shared with forked processes.
        device: the GPU that will read it (of ``managed``; by default the current one).

    Raises:
        ValueError: another word, or a negative extent.
        MemoryError: the machine does not have so much.
        CudaCallError: ``managed`` without a driver, or on a GPU that cannot have it.
    """
    if memory == "managed":
        current = torch.cuda.current_device() if torch.cuda.is_available() else 0
        with plain_torch():
            return managed_table(shape, dtype, current if device is None else device)
    if memory not in ("anonymous", "shared"):
        raise ValueError(f"memory = {memory!r} is not one of managed, anonymous, shared")
    return empty_table(shape, dtype, shared=memory == "shared")


def _place(device: int | None) -> Any:
    """A GPU, or the host, as CUDA takes it."""
    place, kinds = runtime().cudaMemLocation(), runtime().cudaMemLocationType
    host = device is None
    place.type = kinds.cudaMemLocationTypeHost if host else kinds.cudaMemLocationTypeDevice
    place.id = device or 0
    return place


def _advise(span: Span, advice: str, place: object) -> None:
    kind = getattr(runtime().cudaMemoryAdvise, advice)
    # CUDA 12 calls by this name what takes a device's number, and has what we need beside it.
    name = "cudaMemAdvise_v2" if hasattr(runtime(), "cudaMemAdvise_v2") else "cudaMemAdvise"
    call_runtime(name, span.address, span.size_bytes, kind, place)


def _free(address: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has no CUDA context
        _spans.pop(address, None)
        call_runtime("cudaFree", address)
