"""Several ranks in the notebooks, by hand: ratios beside the published range."""

from pathlib import Path

import pytest

from helpers.findings import load_findings
from helpers.reddit import beside_published, measured_over_ranks

from ..bench.ranks_run import write_ranks

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
NAIVE, ALIGNED, BOUND = (
    ("cpu_gather", "naive"),
    ("aligned_zero_copy", "registered,sorted"),
    ("all_in_gpu", "default"),
)
TIMES = {
    NAIVE: {1: 4.0, 2: 3.2, 4: 3.125},
    ALIGNED: {1: 3.2, 2: 2.0, 4: 1.6},
    BOUND: {1: 1.0, 2: 0.5, 4: 0.4},
}


def test_runs_of_several_ranks_are_found_by_what_they_ran_on(make_run):
    findings = load_findings(write_ranks(make_run, TIMES).parents[1], REFERENCE)
    assert [len(run.workloads) for run in findings.runs_of_ranks("host")] == [3]
    assert findings.runs_of_ranks("cuda") == []


def test_measured_ratios_stand_beside_the_published_range(make_run):
    path = write_ranks(make_run, TIMES, backend="cuda", machine="nvidia-h200")
    findings = load_findings(path.parents[1], REFERENCE)
    table = measured_over_ranks(findings, "cuda", "speedup")
    found = table.set_index(["series", "x"])["y"]
    assert found["aligned_zero_copy", 2] == pytest.approx(1.6)
    assert set(table["series"]) == {"aligned_zero_copy", "all_in_gpu"}
    assert set(table["place"]) == {"wordnet GraphSAGE, strong scaling, nvidia-h200"}
    epochs = measured_over_ranks(findings, "cuda", "epoch").set_index(["series", "x"])["y"]
    assert epochs["cpu_gather", 4] == pytest.approx(3.125)
    assert measured_over_ranks(findings, "host", "epoch").empty
    assert len(list(beside_published(table, [1.65, 1.92]))) == 2, "on 2 and 4; not the bound"
    four = table[(table["series"] == "aligned_zero_copy") & (table["x"] == 4)]
    (said,) = beside_published(four, [1.65, 1.92])
    assert said == (
        "- 4 GPUs, measured: `aligned_zero_copy` is **1.95** (1.95–1.95) times as fast as CPU"
        " gather, outside the published 1.65 to 1.92."
    )
    for ends, place in (((1.7, 1.9), "inside"), ((1.5, 1.8), "not decided against")):
        (said,) = beside_published(four.assign(y=1.8, low=ends[0], high=ends[1]), [1.65, 1.92])
        assert f"gather, {place} the published" in said
    (said,) = beside_published(four.assign(low=float("nan")), [1.65, 1.92])
    assert "one repeat, so not comparable with" in said


def test_two_graphs_or_machines_are_named_in_the_series(make_run):
    first = write_ranks(make_run, TIMES, backend="cuda", machine="one")
    write_ranks(make_run, TIMES, backend="cuda", machine="two", name="20261123-b-b")
    table = measured_over_ranks(load_findings(first.parents[1], REFERENCE), "cuda", "speedup")
    assert "all_in_gpu: wordnet GraphSAGE, strong scaling, one" in set(table["series"])
    assert table["series"].nunique() == 4
