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
from typing import ClassVar

from gatherbench.bench.meters.base import NEVER_OPENED, Reading, reading
from gatherbench.bench.meters.poller import Polled, Poller, Wrapping
from gatherbench.reason import Reason, SensorUnavailableError, unsupported

#: No package draws more: twice the highest thermal design power sold (500 W, AMD EPYC 9965). It
#: bounds how soon a counter can wrap, and how much energy a falling counter can stand for.
MAX_PACKAGE_W = 1000.0
#: Below this the counter's refresh (about 1 ms, Intel SDM vol. 3B, "RAPL Interfaces") is more than
#: a per cent of the window at each end.
MIN_WINDOW_S = 0.1
_MAX_PERIOD_S = 30.0

DRAM = "dram"
_PACKAGE = re.compile(r"package-\d+(-die-\d+)?")
_PERMISSION = Reason(
    "no_permission",
    "energy_uj is for root only",
    'run as root, or write SUBSYSTEM=="powercap", KERNEL=="intel-rapl*:*", '
    'RUN+="/bin/chmod a+r /sys%p/energy_uj" into /etc/udev/rules.d/70-rapl.rules '
    "and run: udevadm trigger --subsystem-match=powercap (then every user can read it, which "
    "Linux has closed because it tells of others' work)",
)
_NO_PACKAGE = Reason(
    "no_device",
    "no RAPL package in the kernel's powercap tree",
    "run on bare metal (most virtual machines hide the counter)",
)
_NO_DRAM = Reason(
    "no_device", "this processor has no RAPL zone for its memory", "nothing brings one"
)
_SHORT = Reason("too_short", f"the window is shorter than {MIN_WINDOW_S:g} s", "use longer epochs")
_STOOD_STILL = unsupported("the counter stood still", "this machine does not feed it")


@dataclass(frozen=True, slots=True)
class Zone:
    """One counter of the tree; ``name`` is the kernel's (``package-0``, ``dram``, ``psys``)."""

    folder: Path
    name: str
    max_uj: int

    @property
    def label(self) -> str:
        return f"{self.name} ({self.folder.name})"


#: Time (s) and, zone by zone, its energy (µJ) or why it is not known.
_Sample = tuple[float, tuple[int | Reason, ...]]


class RaplMeter:
    """Energy of all packages and of all their DRAM (``cpu_package_energy``, ``cpu_dram_energy``).

    ``core`` and ``uncore`` are parts of a package and ``psys`` is the whole board, so none of these
    is added; ``intel-rapl-mmio`` repeats package 0.
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
        self._reason: Reason | None = NEVER_OPENED
        self._zones: list[Zone] = []
        self._period_s = _MAX_PERIOD_S

    def probe(self) -> Reason | None:
        try:
            self._zones = self._find_zones()
            packages = [zone for zone in self._zones if zone.name != DRAM]
            for zone in packages:
                self._energy_uj(zone)
        except PermissionError:
            return _PERMISSION
        except (OSError, ValueError) as error:
            cause = f"energy_uj cannot be read ({_words(error)})"
            return unsupported(cause, "run on bare metal")
        return None if packages else _NO_PACKAGE

    def start(self) -> None:
        self._reason = self.probe()
        if self._reason is None:
            smallest_j = min(zone.max_uj for zone in self._zones) / 1e6
            # Twice as often as the counter can wrap at the most.
            self._period_s = min(_MAX_PERIOD_S, smallest_j / MAX_PACKAGE_W / 2)
            self._poller = Poller(self._sample, self._period_s)
            self._poller.start()

    def stop(self) -> list[Reading]:
        polled = self._poller.stop() if self._reason is None else Polled([], self._reason)
        packages = [i for i, zone in enumerate(self._zones) if zone.name != DRAM]
        dram = [i for i, zone in enumerate(self._zones) if zone.name == DRAM]
        incomplete = None
        if not dram:
            incomplete = _NO_DRAM
        elif len(dram) < len(packages):
            cause = f"{len(dram)} of {len(packages)} packages have a dram zone: memory is left out"
            incomplete = unsupported(cause, "enable the zones in the firmware")
        readings = []
        for metric, what, zones, reason in (
            ("cpu_package_energy", "packages", packages, None),
            ("cpu_dram_energy", "memory", dram, incomplete),
        ):
            answer = polled.error or reason or self._joules(zones, polled.samples)
            samples = 0 if isinstance(answer, Reason) else len(polled.samples)
            period_s = self._period_s if samples > 2 else None
            source = f"powercap energy_uj, all {what}"
            readings.append(reading(metric, "J", answer, source, samples, period_s))
        return readings

    def _joules(self, zones: list[int], samples: list[_Sample]) -> float | Reason:
        total_uj = 0
        for i in zones:
            zone, counts = self._zones[i], []
            for time_s, energies in samples:
                energy = energies[i]
                if isinstance(energy, Reason):
                    return energy
                counts.append((time_s, energy))
            # The counter begins again at 0 after max_energy_range_uj (kernel, power/powercap).
            counter = Wrapping(zone.label, "µJ", zone.max_uj, MAX_PACKAGE_W * 1e6, MIN_WINDOW_S)
            try:
                total_uj += counter.accumulate(counts)[-1][1]
            except SensorUnavailableError as lost:
                return lost.reason
        if samples[-1][0] - samples[0][0] < MIN_WINDOW_S:
            return _SHORT
        return total_uj / 1e6 if total_uj else _STOOD_STILL

    def _sample(self) -> _Sample:
        """The time, and what each zone says or why it says nothing."""
        found: list[int | Reason] = []
        for zone in self._zones:
            try:
                found.append(self._energy_uj(zone))
            except (OSError, ValueError) as error:
                cause = f"{zone.label} cannot be read any more ({_words(error)})"
                found.append(Reason("failed", cause))
        return self._clock(), tuple(found)

    def _energy_uj(self, zone: Zone) -> int:
        return int(self._read(zone.folder / "energy_uj"))

    def _find_zones(self) -> list[Zone]:
        zones = []
        for folder in sorted(self._powercap.glob("intel-rapl:[0-9]*")):
            name = self._read(folder / "name").strip()
            if name == DRAM or _PACKAGE.fullmatch(name):
                max_uj = int(self._read(folder / "max_energy_range_uj"))
                if max_uj <= 0:  # it would have to be polled without a pause
                    raise ValueError(name)
                zones.append(Zone(folder, name, max_uj))
        return zones


def _words(error: Exception) -> str:
    """What went wrong, without the path that an ``OSError`` names."""
    if isinstance(error, OSError):
        return error.strerror or "no answer"
    return "no number that means anything"
