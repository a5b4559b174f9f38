"""Poll a sensor during the run by a thread that reports its own cost.

The thread that opens and closes the window takes the first and the last reading, so the window is
the caller's; the polling thread adds those in between.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gatherbench.outside import words_of
from gatherbench.reason import Kind, Reason, ReasonError, SensorUnavailableError

T = TypeVar("T")
NEVER_OPENED = Reason("failed", "the window was never opened")


@dataclass(frozen=True, slots=True)
class Polled(Generic[T]):
    """The result of a window."""

    samples: list[T]  # in the order of time, the window's edges included
    error: Reason | None  # an error; earlier samples are kept
    cost: float | Reason = 0.0  # core-seconds of the polling thread


COST_SOURCE = "time.thread_time of the polling thread"


class Poller(Generic[T]):
    """Call ``read`` every ``period_s`` between :meth:`start` and :meth:`stop`."""

    def __init__(self, read: Callable[[], T], period_s: float) -> None:
        self._read, self._period_s = read, period_s
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Open a window; never raises."""
        self._samples: list[T] = []
        self._error: Reason | None = None
        self._done = threading.Event()
        self._take()
        name = "gatherbench-meter-sensor"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> Polled[T]:
        """Close the window and return its result."""
        if self._thread is None:
            return Polled([], NEVER_OPENED, NEVER_OPENED)
        self._done.set()
        self._thread.join()
        self._thread = None
        self._take()
        return Polled(self._samples, self._error, self._cpu_s)

    def _take(self) -> None:
        """Read once more if no earlier reading failed."""
        if self._error is not None:
            return
        try:
            self._samples.append(self._read())
        except ReasonError as error:
            self._error = error.reason
        except Exception as error:
            self._error = Reason("failed", words_of(error))

    def _run(self) -> None:
        begin = time.thread_time()
        due = time.monotonic() + self._period_s
        while self._error is None and not self._done.wait(max(0.0, due - time.monotonic())):
            self._take()
            # A late reading leaves the times of the next ones unchanged.
            due = max(due + self._period_s, time.monotonic())
        self._cpu_s = time.thread_time() - begin


@dataclass(frozen=True, slots=True)
class Wrapping:
    """A counter that wraps to 0 after ``modulus``."""

    name: str
    unit: str  # of what it counts
    modulus: int
    most_per_s: float  # its largest possible rate
    stamp_s: float  # largest error of a reading's time

    def accumulate(self, counts: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
        """Return the total since the first reading, at the time (s) of each reading.

        Readings that equal the one before in time and value are left out.

        Raises:
            SensorUnavailableError: the counter may have wrapped more than once between two
                readings, its time went backwards, or it rose faster than it can.
        """
        if not counts:
            raise _refused("too_short", f"{self.name} was never read", "use longer epochs")
        series = [(counts[0][0], 0)]
        for (last_s, last), (time_s, value) in itertools.pairwise(counts):
            gap_s, more = time_s - last_s, (value - last) % self.modulus
            if gap_s == 0 == more:
                continue
            if gap_s < 0:
                raise _refused("failed", f"the time of {self.name} went backwards", "set no clock")
            if gap_s * self.most_per_s >= self.modulus:
                cause = (
                    f"{gap_s:.3g} s between two readings of {self.name}, which can start anew"
                    f" every {self.modulus / self.most_per_s:.3g} s"
                )
                raise _refused("unsupported", cause, "leave a core free")
            # Twice as much, as the stamp may be slightly before or after the reading.
            if more > 2 * self.most_per_s * max(gap_s, self.stamp_s):
                cause = (
                    f"{self.name} rose by {more} {self.unit} in {gap_s:.3g} s, more than is"
                    " possible: it was reset or counts something else"
                )
                raise _refused("failed", cause)
            series.append((time_s, series[-1][1] + more))
        return series


def _refused(kind: Kind, cause: str, remedy: str = "") -> SensorUnavailableError:
    return SensorUnavailableError(Reason(kind, cause, remedy))
