"""RAPL on a fake powercap tree: wraps, sockets, missing zones, refusals and zones that vanish."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.meters import poller
from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.rapl import MAX_PACKAGE_W, RaplMeter

MAX_UJ = 262_143_328_850  # a common max_energy_range_uj


class Powercap:
    """The tree on disk, a clock that stands still until told, and a reader that may refuse."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder, 100.0
        self.refused: set[str] = set()
        (folder / "intel-rapl").mkdir(parents=True)  # the control type: no zone

    def zone(self, number: str, name: str, energy_uj: int = 0, max_uj: int = MAX_UJ) -> None:
        zone = self.folder / f"intel-rapl:{number}"
        zone.mkdir()
        (zone / "name").write_text(f"{name}\n")
        (zone / "max_energy_range_uj").write_text(f"{max_uj}\n")
        (zone / "energy_uj").write_text(f"{energy_uj}\n")

    def set(self, number: str, energy_uj: int) -> None:
        (self.folder / f"intel-rapl:{number}" / "energy_uj").write_text(f"{energy_uj}\n")

    def read(self, path: Path) -> str:
        # Not by chmod: root, as whom tests may run, reads what nobody may.
        if path.name == "energy_uj" and path.parent.name in self.refused:
            raise PermissionError(13, "Permission denied", str(path))
        return path.read_text()

    def meter(self) -> RaplMeter:
        return RaplMeter(self.folder, self.read, lambda: self.now_s)


@pytest.fixture
def tree(tmp_path: Path) -> Powercap:
    return Powercap(tmp_path / "powercap")


def closed(meter: RaplMeter) -> tuple[Reading, Reading]:
    package, dram = meter.stop()
    assert (package.metric, dram.metric) == ("cpu_package_energy", "cpu_dram_energy")
    assert {package.unit, dram.unit} == {"J"}
    for reading in (package, dram):
        assert (reading.value is None) == (reading.reason is not None)
    return package, dram


def test_two_sockets_with_memory_are_summed_and_parts_are_not(tree: Powercap) -> None:
    tree.zone("0", "package-0", 1_000_000)
    tree.zone("0:0", "core", 1)
    tree.zone("0:1", "dram", 500)
    tree.zone("1", "package-1", 7)
    tree.zone("1:0", "dram", 0)
    tree.zone("2", "psys", 0)
    meter = tree.meter()
    assert meter.probe() is None
    meter.start()
    tree.now_s += 10
    for number, energy in {
        "0": 31_000_000, "0:0": 9_000_000, "0:1": 4_000_500,
        "1": 20_000_007, "1:0": 2_000_000, "2": 999_000_000,
    }.items():  # fmt: skip
        tree.set(number, energy)
    package, dram = closed(meter)
    assert package.value == pytest.approx(50.0)
    assert dram.value == pytest.approx(6.0)
    assert package.samples == dram.samples == 2


def test_the_mmio_copy_of_a_package_is_not_counted_twice(tree: Powercap) -> None:
    tree.zone("0", "package-0")
    copy = tree.folder / "intel-rapl-mmio:0"
    shutil.copytree(tree.folder / "intel-rapl:0", copy)
    meter = tree.meter()
    meter.start()
    tree.now_s += 1
    tree.set("0", 5_000_000)
    (copy / "energy_uj").write_text("5000000")
    assert closed(meter)[0].value == pytest.approx(5.0)


def test_dies_of_a_package_are_packages(tree: Powercap) -> None:
    tree.zone("0", "package-0-die-0")
    tree.zone("1", "package-0-die-1")
    meter = tree.meter()
    meter.start()
    tree.now_s += 1
    tree.set("0", 1_000_000)
    tree.set("1", 2_000_000)
    assert closed(meter)[0].value == pytest.approx(3.0)


@settings(max_examples=30)
@given(early=st.integers(0, MAX_UJ - 1), used=st.integers(1, 150_000_000))
def test_a_wrap_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, early: int, used: int
) -> None:
    tree = Powercap(tmp_path_factory.mktemp("wrap") / "powercap")
    tree.zone("0", "package-0", early)
    meter = tree.meter()
    meter.start()
    tree.now_s += 1
    tree.set("0", (early + used) % MAX_UJ)
    assert closed(meter)[0].value == pytest.approx(used / 1e6)


