"""The place of this process among a launcher's: torchrun, mpirun and srun set the environment.

Started N times by one of them, ``gatherbench run`` is one run. The first process reads the plan and
measures; the first on each other machine starts that machine's ranks; the others wait
(:mod:`gatherbench.bench.run.machines`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

#: Where the processes of several machines meet by default: as torchrun's.
PORT = 29500
#: Slurm numbers steps from here on that no srun of the user started: a batch script, a shell.
_NO_STEP = 0xFFFF_FFF0

#: By launcher, the variables of rank, ranks, rank on the machine, and ranks of the machine.
_SAID = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpirun of MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}


class LaunchError(ValueError):
    """Processes that cannot form a run together; the message says why, and the remedy."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One of ``world`` processes that a launcher started, ``local_world`` on each machine.

    Attributes:
        address, port: where those of several machines meet.
        served: the launcher has a store of its own there.
        variable: one that the launcher sets for this process, and lacks itself.
    """

    launcher: str
    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str = ""
    port: int = PORT
    served: bool = False
    variable: str = "RANK"

    @property
    def machines(self) -> int:
        return self.world // self.local_world

    @property
    def machine(self) -> int:
        """Return the number of this process's machine."""
        return self.rank // self.local_world

    def __str__(self) -> str:
        """Return a description of the launch for the first line of a run."""
        if self.machines == 1:
            return f"{self.launcher} started {self.world} processes here"
        if self.local_world == 1:
            return f"{self.launcher} started a process on each of {self.machines} machines"
        return f"{self.launcher} started {self.world} processes on {self.machines} machines"

    def check(self, gpus: int) -> None:
        """Refuse a workload whose number of ranks differs from that of the launched processes.

        Raises:
            LaunchError: a process was started for each rank, and there are more or fewer; or the
                machines would have different numbers of them.
        """
        if gpus == self.world or (self.local_world == 1 and gpus % self.machines == 0):
            return
        alone = "start gatherbench run without a launcher, which starts the ranks of this machine"
        if self.machines > 1:
            alone = "start one process on each machine, which starts its ranks"
        raise LaunchError(
            f"{self}, and the plan has a workload of gpus = {gpus}: leave gpus out of the plan, say"
            f" gpus = {self.world}, or {alone}"
        )


class MachineLostError(RuntimeError):
    """A machine does not answer; the message names it."""


@dataclass(frozen=True)
class Meeting:
    """The place where the ranks of a case meet those of other machines.

    Attributes:
        case: each has keys of its own.
        machine, machines: the number of this one, and how many there are.
    """

    address: str
    port: int
    case: str
    machine: int
    machines: int

    def ranks(self, gpus: int) -> range:
        """Return the ranks of this machine among so many."""
        local = gpus // self.machines
        return range(self.machine * local, (self.machine + 1) * local)


def launched(environ: Mapping[str, str]) -> Launch | None:
    """Return this process's place among those of a launcher; ``None``: it is the only one.

    The innermost launcher counts: torchrun may be started by mpirun, and that by srun. Within an
    allocation of Slurm (salloc, sbatch) a command that runs without srun is alone.

    Raises:
        LaunchError: the variables contradict each other, or are incomplete.
    """
    environ = {**environ, **_of_slurm(environ)}
    for launcher, names in _SAID.items():
        world = environ.get(names[1], "")
        if launcher == "mpirun" and world == "1":
            return None  # on another machine mpirun's own helper is a step of srun
        if not world or world == "1":
            continue
        of_slurm = environ["SLURM_STEP_NUM_TASKS"] and "MPI_LOCALRANKID" not in environ
        if launcher == "mpirun of MPICH" and of_slurm:  # srun --mpi=pmi2 sets PMI_SIZE, too
            continue
        return _checked(launcher, names, environ)
    return None


def _of_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the number of tasks of a step of srun, in all and on this node; else empty."""
    names = "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"
    step = environ.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) >= _NO_STEP:
        return dict.fromkeys(names, "")
    tasks = environ.get(names[0]) or environ.get("SLURM_NTASKS", "")
    each = environ.get(names[1]) or environ.get("SLURM_TASKS_PER_NODE", "")
    same = re.fullmatch(r"(\d+)(\(x\d+\))?", each)  # "4(x2)"; "4,3" differs between nodes
    return {names[0]: tasks, names[1]: same[1] if same else each}


def _checked(launcher: str, names: tuple[str, ...], environ: Mapping[str, str]) -> Launch:
    def refuse(why: str) -> NoReturn:
        said = " ".join(f"{name}={environ.get(name, '')}" for name in names)
        raise LaunchError(
            f"{launcher} says {said}: {why}. To run in this process alone: env -u {names[1]} …"
        )

    missing = [name for name in names if not environ.get(name)]
    if missing:
        refuse(f"{' and '.join(missing)} are not set; torchrun, mpirun and srun set them")
    numbers = [int(environ[name]) if environ[name].isdecimal() else -1 for name in names]
    if min(numbers) < 0:
        refuse("numbers are expected, and as many processes on each machine")
    rank, world, local_rank, local_world = numbers
    if not 0 < local_world <= world or world % local_world or not rank < world:
        refuse("as many processes are expected on each machine")
    if local_rank != rank % local_world:
        refuse(
            "processes are expected to be numbered machine by machine"
            " (srun --distribution=block, mpirun --map-by slot)"
        )
    several, address = world > local_world, environ.get("MASTER_ADDR", "")
    if several and not address:
        address = _first_node(environ.get("SLURM_STEP_NODELIST", "")) if launcher == "srun" else ""
        if not address:
            refuse("MASTER_ADDR, an address of the first machine, is not set (mpirun -x)")
    port = environ.get("MASTER_PORT", str(PORT))
    if several and not (port.isdecimal() and 0 < int(port) < 2**16):
        refuse(f"MASTER_PORT={port} is no port")
    return Launch(
        launcher,
        rank,
        world,
        local_rank,
        local_world,
        address,
        int(port) if several else PORT,
        several and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        names[0],
    )


def _first_node(nodes: str) -> str:
    """Return the first node of Slurm's list: ``n7,n9``, ``gpu[003-007,9]``, ``a[1-2]b[3-4]``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0]) if first else ""
