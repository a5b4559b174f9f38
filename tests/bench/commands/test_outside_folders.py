"""Run folders from elsewhere: every command reads them whatever text they hold, or says why not."""

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.commands.execute import reopen
from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.read.tables import RunError, load_run, newest_run
from gatherbench.bench.run.part import StoreError
from gatherbench.outside import InputError

from ..written_run import BASELINE, PINNED, WORKLOAD, append_rows, change, write_run

#: Escapes of a terminal, half a character, lines, rich's and HTML's markup, TeX, a formula.
EVIL = "\x1b[31m\x1b]0;owned\x07 \ud800 \u202e\r\n\0[/red][link=x]"
EVIL += "<script>alert(1)</script>$\\frac{$='\""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(
        tmp_path / "box" / "20260101-run", series=(BASELINE, PINNED), repeats=2, epochs=2
    )


def told(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    return done.exit_code, done.output


def test_every_command_reads_a_folder_whatever_text_is_in_it(folder, tmp_path):
    env = {"os": EVIL, EVIL: EVIL, "container": "x" * 10**6, "commit": EVIL}
    change(folder / "env.json", lambda env_of: env_of["cpu"].update(model=EVIL) or env_of | env)
    change(folder / "plan.json", lambda plan: plan | {"description": EVIL, EVIL: [EVIL]})
    long = EVIL.replace("\ud800", "").replace("\0", "").replace("\r\n", " ") + "long " * 50_000
    case = {"strategy": "mine", "variant": "[/a] $b$ <i>"}
    failed = {**case, "unit": "s", "stage": "case", "metric": "wall_time"}
    failed |= {"value": "", "status": "failed", "reason": long}
    more = {"strategy": "cpu_gather", "variant": "naive", "stage": "setup", "metric": "open_time_2"}
    append_rows(folder, [failed, {**more, "unit": "s", "value": 1.0, "source": long}])
    planned = {**case, "workload": WORKLOAD, "params": {}, "repeat": 0}
    change(folder / "plan.json", lambda plan: plan["cases"].append(planned))
    change(folder / "plan.json", lambda plan: plan["workloads"][WORKLOAD].update(sampler=EVIL))
    page = tmp_path / "page.html"
    for arguments in (
        ("show", folder),
        ("show", folder, "--json"),
        ("report", folder),
        ("report", folder, "--against", folder, "--out", page),
    ):
        status, said = told(*arguments)
        assert status == 0, said
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said)
        assert len(max(said.splitlines(), key=len)) < 10**6
    status, said = told("compare", folder, folder)
    assert status == 0, said
    assert "\x1b" not in said
    assert "<script>alert" not in page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert" in page.read_text(encoding="utf-8")


def test_a_name_with_escapes_is_not_printed_as_it_is(tmp_path):
    for command in ("show", "report"):
        status, said = told(command, tmp_path / EVIL.replace("\0", "").replace("\ud800", ""))
        assert status == 2
        assert "\x1b" not in said
        assert "not a run folder" in said


@pytest.mark.parametrize(
    "file", ["plan.json", "env.json", "epochs.csv", "cases.csv", "columns.toml", "samples.parquet"]
)
def test_a_fifo_in_place_of_a_file_is_named_and_nobody_waits(folder, file):
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with pytest.raises(RunError, match=rf"^.*{file}: cannot be read.*regular file[^\n]*$"):
        load_run(folder)
    with pytest.raises((StoreError, InputError), match=file):
        reopen(folder)
    assert newest_run(folder.parents[1]) == folder


@pytest.mark.parametrize("file", ["profile.toml", "timeline.parquet"])
def test_a_fifo_is_no_profile_and_no_timeline_when_a_run_is_resumed(folder, file):
    os.mkfifo(folder / file)
    with pytest.raises(StoreError, match=rf"{file}: cannot be read.*regular file"):
        reopen(folder)


