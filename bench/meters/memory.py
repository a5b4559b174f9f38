"""Where a case's bytes lie: pageable, page-locked, managed, and the peaks on the GPU.

Zero-copy pays for its speed with page-locked memory, and all-in-GPU with memory of the GPU; a table
of times without these shows half of it. What the process gave to CUDA is counted where it was
given; the kernel's own figures are of pages that are resident.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.meters.base import Reading

_STATUS = Path("/proc/self/status")
_NO_GPU = Reason(
    "no_device",
    "torch sees no GPU, nothing is pinned for one or lies on one",
    "use a machine with one",
)
_IDLE = Reason("unsupported", "this case does not use the GPU")
_NO_STATUS = Reason("unsupported", "memory is told by /proc/self/status", "run on Linux with /proc")
_NO_RSS = Reason("unsupported", "this kernel reports no Rss fields", "run on Linux 4.5 or later")


class MemoryMeter:
    """Bytes of host and GPU memory. Units: B.

    At the end of the window: ``host_pageable`` (resident anonymous and shared pages that are not
    registered), ``host_file_mapped`` (resident pages of files), ``host_pinned`` (registered by us,
    and allocated by torch's page-locked allocator, which rounds up to powers of two),
    ``host_managed``. Over the window: ``gpu_allocated_peak`` (tensors) and ``gpu_reserved_peak``
    (what torch's allocator holds; the CUDA context is not in it).
    """

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "pageable, pinned and managed host memory; peaks of GPU memory"
    lost: ClassVar[str] = "what a strategy needs of that memory"
    trust: ClassVar[str] = "the accounts of the kernel, of CUDA's callers and of torch's allocators"

    def probe(self) -> Reason | None:
        return None if _STATUS.is_file() else _NO_STATUS

    def start(self) -> None:
        import torch  # loaded long since where there is something to meter

        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats()

    def stop(self) -> list[Reading]:
        from gatherbench.kernels.mapped_memory import managed_bytes, registered_bytes

        registered = registered_bytes()
        return [
            *_resident_readings(registered),
            _on_gpu(
                "host_pinned",
                "bytes given to cudaHostRegister + torch.cuda.host_memory_stats allocated_bytes",
                lambda cuda: registered + cuda.host_memory_stats()["allocated_bytes.current"],
            ),
            _on_gpu("host_managed", "bytes given to cudaMallocManaged", lambda _: managed_bytes()),
            _on_gpu(
                "gpu_allocated_peak",
                "torch.cuda.max_memory_allocated",
                lambda cuda: cuda.max_memory_allocated(),
            ),
            _on_gpu(
                "gpu_reserved_peak",
                "torch.cuda.max_memory_reserved",
                lambda cuda: cuda.max_memory_reserved(),
            ),
        ]


def _resident_readings(registered: int) -> list[Reading]:
    """Resident pages as the kernel counts them; registered memory is resident, and anonymous."""
    status = _STATUS.read_text() if _STATUS.is_file() else ""
    resident = {
        name: int(kilobytes) * 1024
        for name, kilobytes in re.findall(r"^Rss(\w+):\s+(\d+) kB$", status, re.MULTILINE)
    }
    readings = []
    for metric, names, less in (
        ("host_pageable", ("Anon", "Shmem"), registered),
        ("host_file_mapped", ("File",), 0),
    ):
        source = "/proc/self/status " + " + ".join(f"Rss{name}" for name in names)
        if less:
            source += " less registered bytes"
        if all(name in resident for name in names):
            # A registered map of a file is no anonymous memory: then nothing is left, not less.
            value = max(0, sum(resident[name] for name in names) - less)
            readings.append(Reading(metric, "B", float(value), source, samples=1))
        else:
            readings.append(Reading(metric, "B", None, source, _NO_RSS))
    return readings


def _on_gpu(metric: str, source: str, read: Callable[[Any], float]) -> Reading:
    """A figure that there is only where CUDA is in use."""
    import torch

    if not torch.cuda.is_available():
        return Reading(metric, "B", None, source, _NO_GPU)
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return Reading(metric, "B", None, source, _IDLE)
    return Reading(metric, "B", float(read(torch.cuda)), source, samples=1)
