"""A calibration as a whole: its files, its budget, its refusals, and what a machine is asked."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.probe.calibrate import machine as calibrate_machine
from gatherbench.bench.probe.calibrate import main as calibrate_main
from gatherbench.bench.probe.calibrate import run as calibration
from gatherbench.bench.probe.calibrate.check import summarise
from gatherbench.bench.probe.calibrate.files import OutputError, SampleFile
from gatherbench.bench.probe.calibrate.host import CalibrationError
from gatherbench.bench.probe.calibrate.machine import MachineFacts, max_payload
from gatherbench.bench.probe.calibrate.points import Observation, Point, Sample, host_points
from gatherbench.bench.probe.calibrate.run import calibrate
from gatherbench.bench.probe.watchdog import CUT_OFF
from gatherbench.kernels.cuda_calls import CudaCallError

GIB = 1 << 30
FACTS = MachineFacts("a-host", "two cores", 2)


class Steady:
    """Stands in for a host on which everything goes at one rate."""

    def measure(self, point: Point) -> Observation:
        return Observation(1e6, 1e-3, "made up")


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> list[Point]:
    """The points of a host that is steady; three rounds of them are enough."""
    points = host_points(2, GIB)
    monkeypatch.setattr(calibration, "_host_stand", lambda stack: (Steady(), points, lambda: FACTS))
    monkeypatch.setattr(calibration, "MOST_ROUNDS", 3)
    return points


def test_a_calibration_from_end_to_end(tmp_path: Path, steady: list[Point]) -> None:
    done = calibrate(tmp_path / "new", device="cpu")
    assert done.rounds == 3
    assert load_profile(done.files[0]) == done.profile
    with done.files[1].open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * len(steady)
    assert {row["source"] for row in rows} == {"made up"}
    with done.files[2].open() as file:
        checks = list(csv.DictReader(file))
    assert {row["held_out"] for row in checks} == {"True", "False"}
    assert all(abs(float(row["error"])) < 0.1 for row in checks if row["threads"] == "2")


@pytest.mark.parametrize(("busy", "noted"), [(0.05, False), (1.5, True), (None, False)])
def test_other_work_is_noted_in_the_profile(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steady: list[Point],
    busy: float | None,
    noted: bool,
) -> None:
    monkeypatch.setattr(calibration.OtherWork, "cores", lambda self: busy)
    said: list[str] = []
    done = calibrate(tmp_path, device="cpu", say=said.append)
    assert ("kept 1.5 cores busy" in done.profile.description) is noted
    assert any("on an idle machine" in text for text in said) is noted


def test_too_little_time_is_said(tmp_path: Path, steady: list[Point]) -> None:
    with pytest.raises(CalibrationError, match="give more --budget"):
        calibrate(tmp_path, device="cpu", budget_s=1)


def test_a_gpu_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(CalibrationError, match="sees no CUDA GPU; --device cpu"):
        calibrate(tmp_path, device="cuda")


def test_samples_are_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    with SampleFile(path) as file:
        file.add(Sample(Point("round_trip", span_bytes=GIB), 3, Observation(10, 2.0, "clock")))
        (row,) = csv.DictReader(path.read_text().splitlines())
    assert (row["kind"], row["round"], row["amount"], row["unit"]) == ("round_trip", "3", "10", "1")
    assert (row["time_s"], row["source"]) == ("2.0", "clock")


def test_a_full_disk_says_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady: list[Point]
) -> None:
    sample = Sample(Point("round_trip", span_bytes=GIB), 3, Observation(10, 2.0, "clock"))
    with (
        pytest.raises(OutputError, match=r"/dev/full: .*No space left.*--out"),
        SampleFile(Path("/dev/full")) as file,
    ):
        file.add(sample)
    monkeypatch.setattr(calibration, "write_checks", lambda *_: Path("/dev/full/x").mkdir())
    with pytest.raises(OutputError, match="choose a folder with --out"):
        calibrate(tmp_path, device="cpu")


def test_what_else_the_system_refuses_is_not_blamed_on_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(calibrate_main, "calibrate", refused)
    assert calibrate_main.run(tmp_path, 60.0, "", "cpu") == 1
    said = capsys.readouterr().err
    assert "Cannot allocate memory" in said
    assert "--out" not in said


def config_space(*capabilities: tuple[int, int, int], size: int = 256) -> bytes:
    """PCI configuration with (place, id, Device Control) for each capability, linked in order."""
    space = bytearray(size)
    space[0x34] = capabilities[0][0]
    following = [place for place, *_ in capabilities[1:]] + [0]
    for (place, kind, control), after in zip(capabilities, following, strict=True):
        space[place : place + 2] = kind, after
        space[place + 8] = control
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (config_space((0x40, 0x01, 0), (0x60, 0x10, 1 << 5)), 256),
        (config_space((0x60, 0x10, 2 << 5 | 0x1F)), 512),
        (config_space((0x40, 0x01, 0)), None),
        (config_space((0x40, 0x01, 0), (0x60, 0x10, 1 << 5))[:64], None),
        (b"", None),
    ],
)
def test_the_payload_is_read_from_the_configuration(
    tmp_path: Path, space: bytes, expected: int | None
) -> None:
    path = tmp_path / "config"
    path.write_bytes(space)
    assert max_payload(path) == expected


def test_a_configuration_that_loops_or_is_not_there_is_no_payload(tmp_path: Path) -> None:
    space = bytearray(config_space((0x40, 0x01, 0)))
    space[0x41] = 0x40
    (tmp_path / "config").write_bytes(space)
    assert max_payload(tmp_path / "config") is None
    assert max_payload(tmp_path / "absent") is None


BARE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pydantic", "platformdirs", "ogb", "typer", "torch_geometric"):
            raise ImportError(f"{name} is not on this machine")
sys.meta_path.insert(0, Absent())
from gatherbench.bench.probe.calibrate import gpu as calibrate_gpu
from gatherbench.bench.probe.calibrate import main as calibrate_main
sys.exit(calibrate_main.main(["--device", "cuda", "--out", sys.argv[1]]))
"""


