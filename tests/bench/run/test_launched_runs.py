"""Runs and cases of several ranks: as launchers start them, as one process trains; their ends."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.bench.observations import rows_of_run
from torch.distributed import FileStore  # type: ignore[attr-defined]

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.engine import KILL_S, Engine
from gatherbench.bench.run.launch import Launch, LaunchError
from gatherbench.bench.run.machines import Group
from gatherbench.bench.run.part import read_part, rows_of
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.runner import PreparedRun, Runner
from gatherbench.bench.run.store import RunStore

from .ranks_worker import FAULTS

PLAN = """
name = "launched"
[measure]
repeats = 1
epochs = {epochs}
warmup_epochs = 0
timeout_s = 400
[[workload]]
dataset = "tiny"
model = "mlp"
fanouts = [4, 3]
batch_size = 30
max_batches = 4
{gpus}
[[strategy]]
name = "cpu_gather"
"""
PYTHON = [sys.executable, "-m", "gatherbench"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def environment(root: Path, folder: Path) -> dict[str, str]:
    known = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM_", "OMPI_"))}
    own = {"GATHERBENCH_DATA": root, "TMPDIR": folder, "OMP_NUM_THREADS": 1}
    return known | {n: str(v) for n, v in own.items()} | {"PYTHONFAULTHANDLER": "1"}


@pytest.fixture(scope="module")
def alone(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float | None]:
    """The losses of a run of two ranks that no launcher started."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "plan.toml").write_text(PLAN.format(epochs=2, gpus="gpus = 2"))
    command, env = [*PYTHON, "run", "plan.toml"], environment(tiny_root, folder)
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
    return losses(the_run(folder)[1])


