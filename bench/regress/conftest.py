"""What the saved results say of the machine, so that ``verdict.py`` knows what compares.

For each benchmark also how many cores other work kept busy meanwhile: on a machine of two cores one
neighbour makes everything with two threads look twice as slow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from gatherbench.bench.machine.env import library_versions


@pytest.hookimpl(optionalhook=True)  # ``side.py`` runs without pytest-benchmark
def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    """Add cores, thread limit and library versions; leave out the host's name."""
    machine_info.pop("node", None)
    machine_info["gatherbench"] = {
        "usable_cores": len(psutil.Process().cpu_affinity()),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "libraries": {k: v for k, v in library_versions().items() if v},
    }


@pytest.fixture(autouse=True)
def note_other_work(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put ``other_busy_cores`` into the benchmark's ``extra_info``."""
    if "benchmark" not in request.fixturenames:
        yield
        return
    benchmark = request.getfixturevalue("benchmark")
    begin, others = time.perf_counter(), _others_s()
    yield
    seconds = time.perf_counter() - begin
    benchmark.extra_info["other_busy_cores"] = max(0.0, (_others_s() - others) / seconds)


def _others_s() -> float:
    """Core-seconds that this machine has spent on everything but this process, since it began.

    Time that a virtual machine's host kept for itself counts as other work too.
    """
    machine, mine = psutil.cpu_times(), psutil.Process().cpu_times()
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    # guest time is part of user time (man proc_stat).
    counted_twice = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
    return float(sum(machine) - idle - counted_twice - mine.user - mine.system)
