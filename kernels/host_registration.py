"""Host memory that a GPU reads in place: registered where it lies, or managed and told to stay.

Registering page-locks existing memory (a tensor, a memory-mapped file, memory shared by several
processes, each of which registers it for itself) and maps it for every GPU; torch's own page-locked
allocator would need a copy and round the size up to a power of two. It costs about as much as
touching all of the memory (DGL #3616), so size and time are kept and reported. What is registered
is unregistered when the block is left, when the object dies, or when the interpreter ends,
whichever comes first: memory that is freed while registered can be handed out again still mapped.
"""

from __future__ import annotations

import ctypes
import os
import resource
import threading
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gatherbench.kernels.cuda_calls import (
    CudaCallError,
    call_runtime,
    device_attribute,
    pointer_kind,
    runtime,
)

#: Managed memory beyond the free memory of the GPU can make the driver thrash: stay well below.
MANAGED_SHARE = 0.5


class HostRegistration:
    """``tensor`` registered for the GPUs until :meth:`close`; a context manager.

    Attributes:
        address: where the GPU sees the first byte; 0 for a tensor without bytes.
        size_bytes: bytes registered.
        seconds: what ``cudaHostRegister`` took.
        read_only: the memory is mapped read-only, and registered so.
    """

    kind: ClassVar[str] = "Host"

    def __init__(self, tensor: Tensor, device: int = 0) -> None:
        """Register ``tensor`` (contiguous, in host memory, unchanged in place until closed).

        Memory that is page-locked already, by torch or by another registration, is used as it is.

        Raises:
            ValueError: not a contiguous tensor in host memory.
            CudaCallError: no driver, not supported, or not enough memory to lock; says which.
        """
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ValueError("only a contiguous tensor in host memory can be registered")
        self.tensor = tensor
        self.size_bytes = tensor.numel() * tensor.element_size()
        self.seconds = 0.0
        self.address = 0
        self.read_only = False
        self._release: weakref.finalize[..., Any] | None = None
        if self.size_bytes == 0:
            return
        start = tensor.data_ptr()
        self.read_only = not writable(start)
        begin = time.perf_counter()
        _acquire(start, self.size_bytes, _flags(self.read_only, device))
        self.seconds = time.perf_counter() - begin
        # The finalizer holds the tensor: its memory cannot be freed before it is unregistered.
        self._release = weakref.finalize(
            self, _give_up, start, self.size_bytes, os.getpid(), tensor
        )
        try:
            self.address = int(call_runtime("cudaHostGetDevicePointer", start, 0))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unregister. No kernel may still read the memory. Safe to call twice."""
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


def registered_bytes() -> int:
    """Bytes of host memory that this process holds registered, each counted once."""
    with _lock:
        return sum(size for start, size in _held if (start, size) not in _foreign)


def managed_bytes() -> int:
    """Bytes of managed memory that this process holds."""
    return sum(_managed.values())


def writable(address: int, maps: Path = Path("/proc/self/maps")) -> bool:
    """Whether the memory at ``address`` is mapped for writing; yes where that is not known."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return True
    for line in lines:
        span, permissions = line.split(maxsplit=2)[:2]
        low, high = (int(x, 16) for x in span.split("-"))
        if low <= address < high:
            return "w" in permissions
    return True


#: How CUDA answers for memory that is page-locked already.
_TAKEN = ("cudaErrorHostMemoryAlreadyRegistered", "cudaErrorInvalidValue")
#: Registrations of this process by (address, bytes): how often each is held.
_held: dict[tuple[int, int], int] = {}
#: Reentrant: a garbage collection inside the lock may run the finalizer of another registration.
_lock = threading.RLock()
#: Held, but page-locked by somebody else: nothing of ours to undo.
_foreign: set[tuple[int, int]] = set()
#: Managed copies of this process: bytes by address.
_managed: dict[int, int] = {}


def _flags(read_only: bool, device: int) -> int:
    module = runtime()
    flags = int(module.cudaHostRegisterPortable) | int(module.cudaHostRegisterMapped)
    if not read_only:
        return flags
    if not device_attribute("cudaDevAttrHostRegisterReadOnlySupported", device):
        raise CudaCallError(
            "cudaHostRegister",
            "unsupported",
            "this GPU or its driver cannot register memory that is mapped read-only",
            "Copy the table into memory first, e.g. with host_memory.resident_copy",
        )
    return flags | int(module.cudaHostRegisterReadOnly)


def _acquire(start: int, size: int, flags: int) -> None:
    key = (start, size)
    with _lock:
        if _held.get(key):
            _held[key] += 1
            return
        try:
            call_runtime("cudaHostRegister", start, size, flags, hints=_hints(size))
        except CudaCallError as error:
            # Somebody else's registration serves as well, if it covers all of the memory.
            if error.code not in _TAKEN or {
                pointer_kind(start),
                pointer_kind(start + size - 1),
            } != {"Host"}:
                raise
            _foreign.add(key)
        _held[key] = 1


def _give_up(start: int, size: int, pid: int, tensor: Tensor) -> None:
    """Undo one registration; ``tensor`` is here to be kept alive until now."""
    if os.getpid() != pid:  # a forked child has neither the registration nor a CUDA context
        return
    key = (start, size)
    with _lock:
        _held[key] -= 1
        if _held[key]:
            return
        del _held[key]
        if key in _foreign:
            _foreign.remove(key)
            return
        try:
            # A program that dies may leave a gather in flight that still reads the memory.
            call_runtime("cudaDeviceSynchronize")
        finally:
            call_runtime("cudaHostUnregister", start)


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


def _hints(size: int) -> dict[str, str]:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / 2**20:.0f} MiB"
    locking = (
        f"{size / 2**30:.2f} GiB are to be page-locked; RLIMIT_MEMLOCK is {limit} "
        "(`ulimit -l`), and the machine must have that much memory free"
    )
    no_driver = "There is no working NVIDIA driver: `nvidia-smi` should say the same"
    return {
        "cudaErrorMemoryAllocation": locking,
        "cudaErrorOperatingSystem": locking,
        "cudaErrorInvalidValue": "The mapping may be of a kind that cannot be page-locked, e.g. "
        "a file on a network or FUSE file system: copy the table into memory first",
        "cudaErrorNotSupported": "Copy the table into memory first",
        "cudaErrorNoDevice": no_driver,
        "cudaErrorInsufficientDriver": no_driver,
    }
