"""What a data path does beside its fetches, and might not tell: facts for whoever judges it.

A fetch costs what happens between ``submit`` and ``result``. A path that has kept rows of earlier
minibatches, gathers before it is asked, goes on when it has answered, leaves a process that works
for the next case, or turns the clock looks faster than it is, and its rows are right. The
conformance suite asks all of this, and a run what can be asked beside a training.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import BuiltinFunctionType
from typing import Self

import psutil
import torch
from torch import Tensor

from gatherbench.kernels.reference import byte_rows, reference_gather
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.base import Fetcher

#: Processes that libraries start once, and which end with ours.
_OF_LIBRARIES = re.compile(r"resource_tracker|forkserver|torch[./]_inductor")
_PR_SET_CHILD_SUBREAPER = 36
_TASKS = Path("/proc/self/task")
#: How long a process that was killed is waited for.
_KILL_S = 10.0
#: Rows of a minibatch that change in the table.
LOOKED_AT = 4096
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


def kept_rows(
    fetcher: Fetcher, table: Tensor, ids: Tensor, file: TableFile | None = None
) -> Tensor:
    """Which rows of a fetch do not come from the table that ``open`` was given, bool.

    When an epoch has begun and nothing has been asked for, every bit changes in the table of the
    rows that are looked at: up to :data:`LOOKED_AT` of ``ids``, at equal distances. Whatever still
    has its earlier bytes was copied before. Afterwards the table is as it was. Nothing may be in
    flight, and the path may not learn: it would learn wrong rows.

    Args:
        table: ``[N, D]``, writable, and nobody else's meanwhile.
        ids: int64 ``[B]`` on the host.
        file: where the table lies, if the path reads a file.
    """
    fetcher.forget()
    fetcher.begin_epoch()
    looked_at = slice(None, None, max(1, len(ids) // LOOKED_AT))
    before = reference_gather(table, ids[looked_at])
    with _inverted(fetcher, table, ids[looked_at], file):
        given = fetcher.taken(ids)
        if fetcher.announced:
            fetcher.announce(given)
        rows = fetcher.submit(given).result()[looked_at].cpu().contiguous()
    if (rows.dtype, rows.shape) != (before.dtype, before.shape):  # others say that they are wrong
        return torch.zeros(len(before), dtype=torch.bool)
    return (byte_rows(rows) == byte_rows(before)).any(dim=1)


@contextmanager
def _inverted(
    fetcher: Fetcher, table: Tensor, ids: Tensor, file: TableFile | None
) -> Iterator[None]:
    def invert() -> None:
        if fetcher.device.type == "cuda":  # which may still read what it was asked for
            torch.cuda.synchronize(fetcher.device)
        # By NumPy, so that torch sees no write: paths that copy rows would refuse to go on.
        bits, at = byte_rows(table).numpy(), ids.numpy()
        bits[at] = ~bits[at]
        if file is not None:
            with file.path.open("r+b") as changed:
                changed.seek(file.offset)
                changed.write(byte_rows(table).numpy().tobytes())

    invert()
    try:
        yield
    finally:
        invert()


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