def test_a_bare_machine_can_calibrate(tmp_path: Path) -> None:
    """GPU machines may lack what the rest of the project needs; here there is no GPU to go on."""
    command = [sys.executable, "-c", BARE, str(tmp_path)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert done.returncode == 2, done.stderr
    assert "sees no CUDA GPU" in done.stderr


def test_calibrate_refuses_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate_main.main(["--base", "rtx3091"]) == 2
    assert "rtx3091" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        calibrate_main.main(["--device", "tpu"])


def test_this_host_can_be_asked() -> None:
    facts = calibrate_machine.ask_host()
    assert facts.slug.startswith("cpu-")
    assert facts.cores >= 1
    assert not facts.has_gpu
    assert json.dumps(dataclasses.asdict(facts))


def test_quartiles_are_those_of_the_rates() -> None:
    point = Point("gpu_copy")
    samples = [
        Sample(point, i, Observation(1.0, 1 / rate, "")) for i, rate in enumerate(range(1, 8))
    ]
    found = summarise(samples)[point]
    assert (found.low, found.median, found.high, found.count) == (2, 4, 6, 7)
    assert found.spread == "quartiles -50.0% and +50.0%"
    alone = summarise(samples[:1])[point]
    assert alone.low == alone.median == alone.high


HANGS = """
import sys, threading
from gatherbench.bench.probe.calibrate import main as calibrate_main
calibrate_main.LATE_S = 0.5
calibrate_main.calibrate = lambda *_, **__: threading.Event().wait()
calibrate_main.main(["--budget", "0.5", "--out", sys.argv[1]])
"""


def test_a_machine_that_hangs_ends_it_and_says_where(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == CUT_OFF
    assert "calibrate/main.py" in done.stdout
    assert "no profile; the samples so far" in done.stdout


@pytest.mark.parametrize(
    ("trouble", "status", "said"),
    [
        (OutputError("/there: cannot be written; choose a folder with --out"), 2, "--out"),
        (CalibrationError("not 2 GiB of host memory are free"), 2, "not 2 GiB"),
        (CudaCallError("cudaHostRegister", "cudaErrorUnknown", "no"), 1, "cudaHostRegister failed"),
        (MemoryError("cannot map 1.0 GiB: Cannot allocate memory"), 1, "cannot map 1.0 GiB"),
    ],
)
def test_what_stops_a_calibration_is_one_line_and_no_traceback(
    trouble: Exception,
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise trouble

    monkeypatch.setattr(calibrate_main, "calibrate", stopped)
    assert calibrate_main.run(tmp_path, 1.0, "", "cuda") == status
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("error: ")
    assert said in told
