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
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from gatherbench.bench.regress.verdicts import Record

#: Seconds that a block lasts at least, and that a side's blocks in a pair last together; bounds on
#: their number.
BLOCK_S, TURNS_S, FEWEST_TURNS, MOST_TURNS = 0.004, 0.1, 7, 15
_PYTEST = "-o python_files=bench_*.py -o addopts=--import-mode=importlib -o timeout=0"
_PYTEST += " -p no:cacheprovider -p no:benchmark -vs"


class SideError(Exception):
    """A side that is unavailable, cannot run, or has died; the message names it, and says why."""


class BenchmarkError(Exception):
    """A benchmark has failed on a side; the message is its error."""


class Side:
    """The benchmarks of ``top``, in a process of ``side.py``, which says what it sends.

    They measure the code of ``library``. Compiled code and the log go into ``folder``; ``label``
    is the side's name in messages.
    """

    #: The error of the benchmark in progress; empty: it has passed, ``None``: it runs.
    error: str | None

    def __init__(self, label: str, library: Path, top: Path, folder: Path, *options: str) -> None:
        self._label, self._log = label, folder / "log.txt"
        folder.mkdir(exist_ok=True)
        self._pipe, end = Pipe()
        self.send = self._pipe.send
        # -P: no file next to side.py may shadow a module.
        command = [sys.executable, "-P", f"{Path(__file__).parent}/side.py", f"{end.fileno()}"]
        command += [str(library), *_PYTEST.split(), *options, f"--rootdir={top}", "bench/regress"]
        paths = [str(library / "src"), os.environ.get("PYTHONPATH", "")]
        # Each side has its caches, as numba misses changes of a callee. Threads that spin after
        # their work would occupy the other side's cores.
        own = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "NUMBA_CACHE_DIR": str(folder / "numba"),
            "GATHERBENCH_KERNEL_CACHE": str(folder / "kernels"),
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        with self._log.open("w") as log, end:
            self._process = subprocess.Popen(
                command,
                cwd=top,
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[end.fileno()],
                start_new_session=True,  # Ctrl-C is for this process to handle
            )

    def ask(self, *command: Any) -> Any:
        """Send the command, if any, and return the answer.

        Raises:
            BenchmarkError: the benchmark has failed, and has ended.
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
        if isinstance(answer, str):
            self.error = answer or ("" if command == (None,) else "it passed, and timed nothing")
            if self.error:
                raise BenchmarkError(self.error)
        return answer

    def close(self) -> None:
        """Kill the process: it has nothing left to save."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()


def run_pair(sides: tuple[Side, Side], records: Sequence[Record], rng: random.Random) -> None:
    """Add a pair of times to each benchmark of ``records``, or the error that a side ended with."""
    for side in sides:
        side.send([record.name for record in records])
    for record in records:
        began = time.monotonic()
        _sample(sides, record, rng)
        record.pair_s = time.monotonic() - began


def _sample(sides: tuple[Side, Side], record: Record, rng: random.Random) -> None:
    for side in sides:
        side.error = None
        with suppress(BenchmarkError):
            record.group, record.yardstick = side.ask()
    blocks: tuple[list[float], list[float]] = [], []
    if all(side.error is None for side in sides):
        with suppress(BenchmarkError):
            # numba compiles in the untimed round
            round_s = min(min(side.ask((1, 2))) for side in sides)
            if not record.turns:
                record.rounds = math.ceil(BLOCK_S / round_s)
                turns = math.ceil(TURNS_S / (round_s * record.rounds))
                record.turns = min(max(turns, FEWEST_TURNS), MOST_TURNS)
            # The caches hold the other side's data by now, so one round is untimed; a block of a
            # single round is so long that its own bytes soon replace them.
            block = int(record.rounds > 1), record.rounds
            for _ in range(record.turns):
                for n in rng.sample((0, 1), 2):
                    blocks[n].append(float(np.median(sides[n].ask(block))))
    errors = [side.error for side in sides]
    for side in sides:
        if side.error is None:
            with suppress(BenchmarkError):
                side.ask(None)
    if not any(errors):  # otherwise a check fails because the benchmark was ended early
        errors = [side.error for side in sides]
    record.base_error, record.head_error = (error or "" for error in errors)
    if record.runs:
        record.pairs.append(blocks)


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
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SideError(done.stderr.strip() or f"git {arguments[0]} failed")
    return done.stdout.strip()
