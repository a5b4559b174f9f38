"""``gatherbench predict``: another machine's epochs from a run that is there."""

from __future__ import annotations

import html
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.commands import finish
from gatherbench.bench.model.predict import is_prediction
from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run.guards import only_one
from gatherbench.bench.run.store import RunStore

ShellRun = tuple[subprocess.CompletedProcess[str], Path]


@pytest.fixture
def folder(
    shell_run: ShellRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> Path:
    """A finished run on a host, predicted for ``a100-pcie4``; no calibration is near."""
    monkeypatch.chdir(tmp_path)
    _, made = shell_run
    return shutil.copytree(made, tmp_path / made.name)


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(a) for a in ("predict", *arguments)])


def machines(folder: Path) -> set[str]:
    return {row.machine for row in RunStore(folder).rows() if is_prediction(row)}


def as_on_a_gpu(folder: Path) -> Path:
    """The folder of a run that was measured on a GPU, as far as its plan says."""
    plan = folder / "plan.json"
    plan.write_text(plan.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    (folder / "profile.toml").unlink()
    return folder


def test_a_run_is_predicted_for_another_machine(folder: Path) -> None:
    measured = [row for row in RunStore(folder).rows() if not is_prediction(row)]
    machine = load_run(folder).machine
    assert {row.machine for row in measured} == {machine}
    done = invoke(folder, "--profile", "h200-sxm-pcie5")
    assert done.exit_code == 0, done.output
    assert "modelled for" in done.stdout
    assert str(folder / "report.html") in done.stdout
    assert machines(folder) == {"h200-sxm-pcie5"}
    assert load_run(folder).machine == machine, "which measured it"
    assert load_profile(folder / "profile.toml") == load_profile("h200-sxm-pcie5")
    assert [row for row in RunStore(folder).rows() if not is_prediction(row)] == measured
    assert "h200-sxm-pcie5" in (folder / "report.html").read_text()


def test_without_a_name_it_is_the_run_s_own_profile(folder: Path) -> None:
    before = (folder / "rows.csv").read_bytes()
    assert invoke(folder).exit_code == 0
    assert (folder / "rows.csv").read_bytes() == before
    (folder / "profile.toml").unlink()
    assert invoke(folder).exit_code == 0
    assert machines(folder) == {"rtx3090-pcie4"}  # the paper's, as for any host


def test_a_gpu_s_run_takes_its_machine_s_calibration_or_asks(folder: Path) -> None:
    refused = invoke(as_on_a_gpu(folder))
    assert refused.exit_code == 2
    assert "--profile NAME" in refused.stderr
    machine = next(row.machine for row in RunStore(folder).rows() if row.backend == "host")
    own = Path("calibration") / f"{machine}.toml"
    own.parent.mkdir()
    own.write_text(load_profile("h200-sxm-pcie5").to_toml())
    assert invoke(folder).exit_code == 0
    assert machines(folder) == {"h200-sxm-pcie5"}


def test_what_cannot_be_predicted_for_changes_nothing(folder: Path, tmp_path: Path) -> None:
    def files() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}

    before = files()
    unknown = invoke(folder, "--profile", "h200-sxm")
    assert unknown.exit_code == 2
    assert "did you mean 'h200-sxm-pcie5'" in unknown.stderr
    with only_one(folder):
        busy = invoke(folder, "--profile", "h200-sxm-pcie5")
    assert busy.exit_code == 2
    assert "another process is running" in busy.stderr
    assert files() == before
    none = invoke(tmp_path)
    assert none.exit_code == 2
    assert "no run folder" in none.stderr


def test_a_run_that_was_cut_off_is_not_taken_for_one_that_is_going(folder: Path) -> None:
    lines = (folder / "rows.csv").read_text().splitlines(keepends=True)
    (folder / "rows.csv").write_text("".join(lines[: len(lines) // 3]))
    (folder / "samples.parquet").unlink()
    done = invoke(folder)
    assert done.exit_code == 0, done.output
    page = html.unescape((folder / "report.html").read_text())
    for said in (" ".join(done.stdout.split()), page):
        assert "cut off" in said
        assert "still going" not in said


def test_predictions_that_find_no_room_say_what_makes_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunStore, "replace", full)
    done = invoke(folder, "--profile", "h200-sxm-pcie5")
    assert done.exit_code == 1
    assert f"gatherbench predict {folder}" in done.stderr
    monkeypatch.undo()
    monkeypatch.setattr(finish, "write_atomically", full)
    assert invoke(folder).exit_code == 2
