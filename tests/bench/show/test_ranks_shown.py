"""What is shown of runs on several ranks: terminal, charts, report, sentences, notebook."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import RenderableType

from gatherbench.bench.read.scaling import scaling
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.show.answer import answers
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.charts import whiskered
from gatherbench.bench.show.figures.draw import draw
from gatherbench.bench.show.report.page import render_report
from gatherbench.bench.show.run import render_all
from gatherbench.bench.show.views.checks import workloads
from gatherbench.bench.show.views.epochs import epoch_breakdown, numbers
from gatherbench.bench.show.views.ranks import (
    each_rank,
    epoch_over_ranks,
    ranks_scaled,
    scaling_efficiency,
    speedup_at_ranks,
)
from helpers.epoch_bars import measured_bars
from helpers.findings import load_findings
from helpers.reddit import beside_published, measured_over_ranks

from ..printed import charts_of
from ..ranks_run import write_ranks
from ..written_run import write_run
from .pictures import stands_free, texts
from .test_show import all_of, line_of, printed, shown

MakeRun = Callable[..., Path]
CHARTS = {
    "epoch_over_ranks": epoch_over_ranks,
    "speedup_at_ranks": speedup_at_ranks,
    "scaling_efficiency": scaling_efficiency,
}
REFERENCE = Path(__file__).parents[3] / "results" / "reference"
NAIVE, ALIGNED, BOUND = (
    ("cpu_gather", "naive"),
    ("aligned_zero_copy", "registered,sorted"),
    ("all_in_gpu", "default"),
)
#: With two ranks the efficiencies are 62.5 %, 80 % and 100 %, with four 32 %, 50 % and 62.5 %.
TIMES = {
    NAIVE: {1: 4.0, 2: 3.2, 4: 3.125},
    ALIGNED: {1: 3.2, 2: 2.0, 4: 1.6},
    BOUND: {1: 1.0, 2: 0.5, 4: 0.4},
}
NO_GPU = re.compile(r"\bGPUs?\b")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For reading alone."""
    root = tmp_path_factory.mktemp("ranks") / "results" / "cpu-amd-epyc-2c"
    return write_ranks(lambda name, **of: write_run(root / name, **of), TIMES)


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load_run(folder)


@pytest.fixture(scope="module")
def tables(run: Run) -> RenderableType:
    return render_all(run)


def bars(chart: Chart) -> dict[tuple[str, str], Line]:
    (panel,) = chart.panels
    return {(line.name, line.detail): line for line in panel.lines}


# ---- terminal ------------------------------------------------------------------------------------


def scaling_table(text: str) -> str:
    return text.partition("Over the number of ranks: ")[2].partition("From rank to rank")[0]


