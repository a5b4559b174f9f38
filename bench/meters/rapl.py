"""Measure energy of processor packages and their memory by the kernel's powercap tree (RAPL).

Since Linux 5.10 only root may read ``energy_uj`` (it leaks what other programs do), and most
virtual machines lack the counter. The counter is the package's, so it includes other programs.
Its value is reported separately from the GPU's energy and never added to it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gatherbench.bench.meters.base import Meter, Window, sampled
from gatherbench.bench.meters.poller import NEVER_OPENED, Polled, Poller, Wrapping
from gatherbench.reason import Reason, SensorUnavailableError, unsupported

#: Upper bound of a package's power: twice the highest thermal design power sold (500 W, AMD EPYC
#: 9965). It bounds how soon a counter can wrap, and the energy that a falling counter can mean.
MAX_PACKAGE_W = 1000.0
#: Shortest window: below it the counter's refresh (about 1 ms, Intel SDM vol. 3B, "RAPL
#: Interfaces") is more than 1 % of the window at each end.
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


#: Time (s) and, for each zone, its energy (µJ) or why it is unknown.
_Sample = tuple[float, dict[Zone, int | Reason]]


class RaplMeter(Meter):
    """The energy of all packages and of all their DRAM.

    ``core`` and ``uncore`` are parts of a package and ``psys`` is the whole board, so none of these
    is added; ``intel-rapl-mmio`` repeats package 0.
    """

    name: ClassVar[str] = "rapl"
    summary: ClassVar[str] = "energy drawn by the processor packages and their memory (RAPL)"
    lost: ClassVar[str] = "energy of processors and memory is not reported"
    trust: ClassVar[str] = "the processor's own counter, taken as it is; wraps are undone"
    units = {"cpu_package_energy": "J", "cpu_dram_energy": "J"}

    def __init__(
        self,
        powercap: Path = Path("/sys/class/powercap"),
        read: Callable[[Path], str] = Path.read_text,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._powercap, self._read, self._clock = powercap, read, clock
        self._reason: Reason | None = NEVER_OPENED
        self._zones: list[Zone] = []

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

    def begin(self) -> None:
        self._reason = self.probe()
        if self._reason is None:
            smallest_j = min(zone.max_uj for zone in self._zones) / 1e6
            # Twice as often as the counter can wrap.
            self._period_s = min(_MAX_PERIOD_S, smallest_j / MAX_PACKAGE_W / 2)
            self._poller = Poller(self._sample, self._period_s)
            self._poller.start()

    def end(self) -> Window:
        if self._reason is not None:
            return dict.fromkeys(self.units, self._reason)
        polled = self._poller.stop()
        dram = [zone for zone in self._zones if zone.name == DRAM]
        packages = [zone for zone in self._zones if zone.name != DRAM]
        self.sources = {
            metric: sampled(f"powercap energy_uj, all {what}", len(polled.samples), self._period_s)
            for metric, what in zip(self.units, ("packages", "memory"), strict=True)
        }
        memory = self._joules(dram, polled)
        if not dram:
            memory = _NO_DRAM
        elif len(dram) < len(packages):
            cause = f"{len(dram)} of {len(packages)} packages have a dram zone: memory is left out"
            memory = unsupported(cause, "enable the zones in the firmware")
        return {"cpu_package_energy": self._joules(packages, polled), "cpu_dram_energy": memory}

    def _joules(self, zones: list[Zone], polled: Polled[_Sample]) -> float | Reason:
        if polled.error:
            return polled.error
        samples, total_uj = polled.samples, 0
        for zone in zones:
            counts = []
            for time_s, energies in samples:
                energy = energies[zone]
                if isinstance(energy, Reason):
                    return energy
                counts.append((time_s, energy))
            # The counter wraps to 0 after max_energy_range_uj (kernel, power/powercap).
            most_uj_per_s = MAX_PACKAGE_W * 1e6
            counter = Wrapping(_label(zone), "µJ", zone.max_uj, most_uj_per_s, MIN_WINDOW_S)
            try:
                total_uj += counter.accumulate(counts)[-1][1]
            except SensorUnavailableError as lost:
                return lost.reason
        if samples[-1][0] - samples[0][0] < MIN_WINDOW_S:
            return _SHORT
        return total_uj / 1e6 if total_uj else _STOOD_STILL

    def _sample(self) -> _Sample:
        """Return the time, and each zone's energy or why there is none."""
        found: dict[Zone, int | Reason] = {}
        for zone in self._zones:
            try:
                found[zone] = self._energy_uj(zone)
            except (OSError, ValueError) as error:
                cause = f"{_label(zone)} cannot be read any more ({_words(error)})"
                found[zone] = Reason("failed", cause)
        return self._clock(), found

    def _energy_uj(self, zone: Zone) -> int:
        return int(self._read(zone.folder / "energy_uj"))

    def _find_zones(self) -> list[Zone]:
        zones = []
        for folder in sorted(self._powercap.glob("intel-rapl:[0-9]*")):
            name = self._read(folder / "name").strip()
            if name == DRAM or _PACKAGE.fullmatch(name):
                max_uj = int(self._read(folder / "max_energy_range_uj"))
                if max_uj <= 0:  # would need polling without a pause
                    raise ValueError(name)
                zones.append(Zone(folder, name, max_uj))
        return zones


def _label(zone: Zone) -> str:
    return f"{zone.name} ({zone.folder.name})"


def _words(error: Exception) -> str:
    """Return an error's message without the path that an ``OSError`` names."""
    if isinstance(error, OSError):
        return error.strerror or "no answer"
    return "no number that means anything"
