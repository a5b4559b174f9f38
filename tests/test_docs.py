"""What the texts name exists. The workflow of docs/ci follows GitHub's schema, and runs."""

import importlib.util
import io
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer.main
from rich.console import Console
from typer.core import TyperGroup

from gatherbench.bench.cli import app
from gatherbench.bench.plan.plan import load_plan
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.run import render

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / "docs" / "ci" / "gatherbench.yml"
OWN_WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
PAGE = ROOT / "docs" / "continuous-integration.md"
HISTORY = "gatherbench-history"
MAKEFILE = (ROOT / "Makefile").read_text()
COMMANDS = typer.main.get_group(app)
#: What the texts ask their reader to write.
READERS_OWN = {"strategies/my_strategy.py", "my-plan.toml", "mine.toml"}
#: What a run writes.
WRITTEN = {"profile.toml", "columns.toml"}
TEXTS = [
    path
    for place in ("*.md", "docs/*.md", "kernels/*.md", "bench/**/*.md", "datasets/**/*.md")
    for path in sorted(ROOT.glob(place))
]
TEXTS += [ROOT / name / "README.md" for name in ("results", "results/reference", "notebooks")]
TEXTS += [ROOT / "tests" / "gpu" / "standin" / "README.md"]


def test_which_path_to_take_says_nothing_that_no_run_has_shown():
    """Each ratio with its interval stands in what was measured on a GPU."""
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    text = text.partition("## Which path should I take?")[2].partition("\n## ")[0]
    pages = (ROOT / "README.md", ROOT / "results" / "nvidia-h200" / "README.md")
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    ratios = re.findall(r"[\d.]+ \([\d.]+–[\d.]+\)", text)
    assert len(ratios) > 8
    assert not [ratio for ratio in ratios if ratio not in shown]


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(text: str, at: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        if ":" in link:
            continue
        target = at.parent / name if name else at
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            yield link


def unknown_commands(text: str) -> Iterator[str]:
    """Commands, options, make targets and variables that do not exist."""
    code = "\n".join(re.findall(r"`[^`]+`|^(?:\$| {4}).*$", text.replace("```", ""), re.MULTILINE))
    for words in re.findall(r"gatherbench\"? ([a-z]+[^\n`#;]*)", code):
        group, *rest = re.findall(r"[^\s:]+", words)
        command = COMMANDS.commands.get(group)
        if isinstance(command, TyperGroup) and rest:
            command = command.commands.get(rest[0])
        if command is None:
            yield words
            continue
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        yield from (word for word in rest if word.startswith("--") and word not in known)
    for target, words in re.findall(r"\bmake ((?!-)[a-z-]+)([^\n`;]*)", code):
        if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE):
            yield f"make {target}"
        for variable in re.findall(r"\b([A-Z_]+)=", words):
            if variable not in re.findall(r"\b[A-Z_]+\b", MAKEFILE):
                yield variable


def missing_files(text: str, at: Path) -> Iterator[str]:
    """Sources and modules that are named and are not there."""
    for name in re.findall(r"[\w./*-]+\.(?:py|toml|cu|md|h)\b", text):
        if name not in READERS_OWN | WRITTEN and not name.startswith("gpu-out/"):
            places = [at.parent, ROOT, ROOT / "docs"]
            if not any(any(place.glob(name)) for place in places):
                yield name
    for name in re.findall(r"python3? -m (gatherbench[\w.]+)", text):
        if importlib.util.find_spec(name) is None:
            yield name


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_text_names_exists(path):
    text = path.read_text()
    assert list(dead_links(text, path)) == []
    if path.name != "CHANGELOG.md":  # which also names what has left
        assert [*unknown_commands(text), *missing_files(text, path)] == []


