"""Processes forked from one that has imported: fresh, ended in time; and what the worker does."""

import errno
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import pytest

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run import engine as engine_module
from gatherbench.bench.run import table
from gatherbench.bench.run.engine import WORKER, Engine
from gatherbench.bench.run.job import Block, Job
from gatherbench.bench.run.part import read_part
from gatherbench.bench.run.worker import DISK_FULL, do, is_disk_full
from gatherbench.outside import fresh

from .fakes import cases, runner

#: A server whose forks do what the block says, in Python.
SERVER = """
import signal, sys
from gatherbench.bench.run import worker
worker.GRACE_S = 0.1
worker.die_with_parent(int(sys.argv[1]), signal.SIGTERM)
worker.serve_requests(lambda block: exec(block.code))
"""
COMMAND = (sys.executable, "-c", SERVER)
FOREVER = "import time; time.sleep(6000)"
#: Itself, a child, one in a session of its own, and a daemon; their ids are printed.
LEAVES = """
import os, subprocess
began = [os.getpid(), subprocess.Popen(["sleep", "600"]).pid]
began.append(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
daemon = ["sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!"]
began.append(subprocess.run(daemon, start_new_session=True, capture_output=True, text=True).stdout)
print(*began, flush=True)
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("engine"), os.environ, COMMAND)
    yield made
    made.close()


def run(engine: Engine, code: str, look: Callable[[], None] = lambda: None) -> str | None:
    engine.look = look
    block: Any = SimpleNamespace(code=code, part=engine.folder / "none", until=math.inf)
    return engine.run(block)


def printed(engine: Engine) -> str:
    return (engine.folder / "process.log").read_text()


def once_begun(engine: Engine, error: type[BaseException]) -> Callable[[], None]:
    """Ends the wait for a process that has printed a line."""

    def look() -> None:
        if printed(engine).endswith("\n"):
            raise error

    return look


@pytest.mark.parametrize(
    ("code", "death"),
    [
        ("pass", None),
        ("import os; os._exit(3)", "exit status 3; last words: it printed nothing"),
        ("raise ValueError('this one')", "exit status 1; last words: ValueError: this one"),
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV; last words: it printed"),
        ("import os; os.kill(os.getpid(), 15)", "killed by SIGTERM"),
        ("sys.exit(74)", "the disk is full"),
        (f"import os; os.fork() and os.kill(os.getppid(), 9); {FOREVER}", "SIGKILL (most l"),
        (f"import os, signal; os.kill(os.getppid(), signal.SIGTERM); {FOREVER}", "exit status 1"),
    ],
)  # fmt: skip
def test_how_it_ended_is_known_and_the_next_one_runs(engine, code, death):
    if code == "sys.exit(74)":
        with pytest.raises(OSError, match="No space left"):
            run(engine, code)
    else:
        assert (death or "") in (run(engine, code) or "")
    assert run(engine, "print('next')") is None
    assert printed(engine) == "next\n"


def test_what_one_leaves_behind_the_next_does_not_find_in_the_same_server(engine):
    code = "import os, sys; print(hasattr(sys, 'left'), os.getppid()); sys.left = sys.stdin.read()"
    lines = {run(engine, code) or printed(engine) for _ in range(2)}
    assert [line.split()[0] for line in lines] == ["False"]


@pytest.mark.parametrize(
    "end", ["pass", "os._exit(3)", "os.kill(os.getpid(), 11)", "raise ValueError", FOREVER]
)
def test_what_one_has_started_ends_with_it(engine, end):
    """However it ends, and whatever sessions there are: the next would be measured beside them."""
    if end == FOREVER:
        death = run(engine, f"{LEAVES}\n{end}", once_begun(engine, TimeoutError))
        assert death == "timed out after inf s"
    else:
        run(engine, f"{LEAVES}\n{end}")
    began = [int(word) for word in printed(engine).splitlines()[0].split()]
    assert len(began) == 4
    assert not any(map(psutil.pid_exists, began))
    assert run(engine, "pass") is None


def test_what_one_has_started_has_time_to_end_by_itself(tmp_path):
    """As a library's tracker has, which cleans up behind it."""
    command = (sys.executable, "-c", SERVER.replace("GRACE_S = 0.1", "GRACE_S = 100"))
    patient, file = Engine(tmp_path, os.environ, command), tmp_path / "cleaned up"
    script = ["sh", "-c", f"sleep 0.2; touch '{file}'"]
    assert run(patient, f"import subprocess; subprocess.Popen({script})") is None
    patient.close()
    assert file.exists()


