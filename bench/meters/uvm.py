"""Managed memory (UVM): page faults, and bytes that the driver moved because of them.

Counting costs: the driver writes a record for every fault and every move, and CUPTI stays attached
to the process. So this meter is never opened around anything timed; it has an epoch of its own, the
last thing that a case with managed memory does. In other cases CUPTI is not touched.

Counters that were opened too late, or watch another process, say 0 as calmly as counters of memory
that stays where it is. Moves of known size in the same window tell the two apart. One moves memory
from before the counters, as the case's table is; the other memory that is allocated once they
count, as in NVIDIA's sample. Without the first nothing is believed.
"""

from __future__ import annotations

import ctypes
import os
from typing import ClassVar

from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.meters.base import NEVER_OPENED, Reading, reading
from gatherbench.bench.meters.cupti import (
    CPU_PAGE_FAULT,
    DEVICE_TO_HOST,
    GPU_PAGE_FAULT,
    HOST_TO_DEVICE,
    NSYS,
    CuptiError,
    Tally,
    UnifiedMemoryCounters,
)
from gatherbench.bench.meters.trust import TRUSTED
from gatherbench.kernels.cuda_calls import CudaCallError, call_runtime, runtime

#: What tells of a profiler that was started around the process and uses CUPTI itself.
_PROFILERS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")

_NO_DRIVER = Reason(
    "no_device", "no NVIDIA driver answers (libcuda.so.1)", "use a machine with a GPU"
)
_PROFILED = Reason("busy", "a profiler runs this process and has CUPTI", "run without it")
_NO_GPU_USED = Reason("unsupported", "this process does not use the GPU")
#: Of the known move: the largest piece that the driver moves at once, and a multiple of every page
#: size.
SIZE_BYTES = 2 << 20

#: Metric, unit, counter and source; a source ends in what is made of the counter's records.
_METRICS = (
    ("gpu_page_fault_records", "1", GPU_PAGE_FAULT, "GPU_PAGE_FAULT records"),
    ("gpu_page_faults", "1", GPU_PAGE_FAULT, "GPU_PAGE_FAULT values"),
    ("cpu_page_faults", "1", CPU_PAGE_FAULT, "CPU_PAGE_FAULT_COUNT records"),
    ("migrated_host_to_device", "B", HOST_TO_DEVICE, "BYTES_TRANSFER_HTOD values"),
    ("migrated_device_to_host", "B", DEVICE_TO_HOST, "BYTES_TRANSFER_DTOH values"),
)


class KnownMove:
    """Managed memory of :data:`SIZE_BYTES` that lies on the host until :meth:`to_gpu`.

    ``addresses`` is where it lies. CUDA's refusals are raised as ``CudaCallError``.
    """

    def __init__(self) -> None:
        start = int(call_runtime("cudaMallocManaged", SIZE_BYTES, runtime().cudaMemAttachGlobal))
        self.addresses = range(start, start + SIZE_BYTES)
        ctypes.memset(start, 1, SIZE_BYTES)

    def to_gpu(self) -> None:
        """Move all of it to the current GPU, and wait for it."""
        module, gpu = runtime(), runtime().cudaMemLocation()
        gpu.type = module.cudaMemLocationType.cudaMemLocationTypeDevice
        gpu.id = int(call_runtime("cudaGetDevice"))
        call_runtime("cudaMemPrefetchAsync", self.addresses.start, SIZE_BYTES, gpu, 0, 0)
        call_runtime("cudaDeviceSynchronize")

    def close(self) -> None:
        """Free it."""
        call_runtime("cudaFree", self.addresses.start)


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

    def __init__(self, busy: Reason | None = None) -> None:
        self._busy = busy
        self._reason: Reason | None = NEVER_OPENED
        self._counters: UnifiedMemoryCounters | None = None
        self._known: list[KnownMove] = []

    def probe(self) -> Reason | None:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return _NO_DRIVER
        if self._busy is None and any(name in os.environ for name in _PROFILERS):
            return _PROFILED
        return self._busy

    def start(self) -> None:
        self._counters, self._known = None, []
        self._reason = self.probe()
        if self._reason is not None:
            return
        import torch  # loaded long since where there is something to meter

        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._reason = _NO_GPU_USED
            return
        major = str(torch.version.cuda).partition(".")[0]
        try:
            counters = UnifiedMemoryCounters(f"libcupti.so.{major}")
            self._known.append(KnownMove())
            counters.start()
            self._counters = counters
            self._known.append(KnownMove())
            for move in self._known:
                move.to_gpu()
        except CuptiError as error:
            self._reason = error.reason
        except CudaCallError as error:
            remedy = "use a GPU that migrates managed memory"
            self._reason = Reason("unsupported", str(error), remedy)

    def stop(self) -> list[Reading]:
        tally = self._counted()
        if isinstance(tally, Reason):
            return [reading(metric, unit, tally, f"cupti {w}") for metric, unit, _, w in _METRICS]
        readings = []
        for metric, unit, counter, what in _METRICS:
            found = tally.records if what.endswith("records") else tally.values
            source = f"cupti {what}, API {tally.version}"
            samples = tally.records[counter]
            readings.append(reading(metric, unit, found[counter], source, samples))
        return readings

    def _counted(self) -> Tally | Reason:
        """What was counted, if it is to be believed."""
        try:
            if self._counters is None:
                return self._reason or NEVER_OPENED
            tally = self._counters.stop(*(move.addresses for move in self._known))
        except CuptiError as error:
            return error.reason
        finally:
            for move in self._known:
                move.close()
        counted = [values[HOST_TO_DEVICE] for values in tally.apart.values()]
        right = [TRUSTED[0] <= found / SIZE_BYTES <= TRUSTED[1] for found in counted]
        if self._reason is None and not all(right):
            cause = (
                f"of {SIZE_BYTES} B moved to the GPU as a test CUPTI counted {counted[0]}, and"
                f" {counted[1]} of as much that was allocated once it counted"
            )
            return Reason("failed", cause, NSYS)
        return self._reason or tally
