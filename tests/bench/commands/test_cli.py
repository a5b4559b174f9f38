"""The command line as a user meets it: answers, exit statuses, and what it does not load."""

import atexit
import builtins
import contextlib
import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner, Result

from gatherbench import __version__
from gatherbench.bench import cli
from gatherbench.bench.cli import app, main
from gatherbench.bench.meters import pcie, power
from gatherbench.bench.meters.nvml_device import NO_GPU_IN_RUN
from gatherbench.bench.plan.plan import PLANS_FOLDER, TABLES, Plan, plan_names
from gatherbench.bench.show import listing
from gatherbench.strategies import conformance

from ..written_run import change

ShellRun = tuple[Result, Path]


def invoke(*arguments: object) -> Result:
    """The command in this process, which has loaded torch and pandas already."""
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def copied(shell_run: ShellRun, tmp_path: Path) -> Path:
    """A copy of a run that the program made."""
    return shutil.copytree(shell_run[1], tmp_path / shell_run[1].name)


def test_help_loads_no_heavy_library():
    script = (
        "import sys; from gatherbench.bench.cli import main\n"
        "def loaded(*arguments, status=0):\n"
        "    sys.argv = ['gatherbench', *arguments]\n"
        "    try: main()\n"
        "    except SystemExit as e: assert (e.code or 0) == status\n"
        "    return {'torch', 'pandas', 'numpy', 'numba', 'matplotlib'} & set(sys.modules)\n"
        "assert not loaded('--version')\n"
        "for command in [], ['run'], ['datasets', 'import'], ['doctor'], ['check'], ['show']:\n"
        "    assert not loaded(*command, '--help'), command\n"
        "assert not {'torch', 'numba'} & loaded('run', 'quik', status=2)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage") == 6
    assert done.stdout.startswith(f"gatherbench {__version__}\n")


@pytest.mark.parametrize(
    ("what", "there"),
    [("datasets", "wordnet"), ("plans", "quick"), ("meters", "no_device"), ("profiles", "rtx3090")],
)
def test_list(what, there):
    done = invoke("list", what)
    assert done.exit_code == 0, done.stderr
    assert there in done.stdout


def test_lists_are_read_by_programs():
    lines = json.loads(invoke("list", "strategies", "--json").stdout)
    assert {"strategy", "data path", "parameters (default first)"} == set(lines[0])
    assert lines[0]["strategy"] == "cpu_gather"
    assert "mode: pinned, prefetch, naive" in lines[0]["parameters (default first)"]
    keys = json.loads(invoke("list", "plan-keys", "--json").stdout)
    assert "[[strategy]]" in [line["key"] for line in keys], "markup is taken off, brackets stay"


def test_editors_have_a_schema_of_plans():
    schema = json.loads(invoke("list", "plan-schema").stdout)
    ours = Draft202012Validator(schema)
    for name in plan_names():
        ours.validate(tomllib.loads((PLANS_FOLDER / f"{name}.toml").read_text()))
    wrong = {"measure": {"epocs": 2}, "workload": [{"dataset": "wordnet"}], "strategy": []}
    assert any("'epocs' was unexpected" in e.message for e in ours.iter_errors(wrong))


def test_a_check_is_read_by_programs(monkeypatch):
    monkeypatch.setattr(conformance, "check_strategy", lambda *_: None)
    lines = json.loads(invoke("check", "disk_mmap", "--json").stdout)
    assert [(line["strategy"], line["verdict"], line["reason"]) for line in lines] == [
        ("disk_mmap", "ok", "")
    ] * len(lines)


@pytest.mark.parametrize(("status", "at_once"), [(0, []), (3, []), (143, ["at exit", 143])])
def test_an_interrupted_command_ends_at_once(monkeypatch, status, at_once):
    """Python would look for garbage among all imports for seconds."""
    ends = list[Any]()
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: ends.append("at exit"))
    monkeypatch.setattr(cli, "app", lambda: sys.exit(status))
    monkeypatch.setattr(os, "_exit", ends.append)
    with pytest.raises(SystemExit, match=str(status)):
        main()
    assert ends == at_once


def test_help_is_short_to_type():
    assert invoke("show", "-h").stdout == invoke("show", "--help").stdout