def test_what_one_has_started_ends_with_the_runner(tmp_path):
    """Even if that is killed."""
    code = (
        "import math, os, sys; from pathlib import Path\n"
        "from types import SimpleNamespace as Block\n"
        "from gatherbench.bench.run.engine import Engine\n"
        "engine = Engine(Path(sys.argv[3]), os.environ, (sys.executable, '-c', sys.argv[1]))\n"
        "engine.run(Block(code=sys.argv[2], part=Path('none'), until=math.inf))"
    )
    command = [sys.executable, "-c", code, SERVER, f"{LEAVES}\n{FOREVER}", str(tmp_path)]
    log = tmp_path / "process.log"
    with subprocess.Popen(command) as runner:
        while not (log.exists() and log.read_text().endswith("\n")):
            assert runner.poll() is None
            time.sleep(0.01)
        began = [psutil.Process(int(word)) for word in log.read_text().split()]
        began += psutil.Process(runner.pid).children(recursive=True)
        runner.kill()
    assert not psutil.wait_procs(began, timeout=100)[1]


def test_one_that_no_signal_ends_does_not_hold_up_the_next(engine, monkeypatch):
    """As one is that hangs in a driver."""
    kill = os.kill
    with monkeypatch.context() as spared:
        spared.setattr(engine_module, "KILL_S", 2)
        spared.setattr(os, "kill", lambda *_: None)
        spared.setattr(subprocess.Popen, "kill", lambda process: kill(process.pid, signal.SIGKILL))
        run(engine, f"print(flush=True); {FOREVER}", once_begun(engine, TimeoutError))
    assert run(engine, "pass") is None


def test_ctrl_c_waits_for_no_grace(tmp_path, monkeypatch):
    """A server gets what a hung driver may need only when another process is to run after it."""
    alone = Engine(tmp_path, os.environ, COMMAND)
    wait, waits = subprocess.Popen.wait, list[float | None]()

    def counted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waits.append(timeout)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", counted)
    code = f"import os; print(os.getppid(), os.getpid(), flush=True); {FOREVER}"
    with pytest.raises(KeyboardInterrupt):
        run(alone, code, once_begun(alone, KeyboardInterrupt))
    assert not any(psutil.pid_exists(int(word)) for word in printed(alone).split())
    assert [seconds for seconds in waits if seconds is not None] == [engine_module.INTERRUPT_S]
    assert engine_module.INTERRUPT_S < engine_module.KILL_S


def test_a_server_that_dies_without_work_is_replaced(engine):
    assert run(engine, "pass") is None
    engine.server.kill()
    engine.server.wait()
    assert run(engine, "pass") is None


def test_a_server_that_cannot_start_ends_as_the_process_and_says_why(tmp_path):
    command = (sys.executable, "-c", "import nothing_of_that_name")
    death = run(Engine(tmp_path, os.environ, command), "pass")
    assert "exit status 1; last words: ModuleNotFoundError: No module named" in str(death)


def test_a_server_that_hangs_while_it_starts_has_no_more_time_than_a_process(tmp_path):
    def look() -> None:
        raise TimeoutError

    hangs = Engine(tmp_path, os.environ, (sys.executable, "-c", FOREVER))
    assert run(hangs, "pass", look) == "timed out after inf s"


def test_a_workload_that_is_prepared_is_ready_even_if_its_process_dies_as_it_counts(engine):
    part = engine.folder / "answer.jsonl"
    code = (
        "import os; from contextlib import closing; from pathlib import Path\n"
        "from gatherbench.bench.run.part import PartWriter\n"
        f"with closing(PartWriter(Path({str(part)!r}))) as out:\n"
        "    out.write('answer', dataset='there')\n"
        "    out.write('work', what='counting', fraction=0.5)\n"
        "os._exit(3)"
    )
    engine.look = lambda: None
    block: Any = SimpleNamespace(code=code, part=part, until=math.inf)
    assert engine.ask(block)["dataset"] == "there"
    assert [*read_part(part)][-1]["uncounted"].startswith("exit status 3")


def test_each_round_of_repeats_has_a_server_of_its_own(store):
    """What a fork shares decides a little of its speed: it must differ between repeats."""
    wanted = [replace(case, repeat=r) for r in range(3) for case in cases("good", "last")]
    assert runner(store, wanted).run() == 0
    servers = (store.folder / "servers").read_text().split()
    assert len(set(servers)) == 3
    assert servers[0::2] == servers[1::2]
    assert str(os.getpid()) not in servers


# ---- the real worker -----------------------------------------------------------------------------


def ended(job: Job) -> dict[str, Any]:
    """How the worker ends the job; it measures nothing before."""
    fresh(job.part)
    do(Block("measure", (replace(job, alone=True),)))
    (end,) = (record for record in read_part(job.part) if record["kind"] == "end")
    return end


