"""Findings: the newest run that answers, and nothing of another."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from gatherbench.bench.read.derive import epoch_times
from gatherbench.bench.read.gpu import gpu_energy
from gatherbench.bench.read.points import COLUMNS
from gatherbench.bench.read.tables import RunError, load_run, newest_run, only
from gatherbench.bench.run.store import StoreError
from helpers.bars import listed_epochs
from helpers.epoch_bars import whole_epochs
from helpers.findings import RESULTS_VARIABLE, load_findings, open_findings

from ..bench.show.gpu_rows import add_gpu_metrics, write_micro
from ..bench.show.pictures import texts

MakeRun = Callable[..., Path]
SAGE, GAT = "wordnet-sage16x2-b1000-1f2e3d4c", "wordnet-gat16x2-b1000-1f2e3d4d"
SLOW = [("cpu_gather", "naive", (1.0, 1.0, 1.0))]
FAST = [("cpu_gather", "naive", (0.1, 0.1, 0.1))]


def test_of_two_runs_the_newest_counts_for_each_workload(make_run, tmp_path):
    make_run("20261120-old-aaaaaa", series=SLOW, workloads=(SAGE, GAT))
    make_run("20261121-new-bbbbbb", series=FAST, workloads=(SAGE,))
    findings = load_findings(tmp_path / "results", tmp_path)
    times = findings.epochs("host").set_index("workload")["median"]
    assert times[SAGE] == pytest.approx(0.31)
    assert times[GAT] == pytest.approx(2 * 3.0 + 0.01)  # only the old run has it
    assert [run.workloads for run in findings.runs_on("host")] == [[SAGE], [GAT]]


def test_the_run_that_was_begun_last_counts_whatever_it_is_called(make_run, tmp_path):
    """Of one day: first by when they say they were begun, then by how much they measured."""
    first = make_run("20261120-z-aaaaaa", series=SLOW)
    last = make_run("20261120-a-bbbbbb", series=FAST)
    for folder, hour in ((first, 9), (last, 11)):
        env = json.loads((folder / "env.json").read_text())
        began = {"began": f"2026-11-20T{hour:02d}:00:00+00:00"}
        (folder / "env.json").write_text(json.dumps(env | began))
    findings = load_findings(tmp_path / "results", tmp_path)
    assert findings.epochs("host")["median"].tolist() == pytest.approx([0.31])
    assert newest_run(tmp_path / "results") == last
    make_run("20261120-m-cccccc", series=SLOW, repeats=9)  # it does not say when
    findings = load_findings(tmp_path / "results", tmp_path)
    assert findings.epochs("host")["median"].tolist() == pytest.approx([0.31])
    for folder in (first, last):
        (folder / "env.json").write_text("{}")
    runs = load_findings(tmp_path / "results", tmp_path).runs
    assert runs[0].run_id == "20261120-m-cccccc"


def test_a_newer_run_hides_no_quantity_that_it_lacks(make_run, tmp_path):
    old = make_run("20261120-a-aaaaaa", series=FAST, backend="cuda", machine="nvidia-h200")
    add_gpu_metrics(old, [FAST[0][:2]])
    make_run("20261121-b-bbbbbb", series=SLOW, backend="cuda", machine="nvidia-h200")
    findings = load_findings(tmp_path / "results", tmp_path)
    assert [run.run_id for run in findings.runs_on("cuda")] == ["20261121-b-bbbbbb"]
    assert [run.run_id for run in findings.runs_on("cuda", gpu_energy)] == ["20261120-a-aaaaaa"]
    (joules,) = findings.derived("cuda", gpu_energy)["median"]
    assert joules == 400.0
    assert findings.runs_on("host", gpu_energy) == []


def test_runs_of_two_machines_do_not_hide_each_other(make_run, tmp_path):
    make_run("20261120-a-aaaaaa", series=SLOW, machine="one")
    make_run("20261121-b-bbbbbb", series=FAST, machine="two")
    table = load_findings(tmp_path / "results", tmp_path).epochs("host")
    assert set(table["machine"]) == {"one", "two"}


def test_backends_are_kept_apart(make_run, tmp_path):
    modelled = [("cpu_gather", "naive", (9.0, 9.0, 9.0))]
    make_run(series=FAST, modelled=modelled)
    findings = load_findings(tmp_path / "results", tmp_path)
    assert findings.runs_on("cuda") == []
    assert findings.epochs("cuda").empty
    assert set(findings.epochs("host")["backend"]) == {"host"}


def test_a_run_without_a_measured_epoch_answers_nothing(make_run, tmp_path):
    failures = {("cpu_gather", "naive"): ("failed", "out of memory")}
    make_run("20261121-new-bbbbbb", series=FAST, failures=failures)
    make_run("20261120-old-aaaaaa", series=SLOW)
    table = load_findings(tmp_path / "results", tmp_path).epochs("host")
    assert table["median"].tolist() == pytest.approx([3.01])


def test_only_cuts_plan_and_rows_alike(make_run):
    run = only(
        load_run(make_run(workloads=(SAGE, GAT))), workloads={GAT}, strategies={"cpu_gather"}
    )
    assert run.workloads == [GAT]
    assert {case["strategy"] for case in run.plan["cases"]} == {"cpu_gather"}
    assert set(epoch_times(run)["variant"]) == {"naive", "pinned"}


def test_the_newest_micro_run_with_its_machine(tmp_path):
    write_micro(tmp_path / "nvidia-h100" / "20261120-micro", policies=["unaligned"])
    write_micro(tmp_path / "nvidia-h200" / "20261121-micro", policies=["aligned"])
    findings = load_findings(tmp_path, tmp_path)
    assert set(findings.micro["machine"]) == {"nvidia-h200"}
    assert set(findings.micro["policy"]) == {"", "aligned"}
    assert findings.runs == []


def test_a_newer_micro_run_of_some_cases_hides_nothing_of_the_others(tmp_path):
    older, newer = (tmp_path / "nvidia-h200" / f"2026112{day}-micro" for day in (0, 1))
    write_micro(older, policies=["aligned"])
    write_micro(newer, policies=["unaligned"])
    rows = pd.read_csv(newer / "rows.csv", keep_default_na=False)
    rows[rows["case"] == "gpu_gather"].to_csv(newer / "rows.csv", index=False)
    micro = load_findings(tmp_path, tmp_path).micro
    assert set(micro[micro["case"] == "gpu_gather"]["policy"]) == {"unaligned"}
    others = micro[micro["case"] != "gpu_gather"]
    assert len(others)
    assert set(others["policy"]) <= {"", "aligned"}


def test_the_machine_whose_gpu_was_measured_last(make_run, tmp_path):
    make_run("20261119-host-aaaaaa")
    root = tmp_path / "results"
    assert load_findings(root, tmp_path).gpu_machine == ""
    make_run("20261120-gpu-aaaaaa", backend="cuda", machine="nvidia-h100")
    assert load_findings(root, tmp_path).gpu_machine == "nvidia-h100"
    write_micro(root / "nvidia-h200" / "20261118-micro", policies=["aligned"])
    assert load_findings(root, tmp_path).gpu_machine == "nvidia-h200"


def test_nothing_at_all_is_empty_tables(tmp_path):
    findings = load_findings(tmp_path, tmp_path)
    assert findings.runs == []
    assert findings.published.empty
    assert list(findings.micro.columns) == [*COLUMNS, "machine"]
    assert findings.epochs("host").empty
    assert findings.gpu_machine == ""


def test_a_damaged_run_is_named(make_run, tmp_path):
    folder = make_run()
    (folder / "plan.json").write_text("{")
    with pytest.raises(RunError, match="20261121-quick-abc123"):
        load_findings(tmp_path / "results", tmp_path)


def test_the_folder_of_results_is_found_from_below(make_run, tmp_path, monkeypatch):
    make_run()
    (tmp_path / "results" / "reference").mkdir()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.delenv(RESULTS_VARIABLE, raising=False)
    assert len(open_findings().runs) == 1
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv(RESULTS_VARIABLE, str(tmp_path / "elsewhere"))
    assert open_findings().runs == []


def test_no_results_above_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="results/reference"):
        open_findings()


def test_a_broken_published_table_is_named(tmp_path):
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    with pytest.raises(StoreError, match=r"mine\.csv"):
        load_findings(tmp_path, tmp_path)


@pytest.mark.parametrize("measured", [True, False])
def test_whole_epochs_of_papers_stand_beside_what_others_publish(measured):
    """Cut short, in small or of another graph an epoch is another thing."""
    names = ("whole", "short", "small", "other")
    sizes = [(1.0, 0), (1.0, 9), (0.5, 0), (1.0, 0)]
    plan = {i: {"scale": s, "max_batches": n} for i, (s, n) in zip(names, sizes, strict=True)}
    columns = ["workload", "dataset", "strategy", "variant", "machine", "median", "low", "high"]
    rows = [
        (
            i,
            "reddit" if i == "other" else "hashed-papers100M",
            "cpu_gather",
            i,
            "h100",
            9.0,
            9.0,
            9.0,
        )
        for i in names
    ]
    published = pd.DataFrame(
        [("whole_epochs", "GraphBolt", "A100", 27.2), ("headlines", "x", "", 0.6)],
        columns=["table", "strategy", "variant", "value"],
    )
    known: Any = SimpleNamespace(
        published=published,
        runs=[SimpleNamespace(plan={"workloads": plan})],
        epochs=lambda _: pd.DataFrame(rows if measured else [], columns=columns),
    )
    table = whole_epochs(known)
    drawn = [
        ("published", "GraphBolt", "A100", 27.2),
        ("measured", "cpu_gather", "whole h100", 9.0),
    ]
    found = table[["kind", "strategy", "note", "median"]].itertuples(index=False, name=None)
    assert list(found) == drawn[: 1 + measured]
    said = texts(listed_epochs(table, "not yet", title="", foot=""))
    assert "27.2  A100" in said
    assert ("9.00  whole h100" in said, "not yet" in said) == (measured, not measured)
