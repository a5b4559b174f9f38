"""Managed memory (UVM): page faults, and bytes that the driver moved because of them.

Counting costs: the driver writes a record for every fault and every move, and CUPTI stays attached
to the process. So this meter is never opened around anything timed; it has an epoch of its own, the
last thing that a case with managed memory does. In other cases CUPTI is not touched. A move of
known size is part of the window: its counters are believed where they have counted it.
"""

from __future__ import annotations

import ctypes
import os
from typing import ClassVar

from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.cupti import (
    CPU_PAGE_FAULT,
    DEVICE_TO_HOST,
    GPU_PAGE_FAULT,
    HOST_TO_DEVICE,
    CuptiError,
    Tally,
    UnifiedMemoryCounters,
)
from gatherbench.bench.meters.known_move import SIZE_BYTES, KnownMove
from gatherbench.bench.meters.trust import TRUSTED
from gatherbench.kernels.cuda_calls import CudaCallError

#: What tells of a profiler that was started around the process and uses CUPTI itself.
_PROFILERS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")

#: Metric, unit, counter and source; a source ends in what is made of the counter's records.
_METRICS = (
    ("gpu_page_fault_records", "1", GPU_PAGE_FAULT, "GPU_PAGE_FAULT records"),
    ("gpu_page_faults", "1", GPU_PAGE_FAULT, "GPU_PAGE_FAULT values"),
    ("cpu_page_faults", "1", CPU_PAGE_FAULT, "CPU_PAGE_FAULT_COUNT records"),
    ("migrated_host_to_device", "B", HOST_TO_DEVICE, "BYTES_TRANSFER_HTOD values"),
    ("migrated_device_to_host", "B", DEVICE_TO_HOST, "BYTES_TRANSFER_DTOH values"),
)


class UvmMeter:
    """Faults on and moves of the process's managed memory. Units: 1 and B.

    ``gpu_page_fault_records`` counts faults that the driver served, a page each, and
    ``gpu_page_faults`` adds up how many groups of faults each of them stands for.

    Args:
        busy: why CUPTI is not free in this process; ``None``: it is.
    """

    name: ClassVar[str] = "uvm"
    summary: ClassVar[str] = "page faults and migrations of managed memory, in an epoch of its own"
    lost: ClassVar[str] = "whether managed memory is read in place or moved to the GPU"
    trust: ClassVar[str] = "a move of known size is counted in every window, no record is dropped"

    def __init__(self, busy: str | None = None) -> None:
        self._busy = busy
        self._reason: str | None = "failed: the window was never opened"
        self._counters: UnifiedMemoryCounters | None = None
        self._known: KnownMove | None = None

    def probe(self) -> str | None:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return "no_device: no NVIDIA driver answers (libcuda.so.1); use a machine with a GPU"
        if self._busy is not None:
            return f"busy: {self._busy}"
        if any(name in os.environ for name in _PROFILERS):
            return "busy: a profiler runs this process and has CUPTI; run without it"
        return None

    def start(self) -> None:
        self._counters = self._known = None
        self._reason = self.probe()
        if self._reason is not None:
            return
        import torch  # loaded long since where there is something to meter

        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._reason = "unsupported: this process does not use the GPU"
            return
        major = str(torch.version.cuda).partition(".")[0]
        try:
            counters = UnifiedMemoryCounters(f"libcupti.so.{major}")
            self._known = KnownMove()
            counters.start()
            self._counters = counters
            self._known.to_gpu()
        except CuptiError as error:
            self._reason = str(error)
        except CudaCallError as error:
            self._reason = f"unsupported: {error}; use a GPU that migrates managed memory"

    def stop(self) -> list[Reading]:
        tally = self._counted()
        if tally is not None and self._reason is None:
            self._reason = _distrust(tally)
        counted = tally if self._reason is None else None
        return [_reading(*metric, counted, self._reason) for metric in _METRICS]

    def _counted(self) -> Tally | None:
        if self._known is None:
            return None
        try:
            return None if self._counters is None else self._counters.stop(self._known.addresses)
        except CuptiError as error:
            self._reason = str(error)
            return None
        finally:
            self._known.close()


def _distrust(tally: Tally) -> str | None:
    """Why the counters are not to be believed, or ``None``."""
    counted, (low, high) = tally.apart[HOST_TO_DEVICE], TRUSTED
    if low <= counted / SIZE_BYTES <= high:
        return None
    return (
        f"failed: of {SIZE_BYTES} B moved to the GPU as a test CUPTI counted {counted}; "
        "nsys profile --cuda-um-gpu-page-faults=true may count them"
    )


def _reading(
    metric: str, unit: str, counter: int, what: str, tally: Tally | None, reason: str | None
) -> Reading:
    if tally is None:
        return Reading(metric, unit, None, f"cupti {what}", reason)
    found = tally.records if what.endswith("records") else tally.values
    source, samples = f"cupti {what}, API {tally.version}", tally.records[counter]
    return Reading(metric, unit, float(found[counter]), source, samples=samples)
