"""What every section of the micro-benchmark needs first: a GPU, a folder, a place for kernels."""

from __future__ import annotations

import itertools
import os
import platform
from pathlib import Path
from typing import Any

#: What ``--out`` means to a program that makes a :func:`fresh_folder`.
OUT_HELP = "folder for rows and figures; with -2, -3 … where it has been written before"


def no_gpu() -> str | None:
    """Why there is nothing to measure here, or ``None``."""
    import torch

    return None if torch.cuda.is_available() else f"torch {torch.__version__} sees no CUDA GPU"


def prepare(out: Path) -> str | None:
    """Make the folder if there is none; why there is nothing to measure here, or ``None``."""
    if (problem := no_gpu()) is None:
        out.mkdir(parents=True, exist_ok=True)
    return problem


def fresh_folder(wanted: Path) -> Path:
    """A folder with nothing in it, and say which: no measurement overwrites an earlier one.

    ``wanted`` itself where it is new or empty, otherwise the first of ``wanted-2``, ``wanted-3`` …
    that is not there yet.
    """
    folder = wanted = wanted.resolve()
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(2):
        try:
            folder.mkdir()  # of two programs that start at once, one makes it
            break
        except FileExistsError:
            if folder == wanted and wanted.is_dir() and not any(wanted.iterdir()):
                break
        folder = wanted.with_name(f"{wanted.name}-{number}")
    taken = "" if folder == wanted else f" ({wanted.name} has been written before)"
    print(f"writes to {folder}{taken}", flush=True)
    return folder


def provenance() -> dict[str, Any]:
    """Commit, driver, link and clocks, where the packages that know them are installed."""
    try:
        from gatherbench.bench.machine.env import commit_id
        from gatherbench.bench.machine.gpus import describe_gpus
    except ImportError as missing:
        commit = os.environ.get("GATHERBENCH_COMMIT")
        return {"commit": commit, "gpus": [], "no_gpu": str(missing)}
    return {"commit": commit_id(), **describe_gpus()}


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
