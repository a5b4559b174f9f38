"""A tree against a commit: a real repository of a moment's benchmarks, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatherbench.bench.regress import against, blocks, sides
from gatherbench.bench.regress.blocks import MIN_PAIRS
from gatherbench.bench.regress.sides import TreeError, files_of, find_commit, is_dirty, top_of

WORK = "def work() -> int:\n    return sum(range({size}))\n"
BENCH = """
import pytest
from gatherbench import work

@pytest.mark.parametrize("name", work.NAMES)
def test_work(benchmark, name):
    benchmark.group = "work"
    assert benchmark.pedantic(work.work, rounds=3) > 0

def test_yardstick(benchmark):
    benchmark.group = "other"
    benchmark.extra_info["yardstick"] = True
    assert benchmark.pedantic(lambda: sum(range(20_000))) > 0
"""
Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """A repository with one commit, tagged ``before``; the function runs git in it."""
    repository = tmp_path / "repository"
    package = repository / "src" / "gatherbench"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()

    def run(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        command = ["git", "-C", str(repository), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "-q")
    (repository / "bench" / "regress").mkdir(parents=True)
    (repository / "bench" / "regress" / "bench_work.py").write_text(BENCH)
    write_work(repository, 20_000, ["one", "gone"])
    run("add", "-A")
    run("commit", "-q", "-m", "before")
    run("tag", "before")
    return run


def write_work(repository: Path, size: int, names: list[str]) -> None:
    text = WORK.format(size=size) + f"NAMES = {names}\n"
    (repository / "src" / "gatherbench" / "work.py").write_text(text)


@pytest.fixture
def repository(git: Git) -> Path:
    return Path(git("rev-parse", "--show-toplevel"))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the module makes its temporary folders."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(sides.tempfile, "tempdir", str(folder))
    return folder


def found(repository: Path, *options: str) -> tuple[int, dict[str, Any]]:
    file = repository / "found.json"
    status = against.main(["before", "--tree", str(repository), "--json", str(file), *options])
    return status, json.loads(file.read_text())


def test_both_sides_run_their_own_code(
    repository: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "MOST_PAIRS", MIN_PAIRS)
    write_work(repository, 200_000, ["one", "added"])
    status, result = found(repository, "--budget", "60")
    entries = {e["name"].rpartition("::")[2]: e for e in result["benchmarks"]}
    words = {name: entry["verdict"] for name, entry in entries.items()}
    assert words["test_work[added]"] == "NEW"
    assert words["test_work[gone]"] == "MISSING"
    assert words["test_work[one]"] == "SLOW"
    assert words["test_yardstick"] in ("SAME", "AMBIGUOUS")
    assert status == 1
    assert entries["test_work[one]"]["ratio"] > 5
    assert entries["test_yardstick"]["yardstick"] is True
    samples = entries["test_work[one]"]["samples"]
    assert all(len(s["base_s"]) == len(s["head_s"]) == len(s["head_first"]) for s in samples)
    assert any(any(s["head_first"]) for s in samples)
    assert not all(all(s["head_first"]) for s in samples)
    assert result["base"] == {"ref": "before", "commit": find_commit(repository, "before").sha}
    assert result["head"]["ref"] == "working tree"
    assert not list(scratch.iterdir())


def test_what_only_this_tree_cannot_run_has_failed(repository: Path, scratch: Path) -> None:
    (repository / "src" / "gatherbench" / "work.py").write_text(
        "NAMES = ['one']\ndef work():\n    raise RuntimeError('broken on purpose')\n"
    )
    status, result = found(repository, "--budget", "1", "--only", "e")
    entry = next(e for e in result["benchmarks"] if "[one]" in e["name"])
    assert entry["verdict"] == "FAILED"
    assert "broken on purpose" in entry["reason"]
    assert status == 1


def test_a_budget_for_no_pair_judges_nothing(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, result = found(repository, "--budget", "0.1")
    assert status == 0
    assert "larger budget" in capsys.readouterr().out
    assert {e["verdict"] for e in result["benchmarks"]} == {"AMBIGUOUS"}
    assert all("0 of at least 6 pairs" in e["reason"] for e in result["benchmarks"])


def test_a_process_that_dies_is_named_with_its_last_words(
    repository: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "src" / "gatherbench" / "work.py").write_text(
        "import os, sys\nNAMES = ['one']\ndef work():\n"
        "    os.write(2, b'the last words')\n    os._exit(3)\n"
    )
    status = against.main(["before", "--tree", str(repository), "--only", "one"])
    message = capsys.readouterr().err
    assert status == 2
    assert "the head ended with 3" in message
    assert "test_work[one]" in message
    assert not list(scratch.iterdir())


def test_benchmarks_that_cannot_be_read(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "bench" / "regress" / "bench_work.py").write_text("import no_such_module\n")
    assert against.main(["before", "--tree", str(repository)]) == 2
    assert "no_such_module" in capsys.readouterr().err


def test_a_module_that_the_base_cannot_import_is_new_and_says_why(
    repository: Path, scratch: Path
) -> None:
    (repository / "src" / "gatherbench" / "late.py").write_text("def late():\n    return 1\n")
    (repository / "bench" / "regress" / "bench_late.py").write_text(
        "from gatherbench.late import late\n\n\ndef test_late(benchmark):\n"
        "    assert benchmark.pedantic(late) == 1\n"
    )
    status, result = found(repository, "--budget", "0.1")
    words = {e["name"].rpartition("::")[2]: e for e in result["benchmarks"]}
    assert words["test_late"]["verdict"] == "NEW"
    assert "gatherbench.late" in words["test_late"]["reason"]
    assert words["test_work[one]"]["verdict"] == "AMBIGUOUS"
    assert status == 0


def test_nothing_by_that_name(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert against.main(["before", "--tree", str(repository), "--only", "no such"]) == 2
    assert "no benchmark runs on both sides" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_the_files_are_gone_after_an_exception(
    repository: Path, scratch: Path, error: type[BaseException]
) -> None:
    def leave() -> None:
        with files_of(repository, find_commit(repository, "before")) as folder:
            assert (folder / "tree" / "bench" / "regress" / "bench_work.py").read_text() == BENCH
            assert not folder.is_relative_to(repository)
            raise error

    with pytest.raises(error):
        leave()
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cleans_up(
    repository: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    status: int,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        assert list(scratch.iterdir())
        os.kill(os.getpid(), number)
        pytest.fail("the signal was not heard")

    # Started in the background, pytest may have inherited a SIGINT that is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(against, "run_pair", interrupted)
    assert against.main(["before", "--tree", str(repository), "--budget", "60"]) == status
    assert not list(scratch.iterdir())


def test_the_repository_is_left_as_it_was(git: Git, repository: Path) -> None:
    before = git("status", "--porcelain"), git("worktree", "list"), git("for-each-ref")
    with files_of(repository, find_commit(repository, "before")):
        pass
    assert (git("status", "--porcelain"), git("worktree", "list"), git("for-each-ref")) == before


def test_unknown_commits_and_folders(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert against.main(["no-such-ref", "--tree", str(repository)]) == 2
    assert "no commit 'no-such-ref'" in capsys.readouterr().err
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert against.main(["HEAD", "--tree", str(elsewhere)]) == 2
    assert "in no git checkout" in capsys.readouterr().err
    with pytest.raises(TreeError, match="run it in a clone"):
        top_of(elsewhere)


def test_the_base_when_none_is_named(git: Git, repository: Path) -> None:
    with pytest.raises(TreeError, match="no commit 'HEAD~1'"):
        find_commit(repository)  # the first commit, and nothing changed
    first = git("rev-parse", "HEAD")
    write_work(repository, 1, ["one"])
    assert is_dirty(repository)
    assert find_commit(repository).sha == first  # what is not committed, against what is
    git("commit", "-q", "-a", "-m", "on main")
    assert not is_dirty(repository)
    assert find_commit(repository).sha == first
    second = git("rev-parse", "HEAD")
    git("checkout", "-q", "-b", "topic")
    for size in (2, 3):
        write_work(repository, size, ["one"])
        git("commit", "-q", "-a", "-m", "on a branch")
    assert find_commit(repository).sha == second
    git("update-ref", "refs/remotes/origin/main", first)
    assert find_commit(repository).sha == first
