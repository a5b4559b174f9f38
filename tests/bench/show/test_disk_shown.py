"""What is shown of tables on disk: terminal, charts, report, sentences, worked out by hand."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.show import pictures
from gatherbench.bench.show.chart import Chart, Line
from gatherbench.bench.show.figures.amplification import random_reads, reads_of_run, row_widths
from gatherbench.bench.show.figures.draw import draw
from gatherbench.bench.show.pictures import save_all
from gatherbench.bench.show.report.page import render_report
from gatherbench.bench.show.run import render_all
from gatherbench.bench.show.views.disk import (
    disk_amplification,
    disk_epochs,
    disk_hits,
    disk_rate,
    on_disk,
)

from ..disk_run import DIRECT, FITS, LARGE, MAPPED, write_disk
from ..printed import charts_of
from ..written_run import edit, write_run
from .pictures import stands_free, texts
from .test_show import line_of, printed

MakeRun = Callable[..., Path]
CHARTS = {
    "disk_epochs": disk_epochs,
    "disk_amplification": disk_amplification,
    "disk_hits": disk_hits,
    "disk_rate": disk_rate,
}
NAME = "wordnet GraphSAGE"
REFERENCE = Path(__file__).parents[3] / "results" / "reference"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("disk") / "results" / "cpu-amd-epyc-2c"
    return load_run(write_disk(lambda name, **of: write_run(root / name, **of)))


@pytest.fixture(scope="module")
def published(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run beside the published figures."""
    results = tmp_path_factory.mktemp("published")
    shutil.copytree(REFERENCE, results / "reference")
    return dataclasses.replace(run, folder=results / "cpu-amd-epyc-2c" / run.folder.name)


def bars(chart: Chart, panel: int = 0) -> dict[tuple[str, str], Line]:
    return {(line.name, line.note): line for line in chart.panels[panel].lines}


def test_epochs_stand_before_the_table_in_memory(run):
    chart = disk_epochs(run)
    fits, large = chart.panels
    assert [fits.title, large.title] == [run.names[FITS], run.names[LARGE]]
    assert fits.marks == [(pytest.approx(1.0), "in_memory")]
    assert large.marks == []
    assert chart.marks == {"in_memory": "cpu_gather naive with the whole table in memory"}
    found = [{line.name: (line.end, line.text) for line in panel.lines} for panel in chart.panels]
    others = {
        "disk_direct": (pytest.approx(4), "4.00 s"),
        "disk_cached": (pytest.approx(2.5), "2.50 s"),
    }
    assert found == [
        {"disk_mmap": (pytest.approx(2), "2.00 s"), **others},
        {"disk_mmap": (pytest.approx(8), "8.00 s"), **others},
    ]
    assert large.axis.top == pytest.approx(8)


def test_a_path_that_failed_has_its_reason(make_run):
    folder = write_disk(make_run)

    def mine(row: dict[str, str]) -> bool:
        return (row["workload"], row["strategy"]) == (LARGE, DIRECT[0])

    def fail(row: dict[str, str]) -> None:
        if mine(row):
            row |= {"status": "failed", "value": "", "reason": "no memory left"}

    edit(folder, fail, keep=lambda row: not mine(row) or row["stage"] == "case")
    lines = [one for one in disk_epochs(load_run(folder)).panels[1].lines if one.missing]
    assert [(one.name, one.missing) for one in lines] == [("disk_direct", "failed: no memory left")]


def test_bytes_for_a_byte_are_counted_beside_declared(run):
    chart = disk_amplification(run)
    assert [panel.title for panel in chart.panels] == [run.names[FITS], run.names[LARGE]]
    for panel in range(2):
        found = {key: line.text or line.missing for key, line in bars(chart, panel).items()}
        assert found == {
            ("disk_direct", "declared: 8.00×"): "8.00×",
            ("disk_cached", "declared: 7.50×"): "8.00×",
            ("disk_mmap", ""): "nobody counts it: the page cache decides what is read",
        }


def test_hits_stand_beside_published_policies(published):
    fits, large, policies = disk_hits(published).panels
    for panel in (fits, large):
        assert {line.name: line.text for line in panel.lines}["disk_cached"] == "25.0 %"
        assert sum(bool(line.missing) for line in panel.lines) == 2
    assert [(line.detail, line.text, line.look) for line in policies.lines] == [
        ("sieve", "97.0 s", "published"),
        ("s3-fifo", "108 s", "published"),
        ("clock", "129 s", "published"),
        ("lru", "138 s", "published"),
    ]
    assert policies.quantity == "time per epoch"


def test_systems_stand_beside_epochs(published):
    *_, systems = disk_epochs(published).panels
    assert {line.name: line.text for line in systems.lines} == {
        "DiskGNN": "76.0 s", "MariusGNN": "205 s", "Ginex": "580 s",
        "disk_mmap": "5\N{NARROW NO-BREAK SPACE}522 s",
    }  # fmt: skip


