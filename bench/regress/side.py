"""Run one side of a comparison: a pytest process that runs benchmarks block by block, on command.

``turns.py`` starts this file once for each tree, with that tree's ``src`` on ``PYTHONPATH``.
It imports nothing of gatherbench itself, so it also runs the code of older commits. Both sides
run the benchmarks of the newer tree: only the code under them differs.

A pipe carries pickled objects. The side sends the names of its benchmarks, the errors of files that
cannot be read, and the folder of the package; it receives the names to run, in order. Of each it
sends ``group`` and ``extra_info`` when it begins, and the seconds of the rounds of every
``(untimed, rounds)`` that it receives. ``None`` ends a benchmark, which then checks its result and
sends its error (empty if it passed). A benchmark that fails earlier sends its error at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest


class OnCommand:
    """A pytest plugin whose fixture ``benchmark`` replaces that of pytest-benchmark."""

    group: str | None
    extra_info: dict[str, Any]

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._unread, self._error = pipe, list[str](), ""

    @pytest.fixture
    def benchmark(self) -> OnCommand:
        self.group, self.extra_info = None, {}
        return self

    def pedantic(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        setup: Callable[[], Any] | None = None,
        iterations: int = 1,
        **_rounds: int,  # as many as pytest-benchmark would run
    ) -> Any:
        """Time as many rounds as the other end of the pipe asks for; return the last result."""
        result, kwargs = None, dict[str, Any]()
        self._pipe.send((self.group, self.extra_info))
        while command := self._pipe.recv():
            untimed, timed = command
            times_s = []
            for _ in range(untimed + timed):
                if setup is not None:
                    args, kwargs = setup() or (args, kwargs)
                begin = time.perf_counter()
                for _ in range(iterations):
                    result = target(*args, **kwargs)
                times_s.append(time.perf_counter() - begin)
            self._pipe.send(times_s[untimed:])
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._unread.append(f"{report.nodeid}: {_last_line(report)}")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        import gatherbench

        items = {item.nodeid: item for item in session.items}
        self._pipe.send((list(items), self._unread, str(gatherbench.__file__)))
        session.items[:] = [items[name] for name in self._pipe.recv()]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed and not self._error:
            self._error = f"{report.outcome} in {report.when}: {_last_line(report)}"

    def pytest_runtest_logfinish(self) -> None:
        self._pipe.send(self._error)
        self._error = ""


def _last_line(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return the line of a long report that names the error."""
    lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E  ")]
    return lines[-1][1:].strip() if lines else str(report.longrepr).strip()[-200:]


def main(top: str, pipe: str) -> int:
    """Serve the benchmarks of the tree ``top`` at the pipe with this file descriptor."""
    options = ["-o", "python_files=bench_*.py", "-o", "addopts=--import-mode=importlib"]
    options += ["-o", "timeout=0", "-p", "no:cacheprovider", "-p", "no:benchmark", "-vs"]
    options += ["--continue-on-collection-errors", f"--rootdir={top}"]
    folder = str(Path(top) / "bench" / "regress")
    return pytest.main([*options, folder], plugins=[OnCommand(Connection(int(pipe)))])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
