"""Folders whose files are executed: compiled kernels, and loops that numba has compiled.

Anyone who can write there runs code as this user, so only this user may write to such a folder.
Any other folder is left untouched, and nothing is cached: compiling again is slow, never wrong.
"""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path


def cache_folder(kind: str) -> Path:
    # Path.expanduser raises where a user has no home.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(cache).absolute() / "gatherbench" / kind


def private_folder(folder: Path) -> bool:
    """Tell whether only this user can put files into ``folder``; make it (0700) if it is missing.
    If others can, a ``RuntimeWarning`` says so."""
    folder = folder.absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        pass  # a file, or a broken link: reported below
    except OSError:
        return False
    status = folder.lstat()  # a link is no folder
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not others_write
    above = (parent.stat().st_mode for parent in folder.resolve().parents)
    if own and all(mode & stat.S_ISVTX or not mode & stat.S_IWOTH for mode in above):
        return os.access(folder, os.W_OK)
    warnings.warn(
        f"{folder} is no folder that this user alone can write to and replace, so no compiled code"
        " is taken from there or kept; remove it or name another folder",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
