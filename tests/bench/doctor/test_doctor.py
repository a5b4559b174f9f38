"""The doctor: each thing that is missing says what is lost by it, on a narrow terminal too."""

from __future__ import annotations

import dataclasses
import io
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import psutil
import pytest
from rich.console import Console

from gatherbench.bench.doctor import examine as doctor
from gatherbench.bench.doctor.examine import (
    Finding,
    examine,
    judge,
    judge_calibration,
    print_doctor,
    watch,
)
from gatherbench.bench.machine.numa import Topology
from gatherbench.bench.machine.nvml import GpuInfo
from gatherbench.bench.machine.reason import Reason, SensorUnavailableError
from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.gpu_choice import GpuUnderTest
from gatherbench.bench.meters.nvml_device import Link
from gatherbench.bench.meters.registry import APART, METERS
from gatherbench.bench.meters.trust import Calibration, Comparison
from gatherbench.kernels import read_engines

H200 = GpuInfo(
    "NVIDIA H200", "0123456789ab", "590.10", "13.1", "9.0", 150 << 30, 700.0, 1, 5, 16, 16, 0
)


@pytest.fixture(autouse=True)
def meters_findings(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Finding]]:
    """They take a second: they are not among the others', and given to who asks for them."""
    real = doctor.examine_meters
    monkeypatch.setattr(doctor, "examine_meters", list)
    return real


def only(findings: list[Finding], name: str) -> Finding:
    found = [f for f in findings if f.name == name]
    assert len(found) == 1
    return found[0]


def test_everything_is_looked_at() -> None:
    findings = examine()
    names = {f.name for f in findings}
    assert {
        "GPU", "Driver and NVML", "PCIe link", "Huge pages", "Pinned memory", "Memory",
        "Disk", "NUMA", "CPU clock", "Libraries", "CUDA compiler",
    } <= names  # fmt: skip
    assert len(names) == len(findings)
    for finding in findings:
        assert finding.detail
        assert (finding.status == "ok") == (not finding.lost) == (not finding.remedy), finding


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> list[GpuInfo]:
        raise SensorUnavailableError(Reason("no_device", "no library", "install the driver"))

    monkeypatch.setattr(doctor, "list_gpus", none)
    findings = examine()
    for name in ("GPU", "Driver and NVML", "PCIe link"):
        assert only(findings, name).status == "missing"
        assert only(findings, name).remedy == "install the driver"
    assert only(findings, "Driver and NVML").detail == "no_device: no library"


def test_of_several_gpus_the_one_that_is_used_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = replace(H200, name="NVIDIA T400", uuid_hash="ffff", link_width_max=8)
    monkeypatch.setattr(doctor, "list_gpus", lambda: [other, H200])
    monkeypatch.setattr(doctor, "gpu_in_use", lambda gpus: gpus[1].uuid_hash)
    findings = examine()
    assert only(findings, "GPU").detail == ("NVIDIA H200, 150.0 GiB, of 2 the one that a run uses")
    assert "x16 of x16" in only(findings, "PCIe link").detail
    monkeypatch.setattr(doctor, "gpu_in_use", lambda gpus: None)
    detail = only(examine(), "GPU").detail
    assert detail.startswith("NVIDIA T400")
    assert "CUDA does not say which it uses" in detail


def gpu_findings(monkeypatch: pytest.MonkeyPatch, gpu: GpuInfo) -> list[Finding]:
    monkeypatch.setattr(doctor, "list_gpus", lambda: [gpu])
    return examine()


def test_with_a_gpu_an_idle_link_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = gpu_findings(monkeypatch, H200)
    assert only(findings, "GPU").detail == "NVIDIA H200, 150.0 GiB"
    assert only(findings, "Driver and NVML").status == "ok"
    link = only(findings, "PCIe link")
    assert link.status == "ok"  # generation 1 of 5 while it idles
    assert "generation 1 of 5" in link.detail
    assert only(findings, "torch on the GPU")


def test_a_narrow_link_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = dataclasses.replace(H200, link_width_current=8)
    assert only(gpu_findings(monkeypatch, narrow), "PCIe link").status == "limited"
    silent = dataclasses.replace(H200, link_gen_max=None)
    assert only(gpu_findings(monkeypatch, silent), "PCIe link").status == "limited"


@pytest.mark.parametrize(
    ("limit", "status"),
    [(8 << 20, "limited"), (resource.RLIM_INFINITY, "ok"), (1 << 60, "ok")],
)
def test_pinned_memory_limit(monkeypatch: pytest.MonkeyPatch, limit: int, status: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert only(examine(), "Pinned memory").status == status


def test_little_memory_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    small = SimpleNamespace(available=2 << 30, total=4 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: small)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))
    findings = examine()
    assert only(findings, "Memory").status == "limited"
    assert only(findings, "Memory").detail == "2.0 GiB of 4.0 GiB free"
    assert only(findings, "Disk").status == "limited"


