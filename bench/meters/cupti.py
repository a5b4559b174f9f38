"""CUPTI's counters of managed memory: what the driver moved, and which pages faulted for it.

A small binding by ctypes, because NVIDIA's own ``cupti-python`` cannot stand beside every torch:
its 13.4 wants ``nvidia-cuda-cupti~=13.4``, torch's CUDA wheels pin one of their own, and two copies
of CUPTI in a process are one too many. The library here is the one that torch has loaded for its
profiler, so that only one of the two may be at work.

Three hazards shape it. CUPTI calls back from threads of its own, whenever it likes, while others
may hold whatever they like: the callbacks do no more than move an address from one list to another,
and what lies there is read later. Records changed between versions of CUPTI: a library is refused
unless its version is known. And a record that CUPTI drops or holds back would leave a sum too
small: then there is none.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gatherbench.bench.machine.reason import Kind, Reason, ReasonError

#: CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER and CUPTI_ACTIVITY_FLAG_FLUSH_FORCED.
KIND = 25
_FORCED = 1
#: CUpti_ActivityUnifiedMemoryCounterKind.
HOST_TO_DEVICE, DEVICE_TO_HOST, CPU_PAGE_FAULT, GPU_PAGE_FAULT = 1, 2, 3, 4
_WATCHED = (HOST_TO_DEVICE, DEVICE_TO_HOST, CPU_PAGE_FAULT, GPU_PAGE_FAULT)
_SCOPE_ALL_DEVICES = 2

#: First and last versions of the API (``cupti_version.h``) whose records begin as :class:`Record`
#: does: CUDA 11.8 to 12.6, 12.8 to 12.9, and 13.0 to 13.5.
VERSIONS = ((18, 24), (26, 28), (130000, 130599))

_BUFFER_BYTES = 4 << 20
#: All records of a window are kept until it closes: some 2.5 million.
MOST_BUFFERS = 64
#: How long a buffer that CUPTI has not handed back when its flush returns is waited for.
_GRACE_S = 1.0
_NO_MORE_RECORDS = 12

_UVM_TOOLS = Path("/dev/nvidia-uvm-tools")
#: What else may count faults of managed memory.
NSYS = "nsys profile --cuda-um-gpu-page-faults=true may count them"
#: Kind of reason and remedy for what CUPTI answers (``cupti_result.h``).
_REFUSALS: dict[int, tuple[Kind, str]] = {
    15: ("unsupported", "the NVIDIA driver does not answer it: nvidia-smi should say the same"),
    28: ("unsupported", NSYS),
    29: ("unsupported", "this GPU does not count them"),
    30: ("unsupported", "show the process one GPU with CUDA_VISIBLE_DEVICES"),
    31: ("unsupported", "run without MPS"),
    33: ("unsupported", "virtual GPUs do not count them"),
    35: ("no_permission", "run as root, or load nvidia with NVreg_RestrictProfilingToAdminUsers=0"),
    39: ("busy", "run without another profiler"),
    40: ("no_permission", "let the hypervisor allow profiling of this virtual GPU"),
    41: ("unsupported", "confidential computing must be off"),
    43: ("unsupported", "MIG must be off"),
    45: ("unsupported", "WSL does not count them"),
}


class CuptiError(ReasonError):
    """Why nothing is counted."""


class Config(ctypes.Structure):
    """CUpti_ActivityUnifiedMemoryCounterConfig."""

    _fields_: ClassVar = [(f, ctypes.c_uint32) for f in ("scope", "kind", "device_id", "enable")]


class Record(ctypes.Structure):
    """CUpti_ActivityUnifiedMemoryCounter2, with which CUpti_ActivityUnifiedMemoryCounter3 begins.

    ``value`` is in bytes for what was moved; of a GPU page fault it is the number of page fault
    groups for the page; of a CPU page fault a program counter. ``start``, ``end``: ns.
    """

    kind: int
    counter_kind: int
    value: int
    address: int

    _fields_: ClassVar = [
        *((f, ctypes.c_uint32) for f in ("kind", "counter_kind")),
        *((f, ctypes.c_uint64) for f in ("value", "start", "end", "address")),
        *((f, ctypes.c_uint32) for f in ("src_id", "dst_id", "stream_id", "process_id")),
        *((f, ctypes.c_uint32) for f in ("flags", "pad")),
    ]


@dataclass(frozen=True, slots=True)
class Tally:
    """Records of a window by counter: how many there were, and the sum of their values.

    ``apart`` has the sums of records in addresses that the caller wants kept apart, for each range.
    """

    version: int
    records: Counter[int] = field(default_factory=Counter)
    values: Counter[int] = field(default_factory=Counter)
    apart: dict[range, Counter[int]] = field(default_factory=dict)


class UnifiedMemoryCounters:
    """The counters of this process, on all of its GPUs; CUDA is initialised.

    Args:
        soname: of the library, as the dynamic linker finds it; one that is loaded is taken.

    Raises:
        CuptiError: there is no such library, or none that is understood.
    """

    def __init__(self, soname: str) -> None:
        try:
            self._library = ctypes.CDLL(soname)
        except OSError as error:
            remedy = (
                "install nvidia-cuda-cupti for torch's CUDA and have LD_LIBRARY_PATH name the"
                " folder of the library"
            )
            cause = f"{soname} cannot be loaded ({error})"
            raise CuptiError(Reason("unsupported", cause, remedy)) from error
        version = ctypes.c_uint32()
        self._call("cuptiGetVersion", ctypes.byref(version))
        self.version = int(version.value)
        if not any(first <= self.version <= last for first, last in VERSIONS):
            unknown = f"CUPTI's API {self.version} is none whose records are known"
            raise CuptiError(Reason("unsupported", unknown, NSYS))

    def start(self) -> None:
        """Begin to count.

        The calls and their order are those of ``cupti_activity.h`` and of NVIDIA's sample: register
        callbacks, configure, enable. Dropped records are asked for at the end only, so those of
        another user of CUPTI leave no sum.

        Raises:
            CuptiError: CUPTI refuses; nothing is counted.
        """
        buffers = record_buffers()
        self._call("cuptiActivityRegisterCallbacks", *buffers.callbacks)
        wanted = [Config(_SCOPE_ALL_DEVICES, counter, 0, 1) for counter in _WATCHED]
        configs = (Config * len(wanted))(*wanted)
        self._call(
            "cuptiActivityConfigureUnifiedMemoryCounter", configs, ctypes.c_uint32(len(wanted))
        )
        if not buffers.drain(0.0, lambda *_: None):
            raise CuptiError(_failed("CUPTI holds records of an earlier window"))
        self._call("cuptiActivityEnable", KIND)

    def stop(self, *apart: range) -> Tally:
        """End the window; the work in it must have been synchronised with.

        Args:
            apart: ranges of addresses whose records are kept apart.

        Raises:
            CuptiError: CUPTI refuses, dropped records or holds them back.
        """
        try:
            self._call("cuptiActivityFlushAll", _FORCED)
        finally:
            self._call("cuptiActivityDisable", KIND)
        self._call("cuptiActivityFlushAll", _FORCED)
        tally = Tally(self.version, apart={addresses: Counter() for addresses in apart})
        complete = record_buffers().drain(_GRACE_S, lambda *found: self._add(tally, *found))
        dropped = ctypes.c_size_t()
        self._call(
            "cuptiActivityGetNumDroppedRecords", None, ctypes.c_uint32(0), ctypes.byref(dropped)
        )
        if dropped.value:
            cause = f"CUPTI dropped {dropped.value} records"
            raise CuptiError(_failed(cause, "count a shorter epoch"))
        if not complete:
            raise CuptiError(_failed("CUPTI has not handed over all records"))
        return tally

    def _add(self, tally: Tally, address: int, valid: int) -> None:
        code, record = 0, ctypes.c_void_p()
        while valid:
            code = self._library.cuptiActivityGetNextRecord(
                ctypes.c_void_p(address), ctypes.c_size_t(valid), ctypes.byref(record)
            )
            if code or record.value is None:
                break
            found = Record.from_address(record.value)
            if found.kind != KIND:  # of another user of CUPTI
                continue
            for addresses, values in tally.apart.items():
                if found.address in addresses:
                    values[found.counter_kind] += found.value
                    break
            else:
                tally.records[found.counter_kind] += 1
                tally.values[found.counter_kind] += found.value
        if code not in (0, _NO_MORE_RECORDS):
            raise CuptiError(self._refusal("cuptiActivityGetNextRecord", code))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CuptiError(self._refusal(name, code))

    def _refusal(self, name: str, code: int) -> Reason:
        text = ctypes.c_char_p()
        self._library.cuptiGetResultString(code, ctypes.byref(text))
        said = (text.value or b"error").decode(errors="replace")
        kind, remedy = _REFUSALS.get(code, ("failed", NSYS))
        if code == 28 and not _UVM_TOOLS.exists():
            kind, remedy = "no_permission", f"give the container {_UVM_TOOLS}"
        return Reason(kind, f"{name} answered {said} ({code})", remedy)


def _failed(cause: str, remedy: str = "run the case again") -> Reason:
    return Reason("failed", cause, remedy)


class RecordBuffers:
    """The buffers of this process: one set, as CUPTI has one pair of callbacks.

    Nothing of it is ever freed: CUPTI may keep a buffer beyond a window, and call back while the
    interpreter ends.

    Attributes:
        callbacks: for ``cuptiActivityRegisterCallbacks``.
    """

    _REQUEST = ctypes.CFUNCTYPE(
        None,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.POINTER(ctypes.c_size_t),
    )
    _COMPLETE = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
    )

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[int] = []
        self._away: set[int] = set()
        self._filled: list[tuple[int, int]] = []
        self._allocate = ctypes.CDLL(None).calloc
        self._allocate.restype = ctypes.c_void_p
        self.callbacks = (self._REQUEST(self._requested), self._COMPLETE(self._completed))
        for callback in self.callbacks:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))

    def _requested(self, buffer: Any, size: Any, limit: Any) -> None:
        buffer[0], size[0], limit[0] = None, 0, 0
        with self._changed:
            if not self._idle and len(self._away) + len(self._filled) < MOST_BUFFERS:
                address = self._allocate(ctypes.c_size_t(1), ctypes.c_size_t(_BUFFER_BYTES))
                self._idle += [address] if address else []
            if self._idle:  # else CUPTI drops what it has, and counts it
                address = self._idle.pop()
                _first_word(address).value = 0
                self._away.add(address)
                buffer[0], size[0] = address, _BUFFER_BYTES

    def _completed(self, _context: Any, _stream: int, address: int, _size: int, valid: int) -> None:
        with self._changed:
            self._away.discard(address)
            self._filled.append((address, valid))
            self._changed.notify_all()

    def drain(self, grace_s: float, each: Callable[[int, int], None]) -> bool:
        """Give each filled buffer (address, valid bytes) to ``each``, and take it back.

        Args:
            grace_s: how long buffers that CUPTI has not handed back are waited for.

        Returns:
            Whether CUPTI holds no record back: it may keep a buffer that it has not written to.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._away, grace_s)
            filled, self._filled = self._filled, []
            complete = all(_first_word(address).value == 0 for address in self._away)
        try:
            for address, valid in filled:
                each(address, valid)
        finally:
            with self._changed:
                self._idle += [address for address, _ in filled]
        return complete


def _first_word(address: int) -> ctypes.c_uint32:
    """Of a buffer: the kind of its first record, and 0 before there is one."""
    return ctypes.c_uint32.from_address(address)


@functools.cache
def record_buffers() -> RecordBuffers:
    """The process's."""
    return RecordBuffers()
