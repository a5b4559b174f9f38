"""What the notebooks share: which run counts, ratios by hand, and what several rounds say."""

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from gatherbench.bench.read.derive import stage_breakdown
from gatherbench.stats.interval import Interval
from tools.notebooks import RESULTS_VARIABLE

from ..bench.show.gpu_rows import write_micro

MakeRun = Callable[..., Path]
helpers = pytest.importorskip("helpers")
SAGE, GAT = "wordnet-sage16x2-b1000-1f2e3d4c", "wordnet-gat16x2-b1000-1f2e3d4d"
SLOW = [("cpu_gather", "naive", (1.0, 1.0, 1.0)), ("cpu_gather", "pinned", (1.0, 0.5, 1.0))]
FAST = [("cpu_gather", "naive", (0.1, 0.1, 0.1))]


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setenv(RESULTS_VARIABLE, str(tmp_path / "results"))


def test_of_several_runs_the_one_with_more_repeats_counts(make_run):
    make_run("20261120-old-aaaaaa", series=SLOW, workloads=(SAGE, GAT), repeats=3)
    make_run("20261121-new-bbbbbb", series=FAST, workloads=(SAGE,), repeats=1)
    found = helpers.known(stage_breakdown, "host").set_index(["workload", "variant"])["median"]
    assert found[SAGE, "naive"] == pytest.approx(3.01), "not the 0.31 s of the later one repeat"
    assert [run.run_id for run in helpers.runs_on("host")] == ["20261120-old-aaaaaa"]
    make_run("20261122-new-cccccc", series=FAST, workloads=(SAGE,), repeats=3)
    found = helpers.known(stage_breakdown, "host").set_index(["workload", "variant"])["median"]
    assert found[SAGE, "naive"] == pytest.approx(0.31), "of as many the newer"
    assert found[SAGE, "pinned"] == pytest.approx(2.51), "which the newer lacks"
    newest, older = helpers.runs_on("host")
    assert (newest.workloads, older.workloads) == ([SAGE], [SAGE, GAT])
    assert helpers.runs_on("cuda") == []


def test_ratios_are_those_of_the_epochs(make_run):
    """By hand: 2.51 over 3.01 s; the wait 0.5 over 1 s."""
    make_run("20261120-old-aaaaaa", series=SLOW, workloads=(SAGE,))
    (run,) = helpers.runs()
    for column, wanted in {"epoch_s": 2.51 / 3.01, "fetch_s": 0.5}.items():
        values = run.measured[column]
        (row,) = helpers.ratios(run, values).itertuples()
        assert (row.variant, row.ratio) == ("pinned", pytest.approx(wanted))
        (row,) = helpers.ratios(run, values, inverse=True).itertuples()
        assert row.ratio == pytest.approx(1 / wanted)
    assert helpers.change(row) == "+100 % (+100 to +100)"
    assert helpers.name_of(row) == "cpu_gather (pinned)"


def test_the_probe_s_points_are_rates(tmp_path):
    write_micro(tmp_path / "results" / "nvidia-h200" / "20261121-micro")
    points = helpers.probed()
    assert set(points["machine"]) == {"nvidia-h200"}
    engine = points.query("case == 'copy_to_device'")["rate"]
    assert sorted(engine) == pytest.approx([50 / 1.1, 50, 50 / 0.9])


def test_a_ratio_within_rounds_is_of_the_best_grids():
    """By hand: grid 0 has 4 and 6 against 2 and 2; grid 5, which is slower, does not count."""
    columns = ["round", "grid_percent", "rate"]
    one = pd.DataFrame([(1, 0, 4.0), (2, 0, 6.0), (1, 5, 1.0), (2, 5, 99.0 / 99)], columns=columns)
    other = pd.DataFrame([(1, 0, 2.0), (2, 0, 2.0)], columns=columns)
    assert helpers.within_rounds(one, other) == Interval(2.5, 2.0, 3.0, 2, 0.0)
    assert math.isnan(helpers.within_rounds(one, other[:0]).value)


def test_what_is_too_close_says_so():
    said = helpers.compared(Interval(1.14, 0.978, 1.32, 4, 0.0), "as fast")
    assert said == "1.14× (0.978–1.32) as fast, too close to 1"
    assert helpers.compared(Interval(2.0, 1.9, 2.1, 4, 0.0)) == "2.00× (1.90–2.10)"
    assert helpers.compared(Interval(2.0, math.nan, math.nan, 1)) == "2.00× (one repeat)"


def test_curves_and_bars_draw_what_they_are_given():
    frame = pd.DataFrame({"kind": "measured", "series": "a", "x": [1, 1000], "y": [1.0, 2.0]})
    figure = helpers.curves({"one": frame, "none": frame[:0]}, "x", "y", title="t", ticks=[1, 1000])
    first, second = figure.axes
    assert list(first.lines[0].get_ydata()) == [1.0, 2.0]
    assert first.get_xscale() == "log"
    assert second.texts[0].get_text() == "not measured yet"
    told = pd.DataFrame({"name": ["a"], "value": [0.97], "look": "published", "colour": "blue"})
    (bar,) = helpers.bars(told, "t", "q", "s").axes[0].patches
    assert bar.get_width() == pytest.approx(970), "ms"
