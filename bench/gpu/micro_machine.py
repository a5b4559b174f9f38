"""What every section of the micro-benchmark needs first: a GPU, a folder, a place for kernels."""

from __future__ import annotations

import dataclasses
import os
import platform
from pathlib import Path
from typing import Any


def prepare(out: Path) -> str | None:
    """Make the folder; why there is nothing to measure here, or ``None``."""
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA GPU"
    out.mkdir(parents=True, exist_ok=True)
    return None


def provenance() -> dict[str, Any]:
    """Commit, driver, link and clocks, where the packages that know them are installed."""
    try:
        from gatherbench.bench.machine import commit_id
        from gatherbench.bench.meters.nvml import SensorUnavailableError, list_gpus
    except ImportError as missing:
        commit = os.environ.get("GATHERBENCH_COMMIT")
        return {"commit": commit, "gpus": [], "no_gpu": str(missing)}
    try:
        gpus, none = [dataclasses.asdict(gpu) for gpu in list_gpus()], None
    except SensorUnavailableError as unavailable:
        gpus, none = [], str(unavailable)
    return {"commit": commit_id(), "gpus": gpus, "no_gpu": none}


def describe() -> dict[str, Any]:
    """The machine, as far as it bears on the numbers."""
    import torch

    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": gpu.name,
        "multiprocessors": gpu.multi_processor_count,
        "l2_bytes": gpu.L2_cache_size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cores": os.cpu_count(),
    }
