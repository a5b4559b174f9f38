"""One window over several meters: opened and closed like brackets, and safe against any of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from gatherbench.bench.meters.base import Meter, Reading


class Recorder:
    """Opens the meters' windows in the order given and closes them in the reverse order.

    A meter that raises yields a reading with a reason, named like the meter; the others go on and
    so does the run. The recorder may be entered again: each time is a new window.

    Attributes:
        readings: those of the last window that was closed, in the order of the meters.
    """

    def __init__(self, meters: Sequence[Meter]) -> None:
        self._meters = tuple(meters)
        self._broken: dict[int, str] = {}
        self.readings: tuple[Reading, ...] = ()

    def __enter__(self) -> Self:
        self._broken = {}
        for i, meter in enumerate(self._meters):
            try:
                meter.start()
            except Exception as error:
                self._broken[i] = f"start raised {type(error).__name__}: {error}"
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        seen: list[list[Reading]] = []
        for i, meter in reversed(list(enumerate(self._meters))):
            try:
                # A meter whose window never opened has nothing to close.
                seen.append([] if i in self._broken else meter.stop())
            except Exception as error:
                self._broken[i] = f"stop raised {type(error).__name__}: {error}"
                seen.append([])
            if i in self._broken:
                seen[-1] = [_broken(meter, self._broken[i])]
        self.readings = tuple(reading for group in reversed(seen) for reading in group)


def _broken(meter: Meter, why: str) -> Reading:
    return Reading(meter.name, "1", None, f"meter {meter.name}", reason=f"failed: {why}")
