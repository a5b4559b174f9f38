"""Which machine a run's epochs are predicted for, where nobody names one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gatherbench.bench.commands import execute
from gatherbench.bench.commands.calibrate import DEFAULT_FOLDER
from gatherbench.bench.commands.execute import BadRunError, new_run
from gatherbench.bench.model.profile import DEFAULT_PROFILE, load_profile


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this machine's calibration, below the current folder; a GPU is assumed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(execute, "choose_device", lambda wanted: wanted)
    machine = new_run("quick", tmp_path / "results", "cpu").machine
    file = DEFAULT_FOLDER / f"{machine}.toml"
    file.parent.mkdir()
    own = dataclasses.replace(load_profile("h200-sxm-pcie5"), name="my own")
    file.write_text(own.to_toml(), encoding="utf-8")
    return file


def profile_of(device: str, profile: str = "") -> str | None:
    made = new_run("quick", Path("results"), device, profile=profile)
    assert made.store.profile_file.is_file() == (made.profile is not None)
    return made.profile.name if made.profile else None


def test_a_gpu_s_run_takes_its_own_calibration(calibrated: Path) -> None:
    assert profile_of("cuda") == "my own"
    assert profile_of("cuda", "a100-pcie4") == "a100-pcie4"
    calibrated.write_text("name = ")
    with pytest.raises(BadRunError, match="not valid TOML"):
        profile_of("cuda")
    calibrated.unlink()
    assert profile_of("cuda") is None


def test_a_host_s_run_is_predicted_for_the_paper_s_machine(calibrated: Path) -> None:
    assert calibrated.is_file()
    assert profile_of("cpu") == DEFAULT_PROFILE
