"""Reads of the disk, by hand-made files of the kernel."""

import os
from pathlib import Path

import pytest

from gatherbench.bench.meters import disk_counters
from gatherbench.bench.meters.base import Reading, closed
from gatherbench.bench.meters.disk_counters import DiskMeter
from gatherbench.bench.meters.registry import open_meters

#: reads completed, merged, sectors read, ms; writes likewise; in flight, ms, ms.
STAT = "{reads} 5 {sectors} 30 70 9 8000 60 0 50 90\n"
IO = "rchar: 999\nwchar: 9\nsyscr: 5\nsyscw: 1\nread_bytes: {read}\nwrite_bytes: 77\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``io``, and the device on which ``tmp_path`` lies, with its name."""
    number = tmp_path.stat().st_dev
    (tmp_path / "block/nvme0n1/queue").mkdir(parents=True)
    (tmp_path / "block/nvme0n1/nvme0n1p2").mkdir()
    (tmp_path / "devices").mkdir()
    link = tmp_path / "devices" / f"{os.major(number)}:{os.minor(number)}"
    link.symlink_to(tmp_path / "block/nvme0n1")
    say(tmp_path, reads=100, sectors=4000, read=10_000)
    monkeypatch.setattr(disk_counters, "_IO", tmp_path / "io")
    monkeypatch.setattr(disk_counters, "_DEVICES", tmp_path / "devices")
    return tmp_path


def say(kernel: Path, reads: int, sectors: int, read: int) -> None:
    device = next((kernel / "devices").iterdir())
    (device / "stat").write_text(STAT.format(reads=reads, sectors=sectors))
    (kernel / "io").write_text(IO.format(read=read))


def meter(kernel: Path) -> DiskMeter:
    return DiskMeter(kernel / "data not made yet")


def window(meter: DiskMeter, kernel: Path, **later: int) -> dict[str, Reading]:
    meter.begin()
    say(kernel, **later)
    return {one.metric: one for one in closed(meter)}


def test_the_window_is_the_difference_of_the_counters(kernel):
    assert meter(kernel).probe() is None
    found = window(meter(kernel), kernel, reads=130, sectors=4080, read=50_960)
    assert {name: (one.value, one.unit) for name, one in found.items()} == {
        "disk_read_process": (40_960, "B"),
        "disk_read_device": (40_960, "B"),  # 80 sectors of 512 B
        "disk_reads_device": (30, "1"),
    }
    assert found["disk_read_process"].source == "/proc/self/io read_bytes"
    named = "/sys/class/block/nvme0n1/stat, sectors of 512 B"
    assert found["disk_read_device"].source == named


def test_a_partition_has_counters_of_its_own(kernel):
    link = next((kernel / "devices").iterdir())
    link.unlink()
    link.symlink_to(kernel / "block/nvme0n1/nvme0n1p2")
    say(kernel, reads=1, sectors=1, read=1)
    found = window(meter(kernel), kernel, reads=2, sectors=9, read=1)
    assert found["disk_read_device"].value == 8 * 512
    assert "nvme0n1p2/stat" in found["disk_read_device"].source


def test_files_that_are_missing_are_reasons_and_not_zeros(kernel):
    broken = meter(kernel)
    (kernel / "io").unlink()
    found = {one.metric: one for one in closed(broken)}
    assert found["disk_read_process"].value is None
    assert "counts no bytes of a process" in str(found["disk_read_process"].reason)
    assert found["disk_reads_device"].value == 0
    next((kernel / "devices").iterdir()).unlink()
    found = {one.metric: one for one in closed(meter(kernel))}
    assert {one.value for one in found.values()} == {None}
    assert "lies on no block device" in str(found["disk_read_device"].reason)
    assert str(meter(kernel).probe()).startswith("unsupported: ")


def test_a_device_that_tells_nothing_and_one_that_was_replaced(kernel):
    one = meter(kernel)
    found = window(one, kernel, reads=3, sectors=10, read=50_000)
    assert str(found["disk_reads_device"].reason) == "failed: the counter went backwards"
    (next((kernel / "devices").iterdir()) / "stat").write_text("")
    assert "stat cannot be read" in str(closed(one)[1].reason)


def test_the_meter_of_a_case_watches_the_disk_of_its_dataset(tmp_path):
    (opened,) = [one for one in open_meters(folder=tmp_path) if isinstance(one, DiskMeter)]
    (own,) = [one for one in open_meters() if isinstance(one, DiskMeter)]
    assert opened._device == DiskMeter(tmp_path)._device
    assert own.name == "disk"
