"""Write files and folders that appear whole or not at all, one writer at a time.

A folder is filled under a hidden name next to its target and renamed when it is finished. A lock
makes other writers of the same folder wait. It is released when its process ends, so for its holder
an existing hidden folder is the remainder of a killed writer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from gatherbench.datasets.dataset import DatasetError

_ROOM = (
    "free some space, choose a smaller --scale or max_batches, or set GATHERBENCH_DATA to a folder "
    "on a larger disk"
)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that takes the name ``path`` when the block ends without an error.

    A reader sees either the old file or the new one, whole, even after a power cut.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the only right to write ``folder``: wait for it, and make other writers wait.

    The thread that holds the right may enter again. It raises as :func:`make_parent`.
    """
    make_parent(folder)
    path = folder.with_name(f".{folder.name}.lock")
    with FileLock(path, is_singleton=True, poll_interval=0.02) as lock:
        try:
            yield
        finally:
            if lock.lock_counter == 1:  # a waiting writer notices, and makes another
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder to fill, which is renamed ``folder`` when the block succeeds.

    It replaces an existing ``folder``; after an error it is removed. Hold :func:`exclusive`. A full
    disk raises ``DatasetError``.
    """
    staged, old = _hidden(folder), None
    shutil.rmtree(staged, ignore_errors=True)  # of a killed writer
    staged.mkdir()
    try:
        yield staged
        # Before the rename: even after a power cut the right name has the right content.
        for path in (*staged.iterdir(), staged):
            _sync(path)
        if folder.exists():
            # A folder can only be renamed onto an empty one. Until then the old one keeps a name
            # under which it can be opened.
            old = folder.rename(folder.with_name(f"{folder.name}.old-{secrets.token_hex(4)}"))
        staged.rename(folder)
        _sync(folder.parent)
        if old is not None:
            discard(old, folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DatasetError(f"{folder}: the disk is full; {_ROOM}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def discard(folder: Path, name: Path | None = None) -> None:
    """Remove a folder, or a link to one, so that readers see it whole or not at all.

    If this is interrupted, the next writer of ``name`` (default: ``folder``) completes it.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    doomed = _hidden(name or folder)
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def make_parent(folder: Path) -> None:
    """Make the parent of ``folder``; a ``DatasetError`` if it cannot be made or written to."""
    parent = folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no permission")
    except OSError as error:
        fault = f"cannot be written to ({error.strerror}); set GATHERBENCH_DATA to another folder"
        raise DatasetError(f"{parent}: {fault}") from error


def check_free_space(place: Path, needed: int, name: str) -> None:
    """Refuse (``DatasetError``) what needs more bytes than are free on the disk of a folder."""
    free = shutil.disk_usage(place).free
    if free < needed:
        raise DatasetError(f"{place}: {name} needs {needed:,} bytes and {free:,} are free; {_ROOM}")


def check_memory(needed: int, what: str) -> None:
    """Refuse (``DatasetError``) what free memory, or this process's limit, has no room for."""
    import psutil  # readers of a dataset skip this import

    override = os.environ.get("GATHERBENCH_MEMORY_GIB")  # overrides the kernel's number
    free = float(override) * 2**30 if override else psutil.virtual_memory().available
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        free = min(free, limit - psutil.Process().memory_info().vms)
    if needed > free:
        few = f"and {int(free):,} are free"
        raise DatasetError(f"{what} need about {needed:,} bytes of memory, {few}")


def _hidden(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.writing")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
