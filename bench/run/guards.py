"""What a run needs around it: sole use of its folder, SIGTERM as Ctrl-C, why a worker died."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.store import StoreError, write_atomically
from gatherbench.bench.run.worker import DISK_FULL

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
            pass  # a file system without locks, where nobody can tell
        yield
    finally:
        os.close(lock)


def other_data(folder: Path, workload: Workload, identity: str) -> str | None:
    """Why a run must not go on with this dataset: it began with another. Keeps the first.

    Args:
        folder: of the run.
        identity: of :func:`gatherbench.bench.sampling.prepare.identity`.

    Raises:
        StoreError: the run's ``data.json`` was damaged.
    """
    file = folder / "data.json"
    try:
        known = dict(json.loads(file.read_bytes())) if file.exists() else {}
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{file}: cannot be read ({error}); it says what the run began with: start a new run"
        ) from error
    if known.setdefault(workload.id, identity) != identity:
        return (
            f"{workload.dataset} is not what this run began with: it was imported or made anew"
            " since; start a new run, or import it as it was"
        )
    write_atomically(file, json.dumps(known, indent=2) + "\n")
    return None


def _lock(folder: int) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # perhaps by one that looks whether it is_running, for an instant
        time.sleep(_INSTANT_S)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_running(folder: Path) -> bool | None:
    """Whether a runner is at work on the folder; ``None``: its file system does not tell."""
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
    """SIGTERM, for whoever tells it from Ctrl-C."""


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Answer SIGTERM as Ctrl-C: stop the case in flight and keep what there is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def death_of(code: int, log: str) -> str | None:
    """Why a worker that said nothing died, in words; ``None`` if it ended well."""
    if code == 0:
        return None
    if code == DISK_FULL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    last = next((x.strip() for x in reversed(log.splitlines()) if x.strip()), "it printed nothing")
    if code < 0:
        known = {int(s): s.name for s in signal.Signals}
        name = known.get(-code, f"signal {-code}")
        hint = " (most likely out of memory)" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}; last words: {last}"
    return f"exit status {code}; last words: {last}"
