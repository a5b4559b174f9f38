"""Folders whose files are executed: compiled kernels, and loops that numba has compiled.

Anyone who can write there runs code as this user, so only this user may write to such a folder.
Any other folder is left untouched, and nothing is cached: compiling again is slow, never wrong.
"""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(kind: str) -> Path:
    """Return the default folder for this user's compiled code of a ``kind``."""
    # Path.expanduser raises where a user has no home.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(cache).absolute() / "gatherbench" / kind


def private_folder(folder: Path) -> bool:
    """Tell whether only this user can put files into ``folder``; make it (0700) if it is missing.

    It must belong to this user and not be a symbolic link, and other users must neither be able to
    write to it nor to replace it. Otherwise a ``RuntimeWarning`` names the reason and the remedy.
    If no folder can be made or written, the answer is false without a warning.
    """
    folder = folder.absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        pass  # a file, or a broken link: reported below
    except OSError:
        return False
    reason = _reason(folder)
    if reason:
        warnings.warn(
            f"{folder}: {reason}, so no compiled code is taken from there or kept; remove it "
            "(it is made anew, for you alone) or name another folder",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return os.access(folder, os.W_OK)


def _reason(folder: Path) -> str:
    """Return why others may put files into an existing folder; empty if they may not."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "it is no folder" if not folder.is_symlink() else "it is a symbolic link"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & _OTHERS_WRITE:
        return f"others may write there (mode {stat.S_IMODE(found.st_mode):04o})"
    for above in folder.resolve().parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"others may replace it (mode {stat.S_IMODE(mode):04o} of {above})"
    return ""
