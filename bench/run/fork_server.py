"""Fresh processes without the imports: a server that has imported forks one for each piece of work.

A case's process would spend three of its four seconds on imports. The forked ones share what a fork
shares: the addresses of libraries in memory. These affect slightly how fast a process is, so the
runner starts a new server for each round of repeats.

Requests and answers go over a bidirectional pipe, which is the server's standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

#: How long to wait for a process or server that was killed.
KILL_S = 30.0
#: How long remaining processes of a finished one may take to end, and after they have been killed.
GRACE_S, _KILLED_S = 5.0, 10.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: The interval of the calls that look at the work while it goes on.
_LOOK_S = 0.2


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the runner dies, however it dies (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent died before the call
        os.kill(os.getpid(), number)


def serve_requests(work: Callable[[Any], None]) -> None:
    """Fork for each request until the client is gone; the fork runs ``work(job)``.

    A request is (job, log). The answers are the id of the process once there is one, and,
    when it has ended, its exit status, or less than 0 the signal that ended it. By then all that it
    had started has ended as well: it would use cores and memory while the next runs. The same holds
    when SIGTERM ends the server, as the end of the runner does.
    """
    server, runner, child = os.getpid(), Connection(os.dup(0)), 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    if sys.platform == "linux":  # orphans, such as daemons, become children of this process
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        while True:
            try:
                job, log = runner.recv()
            except EOFError:
                return
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                runner.close()
                os.setsid()
                die_with_parent(server)
                os._exit(_work(work, job, log))
            runner.send(child)
            _, status = os.waitpid(child, 0)
            child = 0
            _end_children()
            runner.send(os.waitstatus_to_exitcode(status))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _end_children()


def _end_children() -> None:
    """End the children of this process, and all below them: orphans become its own.

    Those that end by themselves, as a library's tracker and a daemon's watcher, have time to.
    """
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until + _KILLED_S:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended and time.monotonic() > until:
            for one in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        if not ended:
            time.sleep(0.01)


def _work(work: Callable[[Any], None], job: Any, log: str) -> int:
    """Run the job, printing into its log; return the exit status."""
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        work(job)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


class ForkServer:
    """A server run as ``command`` followed by this process's id, started when it is first needed.

    One process at a time runs in it.

    Args:
        environment: of the server and all that it forks.
    """

    def __init__(self, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._command, self._environment = [*command, str(os.getpid())], environment
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def run(
        self, job: object, log: Path, until: float, look: Callable[[], None] | None = None
    ) -> int:
        """Run ``job`` in a process that prints into ``log``; return its exit status.

        Whatever ends the wait (time, Ctrl-C) ends the process. If the server itself cannot
        start, the status is the server's, and the log says why.

        Args:
            until: by :func:`time.monotonic`.
            look: called now and then while the process runs.

        Raises:
            TimeoutError: the process is still running at ``until``.
        """
        if self._process is None or self._process.poll() is not None:
            self.close()  # it died between two requests
            self._pipe, theirs = Pipe()
            with log.open("a") as out, theirs:
                # The output of a library is separate from answers.
                self._process = subprocess.Popen(
                    self._command,
                    stdin=theirs.fileno(),
                    stdout=out,
                    stderr=out,
                    env=self._environment,
                )
        assert self._pipe is not None
        with contextlib.suppress(OSError):  # there will be no answer
            self._pipe.send((job, str(log)))
        pid = self._answer(math.inf)
        if pid is None:
            code = self._process.wait(KILL_S)
            self.close()
            return code or 1
        try:
            answer = self._answer(until, look)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            try:
                self._answer(time.monotonic() + KILL_S)
            except TimeoutError:  # a hung driver may keep it alive
                self.close()
            raise
        if answer is None:  # the server is gone, and its process with it
            self.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            return -signal.SIGKILL
        return answer

    def _answer(self, until: float, look: Callable[[], None] | None = None) -> int | None:
        """Return the server's next answer; ``None``: the server is gone.

        Raises:
            TimeoutError: no answer arrived in time.
        """
        assert self._pipe is not None
        longest = _LOOK_S if look else 3600.0
        while not self._pipe.poll(max(0.0, min(until - time.monotonic(), longest))):
            if look:
                look()
            if time.monotonic() >= until:
                raise TimeoutError
        try:
            found: int = self._pipe.recv()
        except (EOFError, OSError):
            return None
        return found

    def close(self) -> None:
        """End the server, and all that it runs."""
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        if process is not None and pipe is not None:
            process.terminate()
            pipe.close()
            try:
                process.wait(KILL_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(KILL_S)