@pytest.mark.parametrize("width", [90, 120])
def test_the_table_over_ranks_fits_the_terminal(tables, width):
    text = printed(tables, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    table = scaling_table(text)
    assert table.startswith("wordnet GraphSAGE, strong scaling")
    lines = [line.split() for line in table.splitlines()]
    assert ["2", "3.20", "62.5", "1.00", "2.32", "(all)", "no", "faster"] in lines
    assert ["2", "2.00", "80.0", "1.60"] in [line[:4] for line in lines]


def test_from_rank_to_rank(tables):
    text = printed(tables).partition("From rank to rank: wordnet GraphSAGE (2 ranks")[2]
    line = line_of(text.partition("From rank to rank")[0], "cpu_gather")
    # Of 3.2 s: rank 0 waits for 2 % and ends 1 % earlier.
    assert line[2:] == ["3.20", "3.17", "0.0320", "0.160", "10.0", "11.0"]


def test_a_weak_epoch_says_its_seeds(make_run):
    seeds = {1: 15_000, 2: 30_000}
    text = all_of(
        write_ranks(make_run, {ALIGNED: {1: 2.0, 2: 2.5}}, scaling="weak", seeds=seeds), 120
    )
    table = scaling_table(text)
    assert table.startswith("wordnet GraphSAGE, weak scaling")
    assert ["2", "30", "000", "2.50", "80.0"] in [line.split()[:5] for line in table.splitlines()]


def test_one_number_of_ranks_shows_nothing_of_the_kind(make_run):
    text = shown(make_run())
    assert "ranks" not in text
    run = load_run(make_run("20261122-other-b"))
    assert not set(CHARTS) & set(charts_of(run))
    assert "Several ranks" not in render_report(run)
    fields = {column.field for grid in (numbers(run), workloads(run)) for column in grid.columns}
    assert not {"all_reduce", "wait", "ranks", "scaling"} & fields


def test_where_all_cases_have_two_ranks_there_is_no_picture_over_ranks(make_run):
    run = load_run(write_ranks(make_run, {NAIVE: {2: 3.2}, ALIGNED: {2: 2.0}}))
    assert "epoch_breakdown" in charts_of(run)
    assert not set(CHARTS) & set(charts_of(run))
    assert "Several ranks" in render_report(run)


def test_a_failed_number_of_ranks_stands_in_its_place(make_run):
    failed = {(2, *ALIGNED): "rank 1 was killed by SIGKILL", (1, *BOUND): "out of memory"}
    path = write_ranks(make_run, TIMES, failures=failed)
    table = scaling_table(all_of(path, 120))
    assert ["2", *"––––", "failed"] in [line.split() for line in table.splitlines()]
    reason = "no efficiency of all_in_gpu: one rank: failed: out of memory"
    assert reason in " ".join(table.split())
    found = bars(epoch_over_ranks(load_run(path)))
    killed = found["aligned_zero_copy", "2 ranks, registered,sorted"]
    assert killed.missing == "failed: rank 1 was killed by SIGKILL"
    left = bars(scaling_efficiency(load_run(path)))["all_in_gpu", "2 ranks"]
    assert left.missing == "one rank: failed: out of memory"


# ---- charts --------------------------------------------------------------------------------------


def test_bars_over_ranks_have_their_values(run):
    epochs, ratios, shares = (bars(make(run)) for make in CHARTS.values())
    assert list(epochs)[:3] == [
        ("cpu_gather", f"{n}, naive") for n in ("1 rank", "2 ranks", "4 ranks")
    ]
    assert [line.end for line in epochs.values()][:3] == pytest.approx([4.0, 3.2, 3.125])
    assert ("cpu_gather", "2 ranks, naive") not in ratios, "it would be 1 throughout"
    two = "2 ranks, registered,sorted"
    assert ratios["aligned_zero_copy", two].end == pytest.approx(1.6)
    assert shares["aligned_zero_copy", two].text == "80.0 %"
    assert ("all_in_gpu", "1 rank") not in shares, "1 by definition"


def test_bars_of_ratios_have_the_interval_for_whisker(make_run):
    several = load_run(write_ranks(make_run, TIMES, jitter=0.05))
    single = load_run(write_ranks(make_run, TIMES, jitter=0.05, repeats=1, name="20261122-one-b"))
    for make in CHARTS.values():
        for line in bars(make(several)).values():
            assert line.ends is not None
            assert line.ends[0] < sum(line.parts.values()) < line.ends[1]
        if make is not epoch_over_ranks:  # whose ends are quartiles over its epochs as well
            assert {line.ends for line in bars(make(single)).values()} == {None}


def test_on_a_host_ranks_are_processes_and_no_gpus(run, tables):
    for name, make in CHARTS.items():
        chart = make(run)
        said = [chart.title, chart.reading, *(line.detail for line in bars(chart).values())]
        assert not NO_GPU.search(" ".join(said)), name
        assert "ranks (processes) on a host" in chart.title
        assert chart.warnings[0].startswith("Host memory only: no GPU")
        assert not chart.marks
    text = " ".join(printed(tables, 120).split())
    assert "Ranks: processes on a host, no GPUs" in text


def test_published_gains_stand_beside_gpus_alone(make_run):
    path = write_ranks(make_run, TIMES, backend="cuda")
    assert speedup_at_ranks(load_run(path)).marks == {}, "no published figures beside the run"
    shutil.copytree(REFERENCE, path.parents[1] / "reference")
    chart = speedup_at_ranks(load_run(path))
    assert chart.title == "Speed-up over cpu_gather naive on as many GPUs"
    assert chart.panels[0].marks == [(1.65, "published"), (1.92, "published"), (1.0, "one")]
    assert "65 % to 92 % faster" in chart.marks["published"]
    assert "2 GPUs, registered,sorted" in {detail for _, detail in bars(chart)}
    assert epoch_over_ranks(load_run(path)).marks == {}
    on_host = write_ranks(make_run, TIMES, name="20261122-host-b")
    assert speedup_at_ranks(load_run(on_host)).marks == {}


@pytest.mark.parametrize("backend", ["host", "cuda"])
def test_pictures_over_ranks_are_readable(make_run, backend):
    path = write_ranks(make_run, TIMES, backend=backend, jitter=0.02)
    shutil.copytree(REFERENCE, path.parents[1] / "reference")
    run = load_run(path)
    for make in CHARTS.values():
        figure = draw(make(run))
        stands_free(figure)
        assert ("Host memory only" in texts(figure)) == (backend == "host")


def test_the_breakdown_splits_training_among_ranks(run, make_run):
    chart = epoch_breakdown(run)
    one, two, _ = ({(x.name, x.detail): x for x in p.lines}[NAIVE].parts for p in chart.panels)
    assert two == pytest.approx(
        {"sample": 0.32, "fetch": 1.6, "train": 1.12, "all_reduce": 0.16, "wait": 0, "other": 0}
    )
    assert one["train"] == pytest.approx(1.6)
    assert "“all-reduce” is the exchange of gradients" in chart.reading
    alone = epoch_breakdown(load_run(make_run()))
    assert list(alone.legend) == ["sample", "fetch", "train", "other"]
    assert "all-reduce" not in alone.reading


# ---- report --------------------------------------------------------------------------------------


def cells(grid: Any, *fields: str) -> list[tuple[str, ...]]:
    places = [[column.field for column in grid.columns].index(field) for field in fields]
    return [tuple(line.cells[place].text for place in places) for line in grid.lines]


def test_the_report_has_a_section_on_ranks(run):
    page = render_report(run)
    assert '<a href="#ranks">Several ranks</a>' in page
    assert "here ranks (processes) on a host." in page
    for ident in CHARTS:
        assert f'<figure id="{ident}">' in page
    table = cells(ranks_scaled(run), "strategy", "ranks", "epoch", "efficiency", "speedup", "more")
    assert ("aligned_zero_copy", "2", "2.00", "80.0", "1.60", "faster") in table
    assert ("cpu_gather", "2", "3.20", "62.5", "1.00", "no faster") in table
    ranks = cells(each_rank(run), "strategy", "rank", "epoch", "wait", "cpu")
    assert ("cpu_gather", "0", "3.17", "0.0640", "10.0") in ranks
    assert {"from, s", "to, s"} <= set(ranks_scaled(run).labels)
    assert ("2 ranks", "strong") in cells(workloads(run), "ranks", "scaling")
    columns = [column.field for column in numbers(run).columns]
    assert {"all_reduce", "wait"} <= set(columns)


# ---- answers -------------------------------------------------------------------------------------


def test_each_number_of_ranks_has_an_answer_of_its_own(run):
    """4.0 over 3.2, 3.2 over 2.0, and 3.125 over 1.6 s."""
    found = answers(run)
    assert [one.verdict for one in found] == ["fastest"] * 3
    assert [one.ratios[0][0] for one in found] == pytest.approx([1.25, 1.6, 3.125 / 1.6])
    assert len({one.workload for one in found}) == 3


def test_a_disturbed_run_says_nothing_of_scaling(make_run):
    run = load_run(write_ranks(make_run, TIMES, other_cores=1.5, name="20261122-b-b"))
    table = scaling(run)
    assert table.loc[table["ranks"] > 1, "efficiency"].isna().all()
    for chart in (scaling_efficiency(run), speedup_at_ranks(run)):
        missing = {line.missing for panel in chart.panels for line in panel.lines}
        assert len(missing) == 1
        assert "no ratio is given; measure again" in missing.pop()
    marks = {line.text[-1] for panel in epoch_over_ranks(run).panels for line in panel.lines}
    assert marks == {"!"}


# ---- notebooks -----------------------------------------------------------------------------------


def test_other_notebooks_ask_of_one_rank_alone(folder):
    findings = load_findings(folder.parents[1], REFERENCE)
    assert set(measured_bars(findings, "host")["group"]) == {"wordnet GraphSAGE"}
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


def test_a_whisker_beyond_the_axis_is_cut_there_and_its_end_is_said():
    axis, drawn = Axis("s", 4.0), Line("cpu_gather", "naive", parts={"cpu_gather": 1.0}, text="1 s")
    line = whiskered(drawn, axis, (0.5, 40.0))
    assert (line.ends, line.cut) == ((0.5, 4.0), True)
    assert (line.text, line.spread) == ("1 s", "0.500 to 40.0")
    within = whiskered(drawn, axis, (0.5, 4.0))
    assert (within.ends, within.cut) == ((0.5, 4.0), False)
    figure = draw(Chart("c", "", "", "epoch", [Panel("", [line], axis), Panel("", [within], axis)]))
    for axes, said, arrows in zip(figure.axes, ("1 s (0.500 to 40.0)", "1 s"), (1, 0), strict=True):
        assert axes.texts[-1].get_text() == said
        assert [one.get_marker() for one in axes.lines].count(">") == arrows
