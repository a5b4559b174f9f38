"""The doctor: each thing that is missing says what is lost by it, on a narrow terminal too."""

from __future__ import annotations

import io
import resource
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console

from gatherbench.bench.machine.gpus import GpuInfo
from gatherbench.bench.machine.numa import Topology
from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.nvml_device import GpuUnderTest, Link
from gatherbench.bench.meters.registry import METERS
from gatherbench.bench.meters.trust import Comparison, SensorCheck
from gatherbench.bench.probe import doctor
from gatherbench.bench.probe.case import NEEDS
from gatherbench.bench.probe.doctor import Finding, examine, judge, judge_sensors, watch
from gatherbench.bench.run import sensor_check
from gatherbench.kernels import read_engines
from gatherbench.plugins import installing
from gatherbench.reason import Reason, SensorUnavailableError
from gatherbench.strategies import auto_kept

H200 = GpuInfo(
    "NVIDIA H200", "0123456789ab", "590.10", "13.1", "9.0", 150 << 30, 700.0, 1, 5, 16, 16, 0
)
T400 = replace(H200, name="NVIDIA T400", uuid_hash="ffff", link_width_max=8)
EXAMINE_METERS = doctor.examine_meters


@pytest.fixture(autouse=True)
def no_meters(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a second: they are not among the others'."""
    monkeypatch.setattr(doctor, "examine_meters", list)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    found = {f.name: f for f in findings}
    assert len(found) == len(findings)
    for finding in findings:
        assert finding.detail
        assert (finding.status == "ok") == (not finding.lost) == (not finding.remedy), finding
    return found


def test_everything_is_looked_at_and_nothing_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {
        "GPU", "Huge pages", "Pinned memory", "Memory",
        "Disk", "NUMA", "CPU clock", "Libraries", "Disk reads", "Probe",
    } <= set(by_name(examine()))  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def no_library() -> list[GpuInfo]:
    raise SensorUnavailableError(Reason("no_device", "no library", "install the driver"))


def always(value: object) -> Callable[..., Any]:
    return lambda *_: value


MEMORY = {
    "total": 64 << 30, "container_limit": 4 << 30, "transparent_huge_pages": "never",
    "huge_pages": 0, "huge_page_size": 2 << 20,
}  # fmt: skip
LITTLE = SimpleNamespace(available=2 << 30, total=4 << 30)
GPUS = [T400, H200]
ENGINE = read_engines.ThreadEngine(1)
OPEN_ENGINE = "gatherbench.kernels.read_engines.open_engine"


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (
            {"list_gpus": no_library},
            {"GPU": ("missing", "no_device: no library", "install the driver")},
        ),
        (
            {"list_gpus": always([H200])},
            {
                "GPU": ("ok", "NVIDIA H200, 150.0 GiB", ""),
                "Driver and NVML": ("ok", "driver 590.10, CUDA up to 13.1", ""),
                "PCIe link": ("ok", "generation 1 of 5, width x16 of x16", ""),  # it idles
            },
        ),
        (
            {"list_gpus": always(GPUS), "gpu_in_use": always(H200.uuid_hash)},
            {
                "GPU": ("ok", "NVIDIA H200, 150.0 GiB, of 2 the one that a run uses", ""),
                "PCIe link": ("ok", "x16 of x16", ""),
            },
        ),
        (
            {"list_gpus": always(GPUS), "gpu_in_use": always(None)},
            {"GPU": ("ok", "NVIDIA T400, 150.0 GiB, of 2 NVML's first; CUDA does not say", "")},
        ),
        (
            {"list_gpus": always([replace(H200, link_width_current=8)])},
            {"PCIe link": ("limited", "width x8 of x16", "reseat the card")},
        ),
        (
            {"list_gpus": always([replace(H200, link_gen_max=None)])},
            {"PCIe link": ("limited", "NVML does not say", "lspci")},
        ),
        (
            {"resource.getrlimit": always((8 << 20, 0))},
            {"Pinned memory": ("limited", "limit 8.0 MiB", "ulimit")},
        ),
        (
            {"resource.getrlimit": always((resource.RLIM_INFINITY, 0))},
            {"Pinned memory": ("ok", "no limit", "")},
        ),
        ({"resource.getrlimit": always((1 << 60, 0))}, {"Pinned memory": ("ok", "limit", "")}),
        (
            {"psutil.virtual_memory": always(LITTLE)},
            {"Memory": ("limited", "2.0 GiB of 4.0 GiB free", "lower scale")},
        ),
        (
            {"describe_memory": always(MEMORY)},
            {
                "Memory": ("limited", "the container is limited to 4.0 GiB", "free memory"),
                "Huge pages": ("limited", "transparent: never", "madvise"),
            },
        ),
        (
            {"describe_cpu": always({"numa_nodes": 2, "scaling_governor": "powersave"})},
            {
                "NUMA": ("limited", "2 nodes", "numactl"),
                "CPU clock": ("limited", "governor: powersave", "cpupower"),
            },
        ),
        (
            {"describe_memory": always({**MEMORY, "transparent_huge_pages": "madvise"})},
            {"Huge pages": ("ok", "transparent: madvise", "")},
        ),
        (
            {"describe_cpu": always({"numa_nodes": 1, "scaling_governor": None})},
            {"NUMA": ("ok", "one node", ""), "CPU clock": ("ok", "not visible", "")},
        ),
        (
            {
                "list_gpus": no_library,
                "describe_cpu": always({"numa_nodes": 2, "scaling_governor": "performance"}),
                "describe_numa": always({"bound": False, "binding": "not bound: no GPU"}),
            },
            {
                "NUMA": ("limited", "2 nodes; not bound: no GPU", "numactl"),
                "CPU clock": ("ok", "perf", ""),
            },
        ),
        ({OPEN_ENGINE: always((ENGINE, ""))}, {"Disk reads": ("ok", "io_uring", "")}),
        (
            {OPEN_ENGINE: always((ENGINE, "forbidden"))},
            {"Disk reads": ("limited", "forbidden", "io_uring_setup")},
        ),
        (
            {"library_versions": always({"torch": "2.13.0", "ogb": None})},
            {
                "Libraries": ("ok", "torch 2.13.0", ""),
                "ogb (extra)": ("missing", "not installed", installing("ogb")),
            },
        ),
    ],
)
def test_what_there_is_and_what_is_lost(here, expected, monkeypatch):
    for name, value in here.items():
        place = name if name.startswith("gatherbench.") else f"{doctor.__name__}.{name}"
        monkeypatch.setattr(place, value)
    found = by_name(examine())
    for name, (status, detail, remedy) in expected.items():
        assert found[name].status == status
        assert detail in found[name].detail
        assert remedy in found[name].remedy


