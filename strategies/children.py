"""The processes that begin while a data path is open: one that is left works for the next case."""

from __future__ import annotations

import ctypes
import re
import sys
from typing import Self

import psutil

#: Processes that libraries start once, and which end with ours.
_OF_LIBRARIES = re.compile(r"resource_tracker|forkserver|torch[./]_inductor")
_PR_SET_CHILD_SUBREAPER = 36
#: How long a process that was killed is waited for.
_KILL_S = 10.0


class Children:
    """The processes that begin while this is entered, once or again, daemons among them."""

    def __init__(self) -> None:
        self._before, self._begun = set[psutil.Process](), set[psutil.Process]()

    def __enter__(self) -> Self:
        self._before = set(psutil.Process().children())
        adopt_orphans(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._look()
        adopt_orphans(False)

    def _look(self) -> None:
        self._begun |= set(psutil.Process().children()) - self._before

    def left(self) -> str | None:
        """Those that are still there, in words, and they are killed; asked while it is entered."""
        self._look()
        said = []
        for one in self._begun:
            try:
                command = " ".join(one.cmdline())
                if one.status() == psutil.STATUS_ZOMBIE or _OF_LIBRARIES.search(command):
                    continue
                said.append(f"{one.pid} ({command[:80]})")
                one.kill()
                one.wait(_KILL_S)
            except (psutil.NoSuchProcess, psutil.TimeoutExpired):
                continue
        return ", ".join(sorted(said)) or None


def adopt_orphans(yes: bool) -> None:
    """Have what loses its parent, as a daemon, become a child of this process (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes))
