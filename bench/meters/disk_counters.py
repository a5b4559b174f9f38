"""Measure reads from the disk in a window: by this process, and by all processes on its device.

A path counts its own requests; the kernel counts the reads that reached the disk, including
read-ahead and those of other processes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import ClassVar

from gatherbench.bench.machine import kernel_text
from gatherbench.bench.meters.base import Meter, Window, change
from gatherbench.datasets.store import data_root
from gatherbench.reason import Reason, unsupported

_IO = Path("/proc/self/io")
_DEVICES = Path("/sys/dev/block")
#: The unit of the statistics, whatever the disk's own is (Documentation/block/stat.rst).
SECTOR_BYTES = 512
_NO_IO = unsupported("this kernel counts no bytes of a process", "run on Linux with /proc")


class DiskMeter(Meter):
    """Reads of the disk that holds a folder, as the kernel counts them.

    ``disk_read_process`` is what the kernel has read from any disk for this process alone, without
    its children; page faults are included. ``…_device`` is what the device has completed for all
    processes of the machine.

    Args:
        folder: by default that of the datasets. It may be missing.
    """

    name: ClassVar[str] = "disk"
    summary: ClassVar[str] = "bytes and reads off the disk of the datasets, as the kernel counts"
    lost: ClassVar[str] = "reads of the disk are not measured; those that a path declares remain"
    trust: ClassVar[str] = "cumulative counters of the kernel, read at both ends of the window"
    units = {"disk_read_process": "B", "disk_read_device": "B", "disk_reads_device": "1"}

    def __init__(self, folder: Path | None = None) -> None:
        self._device = _device_of(folder or data_root())
        statistics = str(_DEVICES)
        if not isinstance(self._device, Reason):
            statistics = f"/sys/class/block/{self._device.name}/stat"
        self.sources = {
            "disk_read_process": "/proc/self/io read_bytes",
            "disk_read_device": f"{statistics}, sectors of {SECTOR_BYTES} B",
            "disk_reads_device": f"{statistics}, reads completed",
        }
        self._early = self._read()

    def probe(self) -> Reason | None:
        return next((value for value in self._read().values() if isinstance(value, Reason)), None)

    def begin(self) -> None:
        self._early = self._read()

    def end(self) -> Window:
        return {metric: change(self._early[metric], late) for metric, late in self._read().items()}

    def _read(self) -> Window:
        read = re.search(r"^read_bytes: (\d+)$", kernel_text(_IO), re.MULTILINE)
        process = _NO_IO if read is None else float(read[1])
        device: tuple[float | Reason, float | Reason]
        if isinstance(self._device, Reason):
            device = self._device, self._device
        elif len(counted := kernel_text(self._device / "stat").split()) < 3:
            device = (unsupported(f"{self._device / 'stat'} cannot be read"),) * 2
        else:
            device = float(counted[2]) * SECTOR_BYTES, float(counted[0])
        return dict(zip(self.units, (process, *device), strict=True))


def _device_of(folder: Path) -> Path | Reason:
    """Return the kernel's folder of the block device of a folder, or of its nearest parent."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    number = place.stat().st_dev
    device = _DEVICES / f"{os.major(number)}:{os.minor(number)}"
    if device.exists():
        return device.resolve()
    return unsupported(
        f"{folder} lies on no block device of its own (a network, overlay or memory file system)",
        "keep the datasets on a disk: GATHERBENCH_DATA",
    )
