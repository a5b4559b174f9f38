"""Ask a sensor again and again, beside the run: a thread that can neither break it nor hold it up.

The first and the last reading are taken by whoever opens and closes the window, so that the window
is the caller's; the thread adds those in between. It says what it cost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gatherbench.bench.machine.reason import Reason, ReasonError, SensorUnavailableError
from gatherbench.bench.meters.base import NEVER_OPENED, Reading, reading

T = TypeVar("T")

#: How long a thread whose sensor does not answer is waited for before it is left behind.
PATIENCE_S = 2.0
_LEFT_BEHIND = Reason("failed", "the thread was left behind with its sensor")


@dataclass(frozen=True, slots=True)
class Polled(Generic[T]):
    """What a window saw.

    Attributes:
        samples: in the order of time, the window's edges included.
        error: what went wrong; the samples before it are there.
        cpu_s: core-seconds that the thread used; ``None``: it was left behind.
    """

    samples: list[T]
    error: Reason | None
    cpu_s: float | None

    def cost(self, metric: str) -> Reading:
        """What the polling thread used, as a reading. Units: s."""
        source = "time.thread_time of the polling thread"
        used = _LEFT_BEHIND if self.cpu_s is None else self.cpu_s
        return reading(metric, "s", used, source, samples=2)


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
            return Polled([], NEVER_OPENED, None)
        self._window = None
        window.done.set()
        window.thread.join(self._patience_s)
        if window.thread.is_alive():
            cause = f"the sensor did not answer for {self._patience_s:g} s"
            stuck = Reason("failed", cause, "restart the GPU")
            return Polled(list(window.samples), stuck, None)
        window.take()
        return Polled(window.samples, window.error, window.cpu_s)


class _Window(Generic[T]):
    """One window: its thread touches nothing else, so a thread left behind disturbs no other."""

    def __init__(self, read: Callable[[], T], period_s: float) -> None:
        self.read, self.period_s = read, period_s
        self.samples: list[T] = []
        self.error: Reason | None = None
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
        except ReasonError as error:
            self.error = error.reason
        except Exception as error:
            self.error = Reason("failed", f"{type(error).__name__}: {error}")

    def run(self) -> None:
        begin = time.thread_time()
        due = time.monotonic() + self.period_s
        while self.error is None and not self.done.wait(max(0.0, due - time.monotonic())):
            self.take()
            # A reading that came late does not bring the next ones forward.
            due = max(due + self.period_s, time.monotonic())
        self.cpu_s = time.thread_time() - begin


@dataclass(frozen=True, slots=True)
class Wrapping:
    """A counter that starts anew after ``modulus``.

    Attributes:
        name, unit: what it is called, and what it counts.
        most_per_s: how fast it can rise at most.
        stamp_s: how far apart its reading and the time of it may lie.
    """

    name: str
    unit: str
    modulus: int
    most_per_s: float
    stamp_s: float

    def accumulate(self, counts: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
        """What was counted since the first reading, at the time (s) of each reading.

        Readings that have not been refreshed since the one before are left out.

        Args:
            counts: times and values, in the order of time.

        Raises:
            SensorUnavailableError: the counter may have wrapped more than once between two
                readings, its time went backwards, or it rose faster than it can.
        """
        if not counts:
            cause = f"{self.name} was never read"
            raise SensorUnavailableError(Reason("too_short", cause, "use longer epochs"))
        last_s, last = counts[0]
        series = [(last_s, 0)]
        for time_s, value in counts[1:]:
            gap_s = time_s - last_s
            if gap_s < 0:
                cause = f"the time of {self.name} went backwards"
                raise SensorUnavailableError(Reason("failed", cause, "do not set the clock"))
            if gap_s == 0 and value == last:
                continue
            if gap_s * self.most_per_s >= self.modulus:
                wrap_s = self.modulus / self.most_per_s
                cause = (
                    f"{gap_s:.3g} s between two readings of {self.name}, which can start anew"
                    f" every {wrap_s:.3g} s"
                )
                raise SensorUnavailableError(Reason("unsupported", cause, "leave a core free"))
            more = (value - last) % self.modulus
            # Twice as much: a reading is stamped a little before or after it is taken.
            if more > 2 * self.most_per_s * max(gap_s, self.stamp_s):
                cause = (
                    f"{self.name} rose by {more} {self.unit} in {gap_s:.3g} s, more than is"
                    " possible: it was reset or counts something else"
                )
                raise SensorUnavailableError(Reason("failed", cause))
            series.append((time_s, series[-1][1] + more))
            last_s, last = time_s, value
        return series
