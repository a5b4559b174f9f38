"""Guards of a run: sole use of its folder, and SIGTERM and SIGHUP handled as Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gatherbench.bench.run.part import StoreError

#: A look of :func:`is_running` holds the lock for less.
_INSTANT_S = 0.1


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Refuse a second runner on the same folder: it would measure cases twice."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        if _locked(lock, fcntl.LOCK_EX) is False:
            time.sleep(_INSTANT_S)
            if _locked(lock, fcntl.LOCK_EX) is False:
                raise StoreError(f"{folder}: another process is running this folder")
        yield
    finally:
        os.close(lock)


def is_running(folder: Path) -> bool | None:
    """Return whether a runner works on the folder; ``None``: its file system has no locks."""
    try:
        look = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    locked = _locked(look, fcntl.LOCK_SH)
    os.close(look)
    return None if locked is None else not locked


def _locked(folder: int, how: int) -> bool | None:
    """Lock an open folder; return whether that worked; ``None``: its file system has no locks."""
    try:
        fcntl.flock(folder, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class RunStopped(RuntimeError):  # noqa: N818 - not a fault of the program
    """The run cannot continue now; its measurements are safe, and it can be resumed."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, as distinct from Ctrl-C; its argument is the number."""


def status_of(stop: KeyboardInterrupt) -> int:
    """Return the exit status of a program that was stopped like this, as a shell has it."""
    return 128 + int(stop.args[0] if isinstance(stop, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP as Ctrl-C: stop the case in flight and keep all results."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: object) -> None:
        raise Terminated(number)

    ended_by = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        ended_by.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in ended_by}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
