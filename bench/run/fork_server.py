"""Fresh processes without the imports: a server that has imported forks one for each piece of work.

A case's process would spend three of its four seconds on imports. What the forked ones share is
what a fork shares: the places of libraries in memory. These decide a little of how fast a process
is, so the runner starts a new server for each round of repeats.

Requests and answers are lines of JSON on the server's standard input and output.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

#: How long a process or server that was killed is waited for.
KILL_S = 30.0
_PR_SET_PDEATHSIG = 1
#: How often somebody who wants to look at the work while it goes on may do so.
_LOOK_S = 0.2


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the runner dies, however it dies (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os.kill(os.getpid(), signal.SIGKILL)


def serve_requests(work: Callable[[str, str], None]) -> None:
    """Fork for each request until the input ends; ``work(verb, path)`` is done in the fork.

    A request is ``{"verb", "path", "log"}``. The answers are ``{"pid"}`` once there is a process
    and ``{"code"}`` when it has ended: its exit status, or less than 0 the signal that ended it.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    server = os.getpid()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            die_with_parent(server)
            os._exit(_work(work, request))
        print(json.dumps({"pid": child}), file=answers, flush=True)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), file=answers, flush=True)


def _work(work: Callable[[str, str], None], request: dict[str, str]) -> int:
    """Do the request, printing into its log; the exit status."""
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        work(request["verb"], request["path"])
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
    """A server run as ``command`` followed by this process's id, started when it is needed.

    One process at a time runs in it.
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = [*command, str(os.getpid())]
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def run(
        self,
        verb: str,
        path: Path,
        log: Path,
        until: float,
        look: Callable[[], None] | None = None,
    ) -> int:
        """Do ``verb`` with ``path`` in a process that prints into ``log``; its exit status.

        Whatever ends the wait (time, Ctrl-C) ends the process. Where the server itself cannot
        start, the status is the server's, and the log says why.

        Args:
            until: by :func:`time.monotonic`.
            look: called now and then while the process runs.

        Raises:
            TimeoutError: the process was still running then.
        """
        pid = self._start(verb, path, log)
        if pid is None:
            assert self._process is not None
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
            except TimeoutError:  # a hung driver holds it
                self.close()
            raise
        if answer is None:  # the server is gone, and took the process along
            self.close()
            return -signal.SIGKILL
        return answer["code"]

    def _start(self, verb: str, path: Path, log: Path) -> int | None:
        """The id of a new process; ``None``: the server could not start it."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it died between two requests
        if self._process is None:
            with log.open("a") as errors:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
                )
        assert self._process.stdin is not None
        request = {"verb": verb, "path": str(path), "log": str(log)}
        with contextlib.suppress(BrokenPipeError):  # there will be no answer
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._answer(float("inf"))
        return None if answer is None else answer["pid"]

    def _answer(
        self, until: float, look: Callable[[], None] | None = None
    ) -> dict[str, int] | None:
        """The server's next answer; ``None``: it is gone.

        Raises:
            TimeoutError: there was none in time.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            line, end, rest = self._buffer.partition(b"\n")
            if end:
                self._buffer = rest
                if line.startswith(b"{"):  # else an import that prints
                    found: dict[str, int] = json.loads(line)
                    return found
                continue
            left = until - time.monotonic()
            longest = _LOOK_S if look else 3600.0
            ready = select.select([self._process.stdout], [], [], max(0.0, min(left, longest)))[0]
            if look:
                look()
            if ready:
                read = os.read(self._process.stdout.fileno(), 4096)
                if not read:
                    return None
                self._buffer += read
            elif left <= 0:
                raise TimeoutError

    def close(self) -> None:
        """End the server, and whatever it runs."""
        process, self._process, self._buffer = self._process, None, b""
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            process.wait(KILL_S)
