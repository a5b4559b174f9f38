"""What a run leaves, and for which machine: ``gatherbench predict``, and the end of a run."""

import dataclasses
import html
import io
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from tests.bench.observations import is_prediction, rows_of_run
from typer.testing import CliRunner, Result

from gatherbench.bench.cli import app
from gatherbench.bench.commands import execute
from gatherbench.bench.commands.common import CALIBRATIONS
from gatherbench.bench.commands.execute import finish, new_run
from gatherbench.bench.model.profile import DEFAULT_PROFILE, ProfileError, load_profile
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.run import store as store_module
from gatherbench.bench.run.frames import Frames
from gatherbench.bench.run.guards import only_one
from gatherbench.bench.run.store import RunStore

from ..written_run import edit

ShellRun = tuple[Result, Path]


@pytest.fixture
def folder(
    shell_run: ShellRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> Path:
    """A finished run on a host, predicted for ``a100-pcie4``; no calibration is near."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(shell_run[1], tmp_path / shell_run[1].name)


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without views and report, which take longer than predicting."""
    monkeypatch.setattr(execute, "views_of", lambda run: [])
    monkeypatch.setattr(execute, "write_report", lambda run, path, views: path)
    monkeypatch.setattr(execute, "render_all", lambda run, views: "")


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(a) for a in ("predict", *arguments)])


def machines(folder: Path) -> set[str]:
    return {row.machine for row in rows_of_run(folder) if is_prediction(row)}


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_run_is_predicted_for_another_machine(folder):
    """In place of the one before; what was measured stays."""
    measured = [row for row in rows_of_run(folder) if not is_prediction(row)]
    machine = load_run(folder).machine
    assert machines(folder) == {"a100-pcie4"}
    done = invoke(folder, "--profile", "h200-sxm-pcie5-low")
    assert done.exit_code == 0, done.output
    assert "Predicted for h200-sxm-pcie5-low, not measured" in done.stdout
    assert f"Report: {folder / 'report.html'}" in done.stdout.replace("\n", "")
    assert machines(folder) == {"h200-sxm-pcie5-low"}
    assert load_run(folder).machine == machine, "which measured it"
    assert load_profile(folder / "profile.toml") == load_profile("h200-sxm-pcie5-low")
    assert [row for row in rows_of_run(folder) if not is_prediction(row)] == measured
    assert "h200-sxm-pcie5-low" in (folder / "report.html").read_text()
    assert set(pd.read_parquet(folder / "epochs.parquet")["machine"].dropna()) == {
        machine,
        "h200-sxm-pcie5-low",
    }


@pytest.mark.usefixtures("unreported")
def test_without_a_name_it_is_the_run_s_own_profile_or_that_of_a_new_run(folder):
    before = (folder / "epochs.csv").read_bytes()
    assert invoke(folder).exit_code == 0
    assert (folder / "epochs.csv").read_bytes() == before
    (folder / "profile.toml").unlink()
    assert invoke(folder).exit_code == 0
    assert machines(folder) == {"rtx3090-pcie4"}  # the paper's, as for any host
    plan = folder / "plan.json"
    plan.write_text(plan.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    (folder / "profile.toml").unlink()
    refused = invoke(folder)
    assert refused.exit_code == 2
    assert "--profile NAME" in refused.stderr
    own = CALIBRATIONS / f"{load_run(folder).machine}.toml"
    own.parent.mkdir()
    own.write_text(load_profile("h200-sxm-pcie5-low").to_toml())
    assert invoke(folder).exit_code == 0
    assert machines(folder) == {"h200-sxm-pcie5-low"}


def test_what_cannot_be_predicted_for_changes_nothing(folder):
    def files() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}

    before = files()
    unknown = invoke(folder, "--profile", "h200-sxm")
    assert unknown.exit_code == 2
    assert "did you mean 'h200-sxm-pcie5-low'" in unknown.stderr
    with only_one(folder):
        busy = invoke(folder, "--profile", "h200-sxm-pcie5-low")
    assert busy.exit_code == 2
    assert "another process is running" in busy.stderr
    assert files() == before


