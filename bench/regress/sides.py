"""The two sides: the files of a commit and this tree, with a process of each (``side.py``).

``git archive`` extracts the files: unlike ``git worktree`` it writes nothing into the repository,
so even a killed run leaves the repository as it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

SIDE = Path(__file__).with_name("side.py")


class SideError(Exception):
    """A side that is unavailable, cannot run, or has died; the message names it, and says why."""


class BenchmarkError(Exception):
    """A benchmark that a side cannot run; the message is its error."""


class Side:
    """The benchmarks of one tree, in a separate process: one begins, is timed and ends at a time.

    Args:
        label: its name in messages.
        library: the tree whose code is measured.
        benchmarks: the tree whose benchmarks measure it.
        scratch: a folder for this side alone, for compiled code and the log.
    """

    def __init__(self, label: str, library: Path, benchmarks: Path, scratch: Path) -> None:
        self.items: Sequence[str] = ()
        self.uncollected: Sequence[str] = ()
        self._label, self._library, self._log = label, library, scratch / "log.txt"
        self._now = "while it collected its benchmarks"
        scratch.mkdir(exist_ok=True)
        with self._log.open("w") as log:
            # -P: no file next to side.py may shadow a module.
            self._process = subprocess.Popen(
                [sys.executable, "-P", SIDE, benchmarks],
                cwd=benchmarks,
                env=_environment(library, scratch),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for this process to handle
            )

    def wait_until_ready(self) -> None:
        """Wait until the process has imported and collected; both sides may do so at once.

        Raises:
            SideError: it has died, or runs another tree's code.
        """
        hello = self._read()
        self.items, self.uncollected = hello["items"], hello["uncollected"]
        if not Path(hello["package"]).is_relative_to(self._library):
            raise SideError(
                f"{self._label} would measure {hello['package']}, not {self._library}: "
                "remove what puts another gatherbench before PYTHONPATH"
            )

    def begin(self, name: str, after: str | None) -> dict[str, Any]:
        """Begin a benchmark; return its ``group`` and ``extra_info``; keep tables for ``after``.

        Raises:
            BenchmarkError: the benchmark cannot run.
        """
        self._now = name
        return self._ask(begin=name, next=after)

    def block(self, untimed: int, rounds: int) -> list[float]:
        """Return the seconds of each of the next ``rounds`` rounds, after ``untimed`` others.

        Raises:
            BenchmarkError: the benchmark failed, and has ended.
        """
        times_s: list[float] = self._ask(untimed=untimed, rounds=rounds)["times_s"]
        return times_s

    def end(self) -> None:
        """End the benchmark, which checks its result.

        Raises:
            BenchmarkError: the result is wrong.
        """
        self._ask(end=True)

    def close(self) -> None:
        """Kill the process: it has nothing left to save."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a dead process: _read says why
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


@contextmanager
def both_sides(base_tree: Path, head_tree: Path, scratch: Path) -> Iterator[tuple[Side, Side]]:
    """Start a process of each tree, base first, and wait for both; they write into ``scratch``."""
    with ExitStack() as stack:
        base = Side("the base", base_tree, head_tree, scratch / "base")
        stack.callback(base.close)
        head = Side("the head", head_tree, head_tree, scratch / "head")
        stack.callback(head.close)
        base.wait_until_ready()
        head.wait_until_ready()
        yield base, head


def _environment(library: Path, scratch: Path) -> dict[str, str]:
    """Return the environment: each side has its caches, as numba misses changes of a callee."""
    path = [str(library / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "NUMBA_CACHE_DIR": str(scratch / "numba"),
        "GATHERBENCH_KERNEL_CACHE": str(scratch / "kernels"),
        "GATHERBENCH_REGRESS_SMALL": "1",  # every process starts anew
        # Threads that spin after their work would occupy the other side's cores.
        "OMP_WAIT_POLICY": "PASSIVE",
    }


class Commit(NamedTuple):
    """``ref`` is what the user named or how it was found, ``sha`` the commit that it means now."""

    ref: str
    sha: str


def top_of(folder: Path) -> Path:
    """Return the top folder of the checkout that ``folder`` is in.

    Raises:
        SideError: ``folder`` is in no checkout.
    """
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel"))
    except SideError as error:
        raise SideError(
            f"{folder} is in no git checkout, so there is no commit to compare with: "
            "run it in a clone of the repository"
        ) from error


def find_commit(top: Path, ref: str | None = None) -> Commit:
    """Find the commit of ``ref``, else where this branch left the main one, else the one before.

    Raises:
        SideError: there is no such commit.
    """
    if ref is not None:
        try:
            return Commit(ref, _git(top, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"))
        except SideError as error:
            raise SideError(
                f"no commit {ref!r} in {top}: name a commit, branch or tag "
                "(a shallow clone may lack it: git fetch --unshallow)"
            ) from error
    head = _git(top, "rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        try:
            base = _git(top, "merge-base", main, "HEAD")
        except SideError:
            continue
        # On the main branch itself, uncommitted changes are the head side.
        if base != head or is_dirty(top):
            return Commit(f"merge-base with {main}", base)
    return find_commit(top, "HEAD~1")


def is_dirty(top: Path) -> bool:
    """Return whether tracked files differ from the commit that is checked out."""
    return bool(_git(top, "status", "--porcelain", "--untracked-files=no"))


@contextmanager
def files_of(top: Path, commit: Commit) -> Iterator[Path]:
    """Give a temporary folder outside ``top`` whose ``tree`` holds the files of ``commit``."""
    with tempfile.TemporaryDirectory(prefix="gatherbench-regress-") as name:
        folder = Path(name)
        tree = folder / "tree"
        tree.mkdir()
        _git(top, "archive", "--format=tar", f"--output={folder / 'tree.tar'}", commit.sha)
        subprocess.run(["tar", "-xf", folder / "tree.tar", "-C", tree], check=True)
        (folder / "tree.tar").unlink()
        yield folder


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise SideError(f"git cannot be run: {error.strerror}; install git") from error
    if done.returncode:
        raise SideError(done.stderr.strip() or f"git {arguments[0]} failed")
    return done.stdout.strip()
