"""The two sides: a commit's files beside this tree, and a process of each (``side.py``).

Files come by ``git archive``: unlike ``git worktree`` it writes nothing into the repository, so
that even a killed run leaves it as it was.
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
    """A side that cannot be had or run, or has died; the message names it, and says why."""


class BenchmarkError(Exception):
    """A benchmark that a side cannot run; the message is its error."""


class Side:
    """One tree's benchmarks, in a process of their own: one is begun, timed and ended at a time.

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
        """Its ``group`` and ``extra_info``. ``after`` comes next: tables that it shares stay.

        Raises:
            BenchmarkError: it cannot be run.
        """
        self._now = name
        return self._ask(begin=name, next=after)

    def block(self, untimed: int, rounds: int) -> list[float]:
        """The seconds of each of the next ``rounds`` rounds, after ``untimed`` others.

        Raises:
            BenchmarkError: it failed, and has ended.
        """
        times_s: list[float] = self._ask(untimed=untimed, rounds=rounds)["times_s"]
        return times_s

    def end(self) -> None:
        """Let it check what it computed.

        Raises:
            BenchmarkError: that was wrong.
        """
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


@contextmanager
def both_sides(base_tree: Path, head_tree: Path, scratch: Path) -> Iterator[tuple[Side, Side]]:
    """A fresh process of each tree, base first, ready; ``scratch`` is for what they write."""
    with ExitStack() as stack:
        base = Side("the base", base_tree, head_tree, scratch / "base")
        stack.callback(base.close)
        head = Side("the head", head_tree, head_tree, scratch / "head")
        stack.callback(head.close)
        base.wait_until_ready()
        head.wait_until_ready()
        yield base, head


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


class Commit(NamedTuple):
    """``ref`` is what was asked for, ``sha`` what it means now."""

    ref: str
    sha: str


def top_of(folder: Path) -> Path:
    """The top folder of the checkout that ``folder`` is in.

    Raises:
        SideError: it is in none.
    """
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel"))
    except SideError as error:
        raise SideError(
            f"{folder} is in no git checkout, so there is no commit to compare with: "
            "run it in a clone of the repository"
        ) from error


def find_commit(top: Path, ref: str | None = None) -> Commit:
    """The commit of ``ref``, else where this branch left the main one, else the one before.

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
        # On the main branch itself the changes that are not committed yet are the head side.
        if base != head or is_dirty(top):
            return Commit(f"merge-base with {main}", base)
    return find_commit(top, "HEAD~1")


def is_dirty(top: Path) -> bool:
    """Whether tracked files differ from the commit that is checked out."""
    return bool(_git(top, "status", "--porcelain", "--untracked-files=no"))


@contextmanager
def files_of(top: Path, commit: Commit) -> Iterator[Path]:
    """A temporary folder outside ``top`` whose ``tree`` holds the files of ``commit``."""
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
