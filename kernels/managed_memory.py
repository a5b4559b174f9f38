"""Managed memory that stays on the CPU: the driver's own way for a GPU to read a table in place.

Unlike registered memory (``host_registration.py``) it is a copy, because only what the driver has
allocated is managed, and it may be refused: beyond the GPU's free memory the driver can thrash.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from types import TracebackType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gatherbench.kernels.cuda_calls import call_runtime, device_attribute, runtime

#: Managed memory beyond the free memory of the GPU can make the driver thrash: stay well below.
MANAGED_SHARE = 0.5
#: Managed copies of this process: bytes by address.
_managed: dict[int, int] = {}


class ManagedCopy:
    """A copy of ``table`` in managed memory that stays on the CPU and is mapped for the GPU.

    PreferredLocation CPU keeps pages from moving to the GPU that reads them, AccessedBy GPU maps
    them beforehand, so that reading faults no page (CUDA C++ Programming Guide, "Data Usage
    Hints"). A context manager; attributes as :class:`HostRegistration`, ``seconds`` including the
    copy, and ``tensor``, the copy as a host tensor.
    """

    kind: ClassVar[str] = "Managed"

    def __init__(self, table: Tensor, device: int = 0) -> None:
        """Copy ``table`` (contiguous, in host memory).

        Raises:
            CudaCallError: no driver, or managed memory is not supported there.
            MemoryError: the table is larger than :data:`MANAGED_SHARE` of the GPU's free memory.
        """
        self.size_bytes = table.numel() * table.element_size()
        self.seconds = 0.0
        self.address = 0
        self.read_only = False
        self.tensor = table
        self._release: weakref.finalize[..., Any] | None = None
        reason = managed_refusal(self.size_bytes, device)
        if reason is not None:
            raise MemoryError(reason)
        if self.size_bytes == 0:
            return
        begin = time.perf_counter()
        self.address = int(
            call_runtime("cudaMallocManaged", self.size_bytes, runtime().cudaMemAttachGlobal)
        )
        _managed[self.address] = self.size_bytes
        self._release = weakref.finalize(self, _free_managed, self.address, os.getpid())
        try:
            _advise(self.address, self.size_bytes, device)
            raw = (ctypes.c_uint8 * self.size_bytes).from_address(self.address)
            flat = torch.frombuffer(raw, dtype=torch.uint8)
            self.tensor = flat.view(table.dtype).view(table.shape)
            self.tensor.copy_(table)
        except BaseException:
            self.close()
            raise
        self.seconds = time.perf_counter() - begin

    def close(self) -> None:
        """Free the copy: no kernel may read it, and nobody touch ``tensor``. Safe to call twice."""
        self.tensor = torch.empty(0)
        if self._release is not None:
            self._release()
        self.address = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def managed_refusal(size_bytes: int, device: int) -> str | None:
    """Why managed memory of that size is not to be had on CUDA device ``device``, or ``None``."""
    if not device_attribute("cudaDevAttrConcurrentManagedAccess", device):
        return "unsupported: CPU and GPU cannot use managed memory at the same time here"
    free = torch.cuda.mem_get_info(device)[0]
    if size_bytes > MANAGED_SHARE * free:
        return (
            f"no_memory: managed memory of {size_bytes / 2**30:.1f} GiB is more than "
            f"{MANAGED_SHARE:.0%} of the {free / 2**30:.1f} GiB that are free on the GPU"
        )
    return None


def managed_bytes() -> int:
    """Bytes of managed memory that this process holds."""
    return sum(_managed.values())


def _free_managed(address: int, pid: int) -> None:
    if os.getpid() == pid:
        _managed.pop(address, None)
        call_runtime("cudaFree", address)


def _advise(address: int, size: int, device: int) -> None:
    module = runtime()
    host, gpu = module.cudaMemLocation(), module.cudaMemLocation()
    host.type, host.id = module.cudaMemLocationType.cudaMemLocationTypeHost, 0
    gpu.type, gpu.id = module.cudaMemLocationType.cudaMemLocationTypeDevice, device
    advice = module.cudaMemoryAdvise
    call_runtime("cudaMemAdvise", address, size, advice.cudaMemAdviseSetPreferredLocation, host)
    call_runtime("cudaMemAdvise", address, size, advice.cudaMemAdviseSetAccessedBy, gpu)
