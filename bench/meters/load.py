"""Find the load of a machine before a run, and choose how threads without work wait there.

OpenMP's threads spin by default while they wait. That is the fastest on an idle machine: on two
cores a training epoch of 83 to 117 ms took 121 to 152 with sleeping threads. If other work needs
the cores, a spinning thread takes them from the one it waits for: cases of 2 to 11 s took 0.5 to
1.0 with sleeping threads. So on a busy machine threads sleep. libgomp reads its variables when it
is loaded: they have to be in a process's environment before it imports torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from gatherbench.bench.meters.cpu import OtherWork, is_quiet

#: Seconds of observing the host; its clocks tick every 10 ms.
WINDOW_S = 0.5
#: Variables that decide how OpenMP's threads wait: the standard's, libgomp's, Intel's.
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
#: The policy if none of these is set.
DEFAULT = "by default"


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a machine by other work."""

    other_cores: float | None  # busy cores; ``None``: unknown to the kernel
    cores: int  # of the machine
    average: float  # runnable processes, over the last minute

    @classmethod
    def now(cls) -> Load:
        """Measure the load for :data:`WINDOW_S`."""
        work = OtherWork()
        time.sleep(WINDOW_S)
        return cls(work.cores(), psutil.cpu_count() or 1, os.getloadavg()[0])

    @property
    def busy(self) -> bool:
        """Whether other work exceeds that of daemons."""
        return not is_quiet(self.other_cores)

    def __str__(self) -> str:
        """Describe the load."""
        return (
            f"other work uses {self.other_cores or 0:.1f} of {self.cores} cores"
            f" (load average {self.average:.1f})"
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """The way in which threads of a run's processes wait, as ``env.json`` has it."""

    variables: Mapping[str, str]  # those of :data:`VARIABLES` that are set
    reason: str = ""  # why threads sleep; empty: the user's or the default policy

    @classmethod
    def chosen(
        cls,
        threads: int,
        cpu: Mapping[str, Any],
        load: Load,
        environ: Mapping[str, str] = os.environ,
    ) -> Waiting:
        """Choose how the ``threads`` of a case (0: every core of the process) wait.

        ``cpu`` is of :func:`gatherbench.bench.machine.env.describe_cpu`; a policy in ``environ`` is
        the user's and takes precedence.
        """
        variables = {name: environ[name].upper() for name in VARIABLES if environ.get(name)}
        if variables:
            return cls(variables)
        if load.busy:
            return cls(PASSIVE, str(load))
        threads = threads or cpu["usable_cores"]
        free = min(cpu["quota_cores"] or load.cores, load.cores)
        if free < threads:
            return cls(PASSIVE, f"{threads} threads have {free:g} cores")
        return cls({})

    @classmethod
    def of(cls, env: Mapping[str, Any]) -> Waiting:
        """Read :data:`VARIABLES` and reason of an ``env.json``; older runs have the default."""
        kept = env.get("waiting") or {}
        variables = kept.get("variables", {})
        known = {name: variables[name] for name in VARIABLES if name in variables}
        return cls(known, kept.get("reason", ""))

    @property
    def passive(self) -> bool:
        """Whether threads sleep."""
        return self.variables.get("OMP_WAIT_POLICY") == "PASSIVE"

    def __str__(self) -> str:
        """Describe the policy."""
        if self.variables == PASSIVE:
            return "passively"
        text = " ".join(f"{name}={value}" for name, value in sorted(self.variables.items()))
        return f"with {text}" if text else DEFAULT

    def environment(self) -> dict[str, str]:
        """Return this process's environment with this policy in place of its own."""
        plain = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        return plain | dict(self.variables)