def test_what_does_not_exist_is_found():
    wrong = (
        "[a](gone.md) [b](#no-such) [c](README.md#read-on)\n"
        "`gatherbench shw` `make gpu-tst OUTT=x`\n"
        "$ gatherbench run quick --budgt 3\n    gatherbench datasets preprare x\n"
        "`kernels/gone.py` `python -m gatherbench.bench.gone`\n"
    )
    at = ROOT / "CONTRIBUTING.md"
    assert list(dead_links(wrong, at)) == ["gone.md", "#no-such"]
    found = ["shw", "--budgt", "datasets preprare x", "make gpu-tst", "OUTT"]
    assert sorted(unknown_commands(wrong)) == sorted(found)
    assert list(missing_files(wrong, at)) == [
        "gone.md", "kernels/gone.py", "gatherbench.bench.gone"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "folder"),
    [(0, "nvidia-h200/20261126-gpu-decide-239f0b"), (1, "example")],
)
def test_the_readme_shows_the_ends_of_runs_as_they_are(number, folder):
    """Every piece of what is quoted, between the dots, is what `gatherbench show` prints."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = re.findall(r"```text\n(.*?)```", text, re.DOTALL)[number]
    page = io.StringIO()
    Console(file=page, width=112).print(render(load_run(ROOT / "results" / folder)))
    printed = " ".join(page.getvalue().split())
    pieces = [" ".join(piece.split()) for piece in quoted.split("…")]
    assert [piece for piece in pieces if piece not in printed] == []


def test_the_pandas_that_the_readme_shows_gives_the_speed_up(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(import.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(code, names := {})
    printed = pd.DataFrame(names["seconds"].loc[("cpu_gather", "naive")] / names["seconds"])
    assert str(printed) in capsys.readouterr().out
    epochs = load_run("results/example").measured["epoch_s"]
    (one, *_), of = load_run("results/example").workloads, ["strategy", "variant"]
    medians = epochs.xs(one, level="workload").groupby(of).median()
    expected = medians["cpu_gather", "naive"] / medians["all_in_gpu", "default"]
    assert printed.loc[("all_in_gpu", "default"), one] == pytest.approx(expected)


#: Stands in for the program: `run` makes a folder, `compare` ends with $STATUS.
GATHERBENCH = """#!/usr/bin/env bash
set -eu
echo "$@" >> "$CALLS"
case "$1" in
  run)
    mkdir -p "runs/gpu/$NIGHT" && echo rows > "runs/gpu/$NIGHT/rows.csv"
    exit "${RUN_STATUS:-0}" ;;
  compare) test -f "$2/rows.csv"; test -f "$3/rows.csv"; echo "compared"; exit "${STATUS:-0}" ;;
esac
"""


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    yaml = pytest.importorskip("ruamel.yaml")
    return yaml.YAML(typ="safe", pure=True).load(WORKFLOW.read_text())


def scripts(workflow: dict[str, Any]) -> list[str]:
    return [s["run"] for job in workflow["jobs"].values() for s in job["steps"] if "run" in s]


def test_the_workflow_is_one_by_githubs_schema(tmp_path):
    schema = pytest.importorskip("check_jsonschema")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOW.read_text().replace("run: make", "rum: make"))
    for path, status in ((WORKFLOW, 0), (OWN_WORKFLOW, 0), (wrong, 1)):
        with pytest.raises(SystemExit) as ended:
            schema.main(["--builtin-schema", "vendor.github-workflows", str(path)])
        assert ended.value.code == status


def test_what_a_pull_request_can_write_reaches_nothing_of_ours(workflow):
    """No runner from a fork, no token, no script, and no place in another request's queue."""
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    for job in jobs.values():
        if "self-hosted" in job["runs-on"]:
            assert "head.repo.full_name == github.repository" in job["if"] or (
                job["if"] == "github.event_name != 'pull_request'"
            )
    steps = jobs["pull-request"]["steps"]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout")]
    assert [step["with"]["persist-credentials"] for step in checkouts] == [False]
    assert not [script for script in scripts(workflow) if "${{" in script]
    # GitHub drops a waiting job for a newer one of its group: no group holds two requests.
    assert "github.event.pull_request.number" in jobs["pull-request"]["concurrency"]["group"]
    assert jobs["nightly"]["concurrency"] == "gatherbench-nightly"


