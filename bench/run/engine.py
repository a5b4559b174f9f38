"""The engine runs a block in a process of its own, and reports why that failed.

Whatever the process writes into the block's part is its whole answer (bench/run/part.py).
"""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gatherbench.bench.run.fork_server import ForkServer
from gatherbench.bench.run.job import DISK_FULL, Block, Ready
from gatherbench.bench.run.part import PartWriter, Record, Tail
from gatherbench.outside import fresh, open_file

#: The length of the end of a process's output that counts as its last words.
_LOG_BYTES = 1 << 16
#: The likely cause of a signal.
_HINTS = {
    "SIGKILL": " (most likely out of memory)",
    "SIGBUS": " (most likely a mapped file that was cut short, or whose disk failed)",
}
WORKER = (sys.executable, "-m", "gatherbench.bench.run.worker")


class TimeUp(Exception):  # noqa: N818 - not a fault of the program
    """The time for the whole run is used up."""


@dataclass
class Engine:
    """Runs one block at a time.

    Attributes:
        server: forks the processes.
        folder: for their output. Outside the run's folder, kill -9 would leave it.
        until: by :func:`time.monotonic`: the end of the time for all of them.
        look: called now and then while one runs; a ``TimeoutError`` of it ends that.
    """

    server: ForkServer
    folder: Path
    until: float = math.inf
    look: Callable[[], None] = lambda: None

    def run(
        self,
        block: Block,
        timeout_s: float = math.inf,
        hear: Callable[[Record], None] = lambda _record: None,
    ) -> str | None:
        """Run the block in a process; return why it failed, in words.

        Args:
            timeout_s: the most time until a case has its turn, and for a case in all its turns.
            hear: gets each record of the part.

        Raises:
            OSError: the process found the disk full.
            TimeUp: the block's ``until``, or the engine's, passed first.
        """
        self.check_time()
        self.folder.mkdir(exist_ok=True)
        log, tail = fresh(self.folder.absolute() / "process.log"), Tail(block.part)
        late = time.monotonic() + timeout_s

        def follow() -> None:
            nonlocal late
            for record in tail.more():
                if record["kind"] == "turn":
                    late = timeout_s - record["before_s"] + record["since"]
                hear(record)

        def look() -> None:
            follow()
            self.look()
            self.check_time(block.until)
            if time.monotonic() > late:
                raise TimeoutError

        try:
            return _death_of(self.server.run(block, log, look), log)
        except TimeoutError:
            return f"timed out after {timeout_s:g} s"
        finally:
            follow()

    def ask(
        self,
        block: Block,
        timeout_s: float = math.inf,
        progress: Callable[[str, float], None] = lambda _text, _fraction: None,
    ) -> Record:
        """Return the answer of a process that prepares or checks; else why it ``failed``.

        Args:
            progress: hears the current work, and the share of it that is done.
        """
        block.part.unlink(missing_ok=True)
        answer: Record = {}

        def hear(record: Record) -> None:
            if record["kind"] == "work":
                progress(str(record["what"]), float(record["fraction"]))
            elif record["kind"] == "answer":
                answer.update(record)

        death = self.run(block, timeout_s, hear)
        if not answer:
            return {"failed": death or "its process ended without a word"}
        if death is not None:  # it had prepared the workload, and was counting
            with closing(PartWriter(block.part)) as out:
                out.write("answer", uncounted=death)
        return answer

    def prepare(
        self, block: Block, progress: Callable[[str, float], None] = lambda _text, _fraction: None
    ) -> Ready | str:
        """Return the block's workload, ready to be measured, or why it is unavailable."""
        answer = self.ask(block, progress=progress)
        if "failed" in answer:
            dataset = block.jobs[0].case.workload.dataset
            return f"{dataset} could not be prepared: {answer['failed']}"
        return Ready(Path(answer["dataset"]), answer["identity"], block.part)

    def check_time(self, until: float = math.inf) -> None:
        """Raise :class:`TimeUp` from ``until``, or the engine's own, on."""
        if time.monotonic() >= min(until, self.until):
            raise TimeUp


def _death_of(code: int, log: Path) -> str | None:
    """Return why a worker that sent no answer died, in words; ``None`` if it ended well."""
    if code == 0:
        return None
    if code == DISK_FULL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with open_file(log) as file:  # its end: the output of a process may be very long
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        lines = reversed(file.read().decode(errors="replace").splitlines())
    last = next((line.strip() for line in lines if line.strip()), "it printed nothing")
    if code < 0:
        known = {int(s): s.name for s in signal.Signals}
        name = known.get(-code, f"signal {-code}")
        return f"killed by {name}{_HINTS.get(name, '')}; last words: {last}"
    return f"exit status {code}; last words: {last}"
