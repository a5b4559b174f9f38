"""The server that has imported, and forks a process for each piece of work.

A case's process would spend three of its four seconds on imports. The forked ones share what a fork
shares: the addresses of libraries in memory. These affect slightly how fast a process is, so each
round of repeats has a server of its own. The standard library has one server at most, which leaves
behind what a process has started in sessions of its own; this one ends it.

Requests and answers go over a bidirectional pipe, which is the server's standard input.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil

#: How long remaining processes of a finished one may take to end, and after they have been killed.
GRACE_S, _KILLED_S = 5.0, 10.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


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
