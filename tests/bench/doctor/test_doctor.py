"""The doctor: each thing that is missing says what is lost by it, on a narrow terminal too."""

from __future__ import annotations

import dataclasses
import io
import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console

from gatherbench.bench.doctor import examine as doctor
from gatherbench.bench.doctor.examine import Finding, examine, print_doctor
from gatherbench.bench.machine.nvml import GpuInfo, SensorUnavailableError

H200 = GpuInfo(
    "NVIDIA H200", "0123456789ab", "590.10", "13.1", "9.0", 150 << 30, 700.0, 1, 5, 16, 16, 0
)


@pytest.fixture(autouse=True)
def without_meters(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a second, and have tests of their own."""
    monkeypatch.setattr(doctor, "examine_meters", list)


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
        raise SensorUnavailableError("no_device: no library; install the driver")

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