def test_the_workflow_runs_what_the_page_promises(workflow):
    said = "\n".join(scripts(workflow))
    for watched in re.findall(r"^\|.*\| `make ([a-z-]+)", PAGE.read_text(), re.MULTILINE):
        assert any(watched in script for script in scripts(workflow)), watched
    targets = set(re.findall(r"make (?:-C \S+ )?([a-z-]+)", said))
    assert {"setup", "regress-code", "regress-against", "gpu-test"} <= targets
    asked = re.findall(r"gatherbench\"? ((?:run|compare|report|show)\b[^\n`]*)", said)
    assert {words.split()[0] for words in asked} == {"run", "compare", "report"}
    code = [f"`gatherbench {words}`" for words in asked] + [
        f"`make {target}`" for target in targets
    ]
    assert list(unknown_commands("\n".join(code))) == []


def test_plans_that_the_texts_show_can_be_run(tmp_path):
    shown = [
        block
        for path in TEXTS
        for block in re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        if "[[workload]]" in block and "[[strategy]]" in block
    ]
    assert shown
    for number, block in enumerate(shown):
        (tmp_path / f"{number}.toml").write_text(block)
        assert load_plan(str(tmp_path / f"{number}.toml")).cases()


def test_its_plans_can_be_run(workflow):
    judged = load_plan(str(ROOT / "docs" / "ci" / "pull-request.toml"))
    assert judged.measure.repeats >= 8
    assert {case.strategy for case in judged.cases()} >= {"cpu_gather", "aligned_zero_copy"}
    nightly = workflow["on"]["workflow_dispatch"]["inputs"]["plan"]["default"]
    assert load_plan(nightly).device == "cuda"
    assert nightly in workflow["jobs"]["nightly"]["env"]["PLAN"]
    assert PAGE.name in WORKFLOW.read_text()
    assert WORKFLOW.name in PAGE.read_text()
    assert "docs/continuous-integration.md" in (ROOT / ".ci" / "run").read_text()


def bash(script: str, folder: Path, env: dict[str, str]) -> int:
    """The exit status of a step's script, run as GitHub runs it."""
    command = ["bash", "-e", "-o", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=env, check=False, capture_output=True).returncode


class Nights:
    """A repository whose nightly job is run step by step, with stand-ins for make and program."""

    def __init__(self, folder: Path, steps: list[dict[str, Any]]) -> None:
        self.folder, self.steps = folder, steps
        self.calls, self.summary = folder / "calls", folder / "summary"
        self.env = {
            **os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PLAN": "gpu-decide",
            "CALLS": str(self.calls), "GITHUB_STEP_SUMMARY": str(self.summary),
        }  # fmt: skip
        (folder / "bin").mkdir()
        self._program(folder / "bin" / "make", "#!/bin/sh\n")
        self.git("init", "-q", "--bare", "-b", "main", "origin")
        self.git("clone", "-q", "origin", "seed")
        (folder / "seed" / "code.py").write_text("")
        self.git("-C", "seed", "add", "code.py")
        self.git("-C", "seed", "commit", "-q", "-m", "code")
        self.git("-C", "seed", "push", "-q", "origin", "HEAD:main")

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout

    def night(self, name: str, runner: str = "", **env: str) -> list[int]:
        """Exit statuses of the night's scripts, in the order of its steps; ``runner``: its folder,
        which an earlier night may have left behind."""
        place = self.folder / (runner or name)
        if not place.exists():
            place.mkdir()
            self.git("clone", "-q", "-b", "main", "origin", f"{place.name}/code")
        self._program(place / "code" / ".venv" / "bin" / "gatherbench", GATHERBENCH)
        found = []
        measured = "success"
        for step in self.steps:
            if "run" not in step or step["name"] == "Write the report":
                continue
            own = {"NIGHT": name, "NEW_BASELINE": "false", **env, "MEASURED": measured}
            found.append(bash(step["run"], place, {**self.env, **own}))
            if step.get("id") == "measure" and found[-1]:
                measured = "failure"
        return found

    def kept(self) -> dict[str, str]:
        """The files on the branch of the history, and what they hold."""
        names = self.git("-C", "origin", "ls-tree", "-r", "--name-only", HISTORY).split()
        return {
            name: self.git("-C", "origin", "show", f"{HISTORY}:{name}").strip() for name in names
        }

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def test_nights_are_kept_and_compared_with_the_baseline(tmp_path, workflow):
    nights = Nights(tmp_path, workflow["jobs"]["nightly"]["steps"])
    assert nights.night("one", runner="here") == [0, 0, 0, 0]
    first = "runs/gpu/one/"
    assert nights.kept() == {"baseline-gpu-decide": first, f"{first}rows.csv": "rows"}

    assert nights.night("two", STATUS="1") == [0, 0, 0, 1]  # slower: kept all the same
    assert nights.kept()["runs/gpu/two/rows.csv"] == "rows"
    assert nights.kept()["baseline-gpu-decide"] == first
    assert "```\ncompared\n```" in nights.summary.read_text()
    assert nights.calls.read_text().splitlines()[-1] == f"compare history/{first} runs/gpu/two/"

    assert nights.night("bad", NEW_BASELINE="true", RUN_STATUS="1") == [0, 1, 0, 0]
    assert nights.kept()["baseline-gpu-decide"] == first  # a run with failed cases is none
    assert nights.night("three", NEW_BASELINE="true") == [0, 0, 0, 0]
    assert nights.kept()["baseline-gpu-decide"] == "runs/gpu/three/"
    assert len(nights.git("-C", "origin", "log", "--format=%s", HISTORY).split("\n")) == 5
    assert "code.py" not in nights.kept()
    assert nights.night("last", runner="here") == [0, 0, 0, 0], "on what the first one left"
    assert {f"runs/gpu/{name}/rows.csv" for name in ("one", "three", "last")} < set(nights.kept())


