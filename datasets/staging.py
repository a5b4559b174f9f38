"""Folders that appear whole or not at all: hidden siblings, their locks, and the final rename.

A writer works in a hidden folder beside its target and holds a lock on it. The lock dies with the
process, so a hidden folder that nobody has locked is the leftover of a killed writer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from gatherbench.datasets.layout import DatasetError


def make_parent(folder: Path) -> None:
    """Make the folder in which ``folder`` shall lie.

    Raises:
        DatasetError: it cannot be made, or not be written to.
    """
    parent = folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        problem = None if os.access(parent, os.W_OK | os.X_OK) else "no permission"
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        raise DatasetError(
            f"{parent}: cannot be written to ({problem}); set GATHERBENCH_DATA to another folder"
        )


def check_free_space(place: Path, needed: int, name: str) -> None:
    """Refuse to begin what the disk of the folder ``place`` cannot hold.

    Raises:
        DatasetError: fewer than ``needed`` bytes are free.
    """
    if shutil.disk_usage(place).free < needed:
        raise no_space(place, needed, name)


def no_space(place: Path, needed: int, name: str) -> DatasetError:
    """The error of a disk that is too full for the ``needed`` bytes of ``name``."""
    return DatasetError(
        f"{place}: {name} needs {needed:,} bytes and {shutil.disk_usage(place).free:,} are free; "
        f"free some space, choose a smaller --scale, or set GATHERBENCH_DATA to a folder on a "
        f"larger disk"
    )


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove what killed writers of ``folder`` have left beside it; returns what was removed."""
    removed = []
    for leftover in folder.parent.glob(f"{_prefix(folder)}*"):
        try:
            lock = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # published or removed in the meantime
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
            removed.append(leftover)
        except BlockingIOError:
            pass  # its writer lives
        finally:
            os.close(lock)
    return removed


def locked_sibling(folder: Path) -> tuple[Path, int]:
    """A new hidden folder beside ``folder``, and the descriptor whose closing unlocks it."""
    while True:
        path = folder.with_name(_prefix(folder) + secrets.token_hex(4))
        path.mkdir()
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():  # another writer may have tidied it away before it was locked
            return path, lock
        os.close(lock)


def publish(staged: Path, folder: Path) -> None:
    """Give the finished folder ``staged`` the name ``folder``, replacing what has that name.

    Everything is on the disk before the rename, so that a power cut cannot leave a folder with
    its right name and wrong content.
    """
    for path in staged.iterdir():
        _sync(path)
    _sync(staged)
    if folder.exists():  # a folder can be renamed onto an empty one only: put the old one aside
        # Under a name at which it can be found and used, should this be the last that is done.
        old = folder.with_name(f"{folder.name}.old-{secrets.token_hex(4)}")
        folder.rename(old)
        staged.rename(folder)
        _sync(folder.parent)
        discard(old, folder)
    else:
        staged.rename(folder)
        _sync(folder.parent)


def discard(folder: Path, name: Path | None = None) -> None:
    """Remove a folder, or a link to one, so that no half of it is ever found.

    Should it not get to the end, the next writer of ``name`` (or of ``folder``) does.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    doomed = folder.with_name(_prefix(name or folder) + secrets.token_hex(4))
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Wait until no other process prepares ``folder``, and keep others waiting meanwhile."""
    make_parent(folder)
    path = folder.with_name(f".{folder.name}.lock")
    while True:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink == 0:
                continue  # who held it has removed it: there may be another file of that name
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _prefix(folder: Path) -> str:
    return f".{folder.name}.writing-"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
