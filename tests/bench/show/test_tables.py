"""Reading a run's folder, and published figures: all is found, and what is wrong is named."""

import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.tables import RunError, load_reference, load_run, newest_run
from gatherbench.bench.run.part import StoreError
from gatherbench.bench.run.rows import HEADER

from ..written_run import WORKLOAD, change


def test_a_run_has_a_name_its_workloads_and_samples(make_run):
    run = load_run(make_run())
    assert set(run.epochs["dataset"]) == {"wordnet"}
    assert len(run.samples) == 3 * 3 * 4
    assert run.run_id == "20261121-quick-abc123"
    assert run.workloads == [WORKLOAD]


def drop(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink() for name in names]


def garble(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(b"\xff\x00 nonsense")


def tear_last_line(folder: Path) -> None:
    for name in ("epochs.csv", "cases.csv"):
        table = folder / name
        table.write_text(table.read_text()[:-10])


def foreign_workload(folder: Path) -> None:
    text = (folder / "plan.json").read_text()
    (folder / "plan.json").write_text(text.replace(WORKLOAD, "another"))


def plan_without_cases(folder: Path) -> None:
    change(folder / "plan.json", lambda plan: {n: of for n, of in plan.items() if n != "cases"})


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
    ("damage", "said"),  # and of all commands alike: tests/bench/commands/test_cli.py
    [
        (drop("cases.csv", "cases.parquet"), "cases.csv"),
        (drop("columns.toml"), "columns.toml"),
        (garble("columns.toml"), "not the columns"),
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


# Published figures: each is a valid row that names its source.

PUBLISHED = Path(__file__).parents[3] / "results" / "reference"


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return load_reference(PUBLISHED)


def test_every_value_is_a_row_with_an_origin(published):
    assert len(published) > 30
    assert set(published["status"]) == {"ok"}
    assert set(published["basis"]) == {"published"}
    origins = (
        "PVLDB|arXiv|KDD|EuroSys|dmlc/dgl (?:#|examples/)|nvbandwidth #|Azure|PCI Express"
        "|pytorch-direct_dgl|NoakLiu/GraphSnapShot|pyg-team/pytorch_geometric #"
    )
    errors = published["metric"] == "wall_time_reading_error"
    assert published[~errors]["source"].str.contains(origins).all()


def test_each_table_is_explained(published):
    text = (PUBLISHED / "README.md").read_text()
    for name in published["table"].unique():
        assert f"`{name}.csv`" in text


def test_every_bar_read_off_a_chart_has_its_reading_error(published):
    errors = published[published["metric"] == "wall_time_reading_error"]
    read_off = published["source"].str.contains("read off the chart, about ±0.05 s")
    chart = published[read_off]
    keys = ["machine", "workload", "strategy", "variant"]
    assert sorted(map(tuple, chart[keys].to_numpy())) == sorted(map(tuple, errors[keys].to_numpy()))
    assert len(chart) == 8
    assert (errors["value"] == 0.05).all()


def test_the_reddit_chart_is_filed_under_the_workload_that_would_measure_it(published):
    chart = published[published["table"] == "reddit_epoch"]
    assert set(chart["workload"]) == {Workload("reddit").id}
    at = chart[chart["metric"] == "wall_time"].set_index(["machine", "strategy"])["value"]
    assert at["rtx3090-pcie3", "cpu_gather"] == 7.8
    assert at["rtx3090-pcie4", "async_zero_copy"] == 2.7


def test_a_value_that_is_no_number_is_refused(tmp_path):
    text = (PUBLISHED / "overlap.csv").read_text()
    (tmp_path / "overlap.csv").write_text(text.replace(",256.0,", ",nan,"))
    with pytest.raises(StoreError, match=r"overlap\.csv: "):
        load_reference(tmp_path)


def test_no_table_gives_an_empty_frame(tmp_path):
    assert list(load_reference(tmp_path).columns) == [*HEADER, "table"]
