"""Processes that are forked from one that has imported: fresh, ended in time, and not all alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gatherbench.bench.plan.case import Case
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.fork_server import ForkServer
from gatherbench.bench.run.runner import Runner
from gatherbench.bench.run.store import RunStore

FAKE = (sys.executable, str(Path(__file__).parent / "fake_worker.py"))
#: A server whose forks do what the path says, in Python.
SERVER = """
import sys
from gatherbench.bench.run.fork_server import serve_requests
print("what an import has to say")
serve_requests(lambda verb, path: exec(path))
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    found = ForkServer((sys.executable, "-c", SERVER))
    yield found
    found.close()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("sys.exit(74)", 74),
        ("import os; os._exit(3)", 3),
        ("raise ValueError('this one')", 1),
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
    ],
)
def test_how_it_ended_is_known(server: ForkServer, log: Path, code: str, status: int) -> None:
    process = server.start("measure", Path(code), log)
    assert process.wait(30) == process.poll() == process.returncode == status
    assert ("ValueError: this one" in log.read_text()) == ("this one" in code)
    assert server.start("measure", Path("print('next')"), log).wait(30) == 0
    assert log.read_text().endswith("next\n")


def test_what_one_leaves_behind_the_next_does_not_find(server: ForkServer, log: Path) -> None:
    for _ in range(2):
        code = "import sys; print(hasattr(sys, 'left')); sys.left = 1; print(sys.stdin.read())"
        server.start("measure", Path(code), log).wait(30)
    assert log.read_text().split() == ["False", "False"]


def test_one_that_takes_too_long_can_be_killed(server: ForkServer, log: Path) -> None:
    process = server.start("measure", Path("import time; time.sleep(60)"), log)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    assert process.poll() is None
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    process.kill()  # of one that is gone: nothing


def test_one_that_no_signal_ends_does_not_hold_up_the_next(server: ForkServer, log: Path) -> None:
    server.start("measure", Path("import time; time.sleep(60)"), log)
    begin = time.monotonic()
    assert server.start("measure", Path("pass"), log).wait(30) == 0
    assert time.monotonic() - begin < 50


def test_a_server_that_died_takes_its_process_along_and_is_replaced(
    server: ForkServer, log: Path
) -> None:
    code = "import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"
    assert server.start("measure", Path(code), log).wait(30) == -signal.SIGKILL
    assert server.start("measure", Path("pass"), log).wait(30) == 0


def test_a_server_that_cannot_start_ends_as_the_process_and_says_why(log: Path) -> None:
    broken = ForkServer((sys.executable, "-c", "import nothing_of_that_name"))
    assert broken.start("measure", Path("pass"), log).returncode == 1
    assert "No module named 'nothing_of_that_name'" in log.read_text()
    broken.close()


def test_each_round_of_repeats_has_a_server_of_its_own(tmp_path: Path) -> None:
    """What a fork shares decides a little of its speed: it must differ between repeats."""
    store = RunStore.create(tmp_path, "box", {"name": "mine", "cases": []}, {})
    cases = [
        Case(Workload("tiny"), "cpu_gather", variant, {}, repeat)
        for repeat in range(3)
        for variant in ("good", "last")
    ]
    assert Runner(store, cases, Measure(repeats=3), "cpu", "abc", "box", worker=FAKE).run() == 0
    servers = (store.folder / "servers").read_text().split()
    assert len(set(servers)) == 3
    assert servers[0::2] == servers[1::2]
    assert str(os.getpid()) not in servers