@pytest.mark.parametrize("file", ["plan.json", "env.json"])
@pytest.mark.parametrize(
    "text", ["[" * 10**5, '{"a": ' * 10**5, "9" * 5001, '{"a": ' + "9" * 5001 + "}", "3", "{"]
)
def test_json_that_is_none_is_one_line(folder, file, text):
    (folder / file).write_text(text)
    with pytest.raises(RunError, match=rf"^[^\n]*{file}[^\n]*put a whole copy[^\n]*$"):
        load_run(folder)


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        (3, "measure: "),
        ([], "measure: "),
        ({}, "measure.epochs: Field required"),
        ({"epochs": "two"}, "measure.epochs: Input should be a valid integer"),
        ({"epochs": None}, "measure.epochs: Input should be a valid integer"),
        ({"epochs": 1e300}, "measure.epochs: "),
        ({"warmup_epochs": [1]}, "measure.warmup_epochs: "),
        ({"sampling": {"a": 1}}, "measure.sampling: Input should be a valid string"),
        ({"threads": EVIL}, "measure.threads: "),
        ({"repeats": [0, 3]}, "repeats.0: Input should be greater"),
        ({"min_repeats": 9, "max_repeats": 3}, "Value error, repeats = [LEAST, MOST]"),
        ({"precision": 7}, "precision: "),
    ],
)
def test_a_measure_that_is_none_is_one_line(folder, measure, said):
    whole = {"epochs": 2, "warmup_epochs": 1} if measure else {}
    measure = whole | measure if isinstance(measure, dict) else measure
    change(folder / "plan.json", lambda plan: plan.update(measure=measure))
    wanted = rf"^[^\n]*plan\.json: not a run's plan \({re.escape(said)}[^\n]*$"
    for read in (load_run, reopen):
        with pytest.raises(RunError, match=wanted):
            read(folder)


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        ({"epochs": 0}, "measure.epochs: Input should be greater"),
        ({"sampling": "everywhere"}, "measure.sampling: Input should be 'live'"),
        ({"timeout_s": "nan"}, "measure.timeout_s: "),
        ({"repeats": None}, "measure.repeats: Input should be a valid integer"),
    ],
)
def test_what_can_be_read_and_not_measured_is_one_line_when_it_is_resumed(folder, measure, said):
    change(folder / "plan.json", lambda plan: plan["measure"].update(measure))
    load_run(folder)
    with pytest.raises(InputError, match=rf"^[^\n]*not a run's plan \({said}[^\n]*$"):
        reopen(folder)


@pytest.mark.parametrize(
    ("file", "wrong", "said"),
    [
        ("plan.json", {"workloads": {WORKLOAD: {"dataset": "d"}}}, "has no batch_size"),
        ("plan.json", {"workloads": {WORKLOAD: []}}, "workloads"),
        ("plan.json", {"cases": [{"workload": 3}]}, r"cases\.0\.workload"),
        ("plan.json", {"name": 3}, "name"),
        ("env.json", {"cpu": []}, "cpu"),
        ("env.json", {"cpu": {"logical_cores": "many"}}, r"cpu\.logical_cores"),
        ("plan.json", {"workloads": {}}, "lacks the workload"),
        ("env.json", {"gpus": [3]}, r"gpus\.0"),
        ("env.json", {"gpus": [{"name": "a", "power_limit_w": "b"}]}, r"gpus\.0\.power_limit_w"),
        ("env.json", {"plugins": {"a": {"b": {}}}}, r"plugins\.a\.b\.package"),
        ("env.json", {"plugins": {"a": {"b": "c"}}}, r"plugins\.a\.b"),
        ("env.json", {"waiting": {"variables": [1]}}, "waiting"),
    ],
)
def test_a_file_of_another_shape_is_one_line(folder, file, wrong, said):
    change(folder / file, lambda content: content.update(wrong))
    with pytest.raises(RunError, match=rf"^[^\n]*{file}: [^\n]*{said}[^\n]*$"):
        load_run(folder)


def test_a_machine_of_elsewhere_sets_no_variable_but_those_of_waiting():
    given = {"OMP_WAIT_POLICY": "ACTIVE", "LD_PRELOAD": "/there.so", "PYTHONPATH": "/there"}
    environment = Waiting.of({"waiting": {"variables": given}}).environment()
    assert environment["OMP_WAIT_POLICY"] == "ACTIVE"
    assert "/there.so" not in environment.values()
    assert "/there" not in environment.values()
