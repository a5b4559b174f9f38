"""Run two trees in alternating blocks, each in its own process, one from the files of a commit.

Processes differ by where their memory and threads happen to lie, and no number of rounds within one
process shows that. So one pair of processes follows another. Within a pair each benchmark runs in
many short blocks that alternate between the sides, in an order drawn anew each time. The median
ratio of neighbouring blocks then excludes drifts of the machine and bursts of other work.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from gatherbench.bench.regress.verdicts import NOT_THERE, Record, Sample

#: Seconds that a block lasts at least, and that a side's blocks in a pair last together; bounds on
#: their number.
BLOCK_S, TURNS_S, FEWEST_TURNS, MOST_TURNS = 0.004, 0.1, 7, 15


class SideError(Exception):
    """A side that is unavailable, cannot run, or has died; the message names it, and says why."""


class BenchmarkError(Exception):
    """A benchmark that a side cannot run; the message is its error."""


class Side:
    """The benchmarks of one tree, in a process of ``side.py``: they begin and end one by one.

    Args:
        label: its name in messages.
        library: the tree whose code is measured.
        benchmarks: the tree whose benchmarks measure it.
        scratch: a folder for this side alone, for compiled code and the log.
    """

    def __init__(self, label: str, library: Path, benchmarks: Path, scratch: Path) -> None:
        self.items, self.unread = list[str](), list[str]()
        self._label, self._library, self._log = label, library, scratch / "log.txt"
        scratch.mkdir(exist_ok=True)
        self._pipe, end = Pipe()
        script, number = Path(__file__).with_name("side.py"), end.fileno()
        with self._log.open("w") as log, end:
            # -P: no file next to side.py may shadow a module.
            self._process = subprocess.Popen(
                [sys.executable, "-P", script, benchmarks, str(number)],
                cwd=benchmarks,
                env=_environment(library, scratch),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[number],
                start_new_session=True,  # Ctrl-C is for this process to handle
            )

    def collect(self) -> None:
        """Wait until the process has imported and collected; both sides may do so at once.

        Raises:
            SideError: it has died, or runs another tree's code.
        """
        self.items, self.unread, package = self._receive()
        if not Path(package).is_relative_to(self._library):
            raise SideError(
                f"{self._label} would measure {package}, not {self._library}: "
                "remove what puts another gatherbench before PYTHONPATH"
            )

    def start(self, names: Sequence[str]) -> None:
        """Let it run these benchmarks, in this order."""
        self._pipe.send(names)

    def begin(self) -> tuple[str | None, dict[str, Any]]:
        """Wait until the next benchmark begins; return its ``group`` and ``extra_info``.

        Raises:
            BenchmarkError: it cannot run.
        """
        about: tuple[str | None, dict[str, Any]] = self._receive()
        return about

    def block(self, untimed: int, rounds: int) -> list[float]:
        """Return the seconds of each of the next ``rounds`` rounds, after ``untimed`` others.

        Raises:
            BenchmarkError: the benchmark failed, and has ended.
        """
        times_s: list[float] = self._receive((untimed, rounds))
        return times_s

    def end(self) -> None:
        """End the benchmark, which checks its result.

        Raises:
            BenchmarkError: the result is wrong.
        """
        self._receive(None)

    def close(self) -> None:
        """Kill the process: it has nothing left to save."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def _receive(self, *command: Any) -> Any:
        """Send the command, if any, and return the answer."""
        try:
            for message in command:
                self._pipe.send(message)
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            status = self._process.wait()
            log_end = "\n".join(self._log.read_text().strip().splitlines()[-15:])
            raise SideError(f"{self._label} ended with {status}:\n{log_end}") from error
        if answer and isinstance(answer, str):
            raise BenchmarkError(answer)
        return answer


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


@contextmanager
def both_sides(top: Path, scratch: Path) -> Iterator[tuple[Side, Side]]:
    """Start a process of each tree, base first, and wait for both; they write into ``scratch``."""
    with ExitStack() as stack:
        base = Side("the base", scratch / "tree", top, scratch / "base")
        stack.callback(base.close)
        head = Side("the head", top, top, scratch / "head")
        stack.callback(head.close)
        base.collect()
        head.collect()
        yield base, head


def records_of(base: Side, head: Side, only: str = "") -> list[Record]:
    """Return the benchmarks of both sides that have ``only`` in their names.

    Raises:
        SideError: one of the head's files cannot be read.
    """
    if head.unread:
        raise SideError("this tree's benchmarks cannot be read: " + "; ".join(head.unread))
    records = []
    for name in dict.fromkeys((*head.items, *base.items)):
        if only in name:
            file = name.partition("::")[0]
            unread = next((error for error in base.unread if error.startswith(file)), NOT_THERE)
            base_error = "" if name in base.items else unread
            head_error = "" if name in head.items else NOT_THERE
            records.append(Record(name, base_error, head_error))
    return records