def test_the_disk_is_that_of_the_graphs(monkeypatch, tmp_path):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path / "not" / "yet"))
    full = {tmp_path: SimpleNamespace(free=1 << 30)}
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda at: full.get(at, SimpleNamespace(free=99 << 30))
    )
    disk = by_name(examine())["Disk"]
    assert disk.status == "limited"
    assert "GATHERBENCH_DATA" in disk.remedy
    assert f"1.0 GiB free for graphs ({tmp_path / 'not' / 'yet'}), 99.0 GiB in" in disk.detail


def test_two_nodes_with_a_gpu_that_knows_its_own_are_fine(tmp_path, monkeypatch):
    for node in (0, 1):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{node}")
    monkeypatch.setattr(doctor, "list_gpus", lambda: [GpuInfo("X", numa_node=1)])
    monkeypatch.setattr(doctor, "describe_cpu", lambda: {"numa_nodes": 2, "scaling_governor": None})
    monkeypatch.setattr("gatherbench.bench.machine.env.Topology", lambda: Topology(tmp_path))
    numa = by_name(examine())["NUMA"]
    assert numa.status == "ok"
    assert "bound to its node" in numa.detail


def test_what_auto_found_on_this_machine_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert doctor._chosen() == []
    here = auto_kept.machine_of(torch.device("cpu"))
    paths = ("cpu_gather pinned", "async_zero_copy stream,auto")
    found = (paths[1], paths[0], 1.31, (1.22, 1.40), "SLOW", 90, 1.4, 0.25, "2026-11-24")
    for machine, rows in ((here, 2_400_000), ("another", 7)):
        asked = auto_kept.Asked(machine, rows, 400, "torch.float32", paths)
        auto_kept.save(asked, auto_kept.Finding(*found))
    (finding,) = doctor._chosen()
    assert (finding.name, finding.status) == ("Chosen by auto", "ok")
    assert finding.detail == (
        "2,400,000 rows of 400 B to cpu: kept async_zero_copy stream,auto, 1.31× (1.22–1.40) over"
        " cpu_gather pinned; the search took 90 minibatches, 0.25 s longer than they take with it"
        " (2026-11-24)"
    )


