"""Where a case's bytes lie: pageable, page-locked, managed, and the peaks on the GPU.

Zero-copy pays for its speed with page-locked memory, and all-in-GPU with memory of the GPU; a table
of times without these shows half of it. What the process gave to CUDA is counted where it was
given; the kernel's own figures are of pages that are resident.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from gatherbench.bench.meters.base import Reading, reading
from gatherbench.reason import Reason, unsupported

_STATUS = Path("/proc/self/status")
_NO_GPU = Reason(
    "no_device",
    "torch sees no GPU, nothing is pinned for one or lies on one",
    "use a machine with one",
)
_IDLE = unsupported("this case does not use the GPU")
_NO_STATUS = unsupported("memory is told by /proc/self/status", "run on Linux with /proc")
_NO_RSS = unsupported("this kernel reports no Rss fields", "run on Linux 4.5 or later")


class MemoryMeter:
    """Bytes of host and GPU memory.

    At the end of the window: ``host_pageable`` (resident anonymous and shared pages that are not
    registered), ``host_file_mapped``, ``host_pinned`` (registered by us, and by torch's allocator,
    which rounds up to powers of two), ``host_managed``. Over the window: ``gpu_allocated_peak``
    (tensors), ``gpu_reserved_peak`` (what torch's allocator holds, without the CUDA context).
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
        import torch

        from gatherbench.kernels.managed_memory import managed_bytes
        from gatherbench.kernels.mapped_memory import registered_bytes

        cuda, registered = torch.cuda, registered_bytes()
        why: Reason | None = _IDLE if cuda.is_available() else _NO_GPU
        if cuda.is_initialized():  # type: ignore[no-untyped-call]
            why = None
        allocated = "torch.cuda.host_memory_stats allocated_bytes"
        figures: dict[str, tuple[str, Callable[[], float]]] = {
            "host_pinned": (
                f"bytes given to cudaHostRegister + {allocated}",
                lambda: registered + cuda.host_memory_stats()["allocated_bytes.current"],
            ),
            "host_managed": ("bytes given to cudaMallocManaged", managed_bytes),
            "gpu_allocated_peak": ("torch.cuda.max_memory_allocated", cuda.max_memory_allocated),
            "gpu_reserved_peak": ("torch.cuda.max_memory_reserved", cuda.max_memory_reserved),
        }
        return _resident_readings(registered) + [
            reading(metric, "B", why or read(), source, samples=0 if why else 1)
            for metric, (source, read) in figures.items()
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
        answer: float | Reason = _NO_RSS
        if all(name in resident for name in names):
            # A registered map of a file is no anonymous memory: then nothing is left, not less.
            answer = max(0, sum(resident[name] for name in names) - less)
        readings.append(reading(metric, "B", answer, source, samples=1))
    return readings
