"""The place of this process among a launcher's: torchrun, mpirun and srun set the environment.

Started N times by one of them, ``gatherbench run`` is one run. The first process reads the plan and
measures; the first on each other machine starts that machine's ranks; the others wait
(:mod:`gatherbench.bench.run.machines`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gatherbench.outside import InputError

#: Where the processes of several machines meet by default: as torchrun's.
PORT = 29500
#: Slurm numbers steps from here on that no srun of the user started: a batch script, a shell.
_NO_STEP = 0xFFFF_FFF0
#: By launcher, the variables of rank, ranks, rank on the machine, and ranks of the machine.
NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": tuple(f"OMPI_COMM_WORLD_{n}" for n in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    # Of a step: a shell of salloc, and a script of sbatch, have only those of the allocation.
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}


class LaunchError(InputError):
    """Processes that cannot form a run together; the message says why, and the remedy."""


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

    def ranks(self, gpus: int) -> range:
        """Return the ranks of this machine among so many of a case."""
        local = gpus // self.machines
        return range(self.machine * local, (self.machine + 1) * local)

    def __str__(self) -> str:
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
    if (step := environ.get("SLURM_STEP_ID", "")).isdecimal():
        of_job = {  # where an older srun leaves the names of the step out
            "SLURM_STEP_NUM_TASKS": environ.get("SLURM_NTASKS", ""),
            "SLURM_STEP_TASKS_PER_NODE": environ.get("SLURM_TASKS_PER_NODE", ""),
        }
        no_step = {"SLURM_STEP_NUM_TASKS": ""} if int(step) >= _NO_STEP else {}
        environ = {**of_job, **environ, **no_step}
    for launcher, names in NAMES.items():
        world = environ.get(names[1], "")
        if launcher == "mpirun" and world == "1":
            return None  # on another machine mpirun's own helper is a step of srun
        if world not in ("", "1"):
            return _checked(launcher, environ)
    return None


def _checked(launcher: str, environ: Mapping[str, str]) -> Launch:
    names = NAMES[launcher]
    given = {name: environ.get(name, "") for name in names}
    rank, world, local_rank, local_world = (
        int(number) if number.isdecimal() else -1
        for number in (re.sub(r"\(x\d+\)$", "", text) for text in given.values())  # "4(x2)": Slurm
    )
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", str(PORT))
    if launcher == "srun":
        address = address or _first_node(environ.get("SLURM_STEP_NODELIST", ""))
    if not 0 <= rank < world or local_world < 1 or world % local_world:
        problem = "whole numbers are expected, and as many processes on each machine"
    elif local_rank != rank % local_world:
        problem = (
            "processes are expected to be numbered machine by machine"
            " (srun --distribution=block, mpirun --map-by slot)"
        )
    elif world == local_world:
        return Launch(launcher, rank, world, local_rank, local_world)
    elif not address or not (port.isdecimal() and 0 < int(port) < 2**16):
        given = {"MASTER_ADDR": address, "MASTER_PORT": port}
        problem = "an address of the first machine is expected, and a port (mpirun -x)"
    else:
        served = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        place = rank, world, local_rank, local_world
        return Launch(launcher, *place, address, int(port), served)
    raise LaunchError(
        f"{launcher} says {' '.join(f'{name}={value}' for name, value in given.items())}:"
        f" {problem}. To run in this process alone: env -u {names[1]} …"
    )


def _first_node(nodes: str) -> str:
    """Return the first node of Slurm's list: ``n7,n9``, ``gpu[003-007,9]``, ``a[1-2]b[3-4]``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0]) if first else ""
