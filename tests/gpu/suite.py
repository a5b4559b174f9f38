"""Runs the GPU tests so that one bad test costs one test, and a cut-off run keeps what it found.

    python tests/gpu/suite.py --out FOLDER --budget 560 [--timeout 180] [TESTS ...]

An hour on a GPU is rare: a crash, a hang or a broken CUDA context must not take the other tests
with it. pytest runs in a process of its own that writes a journal; when it dies, or one test takes
too long, what was running is written down as such and the rest goes on in a fresh process. In
FOLDER: ``gpu-test.jsonl`` (the journal, as it goes), ``gpu-test.log`` and, at the end,
``gpu-test.xml`` for what reads JUnit. Exit status 1 if anything failed, or was not run.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from gpu_journal import POISONED, entries, write  # noqa: E402 - found beside this file

_LOOK_S = 0.2
#: From the start of a process to its first test: torch has to be imported and tests collected.
_FIRST_TEST_S = 120.0
#: Slow or unlikely to find something; MPS because a server that hangs may take the GPU with it.
_LAST = {"test_probe_cuda": 1, "test_sanitizer": 2, "test_mps_on_gpu": 3}
#: How long a killed process is waited for.
_KILL_S = 10.0


def run(tests: Sequence[str], out: Path, budget_s: float, timeout_s: float) -> list[dict[str, Any]]:
    """Run the tests; the last word on each: ``end``, ``outcome``, ``seconds``, ``text``."""
    deadline = time.monotonic() + budget_s
    journal = out / "gpu-test.jsonl"
    journal.unlink(missing_ok=True)
    with (out / "gpu-test.log").open("w", encoding="utf-8") as log:
        while True:
            before = len(_ended(journal))
            why = _one_process(tests, journal, log, deadline, timeout_s)
            left = _left(journal)
            if why is not None and _running(journal) is None and len(_ended(journal)) == before:
                write(journal, end=str(tests), outcome="failed", seconds=0.0, text=why)
                break
            if (stuck := _running(journal)) is not None:
                write(journal, end=stuck, outcome="failed", seconds=0.0, text=why or "ended")
                left = _left(journal)
            if not left:
                break
            if time.monotonic() >= deadline:
                for name in left:
                    write(journal, end=name, outcome="not run", seconds=0.0, text="out of time")
                break
    return _ended(journal)


def _one_process(
    tests: Sequence[str], journal: Path, log: Any, deadline: float, timeout_s: float
) -> str | None:
    """Run pytest on what has not ended yet; why it did not end by itself, or ``None``."""
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    pytest = [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini")]
    process = subprocess.Popen(
        [
            *(*pytest, "-p", "gpu_journal", "-p", "no:cacheprovider"),
            # A file that lacks an import costs its own tests, and no others.
            *("--continue-on-collection-errors", *tests),
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in paths if p),
            "PYTHONFAULTHANDLER": "1",
            "PYTHONUNBUFFERED": "1",
            "GATHERBENCH_GPU_JOURNAL": str(journal),
        },
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that what a test has started can be ended with it
    )
    noted, since, allowed = len(entries(journal)), time.monotonic(), _FIRST_TEST_S
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
            now = time.monotonic()
            if (count := len(entries(journal))) != noted:
                noted, since, allowed = count, now, timeout_s
            if now >= deadline:
                return "cut off: the time of the whole suite is used up"
            if now - since > allowed:
                return f"took longer than {allowed:g} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a hung driver holds it
                process.wait(_KILL_S)
    if process.returncode in (0, 1, POISONED):
        return None
    return f"the process ended with status {process.returncode}; see gpu-test.log"


def _ended(journal: Path) -> list[dict[str, Any]]:
    return [entry for entry in entries(journal) if "end" in entry]


def _running(journal: Path) -> str | None:
    """The test that has begun and not ended."""
    running = None
    for entry in entries(journal):
        if "start" in entry:
            running = str(entry["start"])
        elif "end" in entry:
            running = None
    return running


def _left(journal: Path) -> list[str]:
    done = {entry["end"] for entry in _ended(journal)}
    known = [name for entry in entries(journal) for name in entry.get("collected", [])]
    return [name for name in known if name not in done]


def write_junit(results: Sequence[dict[str, Any]], path: Path) -> None:
    """The results in the format that CI systems read."""
    suite = ET.Element("testsuite", name="gpu", tests=str(len(results)))
    for result in results:
        file, _, name = result["end"].partition("::")
        case = ET.SubElement(
            suite, "testcase", classname=file, name=name, time=f"{result['seconds']:.3f}"
        )
        kind = {"passed": None, "skipped": "skipped", "not run": "skipped"}
        tag = kind.get(result["outcome"], "failure")
        if tag is not None:
            text = "".join(c for c in result["text"] if c.isprintable() or c in "\n\t")
            ET.SubElement(case, tag, message=text.strip().rpartition("\n")[2]).text = text
    ET.ElementTree(suite).write(path, encoding="unicode", xml_declaration=True)


def report(results: Sequence[dict[str, Any]]) -> str:
    """What to print at the end: every failure in a line, skips by reason, totals by file."""
    lines = []
    for result in results:
        if result["outcome"] not in ("passed", "skipped"):
            last = result["text"].strip().rpartition("\n")[2]
            lines.append(f"{result['outcome'].upper()} {result['end']}: {last}")
    skips = Counter(r["text"].strip() for r in results if r["outcome"] == "skipped")
    lines += [f"skipped {count}: {reason}" for reason, count in skips.most_common()]
    files = Counter((r["end"].partition("::")[0], r["outcome"]) for r in results)
    seconds: Counter[str] = Counter()
    for result in results:
        seconds[result["end"].partition("::")[0]] += result["seconds"]
    for file in sorted({file for file, _ in files}):
        counts = ", ".join(f"{n} {what}" for (f, what), n in sorted(files.items()) if f == file)
        lines.append(f"{file}: {counts}; {seconds[file]:.0f} s")
    return "\n".join(lines)


def _all_tests() -> list[Path]:
    """The test files: what tells most first, what may disturb the GPU for others last."""
    return sorted(HERE.glob("test_*.py"), key=lambda file: (_LAST.get(file.stem, 0), file.name))


def main(arguments: Sequence[str]) -> int:
    """Run, report; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tests", nargs="*", default=[str(file) for file in _all_tests()])
    parser.add_argument("--out", type=Path, required=True, help="folder for journal, log and XML")
    parser.add_argument("--budget", type=float, default=560.0, help="seconds for everything")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one test")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    results = run(options.tests, options.out, options.budget, options.timeout)
    write_junit(results, options.out / "gpu-test.xml")
    print(report(results))
    good = {"passed", "skipped"}
    return 0 if results and all(r["outcome"] in good for r in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