def test_a_long_window_is_polled_before_the_counter_can_wrap_twice(
    tree: Powercap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 kJ at the most a package can draw last 10 s: over two minutes the counter wraps often."""
    max_uj = 10_000_000_000
    tree.zone("0", "package-0", max_uj - 5, max_uj)
    turns = 20
    polled: list[float] = []
    energy_uj = max_uj - 5

    class Scripted(threading.Event):
        """Each wait of the poller is a period of full load; then the window ends."""

        def wait(self, timeout: float | None = None) -> bool:
            nonlocal energy_uj
            assert timeout is not None
            if len(polled) == turns:
                return True
            polled.append(timeout)
            tree.now_s += timeout
            energy_uj = (energy_uj + int(timeout * MAX_PACKAGE_W * 1e6 * 0.9)) % max_uj
            tree.set("0", energy_uj)
            return False

    stand_in = SimpleNamespace(Event=Scripted, Thread=threading.Thread)
    monkeypatch.setattr(poller, "threading", stand_in)
    clock = SimpleNamespace(monotonic=lambda: tree.now_s, thread_time=time.thread_time)
    monkeypatch.setattr(poller, "time", clock)
    meter = tree.meter()
    meter.start()
    package, _ = closed(meter)
    assert package.value == pytest.approx(0.9 * MAX_PACKAGE_W * sum(polled), rel=1e-6)
    assert package.value is not None
    assert package.value * 1e6 > 5 * max_uj, "this test sees several wraps"
    assert package.samples == turns + 2
    assert package.period_s == polled[0]


def test_a_reading_that_came_too_late_is_no_value(tree: Powercap) -> None:
    tree.zone("0", "package-0")
    meter = tree.meter()
    meter.start()
    tree.now_s += 2 * MAX_UJ / 1e6 / MAX_PACKAGE_W
    tree.set("0", 5)
    package, _ = closed(meter)
    assert "can start anew every" in str(package.reason)


def test_a_counter_that_goes_backwards_is_no_wrap(tree: Powercap) -> None:
    tree.zone("0", "package-0", 90_000_000)
    meter = tree.meter()
    meter.start()
    tree.now_s += 1
    tree.set("0", 80_000_000)  # as a wrap: 262 kJ within a second
    assert "more than is possible" in str(closed(meter)[0].reason)


def test_memory_of_one_socket_alone_is_not_the_machines(tree: Powercap) -> None:
    tree.zone("0", "package-0")
    tree.zone("0:0", "dram")
    tree.zone("1", "package-1")
    meter = tree.meter()
    meter.start()
    tree.now_s += 1
    for number in ("0", "0:0", "1"):
        tree.set(number, 1_000_000)
    package, dram = closed(meter)
    assert package.value == pytest.approx(2.0)
    assert str(dram.reason).startswith("unsupported: 1 of 2 packages")


def test_a_processor_without_memory_zone(tree: Powercap) -> None:
    tree.zone("0", "package-0")  # AMD: package and core
    tree.zone("0:0", "core")
    meter = tree.meter()
    meter.start()
    tree.now_s += 1
    tree.set("0", 1_000_000)
    package, dram = closed(meter)
    assert package.value == pytest.approx(1.0)
    assert str(dram.reason).startswith("no_device: ")


@pytest.mark.parametrize("vanished", ["0", "1"])
def test_a_zone_that_vanishes_in_the_window_spoils_the_sum_and_nothing_else(
    tree: Powercap, vanished: str
) -> None:
    tree.zone("0", "package-0")
    tree.zone("1", "package-1")
    meter = tree.meter()
    meter.start()
    tree.now_s += 1
    shutil.rmtree(tree.folder / f"intel-rapl:{vanished}")
    package, _ = closed(meter)
    assert str(package.reason) == (
        f"failed: package-{vanished} (intel-rapl:{vanished}) cannot be read any more "
        "(No such file or directory)"
    )


@pytest.mark.parametrize("refused", ["intel-rapl:0", "intel-rapl:1"])
def test_for_root_only(tree: Powercap, refused: str) -> None:
    tree.zone("0", "package-0")
    tree.zone("1", "package-1")
    tree.refused = {refused}
    meter = tree.meter()
    reason = str(meter.probe())
    assert reason.startswith("no_permission: ")
    assert "udev" in reason
    for part in ('SUBSYSTEM=="powercap"', 'KERNEL=="intel-rapl*:*"', "chmod a+r /sys%p/energy_uj"):
        assert part in reason
    meter.start()
    for reading in closed(meter):
        assert str(reading.reason) == reason


def test_permission_that_is_withdrawn_in_the_window(tree: Powercap) -> None:
    tree.zone("0", "package-0")
    meter = tree.meter()
    meter.start()
    tree.now_s += 1
    tree.refused = {"intel-rapl:0"}
    assert "Permission denied" in str(closed(meter)[0].reason)


@pytest.mark.parametrize("parts", [(), (("0:0", "core"),), (("0", "psys"),)])
def test_no_package_is_no_device(tree: Powercap, parts: tuple[tuple[str, str], ...]) -> None:
    for part in parts:
        tree.zone(*part)
    assert str(tree.meter().probe()).startswith("no_device: ")
    assert str(RaplMeter(tree.folder / "nowhere").probe()).startswith("no_device: ")


@pytest.mark.parametrize(
    ("file", "content"),
    [("energy_uj", "what?"), ("max_energy_range_uj", "what?"), ("max_energy_range_uj", "0")],
)
def test_garbled_files(tree: Powercap, file: str, content: str) -> None:
    tree.zone("0", "package-0")
    (tree.folder / "intel-rapl:0" / file).write_text(content)
    assert str(tree.meter().probe()).startswith("unsupported: ")


def test_a_counter_that_stands_still_is_no_zero(tree: Powercap) -> None:
    tree.zone("0", "package-0", 5)
    meter = tree.meter()
    meter.start()
    tree.now_s += 1
    assert "stood still" in str(closed(meter)[0].reason)


def test_a_window_of_a_few_refreshes_is_refused(tree: Powercap) -> None:
    tree.zone("0", "package-0")
    meter = tree.meter()
    meter.start()
    tree.now_s += 0.01
    tree.set("0", 1_000_000)
    assert "longer epochs" in str(closed(meter)[0].reason)


def test_each_window_begins_anew_and_leaves_no_thread(tree: Powercap) -> None:
    tree.zone("0", "package-0")
    meter = tree.meter()
    for turn in (1, 2):
        meter.start()
        tree.now_s += 1
        tree.set("0", turn * 2_000_000)
        assert closed(meter)[0].value == pytest.approx(2.0)
    assert not [t for t in threading.enumerate() if t.name == "gatherbench-meter-sensor"]


def test_no_path_in_a_reason(tree: Powercap) -> None:
    tree.zone("0", "package-0")
    meter = tree.meter()
    meter.start()
    shutil.rmtree(tree.folder)
    for reading in closed(meter):
        assert str(tree.folder) not in str(reading.reason)
