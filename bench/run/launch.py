"""The place of this process among a launcher's: torchrun, mpirun and srun set the environment.

Started N times by one of them, ``gatherbench run`` is one run. The first process reads the plan and
measures; the first on each other machine starts that machine's ranks; the others wait
(:mod:`gatherbench.bench.run.machines`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    for launcher, names in _NAMES.items():
        world = environ.get(names[1], "")
        if launcher == "mpirun" and world == "1":
            return None  # on another machine mpirun's own helper is a step of srun
        # srun --mpi=pmi2 sets PMI_SIZE, too.
        of_srun = launcher == "mpirun of MPICH" and environ[_NAMES["srun"][1]]
        if world not in ("", "1") and not (of_srun and names[2] not in environ):
            return _checked(launcher, names, environ)
    return None


def _of_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the number of tasks of a step of srun, in all and on this node; else empty."""
    names = _NAMES["srun"][1], _NAMES["srun"][3]
    step = environ.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) >= _NO_STEP:
        return dict.fromkeys(names, "")
    tasks = environ.get(names[0]) or environ.get("SLURM_NTASKS", "")
    each = environ.get(names[1]) or environ.get("SLURM_TASKS_PER_NODE", "")
    same = re.fullmatch(r"(\d+)(\(x\d+\))?", each)  # "4(x2)"; "4,3" differs between nodes
    return {names[0]: tasks, names[1]: same[1] if same else each}


def _checked(launcher: str, names: Sequence[str], environ: Mapping[str, str]) -> Launch:
    values = [environ.get(name, "") for name in names]
    rank, world, local_rank, local_world = (
        int(value) if value.isdecimal() else -1 for value in values
    )
    several, address = world > local_world, environ.get("MASTER_ADDR", "")
    if several and not address and launcher == "srun":
        address = _first_node(environ.get("SLURM_STEP_NODELIST", ""))
    port = environ.get("MASTER_PORT", str(PORT))
    missing = [name for name, value in zip(names, values, strict=True) if not value]
    why = ""
    if missing:
        why = f"{' and '.join(missing)} are not set; torchrun, mpirun and srun set them"
    elif min(rank, world, local_rank, local_world) < 0:
        why = "numbers are expected, and as many processes on each machine"
    elif not 0 < local_world <= world or world % local_world or not rank < world:
        why = "as many processes are expected on each machine"
    elif local_rank != rank % local_world:
        why = (
            "processes are expected to be numbered machine by machine"
            " (srun --distribution=block, mpirun --map-by slot)"
        )
    elif several and not address:
        why = "MASTER_ADDR, an address of the first machine, is not set (mpirun -x)"
    elif several and not (port.isdecimal() and 0 < int(port) < 2**16):
        why = f"MASTER_PORT={port} is no port"
    if why:
        given = " ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
        raise LaunchError(
            f"{launcher} says {given}: {why}. To run in this process alone: env -u {names[1]} …"
        )
    served = several and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    where = (address, int(port)) if several else ("", PORT)
    return Launch(launcher, rank, world, local_rank, local_world, *where, served, names[0])


def _first_node(nodes: str) -> str:
    """Return the first node of Slurm's list: ``n7,n9``, ``gpu[003-007,9]``, ``a[1-2]b[3-4]``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0]) if first else ""
