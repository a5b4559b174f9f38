"""What was read off the disk in a window: by this process, and by anybody from its device.

A path counts the reads that it asks for; whether they reached the disk, and what else did, the
kernel knows. Pages that are read because another one was touched are among them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import ClassVar

from gatherbench.bench.meters.base import Reading, reading
from gatherbench.datasets.store import data_root
from gatherbench.reason import Reason, unsupported

_IO = Path("/proc/self/io")
_DEVICES = Path("/sys/dev/block")
#: The unit of the statistics, whatever the disk's own is (Documentation/block/stat.rst).
SECTOR_BYTES = 512
_NO_IO = unsupported("this kernel counts no bytes of a process", "run on Linux with /proc")

_Sums = tuple[float | Reason, float | Reason, float | Reason]


class DiskMeter:
    """Reads of the disk on which a folder lies, as the kernel counts them.

    ``disk_read_process`` (B): what this process has had fetched from any disk, page faults
    included; of others, its children among them, nothing. ``disk_read_device`` (B) and
    ``disk_reads_device`` (1): what the device has completed for anybody on the machine.

    Args:
        folder: by default that of the datasets. It need not exist.
        io, devices: where the kernel tells.
    """

    name: ClassVar[str] = "disk"
    summary: ClassVar[str] = "bytes and reads off the disk of the datasets, as the kernel counts"
    lost: ClassVar[str] = "what is read off the disk is what a path says that it asked for"
    trust: ClassVar[str] = "cumulative counters of the kernel, read at both ends of the window"

    def __init__(
        self, folder: Path | None = None, io: Path = _IO, devices: Path = _DEVICES
    ) -> None:
        self._io = io
        self._device = _device_of(folder or data_root(), devices)
        self._early = self._read()

    def probe(self) -> Reason | None:
        return next((value for value in self._read() if isinstance(value, Reason)), None)

    def start(self) -> None:
        self._early = self._read()

    def stop(self) -> list[Reading]:
        late, statistics = self._read(), str(_DEVICES)
        if not isinstance(self._device, Reason):
            whole = (self._device, self._device.parent)  # a partition has no queue of its own
            ahead = next((kib for x in whole if (kib := _text(x / "queue/read_ahead_kb"))), "")
            said = f" (read-ahead {ahead.strip()} KiB)" if ahead else ""
            statistics = f"/sys/class/block/{self._device.name}/stat{said}"
        named = (
            ("disk_read_process", "B", f"{_IO} read_bytes"),
            ("disk_read_device", "B", f"{statistics}, sectors of {SECTOR_BYTES} B"),
            ("disk_reads_device", "1", f"{statistics}, reads completed"),
        )
        return [
            reading(metric, unit, _change(before, after), source, samples=2)
            for (metric, unit, source), before, after in zip(named, self._early, late, strict=True)
        ]

    def _read(self) -> _Sums:
        found = re.search(r"^read_bytes: (\d+)$", _text(self._io), re.MULTILINE)
        process = _NO_IO if found is None else float(found[1])
        if isinstance(self._device, Reason):
            return process, self._device, self._device
        file = self._device / "stat"
        counted = _text(file).split()
        if len(counted) < 3:
            reason = unsupported(f"{file} cannot be read")
            return process, reason, reason
        return process, float(counted[2]) * SECTOR_BYTES, float(counted[0])


def _change(before: float | Reason, after: float | Reason) -> float | Reason:
    if isinstance(after, Reason):
        return after
    if isinstance(before, Reason):
        return before
    return after - before if after >= before else Reason("failed", "the counter went backwards")


def _device_of(folder: Path, devices: Path) -> Path | Reason:
    """Where the kernel tells of the block device under the folder, or the nearest that exists."""
    place = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    number = place.stat().st_dev
    found = devices / f"{os.major(number)}:{os.minor(number)}"
    if found.exists():
        return found.resolve()
    return unsupported(
        f"{folder} lies on no block device of its own (a network, overlay or memory file system)",
        "keep the datasets on a disk: GATHERBENCH_DATA",
    )


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
