"""The runner of the GPU tests, on tests that crash, hang, fail and break what comes after."""

import importlib
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

SUITE = Path(__file__).parents[1] / "gpu" / "suite.py"

TOY = """
import os, signal, subprocess, pytest

broken = []

@pytest.fixture(autouse=True)
def a_context(monkeypatch):
    import gpu_journal
    gpu_journal.context_is_broken = lambda: bool(broken)

def test_first(): pass

@pytest.mark.parametrize("k", range(2))
def test_poisons(k):
    broken.append(k)
    raise RuntimeError(f"illegal access {k}")

def test_only_in_a_fresh_process(): assert not broken

def test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)

def test_hangs():
    child = subprocess.Popen(["sleep", "600"])
    open("child", "w").write(str(child.pid))
    child.wait()

def test_fails(): assert 1 == 2, "plainly wrong"

def test_is_skipped(): pytest.skip("no such sensor")

def test_last(): pass
"""


def run(folder: Path, text: str, *more: str) -> subprocess.CompletedProcess[str]:
    toy = folder / "test_toy.py"
    toy.write_text(text)
    command = [sys.executable, str(SUITE), "--out", str(folder / "out"), *more, str(toy)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def outcomes(folder: Path) -> dict[str, tuple[str, str]]:
    lines = (folder / "out" / "gpu-test.jsonl").read_text().splitlines()
    return {
        e["end"].rpartition("::")[2]: (e["outcome"], e["text"])
        for e in map(json.loads, lines)
        if "end" in e
    }


def test_one_bad_test_costs_one_test(tmp_path):
    lacks = tmp_path / "test_lacks.py"  # a file that cannot be imported costs its own tests
    lacks.write_text("import no_such_package\n\ndef test_never(): pass\n")
    done = run(tmp_path, TOY, "--timeout", "6", str(lacks))
    assert done.returncode == 1, done.stderr
    found = outcomes(tmp_path)
    said = {outcome: {n for n in found if found[n][0] == outcome} for outcome, _ in found.values()}
    assert said == {
        "passed": {"test_first", "test_only_in_a_fresh_process", "test_last"},
        "failed": {
            *("collection", "test_poisons[0]", "test_poisons[1]"),
            *("test_crashes", "test_hangs", "test_fails"),
        },
        "skipped": {"test_is_skipped"},
    }
    assert "illegal access 1" in found["test_poisons[1]"][1]
    assert "status -11" in found["test_crashes"][1]
    assert "took longer than 6 s" in found["test_hangs"][1]
    child = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"
    assert "plainly wrong" in found["test_fails"][1]
    tree = ET.parse(tmp_path / "out" / "gpu-test.xml").getroot()
    assert len(tree) == 10
    assert len(tree.findall(".//failure")) == 6
    assert "No module named 'no_such_package'" in found["collection"][1]
    assert done.stdout.count("no_such_package") == 1
    assert "skipped 1: Skipped: no such sensor" in done.stdout
    assert "5 failed, 3 passed, 1 skipped" in done.stdout
    assert "Segmentation fault" in (tmp_path / "out" / "gpu-test.log").read_text()


def test_what_there_was_no_time_for_is_named(tmp_path, monkeypatch):
    """The time is up once the first test has begun."""
    hangs = "import threading\ndef test_hangs(): threading.Event().wait()\ndef test_late(): pass\n"
    toy, journal = tmp_path / "test_toy.py", tmp_path / "out" / "gpu-test.jsonl"
    toy.write_text(hangs)
    suite = importlib.import_module("tests.gpu.suite")
    begun = lambda: journal.exists() and '"start"' in journal.read_text()  # noqa: E731
    monkeypatch.setattr(suite, "time", SimpleNamespace(monotonic=lambda: 10.0 * begun()))
    assert suite.main(["--out", str(tmp_path / "out"), "--budget", "6", str(toy)]) == 1
    found = outcomes(tmp_path)
    assert found["test_late"] == ("not run", "out of time")
    assert "cut off" in found["test_hangs"][1]


@pytest.mark.parametrize(
    ("text", "status"), [("# no tests at all\n", 1), ("def test_fine(): pass\n", 0)]
)
def test_nothing_that_could_be_run_is_a_failure(tmp_path, text, status):
    done = run(tmp_path, text)
    assert done.returncode == status, done.stdout
    assert ("FAILED" in done.stdout) == bool(status)
