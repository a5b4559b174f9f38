"""The doctor's word on each meter: it is read for real, and what it lacks has a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from gatherbench.bench.doctor import examine as doctor
from gatherbench.bench.doctor import meters as doctor_meters
from gatherbench.bench.doctor.examine import examine
from gatherbench.bench.doctor.meters import examine_meters, judge, judge_calibration, watch
from gatherbench.bench.machine.numa import Topology
from gatherbench.bench.machine.nvml import GpuInfo
from gatherbench.bench.meters.base import TOO_SHORT, Reading
from gatherbench.bench.meters.gpu_choice import GpuUnderTest, SensorChoice
from gatherbench.bench.meters.registry import APART, METERS
from gatherbench.bench.run.calibration_job import run_maker
from gatherbench.bench.run.rows import Row


class Sensor:
    """Says what it is given; or breaks."""

    name: ClassVar[str] = "sensor"
    summary: ClassVar[str] = "a test"
    lost: ClassVar[str] = "the warmth"
    trust: ClassVar[str] = "by hand"

    def __init__(self, *readings: Reading, error: Exception | None = None) -> None:
        self._readings, self._error = readings, error

    def probe(self) -> str | None:
        return None

    def start(self) -> None:
        if self._error is not None:
            raise self._error

    def stop(self) -> list[Reading]:
        return list(self._readings)


def there(metric: str, source: str = "a counter") -> Reading:
    return Reading(metric, "1", 1.0, source, samples=2)


def absent(metric: str, reason: str) -> Reading:
    return Reading(metric, "1", None, "a counter", reason)


def test_every_meter_is_examined_and_says_how_far_to_trust_it() -> None:
    findings = [f for f in examine() if f.name.startswith("Meter ")]
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
    sensor = Sensor(there("a"), absent("b", "no_permission: for root only; sysctl x=1, or sudo"))
    finding = judge(sensor, sensor.stop())
    assert (finding.status, finding.lost) == ("limited", "the warmth")
    assert finding.remedy == "sysctl x=1, or sudo"
    assert finding.detail.splitlines()[-1] == "no b: for root only"


def test_a_sensor_that_wants_a_longer_window_lacks_nothing() -> None:
    sensor = Sensor(there("a"), absent("b", f"{TOO_SHORT} 0.1 s is too short for b; wait"))
    finding = judge(sensor, sensor.stop())
    assert (finding.status, finding.lost, finding.remedy) == ("ok", "", "")
    assert "b: read over longer windows than the doctor's" in finding.detail
    alone = Sensor(absent("b", f"{TOO_SHORT} 0.1 s is too short for b; wait"))
    assert judge(alone, alone.stop()).status == "ok"


def test_a_meter_without_any_reading_is_missing_and_each_remedy_stands_once() -> None:
    reasons = ["no_device: no such thing; buy one", "no_device: none either; buy one"]
    sensor = Sensor(absent("a", reasons[0]), absent("b", reasons[1]))
    finding = judge(sensor, sensor.stop())
    assert finding.status == "missing"
    assert finding.remedy == "buy one"
    assert finding.detail.splitlines() == ["no a: no such thing", "no b: none either"]
    same = Sensor(absent("a", reasons[0]), absent("b", reasons[0]))
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
    gpu = GpuInfo("X", None, None, None, None, None, None, None, None, None, None, 1)
    monkeypatch.setattr(doctor, "list_gpus", lambda: [gpu])
    monkeypatch.setattr(doctor, "examine_meters", list)
    monkeypatch.setattr(doctor, "describe_cpu", lambda: {"numa_nodes": 2, "scaling_governor": None})
    monkeypatch.setattr("gatherbench.bench.machine.env.Topology", lambda: Topology(tmp_path))
    (numa,) = [f for f in examine() if f.name == "NUMA"]
    assert (numa.status, numa.lost) == ("ok", "")
    assert "bound to its node" in numa.detail


def test_without_a_gpu_nothing_is_calibrated() -> None:
    assert doctor_meters._gpu() == (None, [])


MAKE = run_maker("doctor", "", "")


def calibrated(gen_loaded: int = 5, width_loaded: int = 16) -> list[Row]:
    """Rows of a calibration: a source that is right, one that is absent, one that is wrong."""

    def ratio(source: str, direction: str, value: float, trust: str) -> Row:
        what = ("calibration", f"pcie_{direction}_ratio", "1")
        return MAKE.ok(*what, value, f"{source}: bytes counted for each byte copied; {trust}")

    loaded = {"gen": gen_loaded, "gen_max": 5, "width": width_loaded, "width_max": 16}
    return [
        ratio("counters", "host_to_device", 1.0412, "trusted"),
        ratio("counters", "device_to_host", 1.0389, "trusted"),
        MAKE.missing(
            "calibration", "pcie_host_to_device_ratio", "1", "gpm: bytes counted",
            "unsupported: no such metrics; buy a Hopper",
        ),
        ratio("throughput", "host_to_device", 1.67, "untrusted"),
        MAKE.ok("calibration", "link_gen_idle", "1", 1, "NVML PCIe link"),
        *(
            MAKE.ok("calibration", f"link_{name}_loaded", "1", value, "NVML PCIe link")
            for name, value in loaded.items()
        ),
    ]  # fmt: skip


def test_the_calibration_of_a_gpus_link_is_shown() -> None:
    finding = judge_calibration(calibrated(), SensorChoice("counters", ""))
    assert (finding.status, finding.lost) == ("ok", "")
    assert finding.detail.splitlines() == [
        "counters: host to device 1.041, device to host 1.039",
        "gpm: host to device no such metrics",
        "throughput: host to device 1.670 (untrusted)",
        "(bytes counted for each byte of a known copy)",
        "the link while it copied: generation 5 of 5, width x16 of x16",
        "counters is read by all cases",
    ]
    nobody = judge_calibration(calibrated(), SensorChoice(None, "unsupported: none; change it"))
    assert (nobody.status, bool(nobody.lost), nobody.remedy) == ("missing", True, "change it")


@pytest.mark.parametrize(("gen", "width"), [(4, 16), (5, 8)])
def test_a_link_that_does_not_train_up_under_load_is_said(gen: int, width: int) -> None:
    finding = judge_calibration(calibrated(gen, width), SensorChoice("counters", ""))
    assert finding.status == "limited"
    assert f"generation {gen} of 5, width x{width} of x16" in finding.detail
    assert "LnkSta" in finding.remedy


def test_a_link_that_nobody_describes_is_no_slow_link() -> None:
    rows = [row for row in calibrated() if not row.metric.startswith("link_")]
    rows.append(MAKE.missing("calibration", "link_gen_loaded", "1", "NVML", "unsupported: no"))
    assert judge_calibration(rows, SensorChoice("counters", "")).status == "ok"


def test_a_gpu_that_another_program_fills_does_not_stop_the_doctor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from gatherbench.bench.run import sensor_calibration

    def full(*_: object, **__: object) -> SensorChoice:
        raise RuntimeError("CUDA error: out of memory\nmore; and more")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sensor_calibration, "torch_gpu_uuids", lambda _: ("GPU-x",))
    monkeypatch.setattr(sensor_calibration, "calibrate_gpu", full)
    gpu, rows = doctor_meters._gpu()
    assert gpu is not None
    assert gpu.uuids == ("GPU-x",)
    finding = judge_calibration(rows, gpu.choice)
    assert (finding.status, finding.detail) == ("missing", "CUDA error: out of memory")
    assert "nvidia-smi" in finding.remedy


def test_on_a_gpu_the_calibration_comes_before_its_meters(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GpuUnderTest(("GPU-x",), SensorChoice(None, "unsupported: none"))
    monkeypatch.setattr(doctor_meters, "_gpu", lambda: (gpu, []))
    given: list[GpuUnderTest | None] = []
    monkeypatch.setattr(doctor_meters, "open_meters", lambda gpu: given.append(gpu) or [])
    names = [f.name for f in examine_meters()]
    assert names == ["Link calibration", *(f"Meter {m.name}" for m in APART)]
    assert given == [gpu]
