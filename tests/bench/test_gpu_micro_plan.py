"""The micro-benchmark's plan, rows and summary: everything but the GPU."""

from __future__ import annotations

import csv
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gatherbench.bench.gpu import micro
from gatherbench.bench.gpu.micro_figure import best_by_width, draw, headline, roofs
from gatherbench.bench.gpu.micro_plan import (
    GIB,
    MAX_IDS,
    READ_BYTES,
    ROW_BYTES,
    SPANS,
    Point,
    fitting,
    points,
    rounds,
)
from gatherbench.bench.gpu.micro_rows import RowFile, row_of, summary, write_summary
from gatherbench.kernels.policies import POLICIES


def test_the_plan_holds_every_axis_once() -> None:
    plan = points()
    assert len(set(plan)) == len(plan)
    gathers = [p for p in plan if p.kind == "gather"]
    assert {p.row_bytes for p in gathers} == set(ROW_BYTES)
    assert {p.span_bytes for p in gathers} == set(SPANS)
    assert {p.policy for p in gathers} == set(POLICIES)
    ours = {(p.order, p.cap) for p in gathers if p.policy == "aligned"}
    assert ours == {(o, c) for o in ("given", "sorted") for c in (0, 5, 10, 25)}
    theirs = {(p.order, p.cap, p.row_bytes) for p in gathers if p.policy == "wholegraph"}
    assert ("sorted", 0, 512) in theirs
    assert ("given", 0, 1412) in theirs
    for kind in ("copy_engine", "sm_read"):
        assert {p.span_bytes for p in plan if p.kind == kind} == set(SPANS)


@pytest.mark.parametrize("width", ROW_BYTES)
def test_a_gather_is_large_and_stays_inside_the_table(width: int) -> None:
    for name in POLICIES:
        point = Point("gather", GIB, 0, name, "given", width)
        assert point.num_ids == MAX_IDS or point.payload_bytes > READ_BYTES - width
        assert point.payload_bytes <= READ_BYTES
        assert point.num_rows * POLICIES[name].row_stride(width) <= GIB


def test_rounds_take_turns_and_change_their_order() -> None:
    plan = points([GIB], [400], ["aligned", "dgl"])
    turns = rounds(plan)
    first, second = (list(itertools.islice(turns, len(plan))) for _ in range(2))
    assert {number for number, _ in first} == {0}
    assert {number for number, _ in second} == {1}
    for turn in (first, second):
        assert {point for _, point in turn} == set(plan)
    assert [p for _, p in first] != [p for _, p in second]
    assert list(itertools.islice(rounds(plan), len(plan))) == first, "the same seed, the same turns"


def test_spans_that_do_not_fit_are_left_out() -> None:
    assert fitting(SPANS, 128 * GIB) == SPANS
    assert fitting(SPANS, 20 * GIB) == (GIB, 8 * GIB)
    assert fitting(SPANS, 0) == ()


def test_the_summary_takes_medians_and_the_best_roof(tmp_path: Path) -> None:
    roof = [Point("sm_read", GIB, blocks) for blocks in (1, 4)]
    gather = Point("gather", GIB, 0, "aligned", "sorted", 512)
    file = RowFile(tmp_path / "rows.csv")
    for number, (slow, fast, gathered) in enumerate([(0.08, 0.02, 0.01), (0.08, 0.02, 0.03)]):
        for point, seconds in ((roof[0], slow), (roof[1], fast), (gather, gathered)):
            file.add(row_of(point, number, seconds))
    table = {(r["kind"], r["cap"]): r for r in summary(file.rows)}
    best = GIB / 0.02 / 1e9
    assert table["sm_read", 4]["payload_gb_per_s"] == pytest.approx(best)
    assert table["sm_read", 4]["of_sm_read_roof"] == pytest.approx(1)
    assert table["gather", 0]["launches"] == 2
    rate = READ_BYTES / 0.02 / 1e9
    assert table["gather", 0]["payload_gb_per_s"] == pytest.approx(rate)
    assert table["gather", 0]["of_sm_read_roof"] == pytest.approx(rate / best)
    with (tmp_path / "rows.csv").open() as text:  # there before it is closed
        assert [float(r["time_s"]) for r in csv.DictReader(text)][:3] == [0.08, 0.02, 0.01]
    file.close()
    written = write_summary(file.rows, tmp_path / "summary.csv")
    assert best_by_width(written, GIB) == {("aligned", "sorted"): {512: pytest.approx(rate)}}
    assert roofs(written, GIB) == {"sm_read": pytest.approx(best)}
    assert "aligned, sorted" in headline(written)
    draw(written, tmp_path / "rate.png")
    assert (tmp_path / "rate.png").stat().st_size > 5000


def test_a_dry_run_says_what_it_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert micro.main(["--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert f"{len(points())} points" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    unknown = ["--out", str(tmp_path / "out"), "--dry-run", "--policies", "dlg"]
    assert micro.main(unknown) == 2
    assert "unknown policy 'dlg'" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert micro.main(["--out", str(tmp_path / "out")]) == 2
    assert "sees no CUDA GPU" in capsys.readouterr().err


def test_it_runs_on_a_machine_with_little_more_than_torch() -> None:
    code = """
import sys
for missing in ("pydantic", "platformdirs", "ogb", "typer", "rich", "pandas", "pyarrow"):
    sys.modules[missing] = None
import gatherbench.bench.gpu.micro, gatherbench.bench.gpu.micro_device
import gatherbench.bench.gpu.micro_figure, gatherbench.strategies.conformance
import gatherbench.strategies.registry
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
