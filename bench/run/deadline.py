"""The time that a whole run may take: what is running then is cut off, for a later run to redo."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gatherbench.bench.run.fork_server import Forked

#: What a killed process may take to go; one that hangs in a driver may never.
LATE_S = 5.0


class TimeUp(Exception):  # noqa: N818 - not a fault of the program
    """The time for the whole run is used up."""


class Deadline:
    """``budget_s`` seconds from now; ``None``: never."""

    def __init__(self, budget_s: float | None) -> None:
        self._at = None if budget_s is None else time.monotonic() + budget_s

    def check(self) -> None:
        """Raise :class:`TimeUp` if it has passed."""
        if self._at is not None and time.monotonic() >= self._at:
            raise TimeUp

    def within(self, seconds: float) -> float:
        """How long to wait for what may take ``seconds``: not much beyond the deadline."""
        if self._at is None:
            return seconds
        return max(0.0, min(seconds, self._at - time.monotonic() + LATE_S))

    @contextmanager
    def over(self, process: subprocess.Popen[str] | Forked) -> Iterator[None]:
        """Kill ``process`` when the time is up, and raise :class:`TimeUp` if it had not ended."""
        if self._at is None:
            yield
            return
        alarm = threading.Timer(max(0.0, self._at - time.monotonic()), process.kill)
        alarm.daemon = True
        alarm.start()
        try:
            yield
            if process.poll() != 0:
                self.check()
        finally:
            alarm.cancel()
