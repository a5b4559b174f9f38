"""How much memory a process's cgroup leaves it, as in a container.

Linux has two versions of it, with other names for the same files; a system mounts one of them
(``Documentation/admin-guide/cgroup-v1/memory.rst`` and ``cgroup-v2.rst``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc/self")


class Version(NamedTuple):
    """The names of a version's files, and of what they count."""

    limit: str
    usage: str
    #: In ``memory.stat``: pages of files, which are given up before anybody is killed.
    pages: tuple[str, ...]


V1 = Version(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
V2 = Version(
    "memory.max",
    "memory.current",
    ("inactive_file", "active_file"),
)


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """A folder of the control group file system."""

    folder: Path

    @property
    def version(self) -> Version:
        """Known by its files."""
        return V1 if (self.folder / V1.limit).exists() else V2

    def left(self) -> int | None:
        """Bytes that may still be taken, pages of files given up; ``None``: no limit is told."""
        limit, used = self._number(self.version.limit), self._number(self.version.usage)
        if limit is None or used is None:
            return None
        pages = sum(self._field("memory.stat", name) for name in self.version.pages)
        return max(0, limit - max(0, used - pages))

    def _field(self, file: str, name: str) -> int:
        text = _read(self.folder / file) or ""
        found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def _number(self, file: str) -> int | None:
        """What the file says; ``None`` of "max", and of version 1's word for it, near 2^63."""
        text = (_read(self.folder / file) or "max").strip()
        return int(text) if text.isdecimal() and int(text) < 1 << 60 else None


def own_cgroup(proc: Path = _PROC) -> MemoryCgroup | None:
    """The memory cgroup that this process is in; ``None``: there is none, or it is not shown.

    Args:
        proc: the process's folder under ``/proc``.
    """
    for line in (_read(proc / "cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = _mount(proc, "memory" if controllers else None)
        if mount is None:
            continue
        # In a container the path may be that of the host, and the mount begins with our own.
        inside = mount / path.lstrip("/")
        folder = inside if inside.is_dir() else mount
        # A system with both has memory in one of them.
        if controllers or "memory" in (_read(folder / "cgroup.controllers") or "").split():
            return MemoryCgroup(folder)
    return None


def _mount(proc: Path, controller: str | None) -> Path | None:
    """Where version 1's file system of a controller is mounted, or version 2's, which has all."""
    for line in (_read(proc / "mountinfo") or "").splitlines():
        of_mount, _, of_system = line.partition(" - ")
        kind, _, options = of_system.split(" ", 2)
        named = controller in options.split(",") if controller else True
        if named and kind == ("cgroup" if controller else "cgroup2"):
            return Path(of_mount.split(" ")[4])
    return None


def available_in_cgroup() -> int | None:
    """Bytes that this process's cgroup leaves it, and those that it is in; ``None``: no limit."""
    own, left = own_cgroup(), []
    if own is not None:
        for folder in (own.folder, *own.folder.parents):
            if (folder / "cgroup.procs").exists():
                left.append(MemoryCgroup(folder).left())
    return min((x for x in left if x is not None), default=None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