def test_a_strategy_that_cannot_run_is_skipped_and_an_error_is_a_reason(
    make_job, tmp_path, monkeypatch
):
    skipped = ended(make_job("unified_zero_copy", params={"memory": "managed"}))
    assert (skipped["status"], bool(skipped["reason"])) == ("skipped", True)
    wrong = ended(replace(make_job(), dataset=tmp_path / "none"))
    assert (wrong["status"], wrong["reason"].partition(":")[0]) == ("failed", "DatasetError")
    beyond_any_address_space = lambda *_, **__: bytearray(1 << 60)  # noqa: E731
    monkeypatch.setattr(table, "empty", beyond_any_address_space)
    full = ended(make_job())
    assert (full["status"], full["reason"].partition(":")[0]) == ("failed", "MemoryError")


def test_a_full_disk_has_an_exit_status_of_its_own(make_job, monkeypatch):
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    job = make_job()
    for do_what, name in (
        ("measure", "gatherbench.bench.run.block.Session"),
        ("prepare", "gatherbench.bench.sampling.prepare.prepare"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, full)
            with pytest.raises(SystemExit) as end:
                do(Block(do_what, (job,)))
        assert end.value.code == DISK_FULL
    assert list(read_part(job.part)) == []


def test_a_full_disk_under_the_datasets_is_known_however_it_is_worded():
    with pytest.raises(OSError, match="No space") as caught:
        Path("/dev/full").write_text("x")
    worded = ValueError("the graph could not be written")
    worded.__cause__ = caught.value
    assert is_disk_full(worded)
    assert not is_disk_full(ValueError("something else"))


def test_a_worker_whose_runner_is_gone_does_nothing():
    done = subprocess.run([*WORKER, "1"], check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGTERM


#: What torch says of how it was built, it says after it has counted the GPUs.
PROCESS = """
import os, pickle, sys, torch
asked = torch.__config__.show
torch.__config__.show = lambda: sys.exit("asked")
from gatherbench.bench.run import worker
worker.serve_requests = lambda work: print("torch_geometric" in sys.modules)
from gatherbench.bench.run.job import Block
worker.main(os.getppid())
torch.__config__.show = asked
*jobs, gat = (pickle.load(open(job, "rb")) for job in sys.argv[1:])
for job in jobs:
    worker.do(Block("measure", (job,)))
    print(len(os.sched_getaffinity(0)), torch.get_num_threads())
from gatherbench.bench.run.models import build_model
build_model(gat.case.workload, 4, 3)
made = [m.__file__ for n, m in sys.modules.items() if n.endswith(("_propagate", "_edge_updater"))]
print(*made)
"""


def test_a_process_asks_no_gpu_keeps_to_its_cores_and_writes_where_nobody_else_can(
    make_job, tmp_path
):
    """Fewer and fewer cores: it does not get back what it has given away.

    PyG executes modules that it writes into the temporary folder, where ``__pycache__`` may be
    another's.
    """
    counts = [n for n in (2, 1) if n <= len(os.sched_getaffinity(0))]
    jobs = [make_job(threads=threads, epochs=1, warmup_epochs=0) for threads in counts]
    files = [tmp_path / f"{number}.job" for number in range(len(jobs) + 1)]
    for file, job in zip(files, [*jobs, make_job(model="gat")], strict=True):
        file.write_bytes(pickle.dumps(job))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *map(str, files)],
        env=os.environ | {"TMPDIR": str(temporary)}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    *said, written = done.stdout.splitlines()
    assert said == ["True", *(f"{threads} {threads}" for threads in counts)]
    made = [Path(name) for name in written.split()]
    assert len(made) == 3, "one of sage, two of gat"
    assert {path.parent.parent for path in made} == {temporary}
    assert not [path for path in temporary.rglob("*") if path.is_file()], (
        "they go with their folder"
    )


def prepared(job: Job, workload: Workload) -> list[dict[str, Any]]:
    job = replace(job, case=replace(job.case, workload=workload), part=fresh(job.part), first=False)
    do(Block("prepare", (job,)))
    return list(read_part(job.part))


def test_preparing_an_unknown_dataset_names_the_nearest(make_job):
    assert "wordnet" in prepared(make_job(), Workload("wordnett"))[-1]["failed"]


def test_what_is_prepared_is_told_on_the_way_and_at_the_end(make_job, tmp_path, monkeypatch):
    def talkative(workload: Workload, progress) -> tuple[Path, str]:
        assert workload == Workload("wordnet", fanouts=(3, 2))
        print("{'not': json}")
        progress("drawing", 0.5)
        return tmp_path / "dataset", "mine"

    job = make_job()
    monkeypatch.setattr("gatherbench.bench.sampling.prepare.prepare", talkative)
    assert prepared(job, Workload("wordnet", fanouts=(3, 2))) == [
        {"kind": "work", "what": "drawing", "fraction": 0.5},
        {"kind": "answer", "dataset": str(tmp_path / "dataset"), "identity": "mine"},
    ]
