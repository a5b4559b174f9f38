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
    """The benchmarks of one tree, in a process of ``side.py``, which says what it sends.

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
        self.items, self.unread, package = self.ask()
        if not Path(package).is_relative_to(self._library):
            raise SideError(
                f"{self._label} would measure {package}, not {self._library}: "
                "remove what puts another gatherbench before PYTHONPATH"
            )

    def send(self, command: Any) -> None:
        """Send a command."""
        self._pipe.send(command)

    def ask(self, *command: Any) -> Any:
        """Send the command, if any, and return the answer.

        Raises:
            BenchmarkError: the benchmark failed, and has ended.
            SideError: the process has died.
        """
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

    def close(self) -> None:
        """Kill the process: it has nothing left to save."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()


def _environment(library: Path, scratch: Path) -> dict[str, str]:
    """Return the environment: each side has its caches, as numba misses changes of a callee."""
    path = [str(library / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "NUMBA_CACHE_DIR": str(scratch / "numba"),
        "GATHERBENCH_KERNEL_CACHE": str(scratch / "kernels"),
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
        side.send([record.name for record in records])
    for record in records:
        began = time.monotonic()
        _sample(sides, record, rng)
        record.pair_s = time.monotonic() - began


def _sample(sides: dict[str, Side], record: Record, rng: random.Random) -> None:
    begun, ended, name, round_s = set[str](), set[str](), "", math.inf
    try:
        for name, side in sides.items():
            record.group, about = side.ask()
            record.yardstick = bool(about.get("yardstick", False))
            begun.add(name)
            round_s = min(round_s, *side.ask((1, 2)))  # numba compiles in the untimed round
        if not record.turns:
            record.rounds = math.ceil(BLOCK_S / round_s)
            turns = math.ceil(TURNS_S / (round_s * record.rounds))
            record.turns = min(max(turns, FEWEST_TURNS), MOST_TURNS)
        # The caches hold the other side's data by now, so one round is untimed; a block of a single
        # round is so long that its own bytes soon replace them.
        block = int(record.rounds > 1), record.rounds
        blocks: dict[str, list[float]] = {"base": [], "head": []}
        head_first = [rng.random() < 0.5 for _ in range(record.turns)]
        for first in head_first:
            for name in ("head", "base") if first else ("base", "head"):
                blocks[name].append(float(np.median(sides[name].ask(block))))
        for name, side in sides.items():
            ended.add(name)
            side.ask(None)
        record.samples.append(Sample(blocks["base"], blocks["head"], head_first))
    except BenchmarkError as error:
        setattr(record, f"{name}_error", str(error))
        for label in sides.keys() - ended - {name}:
            with suppress(BenchmarkError):
                if label not in begun:
                    sides[label].ask()
                sides[label].ask(None)


@contextmanager
def worktree(top: Path, commit: str) -> Iterator[Path]:
    """Give a temporary folder outside ``top`` whose ``tree`` is a worktree of ``commit``."""
    with tempfile.TemporaryDirectory(prefix="gatherbench-regress-") as name:
        tree = Path(name) / "tree"
        git(top, "worktree", "add", "--detach", str(tree), commit)
        try:
            yield Path(name)
        finally:
            git(top, "worktree", "remove", "--force", str(tree))


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
