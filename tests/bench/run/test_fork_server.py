"""Processes that are forked from one that has imported: fresh, ended in time, and not all alike."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import psutil
import pytest

from gatherbench.bench.run import fork_server as server_module
from gatherbench.bench.run import runner as runner_module
from gatherbench.bench.run.fork_server import ForkServer

from .fakes import cases, runner

#: A server whose forks do what the job says, in Python.
SERVER = """
import signal, sys
from gatherbench.bench.run import fork_server
fork_server.GRACE_S = 0.1
fork_server.die_with_parent(int(sys.argv[1]), signal.SIGTERM)
fork_server.serve_requests(lambda job: exec(job))
"""
FOREVER = "import time; time.sleep(60)"
#: A child, one in a session of its own, and a daemon; their ids are printed.
LEAVES = """
import os, subprocess
began = [subprocess.Popen(["sleep", "600"]).pid]
began.append(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
daemon = ["sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!"]
began.append(subprocess.run(daemon, start_new_session=True, capture_output=True, text=True).stdout)
print(*began, end="", flush=True)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture(scope="module")
def server():
    found = ForkServer((sys.executable, "-c", SERVER), os.environ)
    yield found
    found.close()


def run(server: ForkServer, code: str, log: Path, look=lambda: None) -> int:
    return server.run(code, log, look)


def when_begun(log: Path, error: type[BaseException]) -> Callable[[], None]:
    """Ends the wait for a process that has printed a line."""

    def look() -> None:
        if log.read_text().endswith("\n"):
            raise error

    return look


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
def test_how_it_ended_is_known(server, log, code, status):
    assert run(server, code, log) == status
    assert ("ValueError: this one" in log.read_text()) == ("this one" in code)
    assert run(server, "print('next')", log) == 0
    assert log.read_text().endswith("next\n")


def test_what_one_leaves_behind_the_next_does_not_find(server, log):
    for _ in range(2):
        code = "import sys; print(hasattr(sys, 'left')); sys.left = 1; print(sys.stdin.read())"
        run(server, code, log)
    assert log.read_text().split() == ["False", "False"]


def test_one_that_takes_too_long_is_killed_and_the_next_goes_on(server, log):
    code = f"import os; print(os.getpid(), flush=True); {FOREVER}"
    with pytest.raises(TimeoutError):
        run(server, code, log, when_begun(log, TimeoutError))
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)
    log.write_text("")
    for _ in range(2):
        run(server, "import os; print(os.getppid())", log)
    assert len(set(log.read_text().split())) == 1, "one server for both"


@pytest.mark.parametrize(
    "end", ["pass", "os._exit(3)", "os.kill(os.getpid(), 11)", "raise ValueError", FOREVER]
)
def test_what_one_has_started_ends_with_it(server, log, end):
    """However it ends, and whatever sessions there are: the next would be measured beside them."""
    code = f"{LEAVES}\n{end}"
    if end == FOREVER:
        with pytest.raises(TimeoutError):
            run(server, code, log, when_begun(log, TimeoutError))
    else:
        run(server, code, log)
    began = [int(word) for word in log.read_text().splitlines()[0].split()]
    assert len(began) == 3
    assert not any(map(psutil.pid_exists, began))
    assert run(server, "pass", log) == 0


