"""Find how much memory a process's cgroup leaves it, as in a container.

Linux has two versions of cgroups, with different names for the same files
(``Documentation/admin-guide/cgroup-v1/memory.rst`` and ``cgroup-v2.rst``).
"""

from __future__ import annotations

import re
from pathlib import Path

_PROC, _MOUNT = Path("/proc/self"), Path("/sys/fs/cgroup")
#: Version 2, then version 1: the file of the limit, the file of the use, and the entry in
#: ``memory.stat`` for pages of files, which are given up before a process is killed.
_NAMES = (
    ("memory.max", "memory.current", r"(?:in)?active_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", r"total_(?:in)?active_file"),
)


def available_in_cgroup(proc: Path = _PROC, mount: Path = _MOUNT) -> int | None:
    """Return the bytes that this process's cgroup and its parents leave it; ``None``: no limit.

    Args:
        proc: the process's folder under ``/proc``.
        mount: where systemd and containers mount cgroups; version 1's are below ``memory``.
    """
    left = []
    for line in _text(proc / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = mount / "memory" if controllers else mount
        # In a container the path may be the host's, while the mount begins at this cgroup.
        inside = root / path.lstrip("/")
        folder = inside if inside.is_dir() else root
        for one in (folder, *folder.parents):
            if (one / "cgroup.procs").exists():
                left += [_left(one, *names) for names in _NAMES]
    return min((size for size in left if size is not None), default=None)


def _left(folder: Path, limit_file: str, used_file: str, pages: str) -> int | None:
    """Return the bytes still free, with pages of files given up; ``None``: no limit."""
    limit, used = _number(folder / limit_file), _number(folder / used_file)
    if limit is None or used is None:
        return None
    stat = re.findall(rf"^{pages} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
    return max(0, limit - max(0, used - sum(map(int, stat))))


def _number(file: Path) -> int | None:
    """Read a number; ``None`` for "max", and for version 1's number for it, near 2^63."""
    text = _text(file).strip()
    return int(text) if text.isdecimal() and int(text) < 1 << 60 else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