def test_what_cases_of_a_probe_lack_is_named_with_them(monkeypatch):
    lacks = Reason("no_device", "no GPU here", "buy one")
    monkeypatch.setitem(NEEDS, "gpu", lambda: lacks)
    found = by_name(examine())
    assert found["Probe"].detail == "6 cases can be measured (gatherbench probe --list)"
    gpu = found["Probe: gpu"]
    assert (gpu.status, gpu.detail, gpu.remedy) == ("missing", "no GPU here", "buy one")
    assert "gpu_gather, managed_gather" in gpu.lost
    for need in NEEDS:
        monkeypatch.setitem(NEEDS, need, lambda: None)
    whole = by_name(examine())
    assert [name for name in whole if name.startswith("Probe")] == ["Probe"]


def test_it_reads_at_eighty_columns():
    out = io.StringIO()
    console = Console(file=out, width=80, color_system=None)
    finding = Finding("GPU", "missing", "none " * 30, "much " * 30, "a remedy [with brackets]")
    doctor.print_doctor(console, [finding, Finding("Disk", "ok", "enough")])
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "remedy: a remedy [with brackets]" in text
    assert text.splitlines()[-1].strip() == "1 ok, 0 limited, 1 missing"


# Each meter is read for real, and what it lacks has a remedy.


class Sensor:
    """Says what it is given; or breaks."""

    name: ClassVar[str] = "sensor"
    summary: ClassVar[str] = "a test"
    lost: ClassVar[str] = "the warmth"
    trust: ClassVar[str] = "by hand"

    def __init__(self, *readings: Reading, error: Exception | None = None) -> None:
        self._readings, self._error = readings, error

    def probe(self) -> Reason | None:
        return None

    def start(self) -> None:
        if self._error is not None:
            raise self._error

    def stop(self) -> list[Reading]:
        return list(self._readings)


def there(metric: str, source: str = "a counter") -> Reading:
    return Reading(metric, "1", 1.0, source, samples=2)


def absent(metric: str, *reason: str) -> Reading:
    return Reading(metric, "1", None, "a counter", Reason(*reason))  # type: ignore[arg-type]


def test_every_meter_is_examined_and_says_how_far_to_trust_it():
    found = by_name(EXAMINE_METERS())
    assert list(found) == [f"Meter {m.name}" for m in METERS]
    for finding in found.values():
        assert finding.status == "missing" or "checked: " in finding.detail
    assert found["Meter clock"].status == "ok"
    assert "cpu_user" in found["Meter cpu"].detail
    for meter in METERS:
        assert meter.lost
        assert meter.trust


SHORT = absent("b", "too_short", "a window of 0.1 s is too short for b", "wait")
NONE = ("no_device", "no such thing", "buy one")
LONGER = "b: read over longer windows than the doctor's"


