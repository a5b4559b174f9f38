"""Managed memory (UVM): page faults, and bytes that the driver moved because of them.

Counting costs: the driver writes a record for every fault and every move, and CUPTI stays attached
to the process. So this meter is never opened around anything timed; it has an epoch of its own, the
last thing that a case with managed memory does. In other cases CUPTI is not touched.
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
    trust: ClassVar[str] = "the driver's records; none where one was dropped or held back"

    def __init__(self, busy: str | None = None) -> None:
        self._busy = busy
        self._reason: str | None = "failed: the window was never opened"
        self._counters: UnifiedMemoryCounters | None = None

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
        self._counters = None
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
            counters.start()
        except CuptiError as error:
            self._reason = str(error)
        else:
            self._counters = counters

    def stop(self) -> list[Reading]:
        tally = None
        if self._counters is not None:
            try:
                tally = self._counters.stop()
            except CuptiError as error:
                self._reason = str(error)
        return [_reading(*metric, tally, self._reason) for metric in _METRICS]


def _reading(
    metric: str, unit: str, counter: int, what: str, tally: Tally | None, reason: str | None
) -> Reading:
    if tally is None:
        return Reading(metric, unit, None, f"cupti {what}", reason)
    found = tally.records if what.endswith("records") else tally.values
    source, samples = f"cupti {what}, API {tally.version}", tally.records[counter]
    return Reading(metric, unit, float(found[counter]), source, samples=samples)