@pytest.mark.parametrize(("no_color", "red"), [("", True), ("1", False)])
def test_errors_are_red_unless_no_color_is_set(no_color, red):
    with mock.patch.dict(os.environ, {"NO_COLOR": no_color}):
        done = CliRunner().invoke(app, ["list", "x"], color=True)
    assert done.exit_code == 2
    assert done.stderr.startswith("\x1b[31merror: " if red else "error: ")


@pytest.mark.usefixtures("undrawn")
def test_a_quiet_run_prints_its_folder_alone(plan, tmp_path):
    done = invoke("run", plan, "--results", tmp_path / "kept", "--quiet")
    assert done.exit_code == 0, done.stderr
    (folder,) = (tmp_path / "kept").glob("*/*")
    assert done.stdout == f"{folder}\n"


def test_every_key_of_a_plan_is_listed_with_its_words():
    lines = {
        line.split()[1]: line
        for line in invoke("list", "plan-keys").stdout.splitlines()[3:-1]
        if len(line.split()) > 1
    }
    for table in (Plan, *TABLES.values()):
        for name, field in table.model_fields.items():
            assert name in lines or f"[{name}]" in lines or f"[[{name}]]" in lines
            assert field.description, name
    cells = {name: [c.strip() for c in line.split("│")[2:4]] for name, line in lines.items()}
    assert cells["sampling"] == ["live or gpu or uva", '"live"']
    assert cells["dataset"] == ["str | list[str]", "none"]
    assert cells["repeats"] == ["int | list[int]", "[3, 10]"]
    assert cells["scaling"] == ["strong or weak |", '"strong"']
    assert "[[25, 10]]" in lines["fanouts"]


def test_a_listing_on_a_gpu_machine_speaks_of_no_run(monkeypatch):
    for module in (pcie, power):
        monkeypatch.setattr(module, "no_gpu_reason", lambda: NO_GPU_IN_RUN)
    cells = list(listing.meters()["here"])
    assert cells.count("in a run on a GPU; `gatherbench doctor` tries it") == 2
    assert str(NO_GPU_IN_RUN) not in cells


def test_doctor_names_what_is_lost():
    done = invoke("doctor")
    assert done.exit_code == 0, done.stderr
    assert "GPU" in done.stdout


def test_a_run_ends_with_its_table_and_pictures_and_can_be_shown(shell_run, tmp_path):
    done, folder = shell_run
    assert {p.name for p in folder.iterdir()} == {
        "epochs.csv", "cases.csv", "reasons.csv", "columns.toml", "epochs.parquet",
        "cases.parquet", "reasons.parquet", "samples.parquet", "plan.json", "env.json", "figures",
        "report.html", "profile.toml", "data.json",
    }  # fmt: skip
    names = {path.name for path in (folder / "figures").iterdir()}
    assert {"epoch_breakdown.png", "speedup.png", "cpu_seconds.png"} <= names
    first, *_, last = done.stdout.splitlines()
    assert first.endswith(f"Results: {folder}")
    assert last == f"Report: {folder / 'report.html'}; more: gatherbench show --all {folder}"
    assert "aligned_zero_copy" in done.stdout
    shown = invoke("show", "--results", folder.parents[1])
    assert shown.exit_code == 0
    assert "aligned_zero_copy" in shown.stdout
    report = invoke("report", folder, "--out", tmp_path / "mine.html")
    assert report.stdout.strip() == str(tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == (folder / "report.html").read_text()


def test_a_folder_that_may_only_be_read_is_named_with_a_remedy(copied, monkeypatch):
    before = (copied / "epochs.csv").read_bytes()
    real = io.open

    def read_only(file: object, mode: str = "r", *more: Any, **named: Any) -> Any:
        if "r" not in mode and Path(os.fspath(file)).is_relative_to(copied):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))
        return real(file, mode, *more, **named)

    monkeypatch.setattr(io, "open", read_only)
    monkeypatch.setattr(builtins, "open", read_only)
    for arguments, said in (
        (("report", copied), "figures.*: cannot be written: Read-only .* another file with --out"),
        (("report", copied, "--out", copied / "x.html"), "/x.html: cannot be written: Read-only"),
        (("predict", copied), "profile.toml: cannot be written: .* predict the copy"),
        (("run", "--resume", copied), "cannot be written.*copy it where you may write"),
    ):
        refused(said, *arguments)
    assert (copied / "epochs.csv").read_bytes() == before


