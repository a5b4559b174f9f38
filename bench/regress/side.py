"""One side of a comparison: a pytest process that runs one benchmark at a time on command.

``against.py`` starts this file once for each tree, with that tree's ``src`` on ``PYTHONPATH``.
It imports nothing of gatherbench itself, so it also runs the code of older commits. Both sides
run the benchmarks of the newer tree: only the code under them differs.

It exchanges one JSON object a line on the standard input and output it started with. A benchmark
begins, is timed for as many blocks as are requested, and ends, upon which it checks its result::

    < {"items": ["bench/regress/bench_x.py::test_y[1]", ...], "uncollected": [...], "package": "…"}
    > {"begin": "bench/regress/bench_x.py::test_y[1]", "next": "…" or null}
    < {"group": "…", "extra_info": {…}}
    > {"untimed": 1, "rounds": 5}
    < {"times_s": [...]}
    > {"end": true}
    < {}

An answer may be ``{"error": "…"}`` instead; the benchmark has then ended. The end of the input
ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest
from _pytest.runner import runtestprotocol

#: Page faults of a fresh tensor: a yardstick that costs more than all the rest.
LEFT_OUT = "not test_indexing"


class OnDemand:
    """The ``benchmark`` fixture of a benchmark: ``pedantic`` of pytest-benchmark.

    It runs as many rounds as the other end of the pipe requests, whatever the benchmark requests.
    """

    def __init__(self, receive: Callable[[], dict[str, Any]], say: Callable[..., None]) -> None:
        self.group: str | None = None
        self.extra_info: dict[str, Any] = {}
        self._receive, self._say = receive, say

    def pedantic(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        rounds: int = 1,
        warmup_rounds: int = 0,
        iterations: int = 1,
    ) -> Any:
        """Time blocks of rounds until the command to end; return the last round's result."""
        result, named = None, kwargs or {}
        self._say(group=self.group, extra_info=self.extra_info)
        while "end" not in (command := self._receive()):
            times_s = []
            for _ in range(command["untimed"] + command["rounds"]):
                if setup is not None:
                    args, named = setup() or (args, named)
                begin = time.perf_counter()
                for _ in range(iterations):
                    result = target(*args, **named)
                times_s.append(time.perf_counter() - begin)
            self._say(times_s=times_s[command["untimed"] :])
        return result


class OnCommand:
    """A pytest plugin that runs benchmarks on command instead of each one once."""

    def __init__(self, commands: TextIO, answers: TextIO) -> None:
        self._commands, self._answers = commands, answers
        self._uncollected: list[str] = []

    @pytest.fixture
    def benchmark(self) -> OnDemand:
        """Replace the fixture of pytest-benchmark."""
        return OnDemand(self._receive, self._say)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._uncollected.append(f"{report.nodeid}: {_last_line(report)}")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        import gatherbench

        items = {item.nodeid: item for item in session.items}
        package = str(Path(str(gatherbench.__file__)).parent)
        self._say(items=list(items), uncollected=self._uncollected, package=package)
        while command := self._receive():
            after = command["next"]
            # pytest keeps the fixtures of this module, such as tables, for the next benchmark.
            keep: Any = items[after].parent if after is not None else None
            reports = runtestprotocol(items[command["begin"]], log=False, nextitem=keep)
            bad = next((report for report in reports if not report.passed), None)
            if bad is None:
                self._say()
            else:
                self._say(error=f"{bad.outcome} in {bad.when}: {_last_line(bad)}")
        return True

    def _receive(self) -> dict[str, Any]:
        """Return the next command; empty at the end of the input."""
        line = self._commands.readline()
        command: dict[str, Any] = json.loads(line) if line else {}
        return command

    def _say(self, **answer: Any) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def _last_line(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return the line of a long report that names the error."""
    lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E  ")]
    return lines[-1][1:].strip() if lines else str(report.longrepr).strip()[-200:]


def main(top: str) -> int:
    """Serve the benchmarks of the tree ``top`` until the input ends."""
    # pytest takes over the streams and prints: its output goes to the log.
    commands, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    options = ["-o", "python_files=bench_*.py", "-o", "addopts=--import-mode=importlib"]
    options += ["-o", "timeout=0", "-p", "no:cacheprovider", "-p", "no:benchmark", "-q"]
    options += ["-k", LEFT_OUT, "--continue-on-collection-errors", f"--rootdir={top}"]
    folder = str(Path(top) / "bench" / "regress")
    return pytest.main([*options, folder], plugins=[OnCommand(commands, answers)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
