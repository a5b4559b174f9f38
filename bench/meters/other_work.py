"""Other work on the host's cores: one measure of it, and one threshold.

Other work: processes that are not ours, kernel threads (those that work for us as well, since
nobody is charged for them), and what a hypervisor gave to other machines (steal). In a container
the host may be larger than our share.
"""

from __future__ import annotations

import psutil

from gatherbench.bench.meters.clock import WallClockMeter
from gatherbench.bench.meters.cpu import CpuMeter

#: Cores, or share of the host's cores, that other work may have beside a quiet measurement: daemons
#: and kernel threads take that much.
QUIET_CORES, QUIET_SHARE = 0.3, 0.05


def quiet_cores(cores: int) -> float:
    """How many of the host's ``cores`` other work may have beside a quiet measurement."""
    return max(QUIET_CORES, QUIET_SHARE * cores)


class OtherWork:
    """How many cores other work keeps busy from now on; our children's work is ours."""

    def __init__(self) -> None:
        self._clock, self._cpu = WallClockMeter(), CpuMeter()
        self._clock.start()
        self._cpu.start()

    def cores(self) -> float | None:
        """Since this was made; ``None`` where the kernel does not count."""
        read = {r.metric: r.value for r in (*self._cpu.stop(), *self._clock.stop())}
        host = (read["system_cpu_busy"], read["system_cpu_steal"])
        ours = (read["cpu_user"], read["cpu_system"])
        seconds = read["window_time"]
        if None in (*host, *ours) or not seconds:
            return None
        return max(0.0, sum(x or 0 for x in host) - sum(x or 0 for x in ours)) / seconds


def is_quiet(other_cores: float | None) -> bool:
    """Whether that much other work can be overlooked; it can where nobody counted it."""
    return other_cores is None or other_cores <= quiet_cores(psutil.cpu_count() or 1)
