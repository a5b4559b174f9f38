"""Energy of the processor packages and of their memory, from the kernel's powercap tree (RAPL).

Since Linux 5.10 only root may read ``energy_uj`` (it leaks what other programs do), and most
virtual machines have no such counter at all. The counter is the package's: other programs on it
are in the figure too. It stands beside the GPU's energy and is never added to it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import ClassVar

from gatherbench.bench.meters.base import Reading

#: No package draws more: twice the highest thermal design power sold (500 W, AMD EPYC 9965). It
#: bounds how soon a counter can wrap, and how much energy a falling counter can stand for.
MAX_PACKAGE_W = 1000.0
#: Below this the counter's refresh (about 1 ms, Intel SDM vol. 3B, "RAPL Interfaces") is more than
#: a per cent of the window at each end.
MIN_WINDOW_S = 0.1
_MAX_PERIOD_S = 30.0

_PACKAGE = re.compile(r"package-\d+(-die-\d+)?")
_LOST_WRAP = "unsupported: {} was read too late, it may have wrapped unseen; run on a quieter host"
_BACKWARDS = "failed: {} went backwards by more than a wrap explains"
_SOURCE = "powercap energy_uj, all {}"
_LET_READ = (
    'run as root, or write SUBSYSTEM=="powercap", KERNEL=="intel-rapl*:*", '
    'RUN+="/bin/chmod a+r /sys%p/energy_uj" into /etc/udev/rules.d/70-rapl.rules '
    "and run: udevadm trigger --subsystem-match=powercap (then every user can read it, which "
    "Linux has closed because it tells of others' work)"
)


@dataclass(frozen=True, slots=True)
class Zone:
    """One counter of the tree; ``name`` is the kernel's (``package-0``, ``dram``, ``psys``)."""

    folder: Path
    name: str
    max_uj: int

    @property
    def label(self) -> str:
        return f"{self.name} ({self.folder.name})"


