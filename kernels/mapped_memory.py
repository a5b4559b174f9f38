"""Make a table readable for a GPU: in registered or managed host memory, or by a GPU copy.

Registering page-locks existing memory (a tensor, a memory-mapped file) and maps it for every GPU;
torch's own page-locked allocator would need a copy and round the size up to a power of two. Memory
is unregistered when the block is left, when the object dies, or when the interpreter ends,
whichever comes first: memory that is freed while registered could be reused while still mapped.
"""

from __future__ import annotations

import os
import resource
import threading
import time
import weakref
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor

from gatherbench.kernels.cuda_calls import (
    NO_DRIVER,
    CudaCallError,
    call_runtime,
    device_attribute,
    pointer_kind,
    runtime,
)
from gatherbench.kernels.managed_memory import managed_table, map_for, span_of
from gatherbench.kernels.table_file import map_at

#: The size that driver 580 and later refuse to register in one call: they keep 16 B for each page
#: of 4 KiB, and Linux gives at most 2 GiB for that (vllm #51080: 511.96 GiB pass, 512.15 GiB fail).
ONE_CALL_BYTES = 512 << 30
_COPY = "Copy the table into memory first"
#: CUDA's status codes for memory that is page-locked already.
_TAKEN = ("cudaErrorHostMemoryAlreadyRegistered", "cudaErrorInvalidValue")

#: Registrations of this process by (address, bytes): the number of holders of each.
_held: dict[tuple[int, int], int] = {}
#: Registrations that other code has made, which this module does not undo.
_foreign: set[tuple[int, int]] = set()
#: Reentrant: a garbage collection inside the lock may run the finalizer of another registration.
#: So iterate only over copies of ``_held``.
_lock = threading.RLock()


class MappedMemory(AbstractContextManager["MappedMemory"]):
    """A table that a GPU can read until :meth:`close`.

    Attributes:
        kind: CUDA's kind of memory; see :func:`gatherbench.kernels.cuda_calls.pointer_kind`.
        tensor: the table, or its copy, until it is closed.
        in_place: whether it is the table's own memory and not a copy.
        address: the GPU's address of the first byte; 0 for a tensor without bytes.
        size_bytes: the size of the table.
        seconds: the time that it took to make the table readable.
        copied: bytes of a copy on the host, if the table had to be copied.
    """

    kind: ClassVar[str]
    in_place = True
    _release: weakref.finalize[..., Any] | None = None

    def __init__(self, table: Tensor, device: torch.device | int = 0) -> None:
        self.tensor, self.size_bytes = table, table.nbytes
        self.seconds, self.address, self.copied = 0.0, 0, 0
        if self.size_bytes:
            begin = time.perf_counter()
            self._map(table, device)
            self.seconds = time.perf_counter() - begin

    def _map(self, table: Tensor, device: Any) -> None:
        """Make the table readable, and set what differs from the attributes' defaults."""
        raise NotImplementedError

    def close(self) -> None:
        """Unmap, or free the copy, when no kernel reads it any more. Safe to call twice."""
        self.tensor = torch.empty(0, dtype=torch.uint8, device="cpu")
        if self._release is not None:
            self._release()
        self.address = 0

    def __exit__(self, *_: object) -> None:
        self.close()


class HostRegistration(MappedMemory):
    """A tensor (contiguous, in host memory, unchanged in place until closed) registered in place
    for all GPUs; read-only if its memory is.

    Memory that is page-locked already, by torch or by another registration, is used as it is.

    Raises:
        ValueError: not a contiguous tensor in host memory, or a tensor in managed memory.
        CudaCallError: no driver, no support, or not enough memory to lock; it says which.
    """

    kind = "Host"

    def __init__(self, table: Tensor, device: int = 0) -> None:
        if table.device.type != "cpu" or not table.is_contiguous():
            raise ValueError("only a contiguous tensor in host memory can be registered")
        if table.nbytes and span_of(table) is not None:
            lies = "the table lies in managed memory, which cannot be registered"
            raise ValueError(f'{lies}: take memory = "managed", or load it into ordinary memory')
        here = map_at(table.data_ptr())  # takes a moment that is not the registration's
        self._read_only = here is not None and "w" not in here.permissions
        super().__init__(table, device)

    def _map(self, table: Tensor, device: int) -> None:
        start = table.data_ptr()
        key = _acquire(start, self.size_bytes, _flags(self._read_only, device))
        # The finalizer holds the tensor: its memory cannot be freed before it is unregistered.
        self._release = weakref.finalize(self, _give_up, key, os.getpid(), table)
        try:
            self.address = int(call_runtime("cudaHostGetDevicePointer", start, 0))
        except BaseException:
            self.close()
            raise


