"""Measure energy of processor packages and their memory by the kernel's powercap tree (RAPL).

Since Linux 5.10 only root may read ``energy_uj`` (it leaks what other programs do), and most
virtual machines lack the counter. The counter is the package's, so it includes other programs.
Its value is reported separately from the GPU's energy and never added to it.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import ClassVar, NamedTuple

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

PACKAGES, MEMORY = "cpu_package_energy", "cpu_dram_energy"
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
_NO_DRAM = Reason("no_device", "this processor has no RAPL zone for memory", "nothing brings one")
_SHORT = Reason("too_short", f"the window is shorter than {MIN_WINDOW_S:g} s", "use longer epochs")
_STOOD_STILL = unsupported("the counter stood still", "this machine does not feed it")


class Zone(NamedTuple):
    """One counter of the tree, in µJ."""

    folder: Path
    max_uj: int

    def energy_uj(self) -> int:
        """Return its energy since some time; 0 follows ``max_uj``."""
        return int((self.folder / "energy_uj").read_text())


class RaplMeter(Meter):
    """The energy of all packages and of all their DRAM.

    ``core`` and ``uncore`` are parts of a package and ``psys`` is the whole board, so none of these
    is added; ``intel-rapl-mmio`` repeats package 0.
    """

    name: ClassVar[str] = "rapl"
    summary: ClassVar[str] = "energy drawn by the processor packages and their memory (RAPL)"
    lost: ClassVar[str] = "energy of processors and memory is not measured"
    trust: ClassVar[str] = "the processor's own counter, taken as it is; wraps are undone"
    units = {PACKAGES: "J", MEMORY: "J"}

    def __init__(self, powercap: Path = Path("/sys/class/powercap")) -> None:
        self._powercap, self._zones = powercap, dict[str, list[Zone]]()
        self._reason: Reason | None = NEVER_OPENED

    def probe(self) -> Reason | None:
        self._zones = {PACKAGES: [], MEMORY: []}
        try:
            for folder in sorted(self._powercap.glob("intel-rapl:[0-9]*")):
                name = (folder / "name").read_text().strip()
                if name == "dram" or re.fullmatch(r"package-\d+(-die-\d+)?", name):
                    zone = Zone(folder, int((folder / "max_energy_range_uj").read_text()))
                    if zone.max_uj <= 0:  # would need polling without a pause
                        raise ValueError(f"{name} counts to {zone.max_uj}")
                    zone.energy_uj()
                    self._zones[MEMORY if name == "dram" else PACKAGES].append(zone)
        except PermissionError:
            return _PERMISSION
        except (OSError, ValueError) as error:
            return unsupported(f"energy_uj cannot be read ({error})", "run on bare metal")
        return None if self._zones[PACKAGES] else _NO_PACKAGE

    def begin(self) -> None:
        self._reason = self.probe()
        if self._reason is None:
            every = [zone for zones in self._zones.values() for zone in zones]
            smallest_j = min(zone.max_uj for zone in every) / 1e6
            # Twice as often as the counter can wrap.
            self._period_s = min(_MAX_PERIOD_S, smallest_j / MAX_PACKAGE_W / 2)
            self._poller = Poller(
                lambda: (time.monotonic(), {zone: zone.energy_uj() for zone in every}),
                self._period_s,
            )
            self._poller.start()

    def end(self) -> Window:
        if self._reason is not None:
            return dict.fromkeys(self.units, self._reason)
        polled = self._poller.stop()
        self.sources = {
            metric: sampled(
                f"powercap energy_uj, all {domain}", len(polled.samples), self._period_s
            )
            for metric, domain in zip(self.units, ("packages", "memory"), strict=True)
        }
        joules = {metric: _joules(zones, polled) for metric, zones in self._zones.items()}
        memories, packages = len(self._zones[MEMORY]), len(self._zones[PACKAGES])
        if not memories:
            joules[MEMORY] = _NO_DRAM
        elif memories < packages:
            cause = f"{memories} of {packages} packages have a dram zone: memory is left out"
            joules[MEMORY] = unsupported(cause, "enable the zones in the firmware")
        return joules


def _joules(zones: list[Zone], polled: Polled[tuple[float, dict[Zone, int]]]) -> float | Reason:
    if polled.error:
        return polled.error
    samples, total_uj = polled.samples, 0
    for zone in zones:
        # The counter wraps to 0 after max_energy_range_uj (kernel, power/powercap).
        name, most = zone.folder.name, MAX_PACKAGE_W * 1e6
        counter = Wrapping(name, "µJ", zone.max_uj, most, MIN_WINDOW_S)
        counts = [(at, energies[zone]) for at, energies in samples]
        try:
            total_uj += counter.accumulate(counts)[-1][1]
        except SensorUnavailableError as lost:
            return lost.reason
    if samples[-1][0] - samples[0][0] < MIN_WINDOW_S:
        return _SHORT
    return total_uj / 1e6 if total_uj else _STOOD_STILL
