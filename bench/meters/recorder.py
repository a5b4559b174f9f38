"""One window over several meters: opened and closed like brackets, and safe against any of them.

A driver that has lost its device may answer with nonsense, with an error, or never. None of this
may cost the run: meters are called in a thread of their own, which is left behind when a call does
not return, and what they say is checked before it becomes a row.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, Self

from gatherbench.bench.meters.base import LEAST, MOST, UNITS, Meter, Reading
from gatherbench.outside import words_of
from gatherbench.reason import Reason

#: How long one call of a meter may take: far more than any sensor needs (NVML's slowest call
#: blocks about 20 ms), far less than a run would wait.
PATIENCE_S = 10.0

Verb = Literal["start", "stop"]
Answers = queue.SimpleQueue[tuple[int, list[Reading] | Exception]]


class Recorder:
    """Opens the meters' windows in the order given and closes them in the reverse order.

    A meter that raises, does not return or reports what is no reading yields a reading with a
    reason of kind ``failed``; the others go on and so does the run. One that did not
    return is not called again. The recorder may be entered again: each time is a new window.

    Attributes:
        readings: those of the last window that was closed, in the order of the meters.
    """

    def __init__(self, meters: Sequence[Meter]) -> None:
        self._meters = tuple(meters)
        self._broken: dict[int, str] = {}
        self._stuck: dict[int, str] = {}
        self.readings: tuple[Reading, ...] = ()

    def __enter__(self) -> Self:
        self._broken = dict(self._stuck)
        self._call("start", range(len(self._meters)))
        return self

    def __exit__(self, *_: object) -> None:
        seen = self._call("stop", reversed(range(len(self._meters))))
        for i, why in self._broken.items():
            name = self._meters[i].name
            seen[i] = [Reading(name, "1", None, f"meter {name}", Reason("failed", why))]
        taken: set[str] = set()
        for i in sorted(seen.keys() - self._broken.keys(), reverse=True):  # ours are the last
            mine = {reading.metric for reading in seen[i]}
            for metric in sorted(mine & taken):
                name = self._meters[i].name
                why = f"its metric {metric} is another meter's: give it a name of its own"
                seen[i] = [Reading(name, "1", None, f"meter {name}", Reason("failed", why))]
            taken |= mine
        self.readings = tuple(reading for i in sorted(seen) for reading in seen[i])

    def _call(self, verb: Verb, order: Iterable[int]) -> dict[int, list[Reading]]:
        """What each meter that is not broken answers; those that break are noted."""
        waiting = [i for i in order if i not in self._broken]
        found: dict[int, list[Reading]] = {}
        while waiting:
            answers: Answers = queue.SimpleQueue()
            abandoned = threading.Event()
            meters = [(i, self._meters[i]) for i in waiting]
            threading.Thread(
                target=_ask,
                args=(meters, verb, answers, abandoned),
                name=f"gatherbench-meter-{verb}",
                daemon=True,
            ).start()
            while waiting:
                try:
                    i, answer = answers.get(timeout=PATIENCE_S)
                except queue.Empty:
                    abandoned.set()
                    stuck = waiting.pop(0)
                    self._stuck[stuck] = f"{verb} did not return within {PATIENCE_S:g} s"
                    self._broken[stuck] = self._stuck[stuck]
                    break
                waiting.remove(i)
                if isinstance(answer, Exception):
                    self._broken[i] = f"{verb} raised {words_of(answer)}"
                else:
                    found[i] = answer
        return found


def _ask(
    meters: Sequence[tuple[int, Meter]], verb: Verb, answers: Answers, abandoned: threading.Event
) -> None:
    """Call ``verb`` of each meter: what a thread does that may be left behind."""
    for i, meter in meters:
        if abandoned.is_set():  # the call before returned after all, but too late
            return
        readings: list[Reading] = []
        try:
            if verb == "start":
                meter.start()
            else:
                readings = [_checked(reading) for reading in meter.stop()]
            answers.put((i, readings))
        except Exception as error:
            answers.put((i, error))


def _checked(reading: Reading) -> Reading:
    """The reading, or one without a value where the value is no measurement."""
    if reading.unit not in UNITS:
        raise ValueError(f"{reading.metric} has the unit {reading.unit!r}, none of {UNITS}")
    if reading.value is None:
        return replace(reading, reason=reading.reason or Reason("failed", "no value, no reason"))
    if reading.value and not LEAST <= reading.value <= MOST:
        said = Reason("failed", f"the sensor said {reading.value}")
        return replace(reading, value=None, reason=said)
    return replace(reading, reason=None)