class ManagedMemory(MappedMemory):
    """A table (contiguous, in host memory) in managed memory that stays on the CPU, mapped for the
    GPU: the table itself if it lies there, else a copy, whose time ``seconds`` includes.

    It raises as :func:`managed_table`.
    """

    kind = "Managed"

    def _map(self, table: Tensor, device: int) -> None:
        if (span := span_of(table)) is None:
            rows, width = table.shape
            self.tensor = managed_table((rows, width), table.dtype, device).copy_(table)
            self.copied, self.in_place = self.size_bytes, False
        else:
            map_for(span, device)
        self.address = self.tensor.data_ptr()


class DeviceCopy(MappedMemory):
    """A copy of a table in GPU memory; ``tensor`` is the copy."""

    kind, in_place = "Device", False

    def _map(self, table: Tensor, device: torch.device | int) -> None:
        self.tensor = table.to(device)
        torch.cuda.synchronize(device)
        self.address = self.tensor.data_ptr()


def registered_bytes() -> int:
    """Return the bytes of host memory that this process has registered, each counted once."""
    with _lock:
        return sum(size for start, size in list(_held) if (start, size) not in _foreign)


def is_registered(address: int) -> bool:
    """Tell whether this process holds a registration, of any path, that covers the address."""
    return any(start <= address < start + size for start, size in list(_held))


def _flags(read_only: bool, device: int) -> int:
    module = runtime()
    flags = int(module.cudaHostRegisterPortable) | int(module.cudaHostRegisterMapped)
    if not read_only:
        return flags
    if not device_attribute("cudaDevAttrHostRegisterReadOnlySupported", device):
        text = "this GPU or its driver cannot register memory that is mapped read-only"
        raise CudaCallError("cudaHostRegister", "unsupported", text, _COPY)
    return flags | int(module.cudaHostRegisterReadOnly)


def _acquire(start: int, size: int, flags: int) -> tuple[int, int]:
    """Hold an existing or new registration that covers the memory; return its key."""
    key, end = (start, size), start + size
    with _lock:
        for held in list(_held):
            if held[0] <= start and end <= sum(held) and held in _held:
                _held[held] += 1
                return held
        try:
            call_runtime("cudaHostRegister", start, size, flags, hints=_hints(size))
        except CudaCallError as error:
            if error.code not in _TAKEN:
                raise
            # Other code's registration also serves, if it covers all of the memory. Testing both
            # ends does not prove that if registrations of this module cover only parts.
            own = (held for held in list(_held) if held not in _foreign)
            if any(held[0] < end and start < sum(held) for held in own):
                raise
            if {pointer_kind(start), pointer_kind(end - 1)} != {"Host"}:
                raise
            _foreign.add(key)
        _held[key] = 1
        return key


def _give_up(key: tuple[int, int], pid: int, tensor: Tensor) -> None:
    """Release one registration; the argument ``tensor`` keeps the memory alive until now."""
    if os.getpid() != pid:  # a forked child has neither the registration nor a CUDA context
        return
    with _lock:
        _held[key] -= 1
        if _held[key]:
            return
        del _held[key]
        if key in _foreign:
            _foreign.remove(key)
            return
        try:
            # A dying program may leave a gather in flight that still reads the memory.
            call_runtime("cudaDeviceSynchronize")
        finally:
            call_runtime("cudaHostUnregister", key[0])


def _hints(size: int) -> dict[str, str]:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / 2**20:.0f} MiB"
    locking = (
        f"{size / 2**30:.2f} GiB are to be page-locked; RLIMIT_MEMLOCK is {limit} "
        "(`ulimit -l`), and the machine must have that much memory free"
    )
    if size >= ONE_CALL_BYTES:
        locking += f"; from driver 580 on, one table must be below {ONE_CALL_BYTES >> 30} GiB"
    return {
        "cudaErrorMemoryAllocation": locking,
        "cudaErrorOperatingSystem": locking,
        "cudaErrorHostMemoryAlreadyRegistered": "Another open table has locked a part of this "
        "memory: close that one first, or open a single table on the whole tensor",
        "cudaErrorInvalidValue": "Memory of this kind may refuse to be page-locked, as a file that "
        "is mapped shared and writable or lies on a network: copy the table into memory first. "
        "Memory added to a running machine may have to stay movable: take a smaller table",
        "cudaErrorNotSupported": _COPY,
        "cudaErrorNoDevice": NO_DRIVER,
    }
