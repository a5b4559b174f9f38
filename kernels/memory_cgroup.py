"""The memory cgroup of a process: how much memory it may take, its files' pages in memory included.

Linux has two versions of it, with other names for the same files; a system mounts one of them
(``Documentation/admin-guide/cgroup-v1/memory.rst`` and ``cgroup-v2.rst``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Version:
    """The names of a version's files, and of what they count."""

    limit: str
    usage: str
    peak: str
    #: The file that keeps memory from going to a swap disk, and whether it wants the limit or 0.
    swap: str
    swap_is_limit: bool
    #: The file that counts processes that were killed for lack of memory.
    kills: str
    #: In ``memory.stat``: pages of files, which are given up before anybody is killed.
    pages: tuple[str, ...]


V1 = Version(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.memsw.limit_in_bytes",
    True,
    "memory.oom_control",
    ("total_inactive_file", "total_active_file"),
)
V2 = Version(
    "memory.max",
    "memory.current",
    "memory.peak",
    "memory.swap.max",
    False,
    "memory.events",
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

    def set_limit(self, size: int) -> None:
        """Let its processes take so many bytes, on a swap disk none.

        Raises:
            OSError: not allowed; no such file, where the version 2 folder above shares no memory.
        """
        files = self.version
        (self.folder / files.limit).write_text(str(size))
        swap = self.folder / files.swap
        if swap.exists():
            swap.write_text(str(size if files.swap_is_limit else 0))

    def join(self) -> None:
        """Move this process in; what it holds already stays where it was charged.

        Raises:
            OSError: not allowed.
        """
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def limit(self) -> int | None:
        """Bytes that its processes may take; ``None``: no limit of its own, or nobody tells."""
        return self._number(self.version.limit)

    def peak(self) -> int | None:
        """The most that was taken, in bytes; ``None``: not told (version 2 before Linux 5.19)."""
        return self._number(self.version.peak)

    def kills(self) -> int:
        """How many processes were killed because no memory was left."""
        return self._field(self.version.kills, "oom_kill")

    def left(self) -> int | None:
        """Bytes that may still be taken, pages of files given up; ``None``: no limit."""
        limit, used = self.limit(), self._number(self.version.usage)
        if limit is None or used is None:
            return None
        pages = sum(self._field("memory.stat", name) for name in self.version.pages)
        return max(0, limit - max(0, used - pages))

    def above(self) -> Iterator[MemoryCgroup]:
        """This one and those that it is in: the limit of each holds."""
        folder = self.folder
        while (folder / "cgroup.procs").exists():
            yield MemoryCgroup(folder)
            folder = folder.parent

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
        version = V1 if controllers else V2
        mount = _mount_of(version, proc)
        if mount is None:
            continue
        # In a container the path may be that of the host, and the mount begins with our own.
        inside = mount / path.lstrip("/")
        folder = inside if inside.is_dir() else mount
        # A system with both has memory in one of them.
        if version is V1 or "memory" in (_read(folder / "cgroup.controllers") or "").split():
            return MemoryCgroup(folder)
    return None


def _mount_of(version: Version, proc: Path) -> Path | None:
    """Where the file system of the version's memory controller is mounted."""
    for line in (_read(proc / "mountinfo") or "").splitlines():
        of_mount, _, of_system = line.partition(" - ")
        kind, _, options = of_system.split(" ", 2)
        if kind == ("cgroup2" if version is V2 else "cgroup") and (
            version is V2 or "memory" in options.split(",")
        ):
            return Path(of_mount.split(" ")[4])
    return None


def available_in_cgroup() -> int | None:
    """Bytes that this process's cgroup leaves it, and those that it is in; ``None``: no limit."""
    own = own_cgroup()
    left = [one.left() for one in own.above()] if own else []
    return min((x for x in left if x is not None), default=None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
