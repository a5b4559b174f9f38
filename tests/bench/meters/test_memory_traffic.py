"""Memory controllers' counters, on fake trees of the kernel and counters that are plain files."""

import errno
import os
import platform
import struct
from pathlib import Path

import pytest

from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.memory_traffic import MemoryTrafficMeter, find_events, open_counter

SCALE = "6.103515625e-5"  # of MiB: 64 B


class Controllers:
    """A tree of event sources, and counters in files that the test turns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: dict[tuple[int, int, int], Path] = {}
        self.refusal: OSError | None = None
        (folder / "devices").mkdir()

    @property
    def devices(self) -> Path:
        return self.folder / "devices"

    def device(self, name: str, kind: int, formats: dict[str, str], cpus: str = "0") -> Path:
        device = self.devices / name
        (device / "events").mkdir(parents=True)
        (device / "format").mkdir()
        (device / "type").write_text(f"{kind}\n")
        (device / "cpumask").write_text(f"{cpus}\n")
        for field, bits in formats.items():
            (device / "format" / field).write_text(bits + "\n")
        return device

    def intel(self, number: int, kind: int, cpus: str = "0", names: str = "cas_count_") -> Path:
        formats = {"event": "config:0-7", "umask": "config:8-15"}
        device = self.device(f"uncore_imc_{number}", kind, formats, cpus)
        for what, umask in (("read", 3), ("write", 12)):
            event = device / "events" / f"{names}{what}"
            event.write_text(f"event=0x04,umask={umask:#04x}\n")
            Path(f"{event}.scale").write_text(f"{SCALE}\n")
            Path(f"{event}.unit").write_text("MiB\n")
        return device

    def open(self, kind: int, config: int, cpu: int) -> int:
        if self.refusal is not None:
            raise self.refusal
        path = self.folder / f"counter-{kind}-{config}-{cpu}"
        path.write_bytes(struct.pack("QQQ", 1000, 50, 50))
        self.counts[kind, config, cpu] = path
        return os.open(path, os.O_RDONLY)

    def add(self, kind: int, config: int, cpu: int, count: int, running: int = 100) -> None:
        path = self.counts[kind, config, cpu]
        before = struct.unpack("QQQ", path.read_bytes())
        path.write_bytes(
            struct.pack("QQQ", before[0] + count, before[1] + 100, before[2] + running)
        )

    def meter(self) -> MemoryTrafficMeter:
        return MemoryTrafficMeter(self.devices, self.open)


@pytest.fixture(autouse=True)
def rewinding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter reads from its beginning each time; a file does not, unless it is told to."""
    monkeypatch.setattr(
        "gatherbench.bench.meters.memory_traffic.os.read", lambda fd, size: os.pread(fd, size, 0)
    )


@pytest.fixture
def tree(tmp_path: Path) -> Controllers:
    return Controllers(tmp_path)


def by_metric(readings: list[Reading]) -> dict[str, Reading]:
    assert [r.metric for r in readings] == ["dram_read", "dram_write"]
    assert {r.unit for r in readings} == {"B"}
    return {r.metric: r for r in readings}


READ, WRITE = 0x304, 0xC04  # umask << 8 | event


def test_controllers_of_both_sockets_are_added_in_each_window(tree):
    tree.intel(0, 20, "0,36")
    tree.intel(1, 21, "0,36")
    tree.intel(9, 29, names="data_")  # never both kinds of names: the same bytes twice
    meter = tree.meter()
    for count in (1000, 7):
        meter.start()
        for kind in (20, 21):
            for cpu in (0, 36):
                tree.add(kind, READ, cpu, count)
                tree.add(kind, WRITE, cpu, 10)
        readings = by_metric(meter.stop())
        assert readings["dram_read"].value == pytest.approx(4 * count * 64)
        assert readings["dram_write"].value == pytest.approx(4 * 10 * 64)
    assert readings["dram_read"].samples == 2
    meter.start()
    tree.add(20, READ, 0, 1000, running=99)
    shared = by_metric(meter.stop())["dram_read"]
    assert "shared with another tool" in str(shared.reason), "no estimate"


