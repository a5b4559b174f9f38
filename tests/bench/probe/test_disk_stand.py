"""A disk is timed for real where there is one, and refused where what is read is memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.disk_counters import DiskMeter
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.probe import disk_timing as disk
from gatherbench.bench.probe.calibrate import calibrate, folder_of_disk
from gatherbench.bench.probe.cases import DEPTHS, GIB, MIB, disk_points
from gatherbench.bench.probe.disk_timing import DiskStand, file_bytes
from gatherbench.bench.probe.fit import Fit, Measured, blank_profile
from gatherbench.bench.probe.stand import Observation, ProbeError
from gatherbench.bench.read.points import Point
from gatherbench.kernels.disk_read import DiskReadError, open_direct

from .conftest import FACTS


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "FILE_BYTES", 32 * MIB)
    monkeypatch.setattr(disk, "LEAST_BYTES", MIB)
    monkeypatch.setattr(disk, "_SECONDS", 1e-6)


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand's file may come from a cache of the file system's own: that is another test's."""
    unknown = [Reading("disk_read_process", "B", None, "a test")]
    monkeypatch.setattr(DiskMeter, "stop", lambda _: unknown)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a disk."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(4096))
    try:
        os.close(open_direct(probe))
    except DiskReadError as why:
        pytest.skip(str(why))
    probe.unlink()
    return tmp_path


@pytest.mark.usefixtures("small")
def test_every_point_is_measured_and_the_file_leaves_nothing(folder, uncounted):
    said: list[str] = []
    with DiskStand(folder, said.append) as stand:
        assert list(folder.iterdir()) == [], "it has no name"
        for point in disk_points():
            seen = stand.measure(point)
            each = MIB if point.case == "disk_sequential" else 1
            assert seen.amount == each * min(8 * point.threads, 32 * MIB // point.row_bytes)
            assert seen.seconds > 0
            assert seen.source.startswith("time.perf_counter, ")
    assert said == [f"writes 0.03125 GiB into {folder} to time its disk, and gives them back"]


@pytest.mark.usefixtures("small")
def test_wrong_blocks_are_not_timed(folder, uncounted, monkeypatch):
    with DiskStand(folder) as stand:
        point = disk_points()[1]

        class Lazy:
            file, engine = stand._reader(point).file, "lazy"

            def read(self, ids: object, out: np.ndarray[Any, Any]) -> None:
                out[:] = 0

            def close(self) -> None: ...

        stand._readers[point].close()
        monkeypatch.setitem(stand._readers, point, Lazy())
        with pytest.raises(ProbeError, match="delivered wrong blocks"):
            stand.measure(point)


@pytest.mark.usefixtures("small")
def test_what_is_read_from_memory_is_no_disk(folder, monkeypatch):
    counted = [Reading("disk_read_process", "B", 0.0, "a test")]
    monkeypatch.setattr(DiskMeter, "stop", lambda _: counted)
    with pytest.raises(ProbeError, match="counts 0 bytes read from disks while 262144 were read"):
        DiskStand(folder)


@pytest.mark.parametrize(
    ("free", "size"), [(100 * GIB, GIB), (2 * GIB, 512 * MIB), (GIB, 256 * MIB), (GIB - MIB, None)]
)
def test_the_file_leaves_room_or_there_is_too_little(free, size, tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    if size is not None:
        assert file_bytes(tmp_path) == size
        return
    with pytest.raises(ProbeError, match=r"1\.00 GiB are free, and timing its disk needs 1 GiB"):
        file_bytes(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ProbeError, match="No such file"):
        file_bytes(tmp_path / "gone")


def rates(**of: float) -> Measured:
    return Measured(of["median"], 0.9 * of["median"], 1.1 * of["median"], 5)


def test_a_profile_is_fitted_to_what_was_seen():
    seen = dict(zip(DEPTHS, (20e3, 50e3, 80e3, 90e3), strict=True))
    found = {
        p: rates(median=seen[p.threads] if p.case == "disk_random" else 1.5e9)
        for p in disk_points()
    }
    profile = Fit(blank_profile(FACTS), found, FACTS).run()
    assert profile["disk.iops"].values[0] == ((1, 20e3), (8, 50e3), (32, 80e3), (128, 90e3))
    assert profile["disk.block"].value == 4096
    assert profile["disk.bandwidth"].value == 1.5e9
    assert (
        "on a-host, 20 samples, widest quartiles -10.0% and +10.0%" in profile["disk.iops"].source
    )
    assert profile["disk.bandwidth"].source.endswith("reads of 1024 KiB, 8 in flight")


@pytest.mark.usefixtures("steady")
def test_without_a_disk_the_profile_says_why(tmp_path, monkeypatch):
    class Full:
        def __init__(self, folder: Path, say: object) -> None:
            raise ProbeError("1.00 GiB are free")

    said: list[str] = []
    monkeypatch.setattr(disk, "DiskStand", Full)
    reasons = {}
    for folder in (None, tmp_path):
        done = calibrate(tmp_path, device="cpu", disk=folder, say=said.append).profile
        reasons[folder] = {done["disk.iops"].source, done["disk.block"].source}
    remedy = "gatherbench calibrate --disk FOLDER"
    assert reasons[None] == {f"not measured (not asked for): {remedy}"}
    assert reasons[tmp_path] == {f"not measured (1.00 GiB are free): {remedy}"}
    assert "no disk is timed: 1.00 GiB are free" in said

    class Steady:
        def __init__(self, folder: Path, say: object) -> None: ...

        def __enter__(self) -> Steady:
            return self

        def __exit__(self, *_: object) -> None: ...

        def measure(self, point: Point) -> Observation:
            return Observation(30e3 * point.threads, 1.0, "made up")

    monkeypatch.setattr(disk, "DiskStand", Steady)
    profile: LinkProfile = calibrate(tmp_path, device="cpu", disk=tmp_path).profile
    assert profile["disk.iops"].at(8) == 240e3
    assert profile["host.memory_rate"].value == 2e9, "the other points are still the host's"


def test_the_folder_is_the_one_named_or_the_data_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path / "not" / "there"))
    assert folder_of_disk("") == tmp_path
    assert folder_of_disk(str(tmp_path)) == tmp_path
    assert folder_of_disk("none") is None
    monkeypatch.delenv("GATHERBENCH_DATA")
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.chdir(tmp_path)
    assert folder_of_disk("") == tmp_path, "a bare machine has no data folder"
    with pytest.raises(ProbeError, match="no such folder; name a folder on the disk, or none"):
        folder_of_disk(str(tmp_path / "gone"))
