"""Published figures: each is a valid row that names its source, and the loader refuses others."""

from pathlib import Path

import pandas as pd
import pytest

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.tables import load_reference
from gatherbench.bench.run.part import StoreError
from gatherbench.bench.run.rows import HEADER

FOLDER = Path(__file__).parents[3] / "results" / "reference"


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return load_reference(FOLDER)


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
    text = (FOLDER / "README.md").read_text()
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
    text = (FOLDER / "overlap.csv").read_text()
    (tmp_path / "overlap.csv").write_text(text.replace(",256.0,", ",nan,"))
    with pytest.raises(StoreError, match=r"overlap\.csv: "):
        load_reference(tmp_path)


def test_no_table_gives_an_empty_frame(tmp_path):
    assert list(load_reference(tmp_path).columns) == [*HEADER, "table"]