class RaplMeter:
    """Energy of all packages and of all their DRAM (``cpu_package_energy``, ``cpu_dram_energy``).

    Units: J.

    Zones are told apart by their ``name`` file. ``core`` and ``uncore`` are parts of a package and
    ``psys`` is the whole board, so none of these is added; ``intel-rapl-mmio`` repeats package 0.

    Args:
        powercap: where the kernel's powercap tree lies.
        read: how a file of it is read.
        clock: seconds, monotonic.
    """

    name: ClassVar[str] = "rapl"
    summary: ClassVar[str] = "energy drawn by the processor packages and their memory (RAPL)"
    lost: ClassVar[str] = "energy of processors and memory is not reported"
    trust: ClassVar[str] = "the processor's own counter, taken as it is; wraps are undone"

    def __init__(
        self,
        powercap: Path = Path("/sys/class/powercap"),
        read: Callable[[Path], str] = Path.read_text,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._powercap, self._read, self._clock = powercap, read, clock
        self._reason: str | None = None
        self._zones: list[Zone] = []
        self._counters: list[_Counter] = []
        self._period_s = _MAX_PERIOD_S
        self._asked = False
        self._poller: _Poller | None = None
        self._opened_s = 0.0

    def probe(self) -> str | None:
        try:
            self._zones = self._find_zones()
            packages = [zone for zone in self._zones if zone.name != "dram"]
            if not packages:
                return (
                    "no_device: no RAPL package in the kernel's powercap tree; "
                    "run on bare metal (most virtual machines hide the counter)"
                )
            for zone in packages:
                _energy_uj(zone, self._read)
        except PermissionError:
            return f"no_permission: energy_uj is for root only; {_LET_READ}"
        except (OSError, ValueError) as error:
            return f"unsupported: energy_uj cannot be read ({_words(error)}); run on bare metal"
        return None

    def start(self) -> None:
        if not self._asked:  # what the kernel shows does not change from window to window
            self._reason, self._asked = self.probe(), True
        if self._reason is not None:
            return
        self._opened_s = self._clock()
        self._counters = [_Counter(zone, self._read, self._clock) for zone in self._zones]
        smallest = min(zone.max_uj for zone in self._zones)
        # Twice as often as the counter can wrap at the most.
        self._period_s = min(_MAX_PERIOD_S, smallest / 1e6 / MAX_PACKAGE_W / 2)
        self._poller = _Poller(self._counters, self._period_s)

    def stop(self) -> list[Reading]:
        if self._poller is not None:
            self._poller.close()
            self._poller = None
        packages = [c for c in self._counters if c.zone.name != "dram"]
        dram = [c for c in self._counters if c.zone.name == "dram"]
        return [
            self._reading("cpu_package_energy", "packages", packages, None),
            self._reading("cpu_dram_energy", "memory", dram, _incomplete(dram, packages)),
        ]

    def _reading(
        self, metric: str, what: str, counters: list[_Counter], reason: str | None
    ) -> Reading:
        source = _SOURCE.format(what)
        for counter in counters:
            counter.advance()
        reason = self._reason or reason or next((c.reason for c in counters if c.reason), None)
        if reason is None and self._clock() - self._opened_s < MIN_WINDOW_S:
            reason = (
                f"unsupported: the window is shorter than {MIN_WINDOW_S:g} s; use longer epochs"
            )
        total_uj = sum(counter.total_uj for counter in counters)
        if reason is None and total_uj == 0:
            reason = "unsupported: the counter stood still; this machine does not feed it"
        if reason is not None:
            return Reading(metric, "J", None, source, reason=reason)
        samples = min(counter.samples for counter in counters)
        period_s = self._period_s if samples > 2 else None
        return Reading(metric, "J", total_uj / 1e6, source, samples=samples, period_s=period_s)

    def _find_zones(self) -> list[Zone]:
        zones = []
        for folder in sorted(self._powercap.glob("intel-rapl:[0-9]*")):
            name = self._read(folder / "name").strip()
            if name == "dram" or _PACKAGE.fullmatch(name):
                max_uj = int(self._read(folder / "max_energy_range_uj"))
                if max_uj <= 0:  # it would have to be polled without a pause
                    raise ValueError(name)
                zones.append(Zone(folder, name, max_uj))
        return zones


def _incomplete(dram: list[_Counter], packages: list[_Counter]) -> str | None:
    """Why the zones of memory are not all of the machine's memory, or ``None``."""
    if not dram:
        return "no_device: this processor has no RAPL zone for its memory; nothing brings one"
    if len(dram) < len(packages):
        return (
            f"unsupported: {len(dram)} of {len(packages)} packages have a dram zone, a sum would "
            "leave memory out; enable the zones in the firmware"
        )
    return None


class _Counter:
    """Adds up what one zone used; a reason once that is no longer known."""

    def __init__(self, zone: Zone, read: Callable[[Path], str], clock: Callable[[], float]) -> None:
        self.zone, self._read, self._clock = zone, read, clock
        self.total_uj, self.samples = 0, 0
        self.reason: str | None = None
        self._last_uj: int | None = None
        self._last_s = 0.0

    def advance(self) -> None:
        """Read the counter and add what it grew by since the reading before."""
        if self.reason is not None:
            return
        try:
            now_uj, now_s = _energy_uj(self.zone, self._read), self._clock()
        except (OSError, ValueError) as error:
            self.reason = f"failed: {self.zone.label} cannot be read any more ({_words(error)})"
            return
        if self._last_uj is not None:
            self._add(now_uj - self._last_uj, now_s - self._last_s)
        self.samples += 1
        self._last_uj, self._last_s = now_uj, now_s

    def _add(self, grown_uj: int, seconds: float) -> None:
        possible_uj = MAX_PACKAGE_W * (seconds + MIN_WINDOW_S) * 1e6
        if MAX_PACKAGE_W * seconds * 1e6 > self.zone.max_uj:
            self.reason = _LOST_WRAP.format(self.zone.label)
        elif grown_uj < 0 and grown_uj + self.zone.max_uj > possible_uj:
            self.reason = _BACKWARDS.format(self.zone.label)
        else:
            # The counter begins again at 0 after max_energy_range_uj (kernel, power/powercap).
            self.total_uj += grown_uj if grown_uj >= 0 else grown_uj + self.zone.max_uj


class _Poller:
    """Reads counters often enough that none wraps unseen, in a thread that mostly sleeps."""

    def __init__(self, counters: list[_Counter], period_s: float) -> None:
        self._counters, self._period_s = counters, period_s
        self._done = Event()
        for counter in counters:
            counter.advance()
        self._thread = Thread(target=self._poll, name="gatherbench-meter-rapl", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._done.wait(self._period_s):
            for counter in self._counters:
                counter.advance()

    def close(self) -> None:
        self._done.set()
        self._thread.join()


def _energy_uj(zone: Zone, read: Callable[[Path], str]) -> int:
    return int(read(zone.folder / "energy_uj"))


def _words(error: Exception) -> str:
    """What went wrong, without the path that an ``OSError`` names."""
    return (
        (error.strerror or "no answer")
        if isinstance(error, OSError)
        else "no number that means anything"
    )
