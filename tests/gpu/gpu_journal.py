"""A pytest plugin that writes down each test as it begins and as it ends; see ``suite.py``.

A test that fails may leave the process's CUDA context broken, and then every later test fails too
and says nothing. So after a failure the context is tried, and a process that has lost it ends.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

#: Exit status of a process that ends because its CUDA context is broken.
POISONED = 70
_last: dict[str, Any] = {}


def entries(path: Path) -> list[dict[str, Any]]:
    """The journal; a torn last line is none yet."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def write(path: Path, **entry: object) -> None:
    """Append an entry; it is on its way to the disk when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def context_is_broken() -> bool:
    """Whether CUDA answers no more in this process."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def _journal() -> Path:
    return Path(os.environ["GATHERBENCH_GPU_JOURNAL"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = _journal()
    before = entries(path)
    if not any("collected" in entry for entry in before):
        write(path, collected=[item.nodeid for item in items])
    ended = {entry["end"] for entry in before if "end" in entry}
    done = [item for item in items if item.nodeid in ended]
    config.hook.pytest_deselected(items=done)
    items[:] = [item for item in items if item.nodeid not in ended]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    path, name = _journal(), report.nodeid or "collection"  # a file outside has no id
    if report.failed and not any(entry.get("end") == name for entry in entries(path)):
        write(path, end=name, outcome="failed", seconds=0.0, text=report.longreprtext)


def pytest_runtest_logstart(nodeid: str) -> None:
    _last.clear()
    _last.update(end=nodeid, outcome="passed", seconds=0.0, text="")
    write(_journal(), start=nodeid, at=time.time())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _last["seconds"] += report.duration
    if report.outcome != "passed" and _last["outcome"] != "failed":
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        _last.update(outcome=report.outcome, text=text[-6000:])


def pytest_runtest_logfinish() -> None:
    write(_journal(), **_last)
    if _last["outcome"] == "failed" and context_is_broken():
        sys.stdout.flush()
        os._exit(POISONED)
