"""Ask a sensor again and again, beside the run: a thread that can neither break it nor hold it up.

The first and the last reading are taken by whoever opens and closes the window, so that the window
is the caller's; the thread adds those in between. It says what it cost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gatherbench.bench.meters.base import Reading

T = TypeVar("T")

#: How long a thread whose sensor does not answer is waited for before it is left behind.
PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Polled(Generic[T]):
    """What a window saw.

    Attributes:
        samples: in the order of time, the window's edges included.
        error: what went wrong, as a reason; the samples before it are there.
        cpu_s: core-seconds that the thread used; ``None``: it was left behind.
    """

    samples: list[T]
    error: str | None
    cpu_s: float | None


def polling_cost(metric: str, cpu_s: float | None) -> Reading:
    """What a polling thread used, as a reading. Units: s."""
    source = "time.thread_time of the polling thread"
    reason = "failed: the thread was left behind with its sensor" if cpu_s is None else None
    return Reading(metric, "s", cpu_s, source, reason, samples=2)


class Poller(Generic[T]):
    """Calls ``read`` every ``period_s`` between :meth:`start` and :meth:`stop`."""

    def __init__(
        self, read: Callable[[], T], period_s: float, patience_s: float = PATIENCE_S
    ) -> None:
        self._read, self._period_s, self._patience_s = read, period_s, patience_s
        self._window: _Window[T] | None = None

    def start(self) -> None:
        """Open a window; never raises."""
        self._window = _Window(self._read, self._period_s)
        self._window.take()
        self._window.thread.start()

    def stop(self) -> Polled[T]:
        """Close the window; returns after ``patience_s`` at the latest, give or take a reading."""
        window = self._window
        if window is None:
            return Polled([], "failed: the window was never opened", None)
        self._window = None
        window.done.set()
        window.thread.join(self._patience_s)
        if window.thread.is_alive():
            said = f"failed: the sensor did not answer for {self._patience_s:g} s; restart the GPU"
            return Polled(list(window.samples), said, None)
        window.take()
        return Polled(window.samples, window.error, window.cpu_s)


class _Window(Generic[T]):
    """One window: its thread touches nothing else, so a thread left behind disturbs no other."""

    def __init__(self, read: Callable[[], T], period_s: float) -> None:
        self.read, self.period_s = read, period_s
        self.samples: list[T] = []
        self.error: str | None = None
        self.cpu_s = 0.0
        self.done = threading.Event()
        name = "gatherbench-meter-sensor"
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def take(self) -> None:
        """Read once more, unless the sensor has failed before."""
        if self.error is not None:
            return
        try:
            self.samples.append(self.read())
        except Exception as error:
            kind = "" if ": " in str(error) else f"failed: {type(error).__name__}: "
            self.error = f"{kind}{error}"

    def run(self) -> None:
        begin = time.thread_time()
        due = time.monotonic() + self.period_s
        while self.error is None and not self.done.wait(max(0.0, due - time.monotonic())):
            self.take()
            # A reading that came late does not bring the next ones forward.
            due = max(due + self.period_s, time.monotonic())
        self.cpu_s = time.thread_time() - begin
