"""The micro-benchmark's plan, rows and summary: everything but the GPU."""

from __future__ import annotations

import csv
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gatherbench.bench.probe import (
    micro,
    micro_gather,
    micro_machine,
    micro_ncu,
    micro_overlap,
    micro_peer,
)
from gatherbench.bench.probe.micro_figure import best_by_width, draw, headline, roofs
from gatherbench.bench.probe.micro_plan import (
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
from gatherbench.bench.probe.micro_rows import RowFile, row_of, summary, write_summary
from gatherbench.bench.read.micro_row import MicroRow
from gatherbench.kernels.policies import POLICIES


def test_the_plan_holds_every_axis_once() -> None:
    plan = points()
    assert len(set(plan)) == len(plan)
    gathers = [p for p in plan if p.kind == "gather"]
    assert {p.row_bytes for p in gathers} == set(ROW_BYTES)
    assert {p.span_bytes for p in gathers} == set(SPANS)
    assert {p.policy for p in gathers} == set(POLICIES)
    ours = {(p.order, p.cap) for p in gathers if p.policy == "aligned"}
    assert ours == {(o, c) for o in ("given", "sorted", "unique") for c in (0, 5, 10, 25)}
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
    file = RowFile(tmp_path / "rows.csv", MicroRow)
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
    file.__exit__()
    written = write_summary(file.rows, tmp_path / "summary.csv")
    assert best_by_width(written, GIB) == {("aligned", "sorted"): {512: pytest.approx(rate)}}
    assert roofs(written, GIB) == {"sm_read": pytest.approx(best)}
    assert "aligned, sorted" in headline(written)
    draw(written, tmp_path / "rate.png")
    assert (tmp_path / "rate.png").stat().st_size > 5000


def test_a_dry_run_says_what_it_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert micro_gather.main(["--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert f"{len(points())} points" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    unknown = ["--out", str(tmp_path / "out"), "--dry-run", "--policies", "dlg"]
    assert micro_gather.main(unknown) == 2
    assert "unknown policy 'dlg'" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for section in (micro, micro_gather, micro_overlap):
        assert section.main(["--out", str(tmp_path / "out")]) == 2
        assert "sees no CUDA GPU" in capsys.readouterr().err


def test_it_runs_on_a_machine_with_little_more_than_torch() -> None:
    code = """
import sys
for missing in ("pydantic", "platformdirs", "ogb", "typer", "rich", "pandas", "pyarrow"):
    sys.modules[missing] = None
import gatherbench.bench.probe.micro, gatherbench.bench.probe.micro_device
import gatherbench.bench.probe.micro_gather, gatherbench.bench.probe.micro_overlap
import gatherbench.bench.probe.micro_ncu, gatherbench.bench.probe.micro_peer
import gatherbench.bench.probe.micro_figure, gatherbench.strategies.conformance
import gatherbench.strategies.registry
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_machine_is_told_with_the_code_that_ran_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = micro_machine.provenance()
    assert told["commit"]
    assert bool(told["gpus"]) == (told["no_gpu"] is None)
    monkeypatch.setenv("GATHERBENCH_COMMIT", "0123456789ab")
    for name in ("machine.gpus", "machine.env"):
        monkeypatch.delitem(sys.modules, f"gatherbench.bench.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "gatherbench.bench.machine.nvml", None)
    bare = micro_machine.provenance()
    assert (bare["commit"], bare["gpus"]) == ("0123456789ab", [])
    assert "nvml" in bare["no_gpu"]


def test_a_folder_is_taken_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = tmp_path / "new" / "today"
    made = []
    for _ in range(3):
        folder = micro_machine.fresh_folder(wanted)
        assert f"writes to {folder}" in capsys.readouterr().out
        (folder / "rows.csv").write_text(folder.name)
        made.append(folder)
    assert [f.name for f in made] == ["today", "today-2", "today-3"]
    assert [(f / "rows.csv").read_text() for f in made] == [f.name for f in made]
    (tmp_path / "empty").mkdir()
    assert micro_machine.fresh_folder(tmp_path / "empty").name == "empty"
    (tmp_path / "empty-2").mkdir()  # taken by another program, that has not written yet
    (tmp_path / "empty" / "env.json").touch()
    assert micro_machine.fresh_folder(tmp_path / "empty").name == "empty-3"
    (tmp_path / "file").touch()
    assert micro_machine.fresh_folder(tmp_path / "file").name == "file-2"


def test_a_second_measurement_of_a_day_loses_nothing_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def section(name: str, out: Path, *_: object) -> micro.SectionRow:
        assert (out / "env.json").is_file()
        (out / "rows.csv").write_text(f"{name} in {out.name}")
        return micro.SectionRow(name, "ok", "", 1.0)

    monkeypatch.setattr(micro, "no_gpu", lambda: None)
    monkeypatch.setattr(micro, "describe", dict)
    monkeypatch.setattr(micro, "run_section", section)
    for name in ("today", "today-2"):
        assert micro.main(["--out", str(tmp_path / "today"), "--sections", "peer"]) == 0
        assert f"writes to {tmp_path / name}" in capsys.readouterr().out
    for name in ("today", "today-2"):
        assert (tmp_path / name / "rows.csv").read_text() == f"peer in {name}"
        assert (tmp_path / name / "sections.csv").is_file()


SECTION = """
import pathlib, sys, threading
name, folder = sys.argv[0], pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
(folder / "seen").open("a").write(sys.argv[sys.argv.index("--budget") + 1] + "\\n")
{body}
"""


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("print('all is well')", "ok", ""),
        ("print('noise'); print('unsupported: no such tool'); sys.exit(3)", "skipped", "no such"),
        ("raise RuntimeError('illegal memory access')", "failed", "illegal memory access"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "failed", "status -11"),
        ("threading.Event().wait()", "failed", "took too long"),
        (
            "import subprocess; subprocess.run(['sleep', '600'])",  # holds the pipe open
            "failed",
            "took too long",
        ),
    ],
)
def test_how_a_section_ends_is_a_row(
    body: str, status: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gatherbench" / "bench" / "gpu"
    folder.mkdir(parents=True)
    (folder / "micro_toy.py").write_text(SECTION.format(body=body))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # Time to begin on a busy machine; only what hangs uses all of it.
    monkeypatch.setattr(micro, "_GRACE_S", 3.0 if reason == "took too long" else 60.0)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "{folder}/micro_toy.py" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(micro.sys, "executable", str(program))
    row = micro.run_section("toy", tmp_path, 1.0, [])
    assert (row.section, row.status) == ("toy", status)
    assert reason in row.reason
    assert row.time_s > 0
    assert (tmp_path / "seen").read_text() == "1\n"


def test_a_section_that_lacks_its_tool_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(micro_ncu.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(micro_peer.importlib.util, "find_spec", lambda _name: None)
    assert micro_ncu.main(["--out", str(tmp_path)]) == micro.SKIPPED
    assert capsys.readouterr().out.startswith("unsupported: ncu")
    assert micro_peer.main(["--out", str(tmp_path)]) == micro.SKIPPED
    assert capsys.readouterr().out.startswith("unsupported: pylibwholegraph")


def test_options_of_a_section_need_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert micro.main(["--out", str(tmp_path), "--rounds", "3"]) == 2
    assert "name it with --sections" in capsys.readouterr().err


NCU = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","gather_kernel","lts__t_requests_aperture_sysmem_op_read.sum","","100,000"
"0","7","gather_kernel","lts__t_sectors_aperture_sysmem_op_read.sum","sector","200,000"
"0","7","gather_kernel","pcie__read_bytes.sum","byte","7,600,000"
"1","7","gather_kernel","lts__t_sectors_aperture_sysmem_op_read.sum","sector","n/a"
"1","7","gather_kernel","pcie__read_bytes.sum","Mbyte","1.5"
"""


def test_what_ncu_prints_is_read() -> None:
    first, second = micro_ncu.parse_counters(NCU)
    assert first[micro_ncu.SECTORS] == 200_000
    assert first[micro_ncu.REQUESTS] == 100_000
    assert first[micro_ncu.READ_BYTES] == 7_600_000
    assert second[micro_ncu.SECTORS] is None
    assert second[micro_ncu.READ_BYTES] == 1_500_000
    with pytest.raises(ValueError, match="no table"):
        micro_ncu.parse_counters("==ERROR== ERR_NVGPUCTRPERM")


TABLE = '"ID","Metric Name","Metric Unit","Metric Value"\n'
#: An ncu that does not know the counter of bytes, and says nothing of any if it is among others.
PICKY = """#!{python}
import sys
wanted = sys.argv[sys.argv.index("--metrics") + 1].split(",")
print("==PROF== Connected")
if "{unknown}" in wanted:
    sys.exit("==ERROR== Failed to find metric {unknown}")
print({table!r}, end="")
for k in range({count}):
    print("".join(f'"{{k}}","{{name}}","","7"\\n' for name in wanted), end="")
"""


def test_a_counter_that_a_gpu_does_not_have_costs_no_other(tmp_path: Path) -> None:
    ncu = tmp_path / "ncu"
    count = len(micro_ncu.launches())
    fields = {"python": sys.executable, "table": TABLE, "count": count}
    ncu.write_text(PICKY.format(unknown=micro_ncu.READ_BYTES, **fields))
    ncu.chmod(0o755)
    counted, _ = micro_ncu.count_launches(str(ncu), 60.0)
    assert counted == [{micro_ncu.SECTORS: 7.0, micro_ncu.REQUESTS: 7.0}] * count
    ncu.write_text(PICKY.format(unknown=",", **fields))
    counted, _ = micro_ncu.count_launches(str(ncu), 60.0)
    assert counted == [dict.fromkeys(micro_ncu.COUNTERS, 7.0)] * count
    ncu.write_text(f"#!{sys.executable}\nprint('==ERROR== ERR_NVGPUCTRPERM')\n")
    counted, said = micro_ncu.count_launches(str(ncu), 60.0)
    assert counted == []
    assert "ERR_NVGPUCTRPERM" in said
    ncu.write_text("#!/bin/sh\necho begun\nexec sleep 600\n")
    counted, said = micro_ncu.count_launches(str(ncu), 1.0)
    assert counted == []
    assert said.startswith("begun\n")
    assert "took longer than" in said


def test_the_mean_read_follows_from_the_bytes() -> None:
    row = micro_ncu.expected("aligned", 512, sectors=320_000.0, pcie_read_bytes=12_160_000.0)
    assert row.expected_sectors == 20_000 * 512 // 32
    assert row.expected_requests_128 == 20_000 * 4
    assert row.expected_requests_64 == 20_000 * 8
    said = micro_ncu.table_of([row])
    assert "1.000" in said
    assert "64 B" in said  # 10.24 MB in (12.16 - 10.24) MB / 12 B completions
    assert "no counters" in micro_ncu.table_of([micro_ncu.expected("aligned", 512)])


def test_each_launch_reads_each_row_once() -> None:
    assert len(set(micro_ncu.launches())) == len(micro_ncu.launches())
    for name, width in micro_ncu.launches():
        ids = micro_ncu.ids_of(name, width)
        assert ids.unique().numel() == micro_ncu.ROWS
        assert int(ids.max()) < micro_ncu.SPAN_BYTES // POLICIES[name].row_stride(width)


def test_overlap_is_measured_against_the_longer_of_the_two() -> None:
    def rows(kind: str, percent: int, *seconds: float) -> list[micro_overlap.OverlapRow]:
        return [
            micro_overlap.OverlapRow(kind, "load", "stream", percent, number, time_s, "clock")
            for number, time_s in enumerate(seconds)
        ]

    found = micro_overlap.targets(
        [
            *(row for percent in (5, 10) for row in rows("train", percent, 2.0, 2.0)),
            *(*rows("fetch", 5, 4.0, 4.0), *rows("fetch", 10, 2.5, 2.5)),
            *(*rows("both", 5, 4.0, 4.0), *rows("both", 10, 2.6, 2.6)),
            *rows("both", 15, 2.5, 3.0),
        ]
    )
    ratios = {one.budget_percent: (one.ratio, one.verdict) for one in found}
    assert ratios[5] == (pytest.approx(4.0 / 2.5), "missed"), "a slow fetch is no excuse"
    assert ratios[10] == (pytest.approx(2.6 / 2.5), "reached")
    assert ratios[15] == (pytest.approx(2.75 / 2.5), "reached within the spread")
    spread = next((one.low, one.high, one.rounds) for one in found if one.budget_percent == 15)
    assert spread == (pytest.approx(1.0), pytest.approx(1.2), 2)


def test_the_peers_table_has_a_rate_for_each() -> None:
    rows = [
        micro_peer.PeerRow(who, "given", 512, 10**9, k, seconds, "clock")
        for who, times in (("aligned", (0.1, 0.2, 0.1)), ("WholeGraph", (0.2, 0.2, 0.4)))
        for k, seconds in enumerate(times)
    ]
    said = micro_peer.table_of(rows)
    assert "512 B aligned, given: 10.0 GB/s" in said
    assert "WholeGraph, given: 5.0 GB/s" in said