def test_the_disk_is_that_of_the_graphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path / "not" / "yet"))
    full = {tmp_path: SimpleNamespace(free=1 << 30)}
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda at: full.get(at, SimpleNamespace(free=99 << 30))
    )
    disk = only(examine(), "Disk")
    assert disk.status == "limited"
    assert "GATHERBENCH_DATA" in disk.remedy
    assert f"1.0 GiB free for graphs ({tmp_path / 'not' / 'yet'}), 99.0 GiB in" in disk.detail


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    described = {
        "total": 64 << 30, "container_limit": 4 << 30, "transparent_huge_pages": "never",
        "huge_pages": 0, "huge_page_size": 2 << 20,
    }  # fmt: skip
    monkeypatch.setattr(doctor, "describe_memory", lambda: described)
    findings = examine()
    assert "limited to 4.0 GiB" in only(findings, "Memory").detail
    assert only(findings, "Memory").status == "limited"
    assert only(findings, "Huge pages").status == "limited"


def test_two_sockets_and_a_saving_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "describe_cpu", lambda: {"numa_nodes": 2, "scaling_governor": "powersave"}
    )
    findings = examine()
    assert only(findings, "NUMA").status == "limited"
    assert only(findings, "CPU clock").status == "limited"


@pytest.mark.parametrize(
    ("reason", "status", "detail"), [("", "ok", "io_uring"), ("forbidden", "limited", "forbidden")]
)
def test_io_uring_or_why_not(
    monkeypatch: pytest.MonkeyPatch, reason: str, status: str, detail: str
) -> None:
    threads = read_engines.ThreadEngine(1)
    monkeypatch.setattr(read_engines, "open_engine", lambda name, depth: (threads, reason))
    found = only(examine(), "Disk reads")
    assert (found.status, found.detail) == (status, detail)
    assert bool(found.lost and found.remedy) == bool(reason)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "library_versions", lambda: {"torch": "2.13.0", "ogb": None})
    findings = examine()
    assert only(findings, "ogb (extra)").remedy == "pip install gatherbench[ogb]"
    assert only(findings, "Libraries").detail == "torch 2.13.0"


def test_it_reads_at_eighty_columns() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, color_system=None)
    finding = Finding("GPU", "missing", "none " * 30, "much " * 30, "a remedy [with brackets]")
    print_doctor(console, [finding, Finding("Disk", "ok", "enough")])
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "remedy: a remedy [with brackets]" in text
    assert text.splitlines()[-1].strip() == "1 ok, 0 limited, 1 missing"


def test_it_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examine()
    assert list(tmp_path.iterdir()) == []


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


SHORT = ("too_short", "a window of 0.1 s is too short for b", "wait")


def test_every_meter_is_examined_and_says_how_far_to_trust_it(
    meters_findings: Callable[[], list[Finding]],
) -> None:
    findings = meters_findings()
    assert [f.name for f in findings] == [f"Meter {m.name}" for m in (*METERS, *APART)]
    for finding in findings:
        assert (finding.status == "ok") == (not finding.lost) == (not finding.remedy)
        if finding.status != "missing":
            assert "checked: " in finding.detail
    found = {f.name: f for f in findings}
    assert found["Meter clock"].status == "ok"
    assert "cpu_user" in found["Meter cpu"].detail
    assert "clock_gettime" in found["Meter threads"].detail
    for meter in (*METERS, *APART):
        assert meter.lost
        assert meter.trust


def test_a_meter_that_reads_everything_names_its_sources() -> None:
    sensor = Sensor(there("a"), there("b"), there("c", "another counter"))
    finding = judge(sensor, sensor.stop())
    assert finding.status == "ok"
    assert finding.detail.splitlines() == [
        "a, b: a counter",
        "c: another counter",
        "checked: by hand",
    ]


def test_a_meter_that_lacks_a_part_is_limited() -> None:
    sensor = Sensor(
        there("a"), absent("b", "no_permission", "for root only", "sysctl x=1, or sudo")
    )
    finding = judge(sensor, sensor.stop())
    assert (finding.status, finding.lost) == ("limited", "the warmth")
    assert finding.remedy == "sysctl x=1, or sudo"
    assert finding.detail.splitlines()[-1] == "no b: for root only"


def test_a_sensor_that_wants_a_longer_window_lacks_nothing() -> None:
    sensor = Sensor(there("a"), absent("b", *SHORT))
    finding = judge(sensor, sensor.stop())
    assert (finding.status, finding.lost, finding.remedy) == ("ok", "", "")
    assert "b: read over longer windows than the doctor's" in finding.detail
    alone = Sensor(absent("b", *SHORT))
    assert judge(alone, alone.stop()).status == "ok"