def test_a_pull_request_is_set_beside_the_base_it_is_merged_into(tmp_path, workflow):
    nights = Nights(tmp_path, [])
    nights.git("clone", "-q", "-b", "main", "origin", "after")
    for branch, message in (("main", "base"), ("request", "change")):
        nights.git("-C", "after", "checkout", "-q", "-B", branch, "origin/main")
        nights.git("-C", "after", "commit", "-q", "--allow-empty", "-m", message)
    nights.git("-C", "after", "checkout", "-q", "main")
    nights.git("-C", "after", "merge", "-q", "--no-ff", "-m", "merge", "request")
    steps = workflow["jobs"]["pull-request"]["steps"]
    (script,) = (step["run"] for step in steps if step.get("name") == "Set both up")
    for _ in range(2):  # the second time on what the first left behind
        assert bash(script, tmp_path, nights.env) == 0
        assert nights.git("-C", "before", "log", "-1", "--format=%s").strip() == "base"


def test_a_pull_request_fails_when_it_is_slower(tmp_path, workflow):
    steps = workflow["jobs"]["pull-request"]["steps"]
    by_name = {step["name"]: step["run"] for step in steps if "run" in step}
    fake = GATHERBENCH.replace('"runs/gpu/$NIGHT"', '"$4/gpu/x"')
    fake = fake.replace('"runs/gpu/$NIGHT/rows.csv"', '"$4/gpu/x/rows.csv"')
    for side in ("before", "after"):
        Nights._program(tmp_path / side / ".venv" / "bin" / "gatherbench", fake)

    def run(name: str, **env: str) -> int:
        own = {"CALLS": str(tmp_path / "calls"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
        return bash(by_name[name], tmp_path, {**os.environ, **own, **env})

    assert run("Measure both, in turns", RUN_STATUS="2") != 0
    calls = tmp_path / "calls"
    calls.unlink()
    # A failed case is the comparison's to tell.
    assert run("Measure both, in turns", RUN_STATUS="1") == 0
    turns = [line.split()[1] for line in calls.read_text().splitlines()]
    assert turns == ["after/docs/ci/pull-request.toml"] * 2 + ["--resume"] * 14
    assert run("Compare") == 0
    assert [run("Compare", STATUS=status) for status in "13"] == [1, 3]
    assert (tmp_path / "summary").read_text().count("```\ncompared\n```") == 3
