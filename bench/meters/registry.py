"""The meters there are: one explicit list of ours, in the order in which their windows open."""

from __future__ import annotations

import re
import time
from pathlib import Path

from gatherbench.bench.meters.base import Meter, Reading
from gatherbench.bench.meters.cpu import CpuMeter, WallClockMeter
from gatherbench.bench.meters.disk_counters import DiskMeter
from gatherbench.bench.meters.memory import MemoryMeter
from gatherbench.bench.meters.nvml_device import GpuUnderTest
from gatherbench.bench.meters.pcie import PcieMeter
from gatherbench.bench.meters.power import GpuPowerMeter
from gatherbench.bench.meters.rapl import RaplMeter
from gatherbench.bench.meters.recorder import Recorder
from gatherbench.bench.meters.threads import METRICS, ThreadMeter
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
#: The metrics that an epoch's rows have already, and whose they are.
TAKEN: dict[str, str] = {
    metric: owner
    for owner, metrics in {
        "the loop": ("wall_time", "minibatches", "minibatch_set", "place"),
        "rapl": ("cpu_package_energy", "cpu_dram_energy"),
        "pcie": ("pcie_host_to_device", "pcie_device_to_host", "pcie_polling_cpu"),
        "gpu_power": (
            *("gpu_energy", "gpu_power", "gpu_power_average", "gpu_power_polling_cpu"),
            *("gpu_temperature", "gpu_clock", "gpu_clock_lowest", "gpu_slowed"),
        ),
        "disk": ("disk_read_process", "disk_read_device", "disk_reads_device"),
        "memory": (
            *("host_pageable", "host_file_mapped", "host_pinned", "host_managed"),
            *("gpu_allocated_peak", "gpu_reserved_peak"),
        ),
        "cpu": (
            *("cpu_user", "cpu_system", "system_cpu_busy", "system_cpu_steal", "peak_rss"),
            *("context_switches_voluntary", "context_switches_involuntary"),
            *("page_faults_minor", "page_faults_major"),
        ),
        "threads": METRICS,
        "clock": ("window_time",),
    }.items()
    for metric in metrics
}


def tried(meter: Meter, seconds: float = 0.0) -> tuple[Reading, ...]:
    """What a meter says of a window of so long in which nothing happens.

    Raises:
        ValueError: it breaks, or a metric's name is wrong or another's.
    """
    with Recorder([meter]) as recorder:
        time.sleep(seconds)
    for one in recorder.readings:
        if one.source == f"meter {meter.name}":  # the recorder's own, in its place
            raise ValueError(str(one.reason))
        if not re.fullmatch("[a-z][a-z0-9_]*", one.metric):
            raise ValueError(f"its metric {one.metric!r}: lower-case letters, digits and _ alone")
        if (owner := TAKEN.get(one.metric, meter.name)) != meter.name:
            raise ValueError(f"its metric {one.metric} is of {owner}: give it a name of its own")
    return recorder.readings


def _checked(loaded: type[Meter]) -> type[Meter]:
    meter = loaded()
    if not isinstance(meter, Meter):
        raise TypeError("it lacks something of gatherbench.bench.meters.base.Meter")
    meter.probe()
    tried(meter)
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
