"""Who am I, by the variables that launchers set."""

from dataclasses import replace

import pytest

from gatherbench.bench.run.launch import Launch, LaunchError, launched


def torchrun(rank: int, world: int, local: int) -> dict[str, str]:
    values = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % local}
    values |= {"LOCAL_WORLD_SIZE": local, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": 29501}
    return {n: str(v) for n, v in {**values, "TORCHELASTIC_USE_AGENT_STORE": True}.items()}


def mpirun(rank: int, world: int, local: int) -> dict[str, str]:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = (rank, world, rank % local, local)
    return {f"OMPI_COMM_WORLD_{n}": str(v) for n, v in zip(names, values, strict=True)}


def srun(rank: int, world: int, local: int, step: str = "0") -> dict[str, str]:
    nodes = world // local
    return {
        "SLURM_STEP_ID": step,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % local),
        "SLURM_NTASKS": str(world),
        "SLURM_STEP_NUM_TASKS": str(world),
        "SLURM_STEP_TASKS_PER_NODE": f"{local}(x{nodes})" if nodes > 1 else str(local),
        "SLURM_STEP_NODELIST": f"gpu[003-{nodes + 2:03}],z9",
        "SLURM_NODEID": str(rank // local),
    }


#: What a shell of salloc, and a script of sbatch, have of an allocation of four tasks.
SALLOC = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}
SBATCH = {**SALLOC, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
INTERACTIVE = {**srun(0, 1, 1, step="4294967290"), "SLURM_NTASKS": "4"}
#: mpirun's helper on a further node is a step of srun, and its processes have that step's names.
HELPER = srun(0, 3, 1)


@pytest.mark.parametrize(
    "environ",
    [
        *({}, SALLOC, SBATCH, INTERACTIVE, {**SBATCH, "SLURM_STEP_ID": "4294967291"}),
        *(srun(0, 1, 1), {**SALLOC, **srun(0, 1, 1)}),
        *(mpirun(0, 1, 1), {**HELPER, **mpirun(0, 1, 1)}, torchrun(0, 1, 1)),
        *({"WORLD_SIZE": "1"}, {"RANK": "3"}, {"MASTER_ADDR": "here", "MASTER_PORT": "1"}),
    ],
)
def test_one_process_is_an_ordinary_run(environ):
    assert launched(environ) is None


FAR = {"address": "10.0.0.1", "port": 29501, "served": True}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        (torchrun(1, 2, 2), Launch("torchrun", 1, 2, 1, 2)),
        (torchrun(5, 8, 4), Launch("torchrun", 5, 8, 1, 4, **FAR)),
        ({**SBATCH, **torchrun(0, 2, 2)}, Launch("torchrun", 0, 2, 0, 2)),
        ({**srun(1, 2, 1), **torchrun(1, 4, 2)}, Launch("torchrun", 1, 4, 1, 2, **FAR)),
        (mpirun(1, 2, 2), Launch("mpirun", 1, 2, 1, 2)),
        ({**HELPER, **mpirun(1, 2, 1), "MASTER_ADDR": "a"}, Launch("mpirun", 1, 2, 0, 1, "a")),
        (srun(1, 2, 2), Launch("srun", 1, 2, 1, 2)),
        (srun(1, 2, 1), Launch("srun", 1, 2, 0, 1, "gpu003")),
        # torchrun of one process, started twice by srun
        ({**srun(1, 2, 2), **torchrun(0, 1, 1)}, Launch("srun", 1, 2, 1, 2)),
    ],
)
def test_several_processes_are_one_run(environ, launch):
    assert launched(environ) == launch
    assert launch.machine == launch.rank // launch.local_world


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"WORLD_SIZE": "2"}, "RANK= WORLD_SIZE=2 LOCAL_RANK= LOCAL_WORLD_SIZE=: whole numbers"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "LOCAL_RANK= LOCAL_WORLD_SIZE=: whole numbers"),
        ({**torchrun(0, 2, 2), "RANK": "first"}, "RANK=first .*whole numbers are expected"),
        ({**torchrun(0, 2, 2), "RANK": "2"}, "as many processes on each"),
        ({**torchrun(0, 2, 2), "LOCAL_WORLD_SIZE": "0"}, "as many processes on each"),
        (torchrun(0, 3, 2), "as many processes on each"),
        ({**srun(0, 3, 1), "SLURM_STEP_TASKS_PER_NODE": "2,1"}, "as many processes on each"),
        ({**mpirun(1, 4, 2), "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "machine by machine"),
        (mpirun(0, 2, 1), "MASTER_ADDR= .*an address of the first machine is expected"),
        ({**srun(0, 2, 1), "SLURM_STEP_NODELIST": ""}, "MASTER_ADDR"),
        ({**torchrun(0, 2, 1), "MASTER_PORT": "70000"}, "MASTER_PORT=70000: .* and a port"),
        ({**torchrun(0, 2, 1), "MASTER_PORT": "65536"}, "MASTER_PORT=65536: .* and a port"),
    ],
)
def test_what_says_too_little_is_refused_by_name_and_with_the_way_out(environ, why):
    with pytest.raises(LaunchError, match=why) as refused:
        launched(environ)
    assert "env -u " in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n7", "n7"), ("n7,n9", "n7"), ("gpu[003-007,9],z", "gpu003"), ("a[1-2]b[3,4]", "a1b3")],
)
def test_the_first_node_of_a_list_of_slurm(nodes, first):
    launch = launched({**srun(0, 2, 1), "SLURM_STEP_NODELIST": nodes})
    assert launch is not None
    assert launch.address == first
    launch = launched({**srun(0, 2, 1), "MASTER_ADDR": "given", "MASTER_PORT": "7"})
    assert launch is not None
    assert (launch.address, launch.port) == ("given", 7)


@pytest.mark.parametrize(
    ("world", "local", "allowed"), [(2, 2, {2}), (4, 2, {4}), (2, 1, {2, 4, 6, 8}), (3, 1, {3, 6})]
)
def test_the_ranks_of_a_workload_are_those_that_were_started(world, local, allowed):
    launch = Launch("srun", 0, world, 0, local)
    for gpus in range(1, 9):
        if gpus in allowed:
            launch.check(gpus)
            machines = launch.machines
            firsts = [replace(launch, rank=local * machine) for machine in range(machines)]
            ranks = [rank for first in firsts for rank in first.ranks(gpus)]
            assert ranks == list(range(gpus))
        else:
            with pytest.raises(LaunchError, match=f"gpus = {gpus}: leave gpus out of the plan"):
                launch.check(gpus)


def test_what_was_started_is_said():
    said = [str(Launch("srun", 0, *of)) for of in ((2, 0, 2), (4, 0, 2))]
    assert said == ["srun started 2 processes here", "srun started 4 processes on 2 machines"]


@pytest.mark.parametrize("rank", [0, 3])
def test_a_step_without_tasks_of_its_own_has_those_of_its_job(rank):
    """As older Slurm gives them: two whole runs would disturb each other."""
    own = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE")
    step = {name: value for name, value in srun(rank, 4, 2).items() if name not in own}
    assert launched({**step, "SLURM_TASKS_PER_NODE": "2(x2)"}) == launched(srun(rank, 4, 2))
    with pytest.raises(LaunchError, match="SLURM_STEP_TASKS_PER_NODE=: "):
        launched(step)
