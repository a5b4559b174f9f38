"""Measure a case's memory: pageable, page-locked, managed, and the peaks on the GPU.

Zero-copy pays for its speed with page-locked memory, and all-in-GPU with GPU memory, which a table
of times does not show. Memory that the process gave to CUDA is counted at that call; the kernel's
own figures are of resident pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from gatherbench.bench.machine import kernel_text
from gatherbench.bench.meters.base import Meter, Window
from gatherbench.reason import Reason, unsupported

_STATUS = Path("/proc/self/status")
_NO_GPU = Reason("no_device", "torch sees no GPU", "use a machine with a GPU")
_IDLE = unsupported("this case does not use the GPU")
_NO_STATUS = unsupported("memory is read from /proc/self/status", "run on Linux with /proc")
_NO_RSS = unsupported("this kernel reports no Rss fields", "run on Linux 4.5 or later")


class MemoryMeter(Meter):
    """Bytes of host and GPU memory.

    At the end of the window: ``host_pageable`` (resident anonymous and shared pages that are not
    registered), ``host_file_mapped``, ``host_pinned`` (registered by us, and by torch's allocator,
    which rounds up to powers of two), ``host_managed``. Over the window: ``gpu_allocated_peak``
    (tensors), ``gpu_reserved_peak`` (what torch's allocator holds, without the CUDA context).
    """

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "pageable, pinned and managed host memory; peaks of GPU memory"
    lost: ClassVar[str] = "pinned, managed and GPU memory are not measured"
    trust: ClassVar[str] = "the accounts of the kernel, of CUDA's callers and of torch's allocators"
    sources = {
        "host_pageable": "/proc/self/status RssAnon + RssShmem",
        "host_file_mapped": "/proc/self/status RssFile",
        "host_pinned": "bytes given to cudaHostRegister"
        " + torch.cuda.host_memory_stats allocated_bytes",
        "host_managed": "bytes given to cudaMallocManaged",
        "gpu_allocated_peak": "torch.cuda.max_memory_allocated",
        "gpu_reserved_peak": "torch.cuda.max_memory_reserved",
    }
    units = dict.fromkeys(sources, "B")

    def probe(self) -> Reason | None:
        return None if _STATUS.is_file() else _NO_STATUS

    def begin(self) -> None:
        import torch  # already loaded by any process worth measuring

        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats()

    def end(self) -> Window:
        import torch

        from gatherbench.kernels.managed_memory import managed_bytes
        from gatherbench.kernels.mapped_memory import registered_bytes

        registered = registered_bytes()
        pageable_source = type(self).sources["host_pageable"]
        if registered:
            pageable_source += " less registered bytes"
        self.sources = type(self).sources | {"host_pageable": pageable_source}
        fields = re.findall(r"^Rss(\w+):\s+(\d+) kB$", kernel_text(_STATUS), re.MULTILINE)
        resident = {name: 1024 * int(kilobytes) for name, kilobytes in fields}
        host: Window = dict.fromkeys(("host_pageable", "host_file_mapped"), _NO_RSS)
        if resident.keys() >= {"Anon", "Shmem", "File"}:
            # A registered map of a file is no anonymous memory: keep the difference at 0 or more.
            pageable = max(0, resident["Anon"] + resident["Shmem"] - registered)
            host = {"host_pageable": pageable, "host_file_mapped": resident["File"]}
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            why = _IDLE if torch.cuda.is_available() else _NO_GPU
            return {**dict.fromkeys(self.units, why), **host}
        pinned = torch.cuda.host_memory_stats()["allocated_bytes.current"]
        return {
            **host,
            "host_pinned": registered + pinned,
            "host_managed": managed_bytes(),
            "gpu_allocated_peak": torch.cuda.max_memory_allocated(),
            "gpu_reserved_peak": torch.cuda.max_memory_reserved(),
        }
