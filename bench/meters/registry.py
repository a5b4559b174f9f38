"""List the built-in meters, in the order in which their windows open."""

from __future__ import annotations

import re
import time
from pathlib import Path

from gatherbench.bench.meters.base import UNITS, Meter, Reading, closed
from gatherbench.bench.meters.cpu import CpuMeter, WallClockMeter
from gatherbench.bench.meters.disk_counters import DiskMeter
from gatherbench.bench.meters.memory import MemoryMeter
from gatherbench.bench.meters.nvml_device import GpuUnderTest
from gatherbench.bench.meters.pcie import PcieMeter
from gatherbench.bench.meters.power import GpuPowerMeter
from gatherbench.bench.meters.rapl import RaplMeter
from gatherbench.outside import words_of
from gatherbench.plugins import Plugins

#: From the outermost window to the innermost: the clock opens last and closes first, so that its
#: time excludes the other meters' work.
METERS: tuple[type[Meter], ...] = (
    RaplMeter,
    PcieMeter,
    GpuPowerMeter,
    DiskMeter,
    MemoryMeter,
    CpuMeter,
    WallClockMeter,
)
#: The owners of the metrics that an epoch's rows already have.
TAKEN: dict[str, str] = {
    **dict.fromkeys(("wall_time", "minibatches", "minibatch_set", "place"), "the loop"),
    **{metric: meter.name for meter in METERS for metric in meter.units},
}


def tried(meter: Meter, seconds: float = 0.0) -> list[Reading]:
    """Open and close an idle window of a meter; return its readings.

    Raises:
        ValueError: the meter fails or does not say what it is, or a metric's name or unit is wrong
            or belongs to another.
    """
    if lacks := [name for name in Meter.__annotations__ if not hasattr(meter, name)]:
        raise ValueError(f"it lacks {', '.join(lacks)}, which a Meter says of itself")
    for metric, unit in meter.units.items():
        if not re.fullmatch("[a-z][a-z0-9_]*", metric):
            raise ValueError(f"its metric {metric!r}: lower-case letters, digits and _ alone")
        if (owner := TAKEN.get(metric, meter.name)) != meter.name:
            raise ValueError(f"its metric {metric} is of {owner}: give it a name of its own")
        if unit not in UNITS:
            raise ValueError(f"its metric {metric} has the unit {unit!r}: one of {UNITS}")
    try:
        meter.begin()
        time.sleep(seconds)
        return closed(meter)
    except Exception as error:
        raise ValueError(f"failed: {words_of(error)}") from error


def _checked(loaded: type[Meter]) -> type[Meter]:
    if not (isinstance(loaded, type) and issubclass(loaded, Meter)):
        raise TypeError("it is no gatherbench.bench.meters.base.Meter")
    meter = loaded()
    meter.probe()
    tried(meter)
    return loaded


#: Meters of other packages: classes that are built without arguments.
PLUGINS = Plugins("gatherbench.meters", _checked, lambda: (meter.name for meter in METERS))


def open_meters(gpu: GpuUnderTest | None = None, folder: Path | None = None) -> list[Meter]:
    """Return every meter: those of other packages outside, those of :data:`METERS` inside.

    Built-in meters of a GPU watch ``gpu``, that of the disk the one of ``folder``. Meters that
    cannot read here, or have no GPU, are included: their readings have the reason.
    """

    def opened(meter: type[Meter]) -> Meter:
        if issubclass(meter, (PcieMeter, GpuPowerMeter)):
            return meter(gpu)
        return meter(folder) if issubclass(meter, DiskMeter) else meter()

    return [opened(meter) for meter in (*PLUGINS.usable(), *METERS)]
