"""The meters there are: one explicit list of ours, in the order in which their windows open."""

from __future__ import annotations

from pathlib import Path

from gatherbench.bench.meters.base import Meter
from gatherbench.bench.meters.cpu import CpuMeter, WallClockMeter
from gatherbench.bench.meters.disk_counters import DiskMeter
from gatherbench.bench.meters.memory import MemoryMeter
from gatherbench.bench.meters.nvml_device import GpuUnderTest
from gatherbench.bench.meters.pcie import PcieMeter
from gatherbench.bench.meters.power import GpuPowerMeter
from gatherbench.bench.meters.rapl import RaplMeter
from gatherbench.bench.meters.threads import ThreadMeter
from gatherbench.plugins import Plugins

#: From the outermost window to the innermost: the clock opens last and closes first, so that the
#: time it reads holds nothing of the other meters' work.
METERS: tuple[type[Meter], ...] = (
    RaplMeter,
    PcieMeter,
    GpuPowerMeter,
    DiskMeter,
    MemoryMeter,
    CpuMeter,
    ThreadMeter,
    WallClockMeter,
)


def _checked(loaded: type[Meter]) -> type[Meter]:
    meter = loaded()
    if not isinstance(meter, Meter):
        raise TypeError("it lacks something of gatherbench.bench.meters.base.Meter")
    meter.probe()
    return loaded


#: Meters of other packages: classes that are built without arguments.
PLUGINS = Plugins("gatherbench.meters", _checked, lambda: (meter.name for meter in METERS))


def open_meters(gpu: GpuUnderTest | None = None, folder: Path | None = None) -> list[Meter]:
    """Every meter of :data:`METERS`, within those of other packages; ours of a GPU watch ``gpu``.

    That of the disk watches the one on which ``folder`` lies. Meters that cannot read here, or have
    no GPU to watch, are among them: their readings carry the reason.
    """

    def opened(meter: type[Meter]) -> Meter:
        if issubclass(meter, (PcieMeter, GpuPowerMeter)):
            return meter(gpu)
        return meter(folder) if issubclass(meter, DiskMeter) else meter()

    return [opened(meter) for meter in (*PLUGINS.usable(), *METERS)]