def test_client_events_are_known(tree):
    tree.intel(0, 20, names="data_")
    assert [(e.metric, e.config) for e in find_events(tree.devices)] == [
        ("dram_read", READ),
        ("dram_write", WRITE),
    ]


def test_amds_controllers(tree):
    for number, cpus in ((0, "0"), (12, "64")):
        formats = {"event": "config:0-7", "rdwrmask": "config:8-9"}
        tree.device(f"amd_umc_{number}", 30 + number, formats, cpus)
    meter = tree.meter()
    meter.start()
    tree.add(30, 0x10A, 0, 100)
    tree.add(42, 0x10A, 64, 11)
    tree.add(42, 0x20A, 64, 3)
    readings = by_metric(meter.stop())
    assert readings["dram_read"].value == 111 * 64
    assert readings["dram_write"].value == 3 * 64


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, "no_permission: "),
        (errno.EPERM, "no_permission: "),
        (errno.ENODEV, "unsupported: "),
        (errno.EOPNOTSUPP, "unsupported: "),
    ],
)
def test_refusals_are_told_apart(tree, number, kind):
    tree.intel(0, 20)
    tree.refusal = OSError(number, os.strerror(number))
    meter = tree.meter()
    reason = str(meter.probe())
    assert reason.startswith(kind)
    assert "; " in reason
    meter.start()
    for reading in meter.stop():
        assert (reading.value, str(reading.reason)) == (None, reason)


def test_a_refusal_half_way_leaves_no_counter_open(tree):
    tree.intel(0, 20, "0,1,2")
    opened: list[int] = []

    def some(kind: int, config: int, cpu: int) -> int:
        if len(opened) == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        opened.append(tree.open(kind, config, cpu))
        return opened[-1]

    assert MemoryTrafficMeter(tree.devices, some).probe() is not None
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_no_pair_of_counters_is_no_device_and_probing_leaves_nothing_open(tree):
    assert str(tree.meter().probe()).startswith("no_device: ")
    assert str(MemoryTrafficMeter(tree.folder / "nowhere").probe()).startswith("no_device: ")
    device = tree.intel(0, 20)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert tree.meter().probe() is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    (device / "events" / "cas_count_write").unlink()
    assert str(tree.meter().probe()).startswith("no_device: ")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("events/cas_count_read", "event=0x04,umask=much"),
        ("events/cas_count_read.unit", "furlongs"),
        ("events/cas_count_read.scale", "some"),
        ("format/umask", "config1:0-7"),
        ("cpumask", "x"),
        ("type", ""),
    ],
)
def test_a_description_that_is_not_understood(tree, file, content):
    (tree.intel(0, 20) / file).write_text(content)
    assert str(tree.meter().probe()).startswith("unsupported: ")


def test_the_kernel_opens_a_counter_of_our_own_process():
    """A software counter, which needs no privilege; the layout of the request is the kernel's."""
    try:
        descriptor = open_counter(1, 1, -1, pid=0)  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK
    except OSError as error:
        pytest.skip(f"perf_event_open: {error.strerror}")
    try:
        sum(range(10**6))
        with os.fdopen(descriptor, "rb", closefd=False) as counter:
            count, enabled, running = struct.unpack("QQQ", counter.read(24))
    finally:
        os.close(descriptor)
    assert 0 < running <= enabled
    assert 0.5 * running <= count <= 2 * running  # a clock that counts nanoseconds


def test_a_refusal_of_the_kernel_is_an_error_and_another_processor_is_told(monkeypatch):
    with pytest.raises(OSError, match=r".") as refused:
        open_counter(1, 10**6, -1, pid=0)
    assert refused.value.errno
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="no system call number"):
        open_counter(1, 1, -1)
