"""Is the machine busy before a run begins, and how do threads that have no work wait there?

OpenMP's threads spin by default while they wait. That is the fastest on an idle machine: on two
cores a training epoch of 83 to 117 ms took 121 to 152 with threads that sleep. Where other work
wants the cores, a thread that spins keeps them from the one it waits for: cases of 2 to 11 s took
0.5 to 1.0 with threads that sleep. So there they sleep. libgomp reads its variables when it is
loaded: they have to be in a process's environment before it imports torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from gatherbench.bench.meters.cpu import OtherWork, is_quiet

#: For so long the host is looked at; its clocks tick every 10 ms.
WINDOW_S = 0.5
#: What decides how OpenMP's threads wait: of the standard, of libgomp, of Intel's library.
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
#: The policy of who sets none of these.
DEFAULT = "by default"


@dataclass(frozen=True, slots=True)
class Load:
    """What other work a machine has."""

    other_cores: float | None  # cores that are kept busy; ``None``: the kernel does not count
    cores: int  # of the machine
    average: float  # processes that ran or wanted to, over the last minute

    @classmethod
    def now(cls) -> Load:
        """Look for :data:`WINDOW_S`."""
        work = OtherWork()
        time.sleep(WINDOW_S)
        return cls(work.cores(), psutil.cpu_count() or 1, os.getloadavg()[0])

    @property
    def busy(self) -> bool:
        """Whether more runs than daemons."""
        return not is_quiet(self.other_cores)

    def __str__(self) -> str:
        """What is busy, in words."""
        return (
            f"other work has {self.other_cores or 0:.1f} of {self.cores} cores"
            f" (load average {self.average:.1f})"
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """How the threads of a run's processes wait, as ``env.json`` has it."""

    variables: Mapping[str, str]  # those of :data:`VARIABLES` that the processes have
    reason: str = ""  # why threads were made to sleep; empty: the user, or nobody, decided

    @classmethod
    def chosen(
        cls,
        threads: int,
        cpu: Mapping[str, Any],
        load: Load,
        environ: Mapping[str, str] = os.environ,
    ) -> Waiting:
        """How the ``threads`` of a case (0: every core of the process) are to wait.

        ``cpu`` is of :func:`gatherbench.bench.machine.env.describe_cpu`; a policy in ``environ`` is
        the user's, and stays.
        """
        asked = {name: environ[name].upper() for name in VARIABLES if environ.get(name)}
        if asked:
            return cls(asked)
        if load.busy:
            return cls(PASSIVE, str(load))
        threads = threads or cpu["usable_cores"]
        free = min(cpu["quota_cores"] or load.cores, load.cores)
        if free < threads:
            return cls(PASSIVE, f"{threads} threads have {free:g} cores")
        return cls({})

    @classmethod
    def of(cls, env: Mapping[str, Any]) -> Waiting:
        """What an ``env.json`` says, of :data:`VARIABLES` alone; by default of an older run."""
        said = env.get("waiting") or {}
        variables = {
            name: said["variables"][name] for name in VARIABLES if name in said.get("variables", ())
        }
        return cls(variables, said.get("reason", ""))

    @property
    def passive(self) -> bool:
        """Whether threads sleep."""
        return self.variables.get("OMP_WAIT_POLICY") == "PASSIVE"

    def __str__(self) -> str:
        """The policy, in words."""
        if self.variables == PASSIVE:
            return "passively"
        said = " ".join(f"{name}={value}" for name, value in sorted(self.variables.items()))
        return f"with {said}" if said else DEFAULT

    def environment(self) -> dict[str, str]:
        """This process's, with this policy in place of its own."""
        plain = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        return plain | dict(self.variables)
