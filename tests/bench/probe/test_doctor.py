"""The doctor: each thing that is missing says what is lost by it, on a narrow terminal too."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.commands import about as command
from gatherbench.bench.machine.gpus import gpu_facts
from gatherbench.bench.meters.base import Meter, Window
from gatherbench.bench.meters.nvml_device import GpuUnderTest, SensorChoice
from gatherbench.bench.meters.registry import METERS
from gatherbench.bench.probe import doctor
from gatherbench.bench.probe.case import NEEDS
from gatherbench.bench.probe.doctor import Finding, examine, judge
from gatherbench.kernels import read_engines
from gatherbench.plugins import installing
from gatherbench.reason import Reason, SensorUnavailableError

H200 = gpu_facts(name="NVIDIA H200", driver="590.10", cuda_driver="13.1", memory_bytes=150 << 30)
H200 |= {"uuid_hash": "0123456789ab", "numa_node": 0, "link_gen_current": 1, "link_gen_max": 5}
H200 |= {"link_width_current": 16, "link_width_max": 16}
T400 = H200 | {"name": "NVIDIA T400", "uuid_hash": "ffff", "link_width_max": 8}
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
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0
    found = {finding["name"]: finding for finding in json.loads(done.output)}
    looked_at = "GPU, Huge pages, Memory, Disk, NUMA, CPU clock, Libraries, Disk reads, Probe"
    assert {*looked_at.split(", ")} <= set(found)
    assert found["GPU"].keys() == {"name", "status", "detail", "lost", "remedy"}
    assert list(tmp_path.iterdir()) == []


def always(value: object) -> Callable[..., Any]:
    return lambda *_: value


ENGINE = read_engines.ThreadEngine(1)
#: What a machine has on which everything is fine but the optional package, and one that has little.
GOOD: dict[str, object] = {
    "list_gpus": [H200],
    "describe_cpu": {"numa_nodes": 1, "scaling_governor": None},
    "open_engine": (ENGINE, ""),
    "library_versions": {"torch": "2.13.0", "ogb": None},
}
POOR: dict[str, object] = {
    "list_gpus": [H200 | {"link_width_current": 8}],
    "driver_shortage": "driver 580 or newer",
    "describe_cpu": {"numa_nodes": 2, "scaling_governor": "powersave"},
    "describe_memory": {
        **{"total": 64 << 30, "container_limit": 4 << 30},
        "transparent_huge_pages": "never",
    },
    "open_engine": (ENGINE, "forbidden"),
}
TWO = {"list_gpus": [T400, H200], "used_first": ([H200, T400], H200["uuid_hash"])}
LITTLE = {"psutil.virtual_memory": SimpleNamespace(available=2 << 30, total=4 << 30)}


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (
            GOOD,
            [
                ("GPU", "ok", "NVIDIA H200, 150.0 GiB", ""),
                ("Driver", "ok", "driver 590.10, CUDA up to 13.1", ""),
                ("PCIe link", "ok", "generation 1 of 5, width x16 of x16", ""),  # it idles
                ("NUMA", "ok", "nodes: 1", ""),
                ("CPU clock", "ok", "not visible", ""),
                ("Disk reads", "ok", "io_uring", ""),
                ("Libraries", "ok", "torch 2.13.0", ""),
                ("ogb (extra)", "missing", "not installed", installing("ogb")),
            ],
        ),
        (
            POOR,
            [
                ("PCIe link", "limited", "width x8 of x16", "reseat the card"),
                ("Driver", "limited", "driver 590.10", "driver 580 or newer"),
                ("Memory", "limited", "the container is limited to 4.0 GiB", "free memory"),
                ("Huge pages", "limited", "transparent: never", "madvise"),
                ("NUMA", "limited", "nodes: 2", "numactl"),
                ("CPU clock", "limited", "governor: powersave", "cpupower"),
                ("Disk reads", "limited", "forbidden", "io_uring_setup"),
            ],
        ),
        (TWO, [("GPU", "ok", "NVIDIA H200, 150.0 GiB, the first of 2", "")]),
        (
            {"list_gpus": [H200 | {"link_width_max": None}]},
            [("PCIe link", "limited", "width x16 of xNone", "lspci")],
        ),
        (LITTLE, [("Memory", "limited", "2.0 GiB of 4.0 GiB free", "lower scale")]),
    ],
)
def test_what_there_is_and_what_is_lost(here, expected, monkeypatch):
    for name, value in here.items():
        monkeypatch.setattr(f"{doctor.__name__}.{name}", always(value))
    found = by_name(examine())
    for name, status, detail, remedy in expected:
        assert found[name].status == status
        assert detail in found[name].detail
        assert remedy in found[name].remedy


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    def no_library() -> None:
        raise SensorUnavailableError(Reason("no_device", "no library", "install the driver"))

    monkeypatch.setattr(doctor, "list_gpus", no_library)
    found = by_name(examine())
    assert (found["GPU"].status, found["GPU"].detail) == ("missing", "no library")
    assert found["GPU"].remedy == "install the driver"
    assert not found.keys() & {"Driver", "PCIe link"}


def test_the_disk_is_that_of_the_graphs(monkeypatch, tmp_path):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path / "not" / "yet"))
    full = {tmp_path: SimpleNamespace(free=1 << 30)}
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda at: full.get(at, SimpleNamespace(free=99 << 30))
    )
    disk = by_name(examine())["Disk"]
    assert disk.status == "limited"
    assert "GATHERBENCH_DATA" in disk.remedy
    assert f"1.0 GiB free for graphs ({tmp_path / 'not' / 'yet'}), 99.0 GiB for" in disk.detail


def test_two_nodes_with_a_gpu_that_knows_its_own_are_fine(tmp_path, monkeypatch):
    for node in (0, 1):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{node}")
    monkeypatch.setattr(doctor, "list_gpus", lambda: [gpu_facts(name="X", numa_node=1)])
    monkeypatch.setattr(doctor, "describe_cpu", lambda: {"numa_nodes": 2, "scaling_governor": None})
    monkeypatch.setattr("gatherbench.bench.machine.numa.SYS", tmp_path)
    numa = by_name(examine())["NUMA"]
    assert numa.status == "ok"
    assert "bound to its node" in numa.detail


def test_what_cases_of_a_probe_lack_is_named_with_them(monkeypatch):
    lacks = Reason("no_device", "no GPU here", "buy one")
    monkeypatch.setitem(NEEDS, "gpu", lambda: lacks)
    found = by_name(examine())
    assert found["Probe"].detail == "3 cases can be measured (gatherbench probe --list)"
    gpu = found["Probe: gpu"]
    assert (gpu.status, gpu.detail, gpu.remedy) == ("missing", "no GPU here", "buy one")
    assert "gpu_gather, managed_gather" in gpu.lost
    for need in NEEDS:
        monkeypatch.setitem(NEEDS, need, lambda: None)
    assert [name for name in by_name(examine()) if name.startswith("Probe")] == ["Probe"]


def test_it_reads_at_eighty_columns(monkeypatch):
    finding = Finding("GPU", "missing", "none " * 30, "much " * 30, "a remedy [with brackets]")
    findings = [finding, Finding("Disk", "ok", "enough")]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    out = Console(file=io.StringIO(), width=80, color_system=None)
    monkeypatch.setattr(command, "console", lambda: out)
    command.doctor()
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    assert "remedy: a remedy [with brackets]" in text
    assert text.splitlines()[-1].strip() == "1 ok, 0 limited, 1 missing"


# Each meter is read for real, and what it lacks has a remedy.


class Sensor(Meter):
    """Says what it is given; or breaks."""

    name: ClassVar[str] = "sensor"
    summary: ClassVar[str] = "a test"
    lost: ClassVar[str] = "the warmth"
    trust: ClassVar[str] = "by hand"

    def __init__(self, error: Exception | None = None, **says: float | Reason) -> None:
        self.units = dict.fromkeys(says, "1")
        self._says, self._error = says, error

    def begin(self) -> None:
        if self._error is not None:
            raise self._error

    def end(self) -> Window:
        return self._says


def test_every_meter_is_examined_and_says_how_far_to_trust_it():
    found = by_name(list(EXAMINE_METERS()))
    assert list(found) == [f"Meter {m.name}" for m in METERS]
    for meter in METERS:
        finding = found[f"Meter {meter.name}"]
        assert finding.status == "missing" or meter.trust in finding.detail
        assert meter.lost
        assert meter.trust
    assert found["Meter clock"].status == "ok"
    assert "cpu_user" in found["Meter cpu"].detail


SHORT = Reason("too_short", "a window of 0.1 s is too short for b", "wait")
NONE = Reason("no_device", "no such thing", "buy one")
ROOT = Reason("no_permission", "for root only", "sudo")


@pytest.mark.parametrize(
    ("says", "status", "detail", "remedy"),
    [
        ({"a": 1.0, "b": 2.0}, "ok", ["a, b: by hand"], ""),
        ({"a": 1.0, "b": ROOT}, "limited", ["a: by hand", "no b: for root only"], "sudo"),
        ({"a": 1.0, "b": SHORT}, "ok", ["a, b: by hand"], ""),
        (
            {"a": NONE, "b": replace(NONE, cause="none either")},
            "missing",
            ["no a: no such thing", "no b: none either"],
            "buy one",
        ),
        ({"a": NONE, "b": NONE}, "missing", ["no a, b: no such thing"], "buy one"),
        ({"a": Reason("failed", "gone")}, "missing", ["no a: gone"], "none is known"),
        (
            {"a": 1.0, "error": OSError("gone")},
            "missing",
            ["failed: OSError: gone"],
            "none is known",
        ),
    ],
)
def test_a_meter_is_judged_by_its_readings(says, status, detail, remedy):
    finding = judge(Sensor(**says))
    assert (finding.status, finding.detail.splitlines()) == (status, detail)
    assert (finding.lost, finding.remedy) == ("" if status == "ok" else "the warmth", remedy)


def test_on_a_gpu_its_meters_watch_it_and_a_full_gpu_stops_nothing(monkeypatch):
    def full(_: int) -> Any:
        raise RuntimeError("CUDA error: out of memory\nmore; and more")

    given: list[GpuUnderTest | None] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="GPU-x")
    )
    monkeypatch.setattr(doctor, "open_meters", lambda gpu: given.append(gpu) or [])
    assert list(EXAMINE_METERS()) == []
    monkeypatch.setattr(torch.cuda, "get_device_properties", full)
    (first,) = EXAMINE_METERS()
    assert (first.name, first.status) == ("CUDA", "missing")
    assert first.detail == "CUDA error: out of memory"
    assert "nvidia-smi" in first.remedy
    assert [one and one.choice for one in given] == [SensorChoice("counters", None), None]
