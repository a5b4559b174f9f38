"""The engine runs a block in a process of its own, and reports why that failed.

Whatever the process writes into the block's part is its whole answer (bench/run/part.py). It is
forked by a server that has imported (:mod:`gatherbench.bench.run.worker`).
"""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path

from gatherbench.bench.run.job import DISK_FULL, Block, Ready
from gatherbench.bench.run.part import PartWriter, Record, Tail
from gatherbench.outside import fresh, open_file

#: How long to wait for a server that was told to end: the next process would run beside what it
#: runs; after Ctrl-C there is no next one.
KILL_S, INTERRUPT_S = 30.0, 1.0
#: The interval of looks at a process's part, and at the time.
_LOOK_S = 0.2
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
    """Runs one block at a time, in processes that a server forks; it has to be closed.

    Attributes:
        folder: for the output of its processes. Outside the run's folder, kill -9 would leave it.
        environment: of all processes.
        command: starts a server; this process's id follows.
        look: called now and then while one runs; a ``TimeoutError`` of it ends that.
    """

    folder: Path
    environment: Mapping[str, str]
    command: tuple[str, ...] = WORKER
    look: Callable[[], None] = lambda: None
    server: _Server | None = field(default=None, init=False)

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
            TimeUp: the block's ``until`` passed first.
        """
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
            if time.monotonic() >= block.until:
                raise TimeUp
            if time.monotonic() > late:
                raise TimeoutError

        try:
            return _death_of(self._status(block, log, look), log)
        except TimeoutError:
            return f"timed out after {timeout_s:g} s"
        finally:
            follow()

    def _status(self, block: Block, log: Path, look: Callable[[], None]) -> int:
        """Return the exit status of the block's process, or of its server if that cannot start or
        dies. If ``look`` raises, or Ctrl-C comes, the server ends with all that it runs."""

        def wait(server: _Server) -> None:
            while not server.pipe.poll(_LOOK_S):
                look()

        try:
            if self.server is not None and self.server.poll() is not None:  # it died without work
                self._end(KILL_S)
            if self.server is None:
                self.server = _Server([*self.command, str(os.getpid())], self.environment, log)
                wait(self.server)
                with suppress(EOFError, OSError):
                    self.server.pipe.recv()
            with suppress(OSError):  # there will be no answer
                self.server.pipe.send((block, str(log)))
            wait(self.server)
        except BaseException as stop:
            self._end(INTERRUPT_S if isinstance(stop, KeyboardInterrupt) else KILL_S)
            raise
        try:
            return int(self.server.pipe.recv())
        except (EOFError, OSError):
            return self._end(KILL_S) or 1

    def _end(self, patience_s: float) -> int:
        """End the server, with all that it runs; return its exit status."""
        if (server := self.server) is None:
            return 0
        server.pipe.close()
        if server.poll() is None:
            server.terminate()
        with suppress(subprocess.TimeoutExpired):  # a hung driver may keep it alive
            server.wait(patience_s)
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(server.pid, signal.SIGKILL)
        self.server = None
        return server.wait()

    def ask(
        self,
        block: Block,
        timeout_s: float = math.inf,
        hear: Callable[[Record], None] = lambda _record: None,
    ) -> Record:
        """Return the answer of a process that prepares or checks; else why it ``failed``.

        Arguments and errors as of :meth:`run`.
        """
        block.part.unlink(missing_ok=True)
        death = self.run(block, timeout_s, hear)
        answer: Record = {}
        for record in Tail(block.part).more():
            answer |= record if record["kind"] == "answer" else {}
        if not answer:
            return {"failed": death or "its process ended without a word"}
        if death is not None:  # it had prepared the workload, and was counting
            with closing(PartWriter(block.part)) as out:
                out.write("answer", uncounted=death)
        return answer

    def prepare(
        self, block: Block, hear: Callable[[Record], None] = lambda _record: None
    ) -> Ready | str:
        """Return the block's workload, ready to be measured, or why it is unavailable."""
        answer = self.ask(block, hear=hear)
        if "failed" in answer:
            dataset = block.jobs[0].case.workload.dataset
            return f"{dataset} could not be prepared: {answer['failed']}"
        return Ready(Path(answer["dataset"]), answer["identity"], block.part)

    def close(self) -> None:
        """End the server, and all that it runs; a further block has another."""
        self._end(KILL_S)


class _Server(subprocess.Popen[bytes]):
    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.pipe, theirs = Pipe()
        with log.open("a") as out, theirs:  # the output of a library is separate from answers
            super().__init__(
                command,
                stdin=theirs.fileno(),
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )


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