@pytest.fixture
def start(tiny_root: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command in an empty folder with ``plan.toml``; all that is left is ended."""
    (tmp_path / "plan.toml").write_text(PLAN.format(epochs=2, gpus=""))
    with ExitStack() as end:

        def started(*command: object, **more: object) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                list(map(str, command)),
                cwd=tmp_path,
                env=environment(tiny_root, tmp_path) | {n: str(v) for n, v in more.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            end.callback(ended, process)
            return process

        yield started


def signal_all(process: subprocess.Popen[str], number: int) -> None:
    """Parents first: none reports of its child."""
    below = psutil.Process(process.pid).children(recursive=True)
    for one in [psutil.Process(process.pid), *below]:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(number)


def ended(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        signal_all(process, signal.SIGKILL)
    process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=400)[0]
    except subprocess.TimeoutExpired:
        signal_all(process, signal.SIGABRT)  # each says where it is
        raise AssertionError(process.communicate(timeout=30)[0]) from None


def port() -> int:
    """One that is free."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def the_run(folder: Path) -> tuple[RunStore, list[Row]]:
    (run,) = folder.glob("results/*/*launched*")
    store = RunStore.open(run)
    return store, rows_of_run(store)


def losses(rows: list[Row]) -> list[float | None]:
    """Of both ranks and the case, epoch by epoch."""
    own = [row for row in rows if (row.stage, row.metric) == ("train", "loss")]
    by_place = {(row.rank, row.epoch): row.value for row in own}
    return [by_place[rank, epoch] for rank in (0, 1, -1) for epoch in (0, 1)]


def check_two_ranks(folder: Path, alone: list[float | None], machine: str = "") -> None:
    """One run, in which two ranks have learned what they learn without a launcher."""
    store, rows = the_run(folder)
    (last,) = [row for row in rows if (row.stage, row.metric) == ("case", "wall_time")]
    assert last.status == "ok", last.reason
    assert "-x2s" in last.workload
    assert store.folder.parent.name.startswith(machine)
    assert losses(rows) == alone, "bit for bit"
    batches = {row.value for row in rows if row.metric == "minibatches" and row.rank == -1}
    assert batches == {8.0}
    assert not list(folder.glob("gatherbench-*")), "the folder in which they met is gone"


def machines(start: Any, epochs: int, folder: Path, count: int = 2) -> tuple[list[Any], int]:
    """A process for each of some machines, as torchrun would start them, here; and their port."""
    (folder / "plan.toml").write_text(PLAN.format(epochs=epochs, gpus=""))
    common = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": 1, "LOCAL_RANK": 0}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port()}
    processes = [start(*PYTHON, "run", "plan.toml", RANK=rank, **common) for rank in range(count)]
    return processes, int(common["MASTER_PORT"])


def slurm(rank: int) -> Mapping[str, object]:
    names = {"PROCID": rank, "LOCALID": rank, "STEP_NUM_TASKS": 2, "STEP_TASKS_PER_NODE": 2}
    return {f"SLURM_{name}": value for name, value in names.items()}


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun", "srun"])
def test_a_launcher_starts_one_run_of_two_ranks_on_all_cores(start, tmp_path, alone, launcher):
    """mpirun binds each process to a core; the run has both."""
    command = [*PYTHON, "run", "plan.toml"]
    if launcher == "torchrun":
        few = ["--nproc-per-node", 2, "--master-port", port(), "--no-python"]
        processes = [start(*TORCHRUN, *few, *command)]
    elif launcher == "srun":
        processes = [start(*command, **slurm(rank)) for rank in (0, 1)]
    elif shutil.which("mpirun") is None:
        pytest.skip("no Open MPI here: openmpi-bin")
    else:
        few = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2]
        processes = [start(*few, *command)]
    text = "".join(map(said, processes))
    assert text.count(f"{launcher} started 2 processes here: one run of 2 ranks.") == 1
    check_two_ranks(tmp_path, alone)
    store, _ = the_run(tmp_path)
    assert store.env()["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))


def test_slurm_starts_one_run_which_refuses_a_wrong_plan_once(start, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN.format(epochs=2, gpus="gpus = [1, 2]"))
    commands = [start(*PYTHON, "run", "plan.toml", **slurm(rank)) for rank in (0, 1)]
    texts = [said(one) for one in commands]
    assert [one.returncode for one in commands] == [2, 0], "the launcher tells of the first one"
    assert "the plan has a workload of gpus = 1: leave gpus out" in " ".join(texts[0].split())
    assert texts[1] == ""


def test_a_process_for_each_of_two_machines_that_meet_at_an_address(start, tmp_path, alone):
    """Here both are this machine. A stranger writes to the port, and is heard by nobody."""
    (first, second), there = machines(start, 2, tmp_path)
    strangers = []
    until = time.monotonic() + 400
    while len(strangers) < 3 and first.poll() is None and time.monotonic() < until:
        with suppress(OSError):  # nobody listens yet
            strangers.append(socket.create_connection(("127.0.0.1", there)))
            strangers[-1].sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)))
        time.sleep(0.5)
    texts = said(first), said(second)
    for stranger in strangers:
        stranger.close()
    assert len(strangers) == 3
    assert (first.returncode, second.returncode) == (0, 0), texts
    assert "torchrun started 2 processes on 2 machines: one run" in texts[0]
    assert texts[1] == ""
    check_two_ranks(tmp_path, alone, machine="2x-")


def test_a_port_that_a_stranger_has_is_refused_by_name():
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken = stranger.getsockname()[1]
        group = Group(Launch("torchrun", 0, 2, 0, 1, "127.0.0.1", taken))
        with pytest.raises(LaunchError, match="Address already in use") as refused, group:
            pass
    assert f"cannot meet at 127.0.0.1:{taken}: " in str(refused.value)


def test_an_address_that_no_other_machine_reaches_is_refused():
    group = Group(Launch("srun", 0, 2, 0, 1, "localhost", port()))
    with pytest.raises(LaunchError, match=r"localhost is .* here, which no other machine"), group:
        pass


def test_a_first_process_that_nobody_has_waited_for_is_gone(tmp_path):
    group = Group(Launch("srun", 1, 2, 1, 2))
    group.store = FileStore(str(tmp_path / "store"))
    with subprocess.Popen(["sleep", "100"]) as first:
        group._first = first.pid
        group.check()
        first.kill()
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(LaunchError, match="the first process is gone"):
            group.check()


