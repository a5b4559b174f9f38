"""What the saved results say of the machine, so that ``verdict.py`` knows what compares."""

from __future__ import annotations

import os
from typing import Any

import psutil

from gatherbench.bench.machine import library_versions


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    """Add cores, thread limit and library versions; leave out the host's name."""
    machine_info.pop("node", None)
    machine_info["gatherbench"] = {
        "usable_cores": len(psutil.Process().cpu_affinity()),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "libraries": {k: v for k, v in library_versions().items() if v},
    }
