"""The code to compare with: a commit's files in a temporary folder, always removed afterwards.

Files come by ``git archive``: unlike ``git worktree`` it writes nothing into the repository, so
that even a killed run leaves it as it was.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class TreeError(Exception):
    """A commit that cannot be had; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Commit:
    """``ref`` is what was asked for, ``sha`` what it means now."""

    ref: str
    sha: str


def top_of(folder: Path) -> Path:
    """The top folder of the checkout that ``folder`` is in.

    Raises:
        TreeError: it is in none.
    """
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel"))
    except TreeError as error:
        raise TreeError(
            f"{folder} is in no git checkout, so there is no commit to compare with: "
            "run it in a clone of the repository"
        ) from error


def find_commit(top: Path, ref: str | None = None) -> Commit:
    """The commit of ``ref``, else where this branch left the main one, else the one before.

    Raises:
        TreeError: there is no such commit.
    """
    if ref is not None:
        try:
            return Commit(ref, _git(top, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"))
        except TreeError as error:
            raise TreeError(
                f"no commit {ref!r} in {top}: name a commit, branch or tag "
                "(a shallow clone may lack it: git fetch --unshallow)"
            ) from error
    head = _git(top, "rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        try:
            base = _git(top, "merge-base", main, "HEAD")
        except TreeError:
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
        raise TreeError(f"git cannot be run: {error.strerror}; install git") from error
    if done.returncode:
        raise TreeError(done.stderr.strip() or f"git {arguments[0]} failed")
    return done.stdout.strip()