def test_what_is_shown_is_what_whoever_reads_the_folder_finds(folder, monkeypatch):
    shown: list[Run] = []
    monkeypatch.setattr(execute, "render_all", lambda run, views: shown.append(run) or "")
    monkeypatch.setattr(execute, "write_report", lambda run, path, views: path)
    assert invoke(folder, "--profile", "h200-sxm-pcie5-low").exit_code == 0
    found = load_run(folder)
    assert set(found.predicted["machine"]) == {"h200-sxm-pcie5-low"}
    for name in ("measured", "predicted", "ended", "declared"):
        one, other = (getattr(run, name).sort_index() for run in (shown[0], found))
        pd.testing.assert_frame_equal(
            one, other, check_like=True, check_dtype=False, check_index_type=False
        )
    assert (shown[0].folder, shown[0].going) == (found.folder, found.going)


def test_a_run_that_was_cut_off_is_not_taken_for_one_that_is_going(folder):
    edit(folder, keep=lambda row: row["strategy"] == "cpu_gather")
    (folder / "samples.parquet").unlink()
    done = invoke(folder)
    assert done.exit_code == 0, done.output
    page = html.unescape((folder / "report.html").read_text())
    for said in (" ".join(done.stdout.split()), page):
        assert "cut off" in said
        assert "still going" not in said


@pytest.mark.parametrize(
    ("where", "name", "status", "remedy"),
    [
        (Frames, "write", 1, "cannot write the predictions: .*gatherbench predict FOLDER"),
        (execute, "write_report", 1, "cannot write the report: .*gatherbench predict FOLDER"),
        (execute, "save_all", 1, "cannot write the pictures: .*gatherbench predict FOLDER"),
        (store_module, "write_atomically", 2, "profile.toml: cannot be written"),
    ],
)
@pytest.mark.usefixtures("unreported")
def test_what_finds_no_room_says_what_makes_it_and_loses_nothing_else(
    folder, monkeypatch, where, name, status, remedy
):
    measured = [row for row in rows_of_run(folder) if not is_prediction(row)]
    monkeypatch.setattr(where, name, full)
    done = invoke(folder, "--profile", "h200-sxm-pcie5-low")
    assert done.exit_code == status
    said = " ".join(done.stderr.split())
    assert re.search(remedy.replace("FOLDER", str(folder)), said), said
    assert "No space left on device" in said
    assert [row for row in rows_of_run(folder) if not is_prediction(row)] == measured
    assert ("report.html" in done.stdout) == (status == 1 and name != "write_report")
    if status == 1:
        out, err = io.StringIO(), io.StringIO()
        consoles = Console(file=out, width=200), Console(file=err, width=200)
        store = RunStore(folder)
        assert not finish(load_run(store.folder), *consoles)
        assert "gatherbench run --resume" in err.getvalue()


# ---- a new run's profile -------------------------------------------------------------------------


def test_a_gpu_s_new_run_takes_its_own_calibration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(execute, "choose_device", lambda wanted: wanted)

    def profile_of(device: str, profile: str = "") -> str | None:
        made = new_run("quick", Path("results"), device, profile=profile)
        own = made.store.profile_file
        return load_profile(own).name if own.is_file() else None

    assert profile_of("cuda") is None
    file = CALIBRATIONS / f"{new_run('quick', tmp_path / 'results', 'cpu').machine}.toml"
    file.parent.mkdir()
    own = dataclasses.replace(load_profile("h200-sxm-pcie5-low"), name="my own")
    file.write_text(own.to_toml(), encoding="utf-8")
    assert profile_of("cuda") == "my own"
    assert profile_of("cuda", "a100-pcie4") == "a100-pcie4"
    assert profile_of("cpu") == DEFAULT_PROFILE, "the paper's machine"
    file.write_text("name = ")
    with pytest.raises(ProfileError, match="not valid TOML"):
        profile_of("cuda")
