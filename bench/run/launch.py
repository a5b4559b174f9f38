"""The place of this process among a launcher's: torchrun, mpirun and srun set the environment.

Started N times by one of them, ``gatherbench run`` is one run. The first process reads the plan and
measures; the first on each other machine starts that machine's ranks; the others wait
(:mod:`gatherbench.bench.run.machines`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gatherbench.outside import InputError

#: Where the processes of several machines meet by default: as torchrun's.
PORT = 29500
#: Slurm numbers steps from here on that no srun of the user started: a batch script, a shell.
_NO_STEP = 0xFFFF_FFF0
#: By launcher, the variables of rank, ranks, rank on the machine, and ranks of the machine.
_NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": tuple(
        f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    ),
    # Of a step: a shell of salloc, and a script of sbatch, have only those of the allocation.
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}


class LaunchError(InputError):
    """Processes that cannot form a run together; the message says why, and the remedy."""


class MachineLostError(RuntimeError):
    """A machine does not answer; the message names it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One of ``world`` processes that a launcher started, ``local_world`` on each machine.

    Attributes:
        address, port: where those of several machines meet.
        served: the launcher has a store of its own there.
        case: the keys there of the run's case, whose ranks meet; empty: of the launcher's runs.
    """

    launcher: str
    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str = ""
    port: int = PORT
    served: bool = False
    case: str = ""

    @property
    def machines(self) -> int:
        return self.world // self.local_world

    @property
    def machine(self) -> int:
        """Return the number of this process's machine."""
        return self.rank // self.local_world

    @property
    def variable(self) -> str:
        """Return one that the launcher sets for this process, and lacks itself."""
        return _NAMES[self.launcher][0]

    def ranks(self, gpus: int) -> range:
        """Return the ranks of this machine among so many of a case."""
        local = gpus // self.machines
        return range(self.machine * local, (self.machine + 1) * local)

    def __str__(self) -> str:
        """Return a description of the launch for the first line of a run."""
        where = "here" if self.machines == 1 else f"on {self.machines} machines"
        return f"{self.launcher} started {self.world} processes {where}"

    def check(self, gpus: int) -> None:
        """Refuse a workload whose number of ranks differs from that of the launched processes.

        Raises:
            LaunchError: a process was started for each rank, and there are more or fewer; or the
                machines would have different numbers of them.
        """
        if gpus != self.world and (self.local_world > 1 or gpus % self.machines):
            raise LaunchError(
                f"{self}, and the plan has a workload of gpus = {gpus}: leave gpus out of the plan,"
                f" say gpus = {self.world}, or start one process on each machine, which starts its"
                " ranks (on a single one without a launcher)"
            )


def launched(environ: Mapping[str, str]) -> Launch | None:
    """Return this process's place among those of a launcher; ``None``: it is the only one.

    The innermost launcher counts: torchrun may be started by mpirun, and that by srun.

    Raises:
        LaunchError: the variables contradict each other, or are incomplete.
    """
    environ = {**environ, **_of_step(environ)}
    for launcher, names in _NAMES.items():
        world = environ.get(names[1], "")
        if launcher == "mpirun" and world == "1":
            return None  # on another machine mpirun's own helper is a step of srun
        if world not in ("", "1"):
            return _checked(launcher, environ)
    return None


def _of_step(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the tasks of a step of srun, by its job's variables where it has none of its own."""
    if not (step := environ.get("SLURM_STEP_ID", "")).isdecimal():
        return {}
    jobs = {"SLURM_STEP_NUM_TASKS": "NTASKS", "SLURM_STEP_TASKS_PER_NODE": "TASKS_PER_NODE"}
    if int(step) >= _NO_STEP:
        return dict.fromkeys(jobs, "")
    return {
        name: environ.get(name) or environ.get(f"SLURM_{job}", "") for name, job in jobs.items()
    }


def _checked(launcher: str, environ: Mapping[str, str]) -> Launch:
    names = _NAMES[launcher]
    values = [environ.get(name, "") for name in names]
    rank, world, local_rank, local_world = (
        int(number) if number.isdecimal() else -1
        for number in (re.sub(r"\(x\d+\)$", "", value) for value in values)  # Slurm's "4(x2)"
    )
    several, address = world > local_world, environ.get("MASTER_ADDR", "")
    if launcher == "srun":
        address = address or _first_node(environ.get("SLURM_STEP_NODELIST", ""))
    port = environ.get("MASTER_PORT", str(PORT))
    missing = [name for name, value in zip(names, values, strict=True) if not value]
    problem = ""
    if missing:
        problem = f"{' and '.join(missing)} are not set"
    elif not 0 <= rank < world or local_world < 1 or world % local_world:
        problem = "numbers are expected, and as many processes on each machine"
    elif local_rank != rank % local_world:
        problem = (
            "processes are expected to be numbered machine by machine"
            " (srun --distribution=block, mpirun --map-by slot)"
        )
    elif several and not address:
        problem = "MASTER_ADDR, an address of the first machine, is not set (mpirun -x)"
    elif several and not (port.isdecimal() and 0 < int(port) < 2**16):
        problem = f"MASTER_PORT={port} is no port"
    if problem:
        given = " ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
        raise LaunchError(
            f"{launcher} says {given}: {problem}. To run in this process alone: env -u {names[1]} …"
        )
    place = Launch(launcher, rank, world, local_rank, local_world)
    if not several:
        return place
    served = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return replace(place, address=address, port=int(port), served=served)


def _first_node(nodes: str) -> str:
    """Return the first node of Slurm's list: ``n7,n9``, ``gpu[003-007,9]``, ``a[1-2]b[3-4]``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0]) if first else ""
