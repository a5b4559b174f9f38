"""Energy of the processor packages (RAPL): whether this machine has and shows the counter.

Since Linux 5.10 only root may read ``energy_uj`` (it leaks what other programs do), and most
virtual machines have no such counter at all. This version finds out which of these holds and
reads nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gatherbench.bench.meters.base import Reading


class RaplMeter:
    """Energy of all processor packages. Units: J.

    Args:
        powercap: where the kernel's powercap tree lies.
    """

    name: ClassVar[str] = "rapl"
    summary: ClassVar[str] = "energy drawn by the processor packages (RAPL)"

    def __init__(self, powercap: Path = Path("/sys/class/powercap")) -> None:
        self._powercap = powercap
        self._reason = ""

    def probe(self) -> str | None:
        # `intel-rapl:0` is package 0 (AMD's packages too); a second number names a part of it.
        packages = sorted(self._powercap.glob("intel-rapl:[0-9]*"))
        counters = [p / "energy_uj" for p in packages if p.name.count(":") == 1]
        if not counters:
            return (
                "no_device: no RAPL package in the kernel's powercap tree; "
                "run on bare metal (most virtual machines hide the counter)"
            )
        try:
            for counter in counters:
                int(counter.read_text())
        except PermissionError:
            return "no_permission: energy_uj is for root only; run as root or chmod a+r energy_uj"
        except (OSError, ValueError) as error:
            return f"unsupported: energy_uj cannot be read ({error}); run on bare metal"
        return "unsupported: the counter is there; reading it comes with a later version"

    def start(self) -> None:
        # Asked once: what the kernel shows does not change from window to window.
        self._reason = self._reason or self.probe() or ""

    def stop(self) -> list[Reading]:
        return [Reading("cpu_energy", "J", None, "powercap intel-rapl energy_uj", self._reason)]