def test_without_published_figures_there_is_no_panel_of_them(run):
    assert [len(make(run).panels) for make in (disk_epochs, disk_hits)] == [2, 2]


def test_reads_per_second_are_of_the_fetch_or_of_the_epoch(run):
    chart = disk_rate(run)
    found = {line.name: line.text for line in chart.panels[0].lines}
    assert (found["disk_direct"], found["disk_cached"]) == ("1.25 M/s", "1.20 M/s")


def test_the_terminal_has_a_table_of_reads(run):
    text = printed(render_all(run), 100)
    table = text.partition("Read off the disk: wordnet GraphSAGE (batch 500)")[2]
    table = table.partition("skipped:")[0]
    assert max(map(len, text.splitlines())) <= 100
    assert line_of(table, "disk_cached (s3-fifo", "25.0")[3:] == [
        "25.0", "8.00", "7.50", "8.00", "1.20", "90.0", "400",
    ]  # fmt: skip
    assert "Reads in flight by io_uring: disk_direct (io_uring, merged)\n" in text
    roof = "The disk itself gave 1.50 M/s in random reads of 4 KiB, beside disk_direct (io_uring,"
    assert roof in " ".join(text.split())
    assert "Reads in flight by threads: disk_cached (s3-fifo, 10%)\n" in text
    assert line_of(table, "disk_mmap (random)")[2:] == ["–", "–", "–", "1.50", "–", "–", "–"]


def test_the_report_has_a_section_with_charts_and_numbers(published):
    page = render_report(published)
    assert '<a href="#disk">Table on disk</a>' in page
    for make in CHARTS.values():
        assert f"<h3><bdi>{make(published).title}</bdi></h3>" in page
    table = on_disk(published)
    fields = [column.field for column in table.columns]
    cells = {
        (line.cells[0].text, line.cells[1].text): dict(zip(fields, line.cells, strict=True))
        for line in table.lines
    }
    large = cells[LARGE, "disk_cached"]
    assert {name: large[name].text for name in fields[4:]} == {
        "engine": "threads", "in_memory": "25.0", "amplification": "8.00",
        "declared": "7.50", "process": "8.00", "device": "8.40", "iops": "1.20", "over": "epoch",
        "roof": "1.50", "in_flight": "120", "latency_median": "90.0", "latency_99th": "400",
    }  # fmt: skip
    labels = dict(zip(fields, table.labels, strict=True))
    assert labels["iops"] == "reads, M/s"


def test_runs_without_a_disk_show_nothing_of_it(make_run):
    run = load_run(make_run(declared=True))
    assert not set(CHARTS) & set(charts_of(run))
    assert reads_of_run(run) == {}
    assert not re.search("[Dd]isk", printed(render_all(run)))
    page = render_report(run)
    assert 'id="disk"' not in page
    assert "Table on disk" not in page


def test_pictures_are_drawn_and_readable(published, tmp_path, monkeypatch):
    for make in CHARTS.values():
        stands_free(draw(make(published)))
    monkeypatch.setattr(pictures, "save", lambda *_: None)  # painted once is enough
    written = {path.stem for path in save_all(published, tmp_path / "figures", ["png"])}
    assert {*CHARTS, "disk_row_width"} <= written


def test_points_lie_on_their_rows_width(run):
    reads = reads_of_run(run)
    assert {name: (of.rows, of.ids) for name, of in reads.items()} == {
        run.names[workload]: (160_000, 100_000) for workload in (FITS, LARGE)
    }
    figure = row_widths(reads)
    stands_free(figure)
    assert MAPPED[0] not in texts(figure), "nobody counts what is read for it"
    axes, _ = figure.axes
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) > 1]
    points = [line for line in axes.get_lines() if len(line.get_xdata()) == 1]
    assert len(lines) == 2
    found = sorted((p.get_xdata()[0], p.get_ydata()[0], p.get_fillstyle()) for p in points)
    assert found == [(500, 7.5, "none"), (500, 8, "full"), (500, 8, "full"), (500, 8, "none")]


@pytest.mark.parametrize(
    ("row_bytes", "read"), [(64, 64), (512, 8), (1024, 4), (4096, 1), (8192, 1)]
)
def test_rows_that_divide_a_block_cost_one(row_bytes, read):
    """Of a million rows a hundred hardly ever share a block: merging changes nothing much."""
    alone = random_reads(row_bytes, 1_000_000, 100, merge=False)
    assert alone == read
    assert random_reads(row_bytes, 1_000_000, 100, merge=True) <= alone


def test_rows_of_400_bytes_cost_eleven_times_as_much():
    """A row begins in one of 256 places, 16 B apart; 24 of 256 lie across two blocks: 11.2."""
    assert random_reads(400, 10_000_000, 4000, merge=False) == pytest.approx(11.2, rel=0.01)


def test_a_whole_table_is_read_once_when_merged():
    assert random_reads(512, 1024, 1024, merge=True) == 1
    assert random_reads(512, 1024, 1024, merge=False) == 8
