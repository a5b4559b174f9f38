"""Wall time of the metered window, by which core-seconds and joules become cores and watts.

An epoch's own time is taken by the loop; this clock says how long the meters watched.
"""

from __future__ import annotations

import time
from typing import ClassVar

from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.meters.base import Reading


class WallClockMeter:
    """Seconds between ``start`` and ``stop``. Units: s.

    The clock knows nothing of an accelerator: whoever closes a window over device work
    synchronises first.
    """

    name: ClassVar[str] = "clock"
    summary: ClassVar[str] = "how long the meters watched (monotonic clock)"
    lost: ClassVar[str] = "mean power and mean cores in use"
    trust: ClassVar[str] = "the kernel's monotonic clock"

    def __init__(self) -> None:
        self._opened_s = 0.0

    def probe(self) -> Reason | None:
        return None

    def start(self) -> None:
        self._opened_s = time.perf_counter()

    def stop(self) -> list[Reading]:
        elapsed_s = time.perf_counter() - self._opened_s
        return [Reading("window_time", "s", elapsed_s, "time.perf_counter", samples=2)]