def test_what_one_has_started_ends_with_the_runner(log):
    """Even if that is killed."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from gatherbench.bench.run.fork_server import ForkServer\n"
        "server = ForkServer((sys.executable, '-c', sys.argv[1]), os.environ)\n"
        "server.run(sys.argv[2], Path(sys.argv[3]))"
    )
    command = [sys.executable, "-c", code, SERVER, f"{LEAVES}\n{FOREVER}", str(log)]
    with subprocess.Popen(command) as runner:
        while not log.read_text().endswith("\n"):
            assert runner.poll() is None, log.read_text()
            time.sleep(0.01)
        began = [psutil.Process(int(word)) for word in log.read_text().split()]
        began += psutil.Process(runner.pid).children(recursive=True)
        runner.kill()
    assert not psutil.wait_procs(began, timeout=100)[1]


def test_one_that_no_signal_ends_does_not_hold_up_the_next(server, log, monkeypatch):
    """As one is that hangs in a driver."""
    kill = os.kill
    with monkeypatch.context() as spared:
        spared.setattr(server_module, "KILL_S", 2)
        spared.setattr(os, "kill", lambda *_: None)
        spared.setattr(subprocess.Popen, "kill", lambda process: kill(process.pid, signal.SIGKILL))
        with pytest.raises(TimeoutError):
            run(server, f"print(flush=True); {FOREVER}", log, when_begun(log, TimeoutError))
    assert run(server, "pass", log) == 0


def test_ctrl_c_waits_for_no_grace_and_ends_all_servers_at_once(log, monkeypatch):
    """Each gets what a hung driver may need only when another process is to run after it."""
    several = ForkServer((sys.executable, "-c", SERVER), os.environ, servers=3)
    wait, waits = subprocess.Popen.wait, list[float | None]()

    def counted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waits.append(timeout)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", counted)
    code = f"import os; print(os.getppid(), os.getpid(), flush=True); {FOREVER}"
    with pytest.raises(KeyboardInterrupt):
        run(several, code, log, when_begun(log, KeyboardInterrupt))
    assert not any(psutil.pid_exists(int(word)) for word in log.read_text().split())
    graces = [seconds for seconds in waits if seconds is not None]
    assert len(graces) == 3, "one a server, and all within the same second"
    assert max(graces) <= server_module.INTERRUPT_S < server_module.KILL_S


def test_a_server_that_died_takes_its_process_along_and_is_replaced(server, log):
    code = f"import os, signal; os.kill(os.getppid(), signal.SIGKILL); {FOREVER}"
    assert run(server, code, log) == -signal.SIGKILL
    assert run(server, "pass", log) == 0


def test_a_server_that_cannot_start_ends_as_the_process_and_says_why(log):
    broken = ForkServer((sys.executable, "-c", "import nothing_of_that_name"), os.environ)
    assert run(broken, "pass", log) == 1
    assert "No module named 'nothing_of_that_name'" in log.read_text()
    broken.close()


def test_servers_of_several_rounds_have_imported_before_the_first_of_them_has_work(log):
    """Each has an import of its own, and ends with the last of them."""
    # One write a line: a print may be several, between which the other server's come.
    write = "os.write(1, f'imported {os.getpid()}\\n'.encode())"
    imports = f"import os, time; time.sleep(0.2); {write}{SERVER}"
    several = ForkServer((sys.executable, "-c", imports), os.environ, servers=2)
    for _ in range(3):
        assert run(several, "import os; print('job', os.getppid(), flush=True)", log) == 0
        several.renew()
    words = [line.split() for line in log.read_text().splitlines()]
    assert [word for word, _ in words] == [
        *("imported",) * 2,
        *("job",) * 2,
        *("imported", "job"),  # one more, which nobody had counted
    ]
    assert len({server for word, server in words if word == "job"}) == 3
    assert sum(psutil.pid_exists(int(server)) for _, server in words[:4]) == 0
    several.close()
    assert not any(psutil.pid_exists(int(server)) for _, server in words)


def test_each_round_of_repeats_has_a_server_of_its_own(store):
    """What a fork shares decides a little of its speed: it must differ between repeats."""
    wanted = [replace(case, repeat=r) for r in range(3) for case in cases("good", "last")]
    assert runner(store, wanted).run() == 0
    servers = (store.folder / "servers").read_text().split()
    assert len(set(servers)) == 3
    assert servers[0::2] == servers[1::2]
    assert str(os.getpid()) not in servers


@pytest.mark.parametrize(
    ("device", "cores", "servers"), [("cuda", 16, 3), ("cuda", 2, 1), ("cpu", 16, 1)]
)
def test_a_gpu_machine_imports_for_all_repeats_at_once(store, monkeypatch, device, cores, servers):
    """On half of its cores at most."""
    server = mock.Mock()
    monkeypatch.setattr(runner_module, "ForkServer", server)
    monkeypatch.setattr(psutil, "cpu_count", lambda: cores)
    runner(
        store, [replace(case, repeat=r) for r in range(3) for case in cases("good")], device=device
    )
    assert server.call_args.args[2] == servers
