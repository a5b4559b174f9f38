"""Fresh processes without the imports: a server that has imported forks one for each piece of work.

A case's process would spend three of its four seconds on imports. The forked ones share what a fork
shares: the addresses of libraries in memory. These affect slightly how fast a process is, so each
round of repeats has a server of its own; those of several rounds can import side by side. The
standard library has one server at most, which leaves behind what a process has started in sessions
of its own; this one ends it.

Requests and answers go over a bidirectional pipe, which is the server's standard input.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

#: How long to wait for servers that were told to end: the next process would run beside what they
#: run; after Ctrl-C there is no next one.
KILL_S, INTERRUPT_S = 30.0, 1.0
#: How long remaining processes of a finished one may take to end, and after they have been killed.
GRACE_S, _KILLED_S = 5.0, 10.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: The interval of the calls that look at the work while it goes on.
_LOOK_S = 0.2


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent died before the call
        os.kill(os.getpid(), number)


def serve_requests(work: Callable[[Any], None]) -> None:
    """Fork for each request, (job, log), until the client is gone; the fork runs ``work(job)``.

    The answer is the fork's exit status, or less than 0 the signal that ended it. By then all that
    it had started has ended as well: it would use cores and memory while the next runs. The same
    holds when SIGTERM ends the server, as the end of the runner does.
    """
    server, client = os.getpid(), Connection(os.dup(0))
    client.send(server)  # all is imported
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans, such as daemons, become its own
    try:
        while True:
            job, log = client.recv()
            if (child := os.fork()) == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                client.close()
                die_with_parent(server)
                os._exit(_work(work, job, log))
            _, status = os.waitpid(child, 0)
            _end_children(GRACE_S)
            client.send(os.waitstatus_to_exitcode(status))
    except (EOFError, ConnectionError, SystemExit):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_children(0.0)
    os._exit(0)  # at once: Python would first destroy what was imported


def _end_children(grace_s: float) -> None:
    """End all processes below this one; a library's tracker and a daemon's watcher have time to."""
    own, until = psutil.Process(), time.monotonic() + grace_s
    while (below := own.children(recursive=True)) and time.monotonic() < until + _KILLED_S:
        for process in below if time.monotonic() > until else ():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(below, 0.01)


def _work(work: Callable[[Any], None], job: Any, log: str) -> int:
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    for source, stream in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (out, 2)):
        os.dup2(source, stream)
    code = 1
    try:
        work(job)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


class ForkServer:
    """A server run as ``command`` followed by this process's id, started when it is first needed.

    One process at a time runs in it.

    Args:
        environment: of the servers and all that they fork.
        servers: how many start at once, the others for later rounds. All have imported before one
            gets work, so that nothing is measured beside an import.
    """

    def __init__(
        self, command: tuple[str, ...], environment: Mapping[str, str], servers: int = 1
    ) -> None:
        self._command, self._environment = [*command, str(os.getpid())], environment
        self._count, self._servers = servers, list[_Server]()  # the last one works

    def run(self, job: object, log: Path, look: Callable[[], None] = lambda: None) -> int:
        """Run ``job`` in a process that prints into ``log``; return its exit status.

        If the server cannot start, or dies, the status is the server's, and the log says why.

        Args:
            look: called now and then while the process runs. If it raises, or Ctrl-C comes, all
                servers end with all that they run.
        """

        def wait(server: _Server) -> None:
            while not server.pipe.poll(_LOOK_S):
                look()

        try:
            while self._servers and self._servers[-1].poll() is not None:
                self.renew()  # it died without work
            if not self._servers:
                command = self._command, self._environment, log
                self._servers = [_Server(*command) for _ in range(self._count)]
                self._count = 1  # nobody knows how many more rounds there will be
                for server in self._servers:
                    wait(server)
                    with suppress(EOFError, OSError):
                        server.pipe.recv()
            server = self._servers[-1]
            with suppress(OSError):  # there will be no answer
                server.pipe.send((job, str(log)))
            wait(server)
        except BaseException as stop:
            self.close(INTERRUPT_S if isinstance(stop, KeyboardInterrupt) else KILL_S)
            raise
        try:
            return int(server.pipe.recv())
        except (EOFError, OSError):
            return self.renew() or 1

    def renew(self) -> int:
        """End the server, and all that it runs: the next job has another.

        Returns:
            Its exit status, 0 without a server.
        """
        return _end([self._servers.pop()], KILL_S) if self._servers else 0

    def close(self, patience_s: float = KILL_S) -> None:
        """End all servers."""
        servers, self._servers = self._servers, []
        _end(servers, patience_s)


class _Server(subprocess.Popen[bytes]):
    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.pipe, theirs = Pipe()
        with log.open("a") as out, theirs:  # the output of a library is separate from answers
            super().__init__(
                command,
                stdin=theirs.fileno(),
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )


def _end(servers: list[_Server], patience_s: float) -> int:
    """End servers, and all that they run; return the exit status of the last."""
    for server in servers:
        server.pipe.close()
        if server.poll() is None:
            server.terminate()
    status, until = 0, time.monotonic() + patience_s
    for server in servers:
        with suppress(subprocess.TimeoutExpired):  # a hung driver may keep it alive
            server.wait(max(0.0, until - time.monotonic()))
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(server.pid, signal.SIGKILL)
        status = server.wait()
    return status
