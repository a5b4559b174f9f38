"""The two sides as processes: how ``against.py`` starts, asks and ends a ``side.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

SIDE = Path(__file__).with_name("side.py")


class SideError(Exception):
    """A side that cannot be run, or has died; the message says which, and its last words."""


class BenchmarkError(Exception):
    """A benchmark that a side cannot run; the message is its error."""


class Side(Protocol):
    """One tree's benchmarks, one of which is begun, timed and ended at a time."""

    items: Sequence[str]
    uncollected: Sequence[str]

    def begin(self, name: str, after: str | None) -> dict[str, Any]:
        """Its ``group`` and ``extra_info``. ``after`` comes next: tables that it shares stay.

        Raises:
            BenchmarkError: it cannot be run.
        """
        ...

    def block(self, untimed: int, rounds: int) -> list[float]:
        """The seconds of each of the next ``rounds`` rounds, after ``untimed`` others.

        Raises:
            BenchmarkError: it failed, and has ended.
        """
        ...

    def end(self) -> None:
        """Let it check what it computed.

        Raises:
            BenchmarkError: that was wrong.
        """
        ...


class Process:
    """A :class:`Side` in a process of its own.

    Args:
        label: what messages call it.
        library: the tree whose code is measured.
        benchmarks: the tree whose benchmarks measure it.
        scratch: a folder of this side alone, for compiled code and the log.
    """

    def __init__(self, label: str, library: Path, benchmarks: Path, scratch: Path) -> None:
        self.items: Sequence[str] = ()
        self.uncollected: Sequence[str] = ()
        self._label, self._library, self._log = label, library, scratch / "log.txt"
        self._now = "while it collected its benchmarks"
        scratch.mkdir(exist_ok=True)
        with self._log.open("w") as log:
            # -P: nothing beside side.py may shadow a module.
            self._process = subprocess.Popen(
                [sys.executable, "-P", SIDE, benchmarks],
                cwd=benchmarks,
                env=_environment(library, scratch),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is ours to handle
            )

    def wait_until_ready(self) -> None:
        """Imports and collects; both sides may do so at once.

        Raises:
            SideError: it died, or runs another tree's code.
        """
        hello = self._read()
        self.items, self.uncollected = hello["items"], hello["uncollected"]
        if not Path(hello["package"]).is_relative_to(self._library):
            raise SideError(
                f"{self._label} would measure {hello['package']}, not {self._library}: "
                "remove what puts another gatherbench before PYTHONPATH"
            )

    def begin(self, name: str, after: str | None) -> dict[str, Any]:
        """See :class:`Side`."""
        self._now = name
        return self._ask(begin=name, next=after)

    def block(self, untimed: int, rounds: int) -> list[float]:
        """See :class:`Side`."""
        times_s: list[float] = self._ask(untimed=untimed, rounds=rounds)["times_s"]
        return times_s

    def end(self) -> None:
        """See :class:`Side`."""
        self._ask(end=True)

    def close(self) -> None:
        """End it, at once: there is nothing left that it should save."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: _read says how
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise BenchmarkError(answer["error"])
        return answer

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            last_words = "\n".join(self._log.read_text().strip().splitlines()[-15:])
            raise SideError(f"{self._label} ended with {status} {self._now}:\n{last_words}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(frozen=True, slots=True)
class Trees:
    """Where both sides' code is, and a folder for what they write."""

    base: Path
    head: Path
    scratch: Path

    @contextmanager
    def open(self) -> Iterator[tuple[Side, Side]]:
        """A fresh process of each, base first, ready."""
        base = head = None
        try:
            base = Process("the base", self.base, self.head, self.scratch / "base")
            head = Process("the head", self.head, self.head, self.scratch / "head")
            base.wait_until_ready()
            head.wait_until_ready()
            yield base, head
        finally:
            for side in (base, head):
                if side is not None:
                    side.close()


def _environment(library: Path, scratch: Path) -> dict[str, str]:
    """Compiled code is kept for each side apart: numba does not see what a callee became."""
    path = [str(library / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "NUMBA_CACHE_DIR": str(scratch / "numba"),
        "GATHERBENCH_KERNEL_CACHE": str(scratch / "kernels"),
        "GATHERBENCH_REGRESS_SMALL": "1",  # every process begins anew
        # Threads that spin after their work would do so on the other side's cores.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