@pytest.mark.parametrize(
    ("readings", "status", "detail", "remedy"),
    [
        (
            [there("a"), there("b"), there("c", "another counter")],
            "ok",
            ["a, b: a counter", "c: another counter", "checked: by hand"],
            "",
        ),
        (
            [there("a"), absent("b", "no_permission", "for root only", "sudo")],
            "limited",
            ["a: a counter", "checked: by hand", "no b: for root only"],
            "sudo",
        ),
        ([there("a"), SHORT], "ok", ["a: a counter", LONGER, "checked: by hand"], ""),
        ([SHORT], "ok", [LONGER, "checked: by hand"], ""),
        (
            [absent("a", *NONE), absent("b", "no_device", "none either", "buy one")],
            "missing",
            ["no a: no such thing", "no b: none either"],
            "buy one",
        ),
        (
            [absent("a", *NONE), absent("b", *NONE)],
            "missing",
            ["no a, b: no such thing"],
            "buy one",
        ),
        ([absent("a", "failed", "gone")], "missing", ["no a: gone"], "none is known"),
    ],
)
def test_a_meter_is_judged_by_its_readings(readings, status, detail, remedy):
    finding = judge(Sensor(), readings)
    assert (finding.status, finding.detail.splitlines()) == (status, detail)
    assert (finding.lost, finding.remedy) == ("" if status == "ok" else "the warmth", remedy)


def test_a_sensor_that_breaks_stops_nobody():
    (_, broken), (_, good) = watch([Sensor(error=OSError("gone")), Sensor(there("a"))])
    assert "gone" in judge(Sensor(), broken).detail
    assert good[0].value == 1.0


RIGHT = Comparison("counters", "host_to_device", 1.0412e9, 1e9)
LOADED = Link(5, 5, 16, 16)


def test_the_calibration_of_a_gpus_link_is_shown():
    """A source that is right, one that is absent and one that is wrong."""
    absent = Reason("unsupported", "no such metrics", "buy a Hopper")
    comparisons = [
        RIGHT,
        Comparison("counters", "device_to_host", 1.0389e9, 1e9),
        Comparison("gpm", "host_to_device", absent, 0.0),
        Comparison("throughput", "host_to_device", 1.67e9, 1e9),
    ]
    finding = judge_sensors(SensorCheck(comparisons, Link(1, 5, 16, 16), LOADED))
    assert (finding.status, finding.lost) == ("ok", "")
    assert finding.detail.splitlines() == [
        "counters: host to device 1.041, device to host 1.039",
        "gpm: host to device no such metrics",
        "throughput: host to device 1.670 (untrusted)",
        "(bytes counted for each byte of a known copy)",
        "the link while it copied: generation 5 of 5, width x16 of x16",
        "counters is read by all cases",
    ]
    nobody = judge_sensors(SensorCheck(comparisons[2:], None, LOADED))
    assert (nobody.status, bool(nobody.lost)) == ("missing", True)
    assert nobody.remedy == "update the NVIDIA driver"
    assert judge_sensors(SensorCheck([RIGHT])).status == "ok", "nobody describes the link"


@pytest.mark.parametrize(("gen", "width"), [(4, 16), (5, 8)])
def test_a_link_that_does_not_train_up_under_load_is_said(gen, width):
    finding = judge_sensors(SensorCheck([RIGHT], None, Link(gen, 5, width, 16)))
    assert finding.status == "limited"
    assert f"generation {gen} of 5, width x{width} of x16" in finding.detail
    assert "LnkSta" in finding.remedy


def test_on_a_gpu_the_calibration_comes_before_its_meters_and_stops_nothing(monkeypatch):
    """Here another program fills the GPU."""

    def full(*_: object, **__: object) -> SensorCheck:
        raise RuntimeError("CUDA error: out of memory\nmore; and more")

    given: list[GpuUnderTest | None] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sensor_check, "torch_gpu_uuids", lambda _: ("GPU-x",))
    monkeypatch.setattr(sensor_check, "calibrate_gpu", full)
    monkeypatch.setattr(doctor, "open_meters", lambda gpu: given.append(gpu) or [])
    (first,) = EXAMINE_METERS()
    assert (first.name, first.status) == ("Link sensors", "missing")
    assert first.detail == "CUDA error: out of memory"
    assert "nvidia-smi" in first.remedy
    assert given[0]
    assert given[0].uuids == ("GPU-x",)
