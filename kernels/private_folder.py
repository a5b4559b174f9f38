"""Folders whose files are executed: compiled kernels, and what numba made of our loops.

Whoever can write there runs code as this user, so such a folder must belong to this user alone.
Any other is left untouched, and nothing is kept: compiling again is slow, never wrong.
"""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(kind: str) -> Path:
    """Where this user's compiled code of a ``kind`` is kept unless another place is named."""
    # Path.expanduser raises where a user has no home.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(cache).absolute() / "gatherbench" / kind


def private_folder(folder: Path) -> bool:
    """Whether only this user can put files into ``folder``, which is made (0700) where it is not.

    It is a folder of this user's, reached by no symbolic link of its own, in which nobody else may
    write, and nobody else may put another one in its place. If it is not, a ``RuntimeWarning``
    names the reason and the remedy; where no folder can be made or written, there is nothing to
    warn of.
    """
    folder = folder.absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        pass  # a file, or a link that leads nowhere: told below
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
    """Why others may put files into an existing folder; empty if they may not."""
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