def measuring(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until the ranks below a process have measured an epoch."""
    until = time.monotonic() + 400
    while not any(b'"epoch"' in part.read_bytes() for part in folder.rglob("rank?.jsonl")):
        assert process.poll() is None, said(process)
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_machine_that_dies_fails_its_case(start, tmp_path):
    (first, second), _ = machines(start, 300, tmp_path)
    measuring(first, tmp_path)
    signal_all(second, signal.SIGKILL)
    text = " ".join(said(first).split())
    _, rows = the_run(tmp_path)
    (last,) = [row for row in rows if (row.stage, row.metric) == ("case", "wall_time")]
    assert (last.status, first.returncode) == ("failed", 1), text
    # A parent that saw its rank killed may have said so before it was killed itself.
    assert re.search("machine 1 does not answer|machine 1: .* killed by SIGKILL", str(last.reason))
    said(second)


def test_sigterm_ends_one_that_has_no_answer_and_all_end_with_the_first(start, tmp_path):
    """The first one is stopped, and answers nothing, as if its link were cut; then it is killed."""
    (first, second, third), _ = machines(start, 300, tmp_path, count=3)
    measuring(first, tmp_path)
    first.send_signal(signal.SIGSTOP)
    third.terminate()
    said(third)
    assert third.returncode == 128 + signal.SIGTERM
    first.kill()
    first.wait()
    assert "the first process is gone" in " ".join(said(second).split())
    assert second.returncode == 2


# ---- cases of several ranks ----------------------------------------------------------------------


WORKER = (sys.executable, str(Path(__file__).parent / "ranks_worker.py"))
#: The model without dropout: what it learns does not depend on who draws. 30 seeds a step: as many
#: for each of 2 and of 3 ranks, so none is left out.
ALONE = Workload("tiny", model="mlp", fanouts=(4, 3), batch_size=30, max_batches=5)
TWO, THREE = replace(ALONE, gpus=2), replace(ALONE, gpus=3)
WEAK = replace(TWO, scaling="weak", max_batches=2)


@pytest.fixture(scope="module")
def engine(tiny_root: Path) -> Iterator[Engine]:
    """One for all runs of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATHERBENCH_DATA", str(tiny_root))
        kept = Engine(tiny_root, dict(os.environ), WORKER)
        kept.close = lambda: None  # type: ignore[method-assign]
        yield kept
    kept._end(KILL_S)


def run(
    store: RunStore,
    engine: Engine,
    cases: list[Case],
    epochs: int = 3,
    look: Callable[[], None] = lambda: None,
) -> list[Row]:
    measure = Measure(repeats=1, epochs=epochs, timeout_s=600, eval_batches=1)
    runner = Runner(PreparedRun(store, cases, measure, "cpu", "abc", "box"), worker=WORKER)
    runner.engine, engine.folder, engine.look = engine, store.parts, look
    runner.run()
    assert nothing_is_left(store, engine)
    return rows_of_run(store)


@pytest.fixture(scope="module")
def rows(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Of a run of every workload, and of a case for each fault."""
    store = RunStore.create(tmp_path_factory.mktemp("ranks"), "box", {"name": "mine"}, {})
    cases = [Case(w, "cpu_gather", "pinned", {}, 0) for w in (ALONE, TWO, THREE, WEAK)]
    return run(store, engine, cases + [Case(TWO, "cpu_gather", f, {}, 0) for f in FAULTS])


def values(
    rows: list[Row], workload: Workload, metric: str, rank: int = -1, variant: str = "pinned"
) -> list[float]:
    stage, name = metric.split(".")
    wanted = (workload.id, variant, stage, name, rank)
    return [
        row.value
        for row in rows
        if (row.workload, row.variant, row.stage, row.metric, row.rank) == wanted
        and row.value is not None
    ]


def mine() -> list[psutil.Process]:
    """The server and all that it has forked, whoever their parent is by now: a fork has its command
    line, which ends with the number of this process."""
    own = [*WORKER, str(os.getpid())]
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == own]


def nothing_is_left(store: RunStore, engine: Engine) -> bool:
    """No process but the server, if it lives, and no file of the ranks in the run's folder."""
    until = time.monotonic() + 100.0  # one that was killed takes a moment to be gone
    own = [] if engine.server is None else [engine.server.pid]
    while (left := [one.pid for one in mine()] != own) and time.monotonic() < until:
        time.sleep(0.05)
    return not left and not list(store.folder.rglob("*rank*"))


@pytest.mark.parametrize("several", [TWO, THREE])
def test_ranks_learn_what_one_process_learns_on_the_joined_minibatches(several, rows):
    alone, together = (values(rows, of, "train.loss") for of in (ALONE, several))
    assert len(alone) == len(together) == 3
    assert together == pytest.approx(alone, rel=1e-4)
    assert len(set(alone)) == 3  # of minibatches that no other epoch has
    assert values(rows, ALONE, "eval.test_accuracy") == values(rows, several, "eval.test_accuracy")


def test_the_case_is_as_slow_as_its_slowest_rank_and_uses_what_all_use(rows):
    ranks = [[values(rows, TWO, "epoch.wall_time", rank)[e] for rank in (0, 1)] for e in range(3)]
    assert values(rows, TWO, "epoch.wall_time") == [max(times) for times in ranks]
    assert values(rows, TWO, "epoch.minibatches") == [10.0] * 3
    for metric in ("fetch.payload", "epoch.cpu_user"):
        each = [values(rows, TWO, metric, rank) for rank in (0, 1)]
        summed = [sum(of) for of in zip(*each, strict=True)]
        assert values(rows, TWO, metric) == pytest.approx(summed)
    for epoch in range(3):
        for stage in ("fetch", "train", "wait", "all_reduce"):
            its = [values(rows, TWO, f"{stage}.wall_time", rank)[epoch] for rank in (0, 1)]
            assert values(rows, TWO, f"{stage}.wall_time")[epoch] == pytest.approx(sum(its) / 2)
            assert min(its) >= 0


def test_weak_scaling_gives_every_rank_the_whole_batch(rows):
    assert values(rows, WEAK, "epoch.minibatches") == [4.0] * 3
    assert values(rows, WEAK, "sample.seeds") == [4 * 30] * 3
    assert values(rows, TWO, "sample.seeds") == [5 * 30] * 3


def test_a_rank_that_goes_wrong_ends_its_case_with_its_words(rows):
    last = [row for row in rows if row.stage == "case" and row.variant in FAULTS]
    assert {row.status for row in last} == {"failed"}
    ended = {row.variant: str(row.reason) for row in last}
    for stage in ("train", "all_reduce"):
        assert ended[f"killed in {stage}"] == "RankError: rank 1 was killed by SIGKILL"
    for stage in ("open", "train"):
        said = ended[f"raises in {stage}"]
        assert said.startswith("RankError: rank 1: RuntimeError: ")
        assert f"rank 1 broke in {stage}" in said
    hung = ended["hangs in train"]
    assert hung.startswith("RankError: rank 0: RuntimeError: ")
    assert hung.endswith("; rank 1 ended without a word")
    assert "RanksDisagreeError: the ranks have other minibatches" in ended["other data"]
    own = ended["gradients of their own"]
    assert "RanksDisagreeError: the parameters differ from rank to rank" in own


def test_a_case_whose_time_is_up_ends_with_its_ranks(store, engine):
    """Until then they were out of reach for whoever shares a network with them."""
    case = Case(TWO, "cpu_gather", "pinned", {}, 0)
    listens: set[str] = set()

    def look() -> None:
        """The time is up when both have measured three epochs."""
        parts = [rows_of(read_part(part)) for part in store.folder.rglob("rank?.jsonl")]
        measured = [{row.epoch for row in part if row.stage == "epoch"} for part in parts]
        if sum(3 in epochs for epochs in measured) == 2:
            sockets = [of for one in mine() for of in one.net_connections("tcp")]
            listens.update(of.laddr.ip for of in sockets if of.status == psutil.CONN_LISTEN)
            raise TimeoutError

    (row,) = run(store, engine, [case], epochs=500, look=look)
    assert (row.stage, row.status, row.reason) == ("case", "failed", "timed out after 600 s")
    assert listens == {"127.0.0.1"}
