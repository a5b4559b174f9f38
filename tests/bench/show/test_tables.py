"""Reading a run's folder: everything is found, and whatever is wrong with it is named."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gatherbench.bench.read.tables import RunError, load_run, newest_run


def test_a_run_has_a_name_its_workloads_and_samples(make_run):
    run = load_run(make_run())
    assert set(run.epochs["dataset"]) == {"wordnet"}
    assert len(run.samples) == 3 * 3 * 4
    assert run.run_id == "20261121-quick-abc123"
    assert run.workloads == ["wordnet-sage16x2-b1000-1f2e3d4c"]


def drop(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink() for name in names]


def garble(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(b"\xff\x00 nonsense")


def tear_last_line(folder: Path) -> None:
    for name in ("epochs.csv", "cases.csv"):
        table = folder / name
        table.write_text(table.read_text()[:-10])


def foreign_workload(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    plan["workloads"] = {"another": next(iter(plan["workloads"].values()))}
    for case in plan["cases"]:
        case["workload"] = "another"
    (folder / "plan.json").write_text(json.dumps(plan))


def plan_without_cases(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    del plan["cases"]
    (folder / "plan.json").write_text(json.dumps(plan))


def two_values(folder: Path) -> None:
    head, *lines = (folder / "epochs.csv").read_text().splitlines(keepends=True)
    place = head.split(",").index("gpu_energy_j")
    cells = lines[0].split(",")
    cells[place] = "7"
    (folder / "epochs.csv").write_text("".join([head, ",".join(cells), *lines[1:]]))


def another_schema(folder: Path) -> None:
    columns = folder / "columns.toml"
    columns.write_text(columns.read_text().replace("schema_version = 4", "schema_version = 99"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (drop("plan.json"), "plan.json"),
        (drop("env.json"), "env.json"),
        (drop("epochs.csv", "epochs.parquet"), "epochs.csv"),
        (drop("cases.csv", "cases.parquet"), "cases.csv"),
        (drop("columns.toml"), "columns.toml"),
        (garble("plan.json"), "plan.json"),
        (garble("epochs.csv"), "not a table"),
        (garble("columns.toml"), "not the columns"),
        (garble("samples.parquet"), "samples.parquet"),
        (foreign_workload, "different runs"),
        (plan_without_cases, r"not a run's plan \(cases: "),
        (two_values, "gpu_energy_j of .* has a value and a reason why there is none"),
        (another_schema, "schema version 99, expected 4"),
        (tear_last_line, r"epochs.csv: not a table of a run \(its last line is cut off\)"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(make_run, damage, said):
    folder = make_run()
    damage(folder)
    with pytest.raises(RunError, match=said):
        load_run(folder)


def test_newest_run_goes_by_date_before_change(make_run, tmp_path):
    old = make_run("20251231-quick-ffffff")
    early = make_run("20261121-quick-bbbbbb")
    late = make_run("20261121-quick-aaaaaa")
    for seconds, folder in enumerate((early, late, old)):
        os.utime(folder / "plan.json", (1e9 + seconds, 1e9 + seconds))
    assert newest_run(tmp_path / "results") == late
    with pytest.raises(RunError, match="gatherbench run"):
        newest_run(late)
