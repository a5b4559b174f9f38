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

_INSTANT_S = 0.1


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Refuse a second runner on the same folder: it would measure cases twice."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            _lock(lock)
        except BlockingIOError as error:
            raise StoreError(f"{folder}: another process is running this folder") from error
        except OSError:
            pass  # a file system without locks gives no answer
        yield
    finally:
        os.close(lock)


def _lock(folder: int) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # perhaps held for an instant by is_running
        time.sleep(_INSTANT_S)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_running(folder: Path) -> bool | None:
    """Return whether a runner works on the folder; ``None``: its file system has no locks."""
    try:
        look = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(look, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(look)
    return False


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
