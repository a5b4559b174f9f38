"""What a data path does beside its fetches, and might not tell: facts for whoever judges it.

A fetch costs what happens between ``submit`` and ``result``. A path that goes on when it has
answered, leaves a process that works for the next case, or turns the clock looks faster than it is,
and its rows are right. The conformance suite asks all of this, and a run what can be asked beside a
training.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType
from typing import Self

import psutil
import torch
from torch import Tensor

#: Processes that libraries start once, and which end with ours.
_OF_LIBRARIES = re.compile(r"resource_tracker|forkserver|torch[./]_inductor")
_PR_SET_CHILD_SUBREAPER = 36
_TASKS = Path("/proc/self/task")
#: How long a process that was killed is waited for.
_KILL_S = 10.0
_CLOCKS = ("perf_counter", "monotonic", "time", "process_time", "thread_time")


def not_plain(rows: Tensor) -> str | None:
    """Why a tensor is not rows that lie in memory as they are; ``None`` if it is.

    A subclass may gather when somebody first uses it, and a lazy negative or conjugate has its work
    to do then.
    """
    if type(rows) is not Tensor:
        return f"rows are a plain torch.Tensor, and there when result() returns: not {type(rows)}"
    if rows.layout != torch.strided or rows.is_neg() or rows.is_conj():
        return "rows are dense and lie in memory as they are: no sparse tensor, and no lazy view"
    return None


def changed_clock() -> str | None:
    """The name of a clock of :mod:`time` that is no longer the system's, or ``None``."""
    for name in (*_CLOCKS, *(f"{clock}_ns" for clock in _CLOCKS)):
        clock = getattr(time, name)
        own = type(clock) is BuiltinFunctionType and clock.__module__ == "time"
        if not own or clock.__name__ != name:
            return f"time.{name}"
    return None


class Children:
    """The processes that begin while this is entered, once or again, daemons among them."""

    def __init__(self) -> None:
        self._before, self._begun = set[psutil.Process](), set[psutil.Process]()

    def __enter__(self) -> Self:
        self._before = set(psutil.Process().children())
        _adopt_orphans(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._look()
        _adopt_orphans(False)

    def _look(self) -> None:
        self._begun |= set(psutil.Process().children()) - self._before

    def left(self) -> str | None:
        """Those that are still there, in words, and they are killed; asked while it is entered."""
        self._look()
        said = []
        for one in self._begun:
            try:
                command = " ".join(one.cmdline())
                if one.status() == psutil.STATUS_ZOMBIE or _OF_LIBRARIES.search(command):
                    continue
                said.append(f"{one.pid} ({command[:80]})")
                one.kill()
                one.wait(_KILL_S)
            except (psutil.NoSuchProcess, psutil.TimeoutExpired):
                continue
        return ", ".join(sorted(said)) or None


def _adopt_orphans(yes: bool) -> None:
    """Have a daemon, whose parent ends at once, become a child of this process (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def native_threads() -> dict[int, float]:
    """The threads that Python did not start, such as torch's pools, which spin; no seconds yet."""
    python = {thread.native_id for thread in threading.enumerate()}
    return {int(task.name): 0.0 for task in _TASKS.iterdir() if int(task.name) not in python}


def others_cpu_s(but: dict[int, float]) -> float:
    """Processor seconds of this process, but for those of this thread and of some others.

    ``but``: their seconds as they were last seen; one that has ended keeps its own.
    """
    for thread in but:
        with suppress(OSError):  # the kernel's number of a thread's CPU clock, see clock_getres(2)
            but[thread] = time.clock_gettime((~thread << 3) | 6)
    return time.process_time() - time.thread_time() - sum(but.values())