@pytest.mark.usefixtures("undrawn")
def test_a_complete_run_that_is_resumed_stays_as_it_is(copied):
    before = (copied / "epochs.csv").read_bytes()
    resumed = invoke("run", "--resume", copied)
    assert resumed.exit_code == 0
    assert "aligned_zero_copy" in resumed.stdout
    assert "cases left" not in resumed.stderr
    assert (copied / "epochs.csv").read_bytes() == before  # its predictions are there once, too


@pytest.mark.usefixtures("undrawn")
def test_a_failed_case_makes_the_exit_status_1(plan, tmp_path):
    # Far longer than the runner takes to look at the clock.
    text = plan.read_text().replace("repeats = 1", "repeats = 1\ntimeout_s = 0.01")
    plan.write_text(re.sub(r"\bepochs = 1$", "epochs = 100", text, flags=re.MULTILINE))
    done = invoke("run", plan, "--results", tmp_path / "results")
    assert done.exit_code == 1
    lines = [line for line in done.stdout.splitlines() if "timed out" in line]
    assert len(lines) == 3, "once as it happens, at the end, and in the caution"
    assert "2 cases failed" in done.stderr


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_measured_nothing_ends_with_1(plan, tmp_path):
    text = plan.read_text().partition("[[strategy]]")[0]
    plan.write_text(text + '[[strategy]]\nname = "async_zero_copy"\nprovider = "mps"\n')
    done = invoke("run", plan, "--results", tmp_path / "results")
    assert "Nothing was measured. Cases: 1 skipped." in " ".join(done.stdout.split())
    assert "nothing was measured" in done.stderr
    assert done.exit_code == 1


def refused(said: str, *arguments: object) -> None:
    """The command ends with status 2 and such a sentence, and with no traceback."""
    done = invoke(*arguments)
    assert done.exit_code == 2, done.stdout + done.stderr
    assert isinstance(done.exception, SystemExit)
    words = " ".join(done.stderr.replace("│", " ").split())
    assert re.search(said, words), words


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run quik", "did you mean 'quick'"),
        ("run", "give a plan"),
        ("run quick --resume nowhere", "not both: a resumed run keeps its own plan"),
        ("run none.toml", "no such file"),
        ("run --resume nowhere", "not a run folder"),
        ("run --resume nowhere --device cpu", "--sensors go with a new run"),
        ("run quick --device tpu", "auto, cpu or cuda"),
        ("run quick --results /dev/null/x", "cannot be written there.* folder with --results"),
        (f"run --resume {'x' * 300}", r"not a run folder \(File name too long\)"),
        (f"predict {'x' * 300}", r"not a run folder \(File name too long\)"),
        (f"show --results {'x' * 300}", "name another folder with --results"),
        ("show --results nowhere", "nowhere"),
        ("show nowhere", "nowhere"),
        ("report nowhere", "not a run folder"),
        ("list strategys", "one of strategies"),
        ("list", "name what to list: one of strategies"),
        ("probe --profile /dev/null/x", "choose a folder with --out"),
        ("datasets info wordnett", "did you mean 'wordnet'"),
        ("datasets info wiki-like --scale 0.01", "datasets prepare wiki-like --scale 0.01"),
        ("datasets prepare wordnett", "wordnet"),
        ("datasets prepare reddit-like --scale -1", "scale"),
        ("datasets import nowhere.txt --name x", "nowhere.txt"),
    ],
)
def test_bad_input_is_named_with_exit_status_2(tiny_root, tmp_path, monkeypatch, command, said):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tiny_root))
    monkeypatch.chdir(tmp_path)
    refused(said, *command.split())


@pytest.fixture
def as_program(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[object, str]]:
    """Calls the console script on such a stdout; its exit status, and what it says on stderr."""

    def program(stdout: io.TextIOWrapper, *arguments: object) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["gatherbench", *map(str, arguments)])
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
        monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, sys.stderr.getvalue()  # type: ignore[attr-defined]

    return program


def test_what_an_encoding_lacks_is_spelled_out(shell_run, as_program):
    for encoding, words in (("utf-8", "×"), ("ascii", r"\xd7")):
        page = io.BytesIO()
        stdout = io.TextIOWrapper(page, encoding=encoding)
        assert as_program(stdout, "show", shell_run[1]) == (0, "")
        stdout.flush()
        assert words in page.getvalue().decode(encoding)


