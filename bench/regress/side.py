"""Run one side of a comparison: a pytest process that runs benchmarks block by block, on command.

``turns.py`` starts this file once for each tree, with that tree's ``src`` on ``PYTHONPATH``.
It imports nothing of gatherbench itself, so it also runs the code of older commits. Both sides
run the benchmarks of the newer tree: only the code under them differs.

A pipe carries pickled objects. The side sends the names of its benchmarks and receives those to
run, in order. Of each it sends ``group`` and whether it is a yardstick when it begins, and the
seconds of the rounds of every ``(untimed, rounds)`` that it receives. ``None`` ends a benchmark,
which then checks its result and sends its error (empty if it passed). A benchmark that fails
earlier sends its error at once.
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

    def __init__(self, pipe: Connection, library: str) -> None:
        self._pipe, self._library, self._error = pipe, library, ""

    @pytest.fixture
    def benchmark(self) -> OnCommand:
        self.group, self.extra_info = None, {}
        return self

    def pedantic(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        setup: Callable[[], Any] = lambda: None,
        iterations: int = 1,
        **_rounds: int,  # as many as pytest-benchmark would run
    ) -> Any:
        """Time as many rounds as the other end of the pipe asks for; return the last result."""
        result = None
        self._pipe.send((self.group, self.extra_info.get("yardstick", False)))
        while command := self._pipe.recv():
            untimed, timed = command
            times_s = []
            for _ in range(untimed + timed):
                positional, named = setup() or (args, {})
                begin = time.perf_counter()
                for _ in range(iterations):
                    result = target(*positional, **named)
                times_s.append(time.perf_counter() - begin)
            self._pipe.send(times_s[untimed:])
        return result

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        import gatherbench

        if not Path(str(gatherbench.__file__)).is_relative_to(self._library):
            remedy = "remove what puts another gatherbench before PYTHONPATH"
            raise pytest.UsageError(f"{gatherbench.__file__} is not of {self._library}: {remedy}")
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            return  # pytest ends now, and its log says why
        items = {item.nodeid: item for item in session.items}
        self._pipe.send(list(items))
        session.items[:] = [items[name] for name in self._pipe.recv()]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed and not self._error:
            text = str(report.longrepr).strip()
            lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E  ")]
            self._error = f"{report.outcome} in {report.when}: {(lines or [text[-200:]])[-1]}"

    def pytest_runtest_logfinish(self) -> None:
        self._pipe.send(self._error)
        self._error = ""


if __name__ == "__main__":
    number, library, *options = sys.argv[1:]
    sys.exit(pytest.main(options, plugins=[OnCommand(Connection(int(number)), library)]))
