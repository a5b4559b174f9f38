"""RAPL on a fake powercap tree: wraps, sockets, missing zones, refusals and zones that vanish."""

import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gatherbench.bench.meters import poller, rapl
from gatherbench.bench.meters.base import Reading, closed
from gatherbench.bench.meters.rapl import MAX_PACKAGE_W, RaplMeter, Zone

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

    def read(self, zone: Zone) -> int:
        # Not by chmod: root, as whom tests may run, reads what nobody may.
        if zone.folder.name in self.refused:
            raise PermissionError(13, "Permission denied", str(zone.folder))
        return int((zone.folder / "energy_uj").read_text())

    def meter(self) -> RaplMeter:
        return RaplMeter(self.folder)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Powercap:
    made = Powercap(tmp_path / "powercap")

    def energy_uj(zone: Zone) -> int:  # a function, which becomes a method
        return made.read(zone)

    monkeypatch.setattr(Zone, "energy_uj", energy_uj)
    monkeypatch.setattr(rapl, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    return made


def checked(readings: list[Reading]) -> tuple[Reading, Reading]:
    package, dram = readings
    assert (package.metric, dram.metric) == ("cpu_package_energy", "cpu_dram_energy")
    assert {package.unit, dram.unit} == {"J"}
    for reading in (package, dram):
        assert (reading.value is None) == (reading.reason is not None)
    return package, dram


def window(tree: Powercap, energies: dict[str, int], seconds: float = 1) -> tuple[Reading, Reading]:
    """A window at whose end zones say these energies (µJ)."""
    meter = tree.meter()
    meter.begin()
    tree.now_s += seconds
    for number, energy in energies.items():
        tree.set(number, energy)
    return checked(closed(meter))


#: Zones, what each has drawn in a window (µJ), and the sums of packages and memory (J) or why none.
MACHINES: dict[str, tuple[dict[str, str], list[int], float, float | str]] = {
    "two sockets": (
        {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "package-1", "1:0": "dram",
         "2": "psys"},
        [30_000_000, 9_000_000, 4_000_000, 20_000_000, 2_000_000, 999_000_000], 50.0, 6.0,
    ),
    "dies": (
        {"0": "package-0-die-0", "1": "package-0-die-1"}, [1_000_000, 2_000_000], 3.0, "no_device: "
    ),
    "AMD": ({"0": "package-0", "0:0": "core"}, [1_000_000, 1], 1.0, "no_device: "),
    "memory of one socket": (
        {"0": "package-0", "0:0": "dram", "1": "package-1"}, [1_000_000] * 3, 2.0,
        "unsupported: 1 of 2 packages",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("zones", "used", "joules", "dram"), MACHINES.values(), ids=list(MACHINES))
def test_packages_and_memory_are_summed_and_parts_are_not(tree, zones, used, joules, dram):
    for early, (number, name) in enumerate(zones.items()):
        tree.zone(number, name, early)
    copy = tree.folder / "intel-rapl-mmio:0"  # of package 0: not counted twice
    shutil.copytree(tree.folder / "intel-rapl:0", copy)
    late = {number: early + more for early, (number, more) in enumerate(zip(zones, used))}  # noqa: B905
    package, memory = window(tree, late)
    assert package.value == pytest.approx(joules)
    assert package.source == "powercap energy_uj, all packages [samples=2, period=30 s]"
    if isinstance(dram, str):
        assert str(memory.reason).startswith(dram)
    else:
        assert memory.value == pytest.approx(dram)


def test_a_long_window_is_polled_before_the_counter_can_wrap_twice(tree, monkeypatch):
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
    meter.begin()
    package, _ = checked(closed(meter))
    assert package.value == pytest.approx(0.9 * MAX_PACKAGE_W * sum(polled), rel=1e-6)
    assert package.value is not None
    assert package.value * 1e6 > 5 * max_uj, "this test sees several wraps"
    assert package.source.endswith(f"[samples={turns + 2}, period={polled[0]:g} s]")


@pytest.mark.parametrize(
    ("seconds", "energy", "said"),
    [
        (2 * MAX_UJ / 1e6 / MAX_PACKAGE_W, 5, "can start anew every"),
        (1, 80_000_000, "more than is possible"),  # as a wrap: 262 kJ within a second
        (1, 90_000_000, "stood still"),
        (0.01, 91_000_000, "longer epochs"),
    ],
)
def test_what_makes_no_energy_is_no_number(tree, seconds, energy, said):
    tree.zone("0", "package-0", 90_000_000)
    assert said in str(window(tree, {"0": energy}, seconds)[0].reason)


@pytest.mark.parametrize("number", ["0", "1"])
@pytest.mark.parametrize("why", ["No such file or directory", "Permission denied"])
def test_a_zone_that_fails_in_the_window_spoils_the_sum(tree, number, why):
    tree.zone("0", "package-0")
    tree.zone("1", "package-1")
    meter = tree.meter()
    meter.begin()
    tree.now_s += 1
    if why == "Permission denied":
        tree.refused = {f"intel-rapl:{number}"}
    else:
        shutil.rmtree(tree.folder / f"intel-rapl:{number}")
    package, _ = checked(closed(meter))
    assert str(package.reason).startswith("failed: ")
    assert why in str(package.reason)


@pytest.mark.parametrize("refused", ["intel-rapl:0", "intel-rapl:1"])
def test_for_root_only(tree, refused):
    tree.zone("0", "package-0")
    tree.zone("1", "package-1")
    tree.refused = {refused}
    meter = tree.meter()
    reason = str(meter.probe())
    assert reason.startswith("no_permission: ")
    assert "udev" in reason
    for part in ('SUBSYSTEM=="powercap"', 'KERNEL=="intel-rapl*:*"', "chmod a+r /sys%p/energy_uj"):
        assert part in reason
    meter.begin()
    for reading in checked(closed(meter)):
        assert str(reading.reason) == reason


@pytest.mark.parametrize("parts", [(), (("0:0", "core"),), (("0", "psys"),)])
def test_no_package_is_no_device(tree, parts):
    for part in parts:
        tree.zone(*part)
    assert str(tree.meter().probe()).startswith("no_device: ")
    assert str(RaplMeter(tree.folder / "nowhere").probe()).startswith("no_device: ")


@pytest.mark.parametrize(
    ("file", "content"),
    [("energy_uj", "what?"), ("max_energy_range_uj", "what?"), ("max_energy_range_uj", "0")],
)
def test_garbled_files(tree, file, content):
    tree.zone("0", "package-0")
    (tree.folder / "intel-rapl:0" / file).write_text(content)
    assert str(tree.meter().probe()).startswith("unsupported: ")


def test_each_window_begins_anew_and_leaves_no_thread(tree):
    tree.zone("0", "package-0")
    meter = tree.meter()
    for turn in (1, 2):
        meter.begin()
        tree.now_s += 1
        tree.set("0", turn * 2_000_000)
        assert checked(closed(meter))[0].value == pytest.approx(2.0)
    assert not [t for t in threading.enumerate() if t.name == "gatherbench-meter-sensor"]