def run_pair(base: Side, head: Side, records: Sequence[Record], rng: random.Random) -> None:
    """Add a sample to each benchmark of ``records``, or the error that a side ended with."""
    sides = {"base": base, "head": head}
    for side in sides.values():
        side.start([record.name for record in records])
    for record in records:
        began = time.monotonic()
        _sample(sides, record, rng)
        record.pair_s = time.monotonic() - began


def _sample(sides: dict[str, Side], record: Record, rng: random.Random) -> None:
    begun, ended, name, round_s = set[str](), set[str](), "", math.inf
    try:
        for name, side in sides.items():
            record.group, about = side.begin()
            record.yardstick = bool(about.get("yardstick", False))
            begun.add(name)
            round_s = min(round_s, *side.block(1, 2))  # numba compiles in the untimed round
        if not record.turns:
            record.rounds = math.ceil(BLOCK_S / round_s)
            turns = math.ceil(TURNS_S / (round_s * record.rounds))
            record.turns = min(max(turns, FEWEST_TURNS), MOST_TURNS)
        # The caches hold the other side's data by now, so one round is untimed; a block of a single
        # round is so long that its own bytes soon replace them.
        untimed = int(record.rounds > 1)
        blocks: dict[str, list[float]] = {"base": [], "head": []}
        head_first = [rng.random() < 0.5 for _ in range(record.turns)]
        for first in head_first:
            for name in ("head", "base") if first else ("base", "head"):
                blocks[name].append(float(np.median(sides[name].block(untimed, record.rounds))))
        for name, side in sides.items():
            ended.add(name)
            side.end()
        record.samples.append(Sample(blocks["base"], blocks["head"], head_first))
    except BenchmarkError as error:
        setattr(record, f"{name}_error", str(error))
        for label in sides.keys() - ended - {name}:
            with suppress(BenchmarkError):
                if label not in begun:
                    sides[label].begin()
                sides[label].end()


def top_of(folder: Path) -> Path:
    """Return the top folder of the checkout that ``folder`` is in.

    Raises:
        SideError: ``folder`` is in no checkout.
    """
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel"))
    except SideError as error:
        raise SideError(
            f"{folder} is in no git checkout, so there is no commit to compare with: "
            "run it in a clone of the repository"
        ) from error


def commit_of(top: Path, ref: str) -> str:
    """Return the commit that a commit, branch or tag means now; an empty ``ref`` is found.

    It is then where this branch left the main one, and on the main branch the commit before, or
    the last one if files differ from it.

    Raises:
        SideError: there is no such commit.
    """
    if not ref:
        ref = "HEAD~1"
        for main in ("main", "origin/main"):
            with suppress(SideError):
                base = git(top, "merge-base", main, "HEAD")
                if base != git(top, "rev-parse", "HEAD") or is_dirty(top):
                    ref = base
    try:
        return git(top, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    except SideError as error:
        raise SideError(
            f"no commit {ref!r} in {top}: name a commit, branch or tag "
            "(a shallow clone may lack it: git fetch --unshallow)"
        ) from error


def is_dirty(top: Path) -> bool:
    """Return whether tracked files differ from the commit that is checked out."""
    return bool(git(top, "status", "--porcelain", "--untracked-files=no"))


@contextmanager
def files_of(top: Path, commit: str) -> Iterator[Path]:
    """Give a temporary folder outside ``top`` whose ``tree`` holds the files of ``commit``.

    Unlike a worktree it writes nothing into the repository, whatever kills the run.
    """
    with tempfile.TemporaryDirectory(prefix="gatherbench-regress-") as name:
        folder = Path(name)
        git(top, "archive", f"--output={folder / 'tree.tar'}", commit)
        with tarfile.open(folder / "tree.tar") as archive:
            if hasattr(tarfile, "tar_filter"):  # since 3.11.4; 3.12 and 3.13 warn without one
                archive.extraction_filter = staticmethod(tarfile.tar_filter)
            archive.extractall(folder / "tree")
        yield folder


def git(folder: Path, *arguments: str) -> str:
    """Return what git prints; a :class:`SideError` says why it fails."""
    try:
        process = subprocess.run(
            ["git", "-C", folder, *arguments], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise SideError(f"git cannot be run: {error.strerror}; install git") from error
    if process.returncode:
        raise SideError(process.stderr.strip() or f"git {arguments[0]} failed")
    return process.stdout.strip()