def test_a_meter_without_any_reading_is_missing_and_each_remedy_stands_once() -> None:
    none, neither = (
        ("no_device", f"{what}", "buy one") for what in ("no such thing", "none either")
    )
    sensor = Sensor(absent("a", *none), absent("b", *neither))
    finding = judge(sensor, sensor.stop())
    assert finding.status == "missing"
    assert finding.remedy == "buy one"
    assert finding.detail.splitlines() == ["no a: no such thing", "no b: none either"]
    same = Sensor(absent("a", *none), absent("b", *none))
    assert judge(same, same.stop()).detail == "no a, b: no such thing"


def test_a_sensor_that_breaks_is_told_and_stops_nobody() -> None:
    (_, broken), (_, good) = watch([Sensor(error=OSError("gone")), Sensor(there("a"))])
    finding = judge(Sensor(), broken)
    assert finding.status == "missing"
    assert "gone" in finding.detail
    assert finding.remedy
    assert good[0].value == 1.0


def test_two_nodes_with_a_gpu_that_knows_its_own_are_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in (0, 1):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{node}")
    monkeypatch.setattr(doctor, "list_gpus", lambda: [GpuInfo("X", numa_node=1)])
    monkeypatch.setattr(doctor, "describe_cpu", lambda: {"numa_nodes": 2, "scaling_governor": None})
    monkeypatch.setattr("gatherbench.bench.machine.env.Topology", lambda: Topology(tmp_path))
    (numa,) = [f for f in examine() if f.name == "NUMA"]
    assert (numa.status, numa.lost) == ("ok", "")
    assert "bound to its node" in numa.detail


def test_without_a_gpu_nothing_is_calibrated() -> None:
    assert doctor._calibrated() == ((), None)


RIGHT = Comparison("counters", "host_to_device", 1.0412e9, 1e9)
LOADED = Link(5, 5, 16, 16)


def test_the_calibration_of_a_gpus_link_is_shown() -> None:
    """A source that is right, one that is absent and one that is wrong."""
    comparisons = [
        RIGHT,
        Comparison("counters", "device_to_host", 1.0389e9, 1e9),
        Comparison(
            "gpm", "host_to_device", Reason("unsupported", "no such metrics", "buy a Hopper"), 0.0
        ),
        Comparison("throughput", "host_to_device", 1.67e9, 1e9),
    ]
    finding = judge_calibration(Calibration(comparisons, Link(1, 5, 16, 16), LOADED))
    assert (finding.status, finding.lost) == ("ok", "")
    assert finding.detail.splitlines() == [
        "counters: host to device 1.041, device to host 1.039",
        "gpm: host to device no such metrics",
        "throughput: host to device 1.670 (untrusted)",
        "(bytes counted for each byte of a known copy)",
        "the link while it copied: generation 5 of 5, width x16 of x16",
        "counters is read by all cases",
    ]
    nobody = judge_calibration(Calibration(comparisons[2:], None, LOADED))
    assert (nobody.status, bool(nobody.lost)) == ("missing", True)
    assert nobody.remedy == "update the NVIDIA driver"


@pytest.mark.parametrize(("gen", "width"), [(4, 16), (5, 8)])
def test_a_link_that_does_not_train_up_under_load_is_said(gen: int, width: int) -> None:
    finding = judge_calibration(Calibration([RIGHT], None, Link(gen, 5, width, 16)))
    assert finding.status == "limited"
    assert f"generation {gen} of 5, width x{width} of x16" in finding.detail
    assert "LnkSta" in finding.remedy


def test_a_link_that_nobody_describes_is_no_slow_link() -> None:
    assert judge_calibration(Calibration([RIGHT])).status == "ok"


def test_a_gpu_that_another_program_fills_does_not_stop_the_doctor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from gatherbench.bench.run import sensor_calibration

    def full(*_: object, **__: object) -> Calibration:
        raise RuntimeError("CUDA error: out of memory\nmore; and more")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sensor_calibration, "torch_gpu_uuids", lambda _: ("GPU-x",))
    monkeypatch.setattr(sensor_calibration, "calibrate_gpu", full)
    uuids, calibration = doctor._calibrated()
    assert uuids == ("GPU-x",)
    assert calibration
    finding = judge_calibration(calibration)
    assert (finding.status, finding.detail) == ("missing", "CUDA error: out of memory")
    assert "nvidia-smi" in finding.remedy


def test_on_a_gpu_the_calibration_comes_before_its_meters(
    monkeypatch: pytest.MonkeyPatch, meters_findings: Callable[[], list[Finding]]
) -> None:
    none = Calibration(unavailable=Reason("unsupported", "none"))
    monkeypatch.setattr(doctor, "_calibrated", lambda: (("GPU-x",), none))
    given: list[GpuUnderTest | None] = []
    monkeypatch.setattr(doctor, "open_meters", lambda gpu: given.append(gpu) or [])
    names = [f.name for f in meters_findings()]
    assert names == ["Link calibration", *(f"Meter {m.name}" for m in APART)]
    assert given == [GpuUnderTest(("GPU-x",), none.choice)]
