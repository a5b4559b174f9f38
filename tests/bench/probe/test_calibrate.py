"""A calibration as a whole: its files, its budget, its refusals."""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.probe import calibrate as calibration
from gatherbench.bench.probe import gpu
from gatherbench.bench.probe.calibrate import calibrate
from gatherbench.bench.probe.cases import MIB
from gatherbench.bench.probe.gpu import GpuStand
from gatherbench.bench.probe.machine import MachineFacts
from gatherbench.bench.probe.stand import ProbeError
from gatherbench.bench.read.points import read_points
from gatherbench.kernels.cuda_calls import CudaCallError

Captured = pytest.CaptureFixture[str]


def test_a_calibration_from_end_to_end(tmp_path, steady):
    calibrate(tmp_path / "new", device="cpu")
    done = calibrate(tmp_path / "new", device="cpu")  # takes the place of the first
    assert done.rounds == 3
    assert load_profile(done.files[0]) == done.profile
    rows = read_points(done.files[1])
    assert len(rows) == 3 * len(steady)
    assert set(rows["source"]) == {"made up"}
    with done.files[2].open() as file:
        checks = list(csv.DictReader(file))
    assert {row["held_out"] for row in checks} == {"True", "False"}
    assert all(abs(float(row["error"])) < 0.1 for row in checks if row["threads"] == "2")


@pytest.mark.parametrize(("busy", "noted"), [(0.05, False), (1.5, True), (None, False)])
def test_other_work_is_noted_in_the_profile(tmp_path, monkeypatch, steady, busy, noted):
    monkeypatch.setattr(calibration.OtherWork, "cores", lambda _: busy)
    said: list[str] = []
    done = calibrate(tmp_path, device="cpu", say=said.append)
    assert ("kept 1.5 cores busy" in done.profile.description) is noted
    assert any("on an idle machine" in text for text in said) is noted


def test_what_cannot_be_calibrated_is_said(tmp_path, steady, monkeypatch):
    with pytest.raises(ProbeError, match="give more --budget"):
        calibrate(tmp_path, device="cpu", budget_s=1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ProbeError, match="sees no CUDA GPU; --device cpu"):
        calibrate(tmp_path, device="cuda")
    monkeypatch.setattr(calibration, "write_checks", lambda *_: Path("/dev/full/x").mkdir())
    with pytest.raises(ProbeError, match="choose a folder with --out"):
        calibrate(tmp_path, device="cpu")


def test_calibrate_refuses_what_is_not_there(capsys):
    assert calibration.main(["--base", "rtx3091"]) == 2
    assert "rtx3091" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        calibration.main(["--device", "tpu"])


def test_a_machine_that_hangs_is_cut_off_and_its_samples_were_named(
    tmp_path, steady, monkeypatch, capsys
):
    limits: list[float] = []

    @contextlib.contextmanager
    def limited(seconds: float) -> Iterator[None]:
        limits.append(seconds)
        yield

    monkeypatch.setattr(calibration, "ends_within", limited)
    for budget, limit in (("10", 10), ("0", calibration.GPU_BUDGET_S)):
        command = ["--out", str(tmp_path), "--budget", budget, "--device", "cpu", "--disk", "none"]
        assert calibration.main(command) == 0
        assert limits.pop() == limit + calibration.LATE_S
        told = "".join(capsys.readouterr().err.split())
        assert f"samplescomeinto{tmp_path}/a-host.samples.csv" in told


@pytest.mark.parametrize(
    ("trouble", "status", "said"),
    [
        (ProbeError("not 2 GiB of host memory are free"), 2, "not 2 GiB"),
        (CudaCallError("cudaHostRegister", "cudaErrorUnknown", "no"), 1, "cudaHostRegister failed"),
        (MemoryError("cannot map 1.0 GiB: Cannot allocate memory"), 1, "cannot map 1.0 GiB"),
        (OSError(12, "Cannot allocate memory"), 1, "Cannot allocate memory"),
    ],
)
def test_what_stops_a_calibration_is_one_line_and_no_traceback(
    trouble, status, said, tmp_path, monkeypatch, capsys
):
    def stopped(*_: object, **__: object) -> None:
        raise trouble

    monkeypatch.setattr(calibration, "calibrate", stopped)
    assert calibration.run(tmp_path, 1.0, "", "cuda") == status
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("error: ")
    assert said in told


def test_a_gpu_is_calibrated_from_end_to_end(cuda, tmp_path, monkeypatch):
    facts = MachineFacts("stand-in", "no GPU at all", 2, 1, 24 << 30, 4, 16, 256)
    monkeypatch.setattr(calibration.cases, "fitting", lambda *_: (MIB, 2 * MIB, 4 * MIB, 8 * MIB))
    monkeypatch.setattr(calibration, "ask_gpu", lambda device: facts)
    opened: list[GpuStand] = []

    class Limited(GpuStand):
        def __init__(self, spans: Sequence[int], device: torch.device) -> None:
            if max(spans) > 4 * MIB:  # the largest span is promised, and cannot be had
                raise MemoryError("cannot map it")
            super().__init__(spans, device)
            opened.append(self)

    monkeypatch.setattr(gpu, "GpuStand", Limited)
    monkeypatch.setattr(calibration, "MOST_ROUNDS", 3)
    said: list[str] = []
    done = calibrate(tmp_path, device="cuda", say=said.append)
    assert done.rounds == 3
    assert "0.000976562, 0.00195312, 0.00390625 GiB" in said[0]
    for key in ("link.raw_rate", "link.round_trip", "read.roof", "gpu.launch", "copy.pageable"):
        constant = done.profile[key]
        # A host that plays a GPU may be outside of what a GPU can be: then it is not believed.
        assert constant.value is not None or "not believed" in constant.source, key
    assert (tmp_path / "stand-in.samples.csv").read_text().count("round_trip") == 9
    assert opened[0].memory.closed == 1  # type: ignore[attr-defined]
