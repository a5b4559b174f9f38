"""The command line as a user meets it: answers, exit statuses, and what it does not load."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gatherbench.bench.cli import app
from gatherbench.bench.meters import pcie, power
from gatherbench.bench.meters.nvml_device import NO_GPU_IN_RUN
from gatherbench.bench.plan.plan import Plan
from gatherbench.bench.plan.plan_file import TABLES
from gatherbench.bench.show import listing

ShellRun = tuple[subprocess.CompletedProcess[str], Path]


def gatherbench(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gatherbench", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=200, **more)


def invoke(*arguments: object) -> Result:
    """The command in this process, which has loaded torch and pandas already."""
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_help_and_the_requests_table_load_no_heavy_library() -> None:
    script = (
        "import sys; from gatherbench.bench.cli import main\n"
        "def loaded(*arguments):\n"
        "    sys.argv = ['gatherbench', *arguments]\n"
        "    try: main()\n"
        "    except SystemExit as e: assert not e.code\n"
        "    return {'torch', 'pandas', 'numpy', 'numba', 'matplotlib'} & set(sys.modules)\n"
        "for command in [], ['run'], ['datasets', 'import'], ['doctor'], ['check'], ['requests']:\n"
        "    assert not loaded(*command, '--help'), command\n"
        "assert loaded('requests', '--policy', 'dgl') == {'numpy', 'numba'}"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage") == 6


def test_version() -> None:
    from gatherbench import __version__

    assert gatherbench("--version").stdout.strip() == f"gatherbench {__version__}"


@pytest.mark.parametrize(
    "what", ["strategies", "datasets", "plans", "plan-keys", "meters", "profiles"]
)
def test_list(what: str) -> None:
    done = invoke("list", what)
    assert done.exit_code == 0, done.stderr
    expected = {
        "strategies": "aligned_zero_copy",
        "datasets": "wordnet",
        "plans": "quick",
        "plan-keys": "[[workload]]",
        "meters": "no_device",
        "profiles": "rtx3090-pcie4",
    }
    assert expected[what] in done.stdout


def test_every_key_of_a_plan_is_listed_with_its_words() -> None:
    lines = {
        line.split()[1]: line
        for line in invoke("list", "plan-keys").stdout.splitlines()[3:-1]
        if len(line.split()) > 1
    }
    for table in (Plan, *TABLES.values()):
        for name, field in table.model_fields.items():
            assert name in lines or f"[{name}]" in lines or f"[[{name}]]" in lines
            assert field.description, name
    cells = [cell.strip() for cell in lines["sampling"].split("│")]
    assert cells[1:4] == ["sampling", "live or replay or", '"live"']
    assert [cell.strip() for cell in lines["dataset"].split("│")][2:4] == [
        "str | list[str]",
        "none",
    ]
    assert "[[25, 10]]" in lines["fanouts"]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_folder_that_may_only_be_read_is_named_with_a_remedy(
    shell_run: ShellRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    folder = shutil.copytree(shell_run[1], tmp_path / "run")
    before = (folder / "rows.csv").read_bytes()
    real = io.open

    def read_only(file: object, mode: str = "r", *more: Any, **named: Any) -> Any:
        if "r" not in mode and Path(os.fspath(file)).is_relative_to(folder):
            raise OSError(code, os.strerror(code), str(file))
        return real(file, mode, *more, **named)

    monkeypatch.setattr(io, "open", read_only)
    monkeypatch.setattr(builtins, "open", read_only)
    for arguments, said in (
        (("plot", folder), f"{folder}/figures: no picture can be written there"),
        (("plot", folder), "choose a place with --out"),
        (("run", "--resume", folder), f"error: {folder}: cannot be written"),
        (("run", "--resume", folder), "copy it where you may write and resume the copy"),
    ):
        done = invoke(*arguments)
        assert done.exit_code == 2, done.output
        assert said in done.stderr
        assert isinstance(done.exception, SystemExit)
    assert (folder / "rows.csv").read_bytes() == before


def test_a_listing_on_a_gpu_machine_speaks_of_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pcie, power):
        monkeypatch.setattr(module, "no_gpu_reason", lambda: NO_GPU_IN_RUN)
    cells = list(listing.meters().columns[2].cells)
    assert cells.count("in a run on a GPU; `gatherbench doctor` tries it") == 2
    assert str(NO_GPU_IN_RUN) not in cells


def test_doctor_names_what_is_lost() -> None:
    done = invoke("doctor")
    assert done.exit_code == 0, done.stderr
    assert "GPU" in done.stdout


def test_a_run_ends_with_its_table_and_pictures_and_can_be_shown(
    shell_run: ShellRun, tmp_path: Path
) -> None:
    done, folder = shell_run
    assert {p.name for p in folder.iterdir()} == {
        "rows.csv", "samples.parquet", "plan.json", "env.json", "figures", "report.html",
        "profile.toml", "data.json",
    }  # fmt: skip
    for name in ("rows.csv", "epoch_breakdown.png", "speedup.png", "cpu_seconds.png"):
        assert name in done.stdout
    assert "aligned_zero_copy" in done.stdout
    shown = invoke("show", "--results", folder.parents[1])
    assert shown.exit_code == 0
    assert "aligned_zero_copy" in shown.stdout
    plotted = invoke("plot", folder, "--out", tmp_path / "pictures")
    assert plotted.exit_code == 0
    pictures = [Path(line) for line in plotted.stdout.split()]
    assert pictures
    assert all(path.is_file() for path in pictures)


@pytest.mark.usefixtures("undrawn")
def test_a_complete_run_that_is_resumed_stays_as_it_is(shell_run: ShellRun, tmp_path: Path) -> None:
    _, made = shell_run
    folder = shutil.copytree(made, tmp_path / made.name)
    before = (folder / "rows.csv").read_bytes()
    resumed = invoke("run", "--resume", folder)
    assert resumed.exit_code == 0
    assert "aligned_zero_copy" in resumed.stdout
    assert "cases left" not in resumed.stderr
    assert (folder / "rows.csv").read_bytes() == before  # its predictions are there once, too


@pytest.mark.usefixtures("undrawn")
def test_a_failed_case_makes_the_exit_status_1(plan: Path, tmp_path: Path) -> None:
    short = plan.read_text().replace("repeats = 1", "repeats = 1\ntimeout_s = 0.01")
    plan.write_text(short)
    done = invoke("run", plan, "--results", tmp_path / "results")
    assert done.exit_code == 1
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert ["timed out" in line for line in lines] == [True, False]
    assert lines[1].endswith("failed (as above)")
    assert "2 cases failed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "quik"], "did you mean 'quick'"),
        (["run"], "give a plan"),
        (["run", "quick", "--resume", "nowhere"], "not both: a resumed run keeps its own plan"),
        (["run", "none.toml"], "no such file"),
        (["run", "--resume", "nowhere"], "no run folder"),
        (["run", "--resume", "nowhere", "--device", "cpu"], "--device goes with a new run"),
        (["show", "nowhere"], "nowhere"),
        (["plot", "--results", "nowhere"], "nowhere"),
        (["list", "strategys"], "one of strategies"),
        (["run", "--resume", "x" * 300], "no run folder (File name too long)"),
        (["predict", "x" * 300], "no run folder (File name too long)"),
        (["plot", "--results", "x" * 300], "name another folder with --results"),
        (["list"], "say what to list: one of strategies"),
        (["datasets", "info", "wordnett"], "did you mean 'wordnet'"),
        (["datasets", "prepare", "wordnett"], "wordnet"),
        (["datasets", "prepare", "reddit-like", "--scale", "-1"], "scale"),
        (["datasets", "import", "nowhere.txt", "--name", "x"], "nowhere.txt"),
        (["run", "quick", "--device", "tpu"], "auto, cpu, cuda"),
        (["run", "quick", "--results", "/dev/null/x"], "no run can be kept there"),
        (["run", "quick", "--results", "/dev/null/x"], "choose a folder with --results"),
        (["calibrate", "--out", "/dev/null/x", "--device", "cpu"], "choose a folder with --out"),
    ],
)
def test_bad_input_is_named_with_exit_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert done.exit_code == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert isinstance(done.exception, SystemExit)  # no other error, which would be a traceback


def test_a_shell_is_told_the_exit_status(tmp_path: Path) -> None:
    done = gatherbench("run", "quik", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'quick'" in done.stderr
    assert "Traceback" not in done.stderr


def test_resuming_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "env.json").write_text("{}")
    (tmp_path / "plan.json").write_text("{}")
    done = invoke("run", "--resume", tmp_path)
    assert done.exit_code == 2
    assert "not a run's plan" in done.stderr


def test_resuming_on_a_machine_that_nobody_knows_is_refused(
    shell_run: ShellRun, tmp_path: Path
) -> None:
    folder = shutil.copytree(shell_run[1], tmp_path / "run")
    (folder / "env.json").write_text("{}")
    done = invoke("run", "--resume", folder)
    assert done.exit_code == 2
    assert "env.json: not a machine" in done.stderr


def test_resuming_on_another_machine_is_refused(shell_run: ShellRun, tmp_path: Path) -> None:
    folder = shutil.copytree(shell_run[1], tmp_path / "run")
    env = json.loads((folder / "env.json").read_text())
    env["cpu"]["model"] = "Another Processor 9000"
    (folder / "env.json").write_text(json.dumps(env))
    refused = invoke("run", "--resume", folder)
    assert refused.exit_code == 2
    assert "start a new run" in refused.stderr
