"""gpu-micro end to end: its sections, their isolation, and what they leave."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from gatherbench.bench.probe import cases, gpu
from gatherbench.bench.probe.cases import CASES, MIB, SPANS
from gatherbench.bench.probe.gpu import GpuStand
from gatherbench.bench.probe.stand import Observation, PointFile, RefusedError, row_of
from gatherbench.bench.read.points import Point, read_points
from gatherbench.kernels.cuda_calls import CudaCallError
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.launch import Table
from gatherbench.kernels.policies import POLICIES
from gatherbench.strategies import cuda_overlap
from tools.gpu import counters, micro, overlap, peer
from tools.gpu.points import ROW_BYTES, gather_points

from ..bench.probe.conftest import Event, Registered, gather

HOST = torch.device("cpu")
SMALL = ["--spans", "0.001", "--memory", "1", "--row-bytes", "16", "400", "--rounds", "1"]
FEW = ["--policies", "aligned", "--caps", "0"]


def section(name: str, out: Path, *more: str) -> int:
    """The exit status of a section in its own process, here."""
    return micro.main(["--out", str(out), "--section", name, *more])


def rows(out: Path) -> pd.DataFrame:
    return read_points(out / "rows.csv")


def test_what_there_is_to_measure_is_listed(capsys):
    assert micro.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(CASES)
    assert "WholeGraph" in lines[-1]
    assert micro.main(["--dry-run"]) == 0
    assert f"{len(gather_points())} points" in capsys.readouterr().out
    few = ["--cases", "sm_read", "round_trip", "host_copy", "--spans", "1", "8"]
    options = micro.parser().parse_args(few)
    points = micro.gathers(options, [MIB, 2 * MIB])
    assert {point.case for point in points} == {"sm_read", "round_trip", "host_copy"}


def test_what_cannot_be_begun_is_said(tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    for arguments, said in (
        (["--dry-run", "--policies", "dlg"], "unknown policy 'dlg'"),
        ([], "--out is missing"),
        *([] if torch.cuda.is_available() else [(out, "sees no CUDA GPU")]),
    ):
        assert micro.main(arguments) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_gathers_measure_every_point(cuda, tmp_path, monkeypatch, capsys):
    launched: list[Point] = []
    measure = GpuStand.measure

    def noted(self: GpuStand, point: Point) -> Observation:
        launched.append(point)
        return measure(self, point)

    monkeypatch.setattr(GpuStand, "measure", noted)
    two = ["--spans", "0.001", "0.002", "--memory", "1", "--row-bytes", "16", "400"]
    few = ["--policies", "aligned", "dgl", "--caps", "0", "10", "--rounds", "2"]
    assert section("gather", tmp_path, *two, *few) == 0
    table = rows(tmp_path)
    setup = {"table_fill", "table_register"}
    passes = {"sort_ids", "unique_ids", "check_ids"}
    assert set(table["case"]) == {*passes, *setup, "copy_to_device", "sm_read", "gpu_gather"}
    ours = table[table["policy"] == "aligned"]
    assert set(zip(ours["order"], ours["grid_percent"], strict=True)) == {
        (order, cap) for order in ("given", "sorted", "unique") for cap in (0, 10)
    }
    assert (table["time_s"] > 0).all()
    assert set(table[table["case"] == "check_ids"]["source"]) == {"time.perf_counter"}
    assert set(table[table["case"] == "sort_ids"]["amount"]) == {5000, 2621, 256}
    assert set(table[~table["case"].isin(setup)]["round"]) == {1, 2}
    assert "every policy is right" in capsys.readouterr().out
    others = {point for point in launched if point.case != "gpu_gather"}
    assert set(launched[: len(others)]) == others, "what no check launched is warmed up"
    assert Counter(launched[len(others) :]) == dict.fromkeys(set(launched), 2), "once a round"
    micro.report(tmp_path)
    said = capsys.readouterr().out
    assert re.search(r"check_ids +2 +5000 ", said)
    assert "of the SM-read roof" in (tmp_path / "targets.csv").read_text()
    assert (tmp_path / "summary.csv").exists()


def test_a_span_that_cannot_be_registered_costs_itself_only(cuda, tmp_path, monkeypatch, capsys):
    limit = 2 * MIB

    class Limited(Registered):
        def __init__(self, tensor: Tensor, device: int | None) -> None:
            if tensor.nbytes > limit:
                raise CudaCallError("cudaHostRegister", "cudaErrorInvalidValue", "not here")
            super().__init__(tensor, device)

    monkeypatch.setattr(gpu, "HostRegistration", Limited)
    three = ["--spans", "0.001", "0.0015", "0.004", "--memory", "1", "--rounds", "1"]
    assert section("gather", tmp_path, *three, *FEW, "--row-bytes", "400") == 0
    table = rows(tmp_path)
    spans = set(table[table["case"] == "gpu_gather"]["span_bytes"])
    assert spans == {int(span * 2**30) for span in (0.001, 0.0015)}
    assert "span 0.004 GiB left out: cudaHostRegister failed" in capsys.readouterr().out
    limit = 0
    assert section("gather", tmp_path, *SMALL) == 1
    assert "not here" in capsys.readouterr().err.splitlines()[-1]
    assert section("gather", tmp_path, "--memory", "0.0001", *SMALL[:2]) == micro.SKIPPED
    assert capsys.readouterr().out.splitlines()[-1].startswith("no span fits")


def test_a_policy_that_is_wrong_is_left_out_and_said(cuda, tmp_path, monkeypatch, capsys):
    def wrong(out: Tensor, table: Table, ids: Tensor, point: GridPoint, places: Any = None) -> None:
        gather(out, table, ids, point, places)
        if table.row_bytes == 400 and point.shift == "idle":
            out[-1, -1] += 1

    monkeypatch.setattr(gpu, "gather_into", wrong)
    assert section("gather", tmp_path, *SMALL, "--policies", "aligned", "dgl", "--caps", "0") == 1
    table = rows(tmp_path)
    timed = set(zip(table["policy"], table["row_bytes"], table["time_s"].notna(), strict=True))
    assert {("dgl", 16, True), ("aligned", 16, True), ("aligned", 400, True)} <= timed
    assert ("dgl", 400, True) not in timed
    (reason,) = set(table[table["time_s"].isna()]["reason"])
    assert reason == "policy dgl, rows of 400 B, given: wrong rows"
    said = capsys.readouterr().out
    assert f"left out: dgl:400: {reason}" in said
    assert said.rstrip().endswith("left out, because wrong or worse: dgl:400")


def test_a_lost_context_names_what_broke_it_or_ends_with_what_there_is(
    cuda, tmp_path, monkeypatch, capsys
):
    lost: list[str] = []

    def breaks(
        out: Tensor, table: Table, ids: Tensor, point: GridPoint, places: Any = None
    ) -> None:
        if table.row_bytes == 400 and len(ids) >= first:
            lost.append("illegal memory access")
            raise RuntimeError(lost[0])
        gather(out, table, ids, point, places)

    def synchronize(device: object = None) -> None:
        if lost:
            raise RuntimeError(lost[0])

    monkeypatch.setattr(gpu, "gather_into", breaks)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    first = 1
    assert section("gather", tmp_path, *SMALL, *FEW) == micro.AGAIN
    assert capsys.readouterr().out.rstrip().endswith("\n--without aligned:400")
    lost.clear()
    assert section("gather", tmp_path, *SMALL, *FEW, "--without", "aligned:400") == 1
    table = rows(tmp_path)
    timed = table[table["time_s"].notna() & (table["policy"] == "aligned")]
    assert set(timed["row_bytes"]) == {16}
    first = 100  # not in the check, but once it is timed
    assert section("gather", tmp_path, *SMALL, *FEW) == 1
    assert "while measuring Point(case='gpu_gather'" in capsys.readouterr().err


def test_each_run_has_a_folder_and_reasons_for_what_did_not_run(
    cuda, tmp_path, monkeypatch, capsys
):
    def ended(name: str, out: Path, *_: object) -> tuple[str, str]:
        assert (out / "env.json").is_file()
        with PointFile(out / "rows.csv") as file:
            file.add(row_of(Point("peer_gather", policy=out.name), 1, 1.0, 1.0, "test"))
        return ("ok", "") if name == "peer" else ("skipped", "unsupported: no such tool")

    monkeypatch.setattr(micro, "run_section", ended)
    for name in ("today", "today-2"):
        arguments = ["--out", str(tmp_path / "today"), "--sections", "peer", "ncu"]
        assert micro.main([*arguments, "--cases", "peer_gather", "counted_bytes"]) == 0
        said = capsys.readouterr().out
        assert f"writes to {tmp_path / name}" in said
        assert "ncu: skipped unsupported: no such tool" in said
    for name in ("today", "today-2"):
        table = rows(tmp_path / name)
        assert set(table["policy"]) == {name, ""}
        missing = table[table["time_s"].isna()]
        assert missing["case"].tolist() == ["counted_bytes"]
        assert missing["reason"].tolist() == ["skipped: unsupported: no such tool"]
        assert (tmp_path / name / "summary.csv").is_file()
    assert micro.main(["--out", str(tmp_path / "all")]) == 0
    said = capsys.readouterr().out
    assert all(f"\n{name}: " in said for name in micro.SECTIONS), "every section has its turn"


def test_without_pandas_the_rows_are_whole_and_the_tables_come_later(tmp_path, monkeypatch, capsys):
    with PointFile(tmp_path / "rows.csv") as file:
        file.add(row_of(Point("gpu_copy"), 1, 1.0, 1.0, "test"))
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "tools.gpu.targets", raising=False)
        without.setitem(sys.modules, "pandas", None)
        micro.report(tmp_path)
    assert "make them elsewhere with --report" in capsys.readouterr().out
    assert micro.main(["--report", str(tmp_path)]) == 0
    assert (tmp_path / "targets.csv").is_file()


SECTION = """
import pathlib, sys
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
        (
            "import subprocess; subprocess.run(['sleep', '600'])",  # holds the pipe open
            "failed",
            "took too long",
        ),
    ],
)
def test_how_a_section_ends_is_a_row(body, status, reason, tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(SECTION.format(body=body))
    # Time to begin on a busy machine; only what hangs uses all of it.
    monkeypatch.setattr(micro, "_GRACE_S", 4.0 if reason == "took too long" else 60.0)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "{tmp_path}/toy.py" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(micro.sys, "executable", str(program))
    how, why = micro.run_section("gather", tmp_path, 1.0, [])
    assert how == status
    assert reason in why
    assert (tmp_path / "seen").read_text() == "1\n"


def test_a_section_that_lacks_its_tool_says_so(cuda, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(counters.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(peer.importlib.util, "find_spec", lambda _name: None)
    for name, said in (("ncu", "unsupported: ncu"), ("peer", "unsupported: pylibwholegraph")):
        assert section(name, tmp_path) == micro.SKIPPED
        assert capsys.readouterr().out.startswith(said)


def test_a_section_that_lost_its_context_begins_anew_without_what_broke_it(tmp_path, monkeypatch):
    started: list[list[str]] = []

    def run(name: str, out: Path, budget_s: float, more: list[str]) -> tuple[int, str]:
        started.append(list(more))
        assert budget_s <= 100
        if len(started) < 3:
            broke = f"aligned:{100 * len(started)}"
            return micro.AGAIN, f"broke CUDA's context\n--without {broke}\nlast words of a library"
        return 1, "left out, because wrong or worse: aligned:100, aligned:200"

    monkeypatch.setattr(micro, "_run_process", run)
    status, reason = micro.run_section("gather", tmp_path, 100.0, ["--rounds", "2"])
    first = ["--rounds", "2"]
    second = [*first, "--without", "aligned:100"]
    assert started == [first, second, [*second, "--without", "aligned:200"]]
    assert status == "failed"
    assert "aligned:100, aligned:200" in reason
    started.clear()  # but not for ever
    found = micro.run_section("gather", tmp_path, 0.0, [])
    assert found == ("failed", "ended with status 5; last words: last words of a library")


SECTORS, REQUESTS, READ_BYTES = counters.COUNTERS.values()
NCU = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","gather_kernel","lts__t_requests_srcunit_tex_aperture_sysmem_op_read.sum","","100,000"
"0","7","gather_kernel","lts__t_sectors_srcunit_tex_aperture_sysmem_op_read.sum","sector","200,000"
"0","7","gather_kernel","pcie__read_bytes.sum","byte","7,600,000"
"1","7","gather_kernel","lts__t_sectors_srcunit_tex_aperture_sysmem_op_read.sum","sector","n/a"
"1","7","gather_kernel","pcie__read_bytes.sum","Mbyte","1.5"
"""


def test_what_ncu_prints_is_read():
    first, second = counters.parse_counters(NCU)
    assert first[SECTORS] == 200_000
    assert first[REQUESTS] == 100_000
    assert first[READ_BYTES] == 7_600_000
    assert second[SECTORS] is None
    assert second[READ_BYTES] == 1_500_000
    assert counters.parse_counters("==ERROR== ERR_NVGPUCTRPERM") == []


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


def test_a_counter_that_a_gpu_does_not_have_costs_no_other(tmp_path):
    ncu = tmp_path / "ncu"
    count = len(counters.launches())
    fields = {"python": sys.executable, "table": TABLE, "count": count}
    ncu.write_text(PICKY.format(unknown=READ_BYTES, **fields))
    ncu.chmod(0o755)
    counted, _ = counters.count_launches(str(ncu), 60.0)
    assert counted == [{SECTORS: 7.0, REQUESTS: 7.0}] * count
    ncu.write_text(PICKY.format(unknown=",", **fields))
    counted, _ = counters.count_launches(str(ncu), 60.0)
    assert counted == [dict.fromkeys(list(counters.COUNTERS.values()), 7.0)] * count
    ncu.write_text(f"#!{sys.executable}\nprint('==ERROR== ERR_NVGPUCTRPERM')\n")
    counted, said = counters.count_launches(str(ncu), 60.0)
    assert counted == []
    assert "ERR_NVGPUCTRPERM" in said
    ncu.write_text("#!/bin/sh\necho begun\nexec sleep 600\n")
    counted, said = counters.count_launches(str(ncu), 4.0)
    assert counted == []
    assert said.startswith("begun\n")
    assert "took longer than" in said


def test_a_launch_is_rows_of_what_is_expected_and_what_was_counted():
    counted = {SECTORS: 320_000.0, READ_BYTES: 12_160_000.0}
    found = {row.point.case: row for row in counters.rows_of("aligned", 512, counted)}
    assert {case: row.amount for case, row in found.items()} == {
        "expected_sectors": 20_000 * 512 // 32,
        "expected_requests_128": 20_000 * 4,
        "expected_requests_64": 20_000 * 8,
        "counted_sectors": 320_000,
        "counted_requests": None,
        "counted_bytes": 12_160_000,
    }
    assert counters.ids_of("aligned", 512).unique().numel() == counters.ROWS, "each row once"
    assert "ncu gives no lts__t_requests" in found["counted_requests"].reason
    assert found["counted_bytes"].unit == "B"
    assert not any(row.reason for row in found.values() if row.amount is not None)


class Fetcher:
    """Stands for the overlapped fetcher: a fetch takes 2, training 1, and overlap is perfect."""

    device = HOST

    def __init__(self) -> None:
        self.shares: list[tuple[str, int]] = []

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None: ...

    def step_seconds(self, ids: Tensor, beside: Callable[[], object]) -> float:
        assert beside() is None
        if self.shares[-1:] == [("green", 0)]:
            raise RuntimeError("CUDA error: invalid resource handle")
        return 2.0


@pytest.mark.parametrize("refused", ["when it is made", "when it is used", "stream, too"])
def test_the_overlap_tries_every_share_and_goes_on_without_those_that_are_refused(
    refused, cuda, tmp_path, monkeypatch
):
    fetcher = Fetcher()

    def green(_: object, percent: int) -> None:
        if refused != "when it is used":
            raise CudaCallError("cuGreenCtxCreate", "CUDA_ERROR_NOT_SUPPORTED", "no")
        fetcher.shares.append(("green", 0))

    def stream(_: object, percent: int) -> None:
        if refused == "stream, too":
            raise CudaCallError("cuLaunchKernelEx", "CUDA_ERROR_INVALID_VALUE", "no")
        fetcher.shares.append(("stream", percent))

    for name, value in (
        ("open_overlapped", lambda *_: fetcher),
        ("empty_table", lambda shape, dtype: torch.zeros(8, 4)),
        ("loads", lambda device, seconds: dict.fromkeys(overlap.LOADS, lambda: None)),
        ("alone_seconds", lambda device, beside: 1.0),
        ("share_threads", stream),
        ("share_multiprocessors", green),
    ):
        monkeypatch.setattr(overlap, name, value)
    assert section("overlap", tmp_path, "--rounds", "2") == 0
    table = rows(tmp_path)
    timed = table[table["time_s"].notna()]
    percents = {percent for provider, percent in overlap.SHARES if provider == "stream"}
    taken = set() if refused == "stream, too" else percents
    assert set(timed[timed["provider"] != ""]["grid_percent"]) == taken
    counts = {"train_alone": 6, "fetch_alone": 2 * len(taken), "train_and_fetch": 6 * len(taken)}
    assert Counter(timed["case"]) == +Counter(counts)
    left_out = table[table["time_s"].isna() & (table["provider"] == "green_context")]
    assert len(left_out) == 3 * 4  # each point once
    (reason,) = set(left_out["reason"])
    words = "CUDA error: invalid" if refused == "when it is used" else "cuGreenCtxCreate failed"
    assert reason.startswith(words)


def test_a_context_that_is_lost_beside_training_ends_the_section(cuda, monkeypatch):
    def lost(*_: object) -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(overlap, "share_threads", lost)
    measure = overlap.measured_by(Fetcher(), torch.arange(1), {})  # type: ignore[arg-type]
    point = Point("fetch_alone", provider="stream", grid_percent=5)
    with pytest.raises(RefusedError, match="illegal"):
        measure(point)
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    with pytest.raises(RuntimeError) as failed:
        measure(point)
    assert not isinstance(failed.value, RefusedError)


def test_loads_last_about_as_long_as_they_are_asked_to(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    clock = iter((0.0, 10 * 0.002))
    monkeypatch.setattr(overlap.time, "perf_counter", lambda: next(clock))
    calls: list[int] = []
    step = overlap.repeated(lambda: calls.append(1), 0.008)
    calls.clear()
    step()
    assert len(calls) == 4


def test_a_step_keeps_a_fetch_beside_the_work(monkeypatch):
    """result, submit, work: the order in which the loop does them."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    events: list[str] = []
    fetcher = cuda_overlap.OverlappedFetcher.__new__(cuda_overlap.OverlappedFetcher)
    fetcher.device = HOST
    ticket = SimpleNamespace(result=lambda: events.append("result"))
    monkeypatch.setattr(
        cuda_overlap.OverlappedFetcher,
        "submit",
        lambda self, ids: events.append("submit") or ticket,
    )
    assert fetcher.step_seconds(torch.arange(3), lambda: events.append("work")) >= 0
    assert events == ["submit", *["result", "submit", "work"] * 4, "result"]


def test_the_sweep_runs_on_the_gathers_own_stream(monkeypatch):
    seen: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(
        torch.cuda, "stream", lambda stream: seen.append(stream) or contextlib.nullcontext()
    )
    monkeypatch.setattr(cuda_overlap, "gather_into", lambda *_: None)
    fetcher = cuda_overlap.OverlappedFetcher.__new__(cuda_overlap.OverlappedFetcher)
    fetcher.device, fetcher._side = HOST, "green"  # type: ignore[assignment]
    fetcher.table, fetcher.points = Table(0, 1, 4, 4), {torch.int64: GridPoint()}
    assert fetcher._gather_seconds(torch.arange(1), torch.zeros(1, 1)) > 0
    assert seen == ["green"]


def test_gathers_hold_every_axis_once():
    plan = gather_points()
    assert len(set(plan)) == len(plan)
    assert {p.case for p in plan} < set(CASES)
    gathers = [p for p in plan if p.case == "gpu_gather"]
    assert {p.row_bytes for p in gathers} == set(ROW_BYTES)
    assert {p.span_bytes for p in gathers} == set(SPANS)
    assert {p.policy for p in gathers} == set(POLICIES)
    ours = {(p.order, p.grid_percent) for p in gathers if p.policy == "aligned"}
    assert ours == {(o, c) for o in ("given", "sorted", "unique") for c in (0, 5, 10, 25)}
    assert {p.order for p in gathers if p.policy == "aligned-idle"} == {"given", "sorted"}
    theirs = {(p.order, p.grid_percent, p.row_bytes) for p in gathers if p.policy == "wholegraph"}
    assert ("sorted", 0, 512) in theirs
    assert ("given", 0, 1412) in theirs
    for case in ("copy_to_device", "sm_read"):
        assert {p.span_bytes for p in plan if p.case == case} == set(SPANS)
    with pytest.raises(ValueError, match="at least one row"):
        gather_points([2000], [4096])
    for p in gathers:
        assert cases.num_ids(p) == cases.MAX_IDS or cases.amount_of(p) > (
            cases.READ_BYTES - p.row_bytes
        )
        assert cases.amount_of(p) <= cases.READ_BYTES
        stride = POLICIES[p.policy].row_stride(p.row_bytes)
        assert cases.num_rows(p) * stride <= p.span_bytes


def test_a_folder_is_taken_once(tmp_path, capsys):
    wanted = tmp_path / "new" / "today"
    for name in ("today", "today-2", "today-3"):
        folder = micro.fresh_folder(wanted)
        assert folder == wanted.with_name(name)
        assert f"writes to {folder}" in capsys.readouterr().out
        (folder / "rows.csv").touch()
    (tmp_path / "empty").mkdir()
    assert micro.fresh_folder(tmp_path / "empty").name == "empty"
    (tmp_path / "empty-2").mkdir()  # taken by another program, that has not written yet
    (tmp_path / "empty" / "env.json").touch()
    assert micro.fresh_folder(tmp_path / "empty").name == "empty-3"
    (tmp_path / "file").touch()
    assert micro.fresh_folder(tmp_path / "file").name == "file-2"
