"""Fresh processes without the imports: a server that has imported forks one for each request.

A case's process would spend three of its four seconds on imports. What the forked ones share is
what a fork shares: the places of libraries in memory. These decide a little of how fast a process
is, so the runner starts a new server for each round of repeats; within one, processes differ less
than those of two runs would.

Requests and answers are lines of JSON on the server's standard input and output.
"""

from __future__ import annotations

import contextlib
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
from typing import Any

#: How long a server that was told to end is waited for.
_END_S = 10.0


def serve_requests(work: Callable[[str, str], None]) -> None:
    """Fork for each request until the input ends; ``work(verb, path)`` is done in the fork.

    A request is ``{"verb", "path", "log"}``; the answers are ``{"pid"}`` once there is a process
    and ``{"code"}`` when it has ended: its exit status, or less than 0 the signal that ended it.
    """
    from gatherbench.bench.run.worker import die_with_parent

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    server = os.getpid()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            die_with_parent(server)
            os._exit(_work(work, request))
        _tell(answers, pid=child)
        _, status = os.waitpid(child, 0)
        _tell(answers, code=os.waitstatus_to_exitcode(status))


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


def _tell(answers: Any, **said: int) -> None:
    print(json.dumps(said), file=answers, flush=True)


class Forked:
    """A process that the server forked; used as :class:`subprocess.Popen` is."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid, self._server = pid, server
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status; ``None`` while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it runs longer than ``timeout`` seconds.
        """
        if self.returncode is None:
            answer = self._server.answer(timeout)
            # A server that is gone took the process along.
            self.returncode = -signal.SIGKILL if answer is None else answer["code"]
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL, unless it is known to have ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """A server of ``command`` (``python -m gatherbench.bench.run.worker``), started when it is
    needed.

    One process at a time runs in it; one that no signal ends is left behind with its server.
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = [*command, "serve", "-", str(os.getpid())]
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._last: Forked | None = None

    def start(self, verb: str, path: Path, log: Path) -> Forked:
        """A process that does ``verb`` with ``path`` and prints into ``log``.

        Where the server itself cannot start, the process has ended as the server did.
        """
        if self._process is not None and (
            self._process.poll() is not None or (self._last and self._last.poll() is None)
        ):
            self.close()  # it died between two requests, or still waits for the last one
        if self._process is None:
            with log.open("a") as errors:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
                )
        server = self._process
        request = {"verb": verb, "path": str(path), "log": str(log)}
        assert server.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is told below how it ended
            server.stdin.write(json.dumps(request).encode() + b"\n")
            server.stdin.flush()
        answer = self.answer(None)
        started = self._last = Forked(self, server.pid if answer is None else answer["pid"])
        if answer is None:
            started.returncode = server.wait(_END_S) or 1
        return started

    def answer(self, timeout: float | None) -> dict[str, int] | None:
        """The server's next answer; ``None``: it is gone.

        Raises:
            subprocess.TimeoutExpired: there is none within ``timeout`` seconds.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            line, end, rest = self._buffer.partition(b"\n")
            if end:
                self._buffer = rest
                if line.startswith(b"{"):  # else an import that prints
                    found: dict[str, int] = json.loads(line)
                    return found
                continue
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise subprocess.TimeoutExpired(self._command, timeout or 0.0)
            read = os.read(self._process.stdout.fileno(), 4096)
            if not read:
                return None
            self._buffer += read

    def close(self) -> None:
        """End the server, and whatever it runs."""
        process, self._process, self._last, self._buffer = self._process, None, None, b""
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            process.wait(_END_S)