def test_the_program_answers_bad_input_without_a_traceback(as_program):
    status, said = as_program(io.TextIOWrapper(io.BytesIO()), "run", "quik")
    assert (status, "did you mean 'quick'" in said, "Traceback" in said) == (2, True, False)


@pytest.mark.parametrize("command", ["--version", "list plans", "list profiles"])
def test_output_that_cannot_be_written_is_said_with_exit_status_1(command, as_program):
    told: list[object] = []
    with contextlib.suppress(OSError), Path("/dev/full").open("w", encoding="utf-8") as full:
        told += as_program(full, *command.split())
    status, said = told
    assert said == "error: the output cannot be written: No space left on device\n"
    assert status == 1


def another_machine(folder: Path) -> None:
    change(folder / "env.json", lambda env: env["cpu"].update(model="Another Processor 9000"))


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def on_line_2(start: bytes) -> Callable[[Path], object]:
    """Puts this before the first epoch."""

    def damage(folder: Path) -> None:
        table = folder / "epochs.csv"
        table.write_bytes(table.read_bytes().replace(b"\n", b"\n" + start, 1))

    return damage


def a_folder(folder: Path) -> None:
    (folder / "epochs.csv").unlink()
    (folder / "epochs.csv").mkdir()


RESTORE = "put a whole copy of it there, or measure again in a new folder: gatherbench run PLAN"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (put("plan.json", b"{}"), rf"plan\.json: not a run's plan \(workloads: .*{RESTORE}"),
        (put("plan.json", b"{"), rf"plan\.json: cannot be read.*{RESTORE}"),
        (lambda folder: (folder / "plan.json").unlink(), "not a run folder.* put its file back"),
        (put("env.json", b"[]"), rf"env\.json: cannot be read: it is not a JSON object; {RESTORE}"),
        (lambda folder: (folder / "env.json").unlink(), rf"env\.json: .*No such file.*{RESTORE}"),
        (
            lambda folder: [path.unlink() for path in folder.glob("epochs.*")],
            rf"epochs\.csv: .*No such file.*{RESTORE}",
        ),
        (a_folder, rf"epochs\.csv: cannot be read: Is a directory; {RESTORE}"),
        (on_line_2(b"\xce\xff"), rf"epochs\.csv: not .*UTF8.*{RESTORE}"),
        (on_line_2(b"\0"), rf"epochs\.csv: not .*no text.*{RESTORE}"),
        (put("samples.parquet", b"PAR1"), r"samples\.parquet: cannot be read .* or delete it"),
    ],
)
def test_a_damaged_run_is_refused_alike_by_every_command(copied, tmp_path, damage, said):
    damage(copied)
    for command in (
        *(("show",), ("predict",), ("run", "--resume"), ("compare", copied)),
        ("report", "--out", tmp_path / "report.html"),
    ):
        refused(said, *command, copied)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (put("env.json", b"{}"), rf"env\.json: not a run's env .*{RESTORE}"),
        (another_machine, "start a new run"),
        (put("profile.toml", b"["), "predict FOLDER --profile NAME"),
        (put("timeline.parquet", b"PAR1"), r"timeline\.parquet: cannot be read .* or delete it"),
        (
            lambda folder: [
                (folder / "parts").mkdir(),
                put("parts/block000001.jsonl", b"{\n")(folder),
            ],
            r"block000001\.jsonl: line 1: .*delete the file and resume",
        ),
    ],
)
def test_what_cannot_be_resumed_is_refused(copied, damage, said):
    damage(copied)
    refused(said.replace("FOLDER", str(copied)), "run", "--resume", copied)


@pytest.mark.usefixtures("undrawn")
def test_the_remedies_for_a_damaged_run_mend_it(copied):
    table, profile = copied / "cases.csv", copied / "profile.toml"
    whole = table.read_bytes()
    profile.write_text("[")
    (copied / "samples.parquet").write_text("PAR1")
    (copied / "samples.parquet").unlink()
    refused("--profile NAME", "predict", copied)
    assert invoke("predict", copied, "--profile", "a100-pcie4").exit_code == 0
    assert table.read_bytes() == whole
    table.write_bytes(whole[:-40] + "é".encode()[:1])  # also in the midst of a character
    refused("put a whole copy of it there", "show", copied)
    table.write_bytes(whole)
    assert invoke("show", copied).exit_code == 0
