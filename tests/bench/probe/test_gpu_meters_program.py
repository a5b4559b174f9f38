"""``gpu-meters`` as far as it goes without a GPU: strategies in host memory, rows read back."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from gatherbench.bench.meters.registry import open_meters
from gatherbench.bench.meters.trust import Calibration, Comparison
from gatherbench.bench.meters.zeus import ZeusMeter
from gatherbench.bench.probe import meters, meters_case
from gatherbench.bench.probe.meters import calibration_table, describe_here, finish, plan
from gatherbench.bench.probe.meters_case import MeteredCase, Session, cases, last_case
from gatherbench.bench.probe.meters_loop import Size, make_batches, make_table
from gatherbench.bench.read.epochs import problems
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run.sensor_calibration import rows_of_calibration
from gatherbench.bench.show.sentences.provenance import provenance
from gatherbench.kernels import mapped_memory
from gatherbench.strategies.all_in_gpu import AllInGpu

SIZE = Size(1 << 20, batch_rows=300, batches=4)
CPU = torch.device("cpu")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    made = Session.open(tmp_path, CPU, describe_here())
    plan(made, SIZE, 0)
    return made


def test_every_strategy_leaves_a_run_that_reads_and_draws(session: Session) -> None:
    table, batches = make_table(SIZE), make_batches(SIZE)
    for case in cases():
        assert case.measure(session, table, batches, SIZE.workload, 0) == "ok", case.label
    finish(session)
    run = load_run(session.store.folder)
    ended = run.rows[run.rows["stage"] == "case"]
    assert set(ended["strategy"]) == {c.strategy.name for c in cases()}
    walls = run.rows[(run.rows["stage"] == "epoch") & (run.rows["metric"] == "wall_time")]
    assert len(walls) == 3 * len(cases())
    payload = run.rows[run.rows["metric"] == "payload"]["value"]
    assert set(payload) == {4 * 300 * 400.0}
    declared = run.rows[run.rows["metric"] == "declared_payload"].set_index("strategy")["value"]
    assert set(declared) == {4 * 300 * 400.0}
    assert set(declared.index) == {c.strategy.name for c in cases()}
    assert len(declared) == len(cases())
    counted = run.rows[run.rows["metric"] == "gpu_requests_128_bytes"]
    assert {"unified_zero_copy", "aligned_zero_copy", "async_zero_copy"} <= set(counted["strategy"])
    assert set(run.rows[run.rows["metric"] == "minibatches"]["value"]) == {4.0}
    # No figure is empty for want of a meter that was not opened.
    metrics = set(run.rows[run.rows["stage"] == "epoch"]["metric"])
    opened = open_meters(meters_case.METERS_READ)
    assert {reading.metric for meter in opened for reading in meter.stop()} <= metrics
    assert {"cpu_main", "cpu_package_energy"} <= metrics
    assert "host_pinned" not in metrics  # of the whole process, not of the case
    checks = run.rows[run.rows["stage"] == "check"]
    assert checks["value"].tolist() == [3.0] * len(cases())
    # Without a GPU there is no energy, and none is made up.
    assert not (run.rows["stage"] == "energy").any()
    assert (session.store.folder / "figures" / "epoch_breakdown.png").is_file()
    assert (session.store.folder / "calibration.csv").is_file()


def test_what_a_case_moves_is_declared_once(session: Session) -> None:
    table, batches = make_table(SIZE), make_batches(SIZE)
    for repeat in range(2):
        plan(session, SIZE, repeat)
        assert cases()[0].measure(session, table, batches, SIZE.workload, repeat) == "ok"
    declared = [row for row in session.store.rows() if row.metric == "declared_payload"]
    assert [row.repeat for row in declared] == [0]


def test_wrong_rows_end_a_case_and_the_next_has_its_turn(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = AllInGpu._open
    monkeypatch.setattr(AllInGpu, "_open", lambda self, table, on: opened(self, table + 1, on))
    case = MeteredCase(AllInGpu())
    status = case.measure(session, make_table(SIZE), make_batches(SIZE), SIZE.workload, 0)
    wrong = "failed: WrongRowsError: minibatch 0 of the trace, before timing: row 0, column 0"
    assert status.startswith(wrong)
    *declared, row = session.store.rows()
    assert {row.basis for row in declared} == {"declared"}, "nothing measured"
    assert (row.stage, row.status) == ("case", "failed")


@pytest.fixture
def stage(session: Session, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The program with cases ``a``, ``b`` and ``c`` in turns and ``z`` last, which only say so."""
    ran: list[str] = []
    broken: list[str] = []

    @dataclass(frozen=True)
    class Case:
        label: str

        def measure(self, *arguments: Any) -> str:
            ran.append(f"{self.label}{arguments[-1]}")
            return "failed: CUDA error: an illegal memory access" if self.label in broken else "ok"

        def row_maker(self, session: Session, *arguments: Any) -> Any:
            made = cases()[0].row_maker(session, *arguments)
            return dataclasses.replace(made, variant=self.label)

    monkeypatch.setattr(meters, "cases", lambda: [Case(name) for name in "abc"])
    monkeypatch.setattr(meters, "last_case", lambda: Case("z"))
    session.planned.clear()
    plan(session, SIZE, 0)
    return Stage(session, ran, broken)


@dataclass(frozen=True)
class Stage:
    session: Session
    ran: list[str]
    broken: list[str]

    def planned(self) -> list[str]:
        text = json.loads((self.session.store.folder / "plan.json").read_text())
        assert text["measure"]["repeats"] == 1 + max(c["repeat"] for c in text["cases"])
        return [f"{case['variant']}{case['repeat']}" for case in text["cases"]]


ROUNDS = [f"{name}{repeat}" for repeat in range(meters.MOST_REPEATS) for name in "abc"]


def test_managed_memory_comes_once_and_after_all_rounds(stage: Stage) -> None:
    meters.measure(stage.session, SIZE, time.monotonic() + 3600)
    assert stage.ran == [*ROUNDS, "z0"]
    assert sorted(stage.planned()) == sorted(stage.ran)


@pytest.mark.parametrize(
    ("cases_of_time", "ran"),
    [
        (0, []),
        (2.5, ["a0", "b0"]),  # the first round is worth more than the last case
        (4.5, ["a0", "b0", "c0", "z0"]),  # which is worth more than a second round
        (5.5, ["a0", "b0", "c0", "a1", "z0"]),
    ],
)
def test_the_time_that_is_left_decides_how_many_rounds_there_are(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, cases_of_time: float, ran: list[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(meters, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    case = type(meters.last_case())
    measure = case.measure

    def in_ten_seconds(*arguments: Any) -> str:
        now[0] += 10
        return str(measure(*arguments))

    monkeypatch.setattr(case, "measure", in_ten_seconds)
    meters.measure(stage.session, SIZE, 10 * cases_of_time - (0 if cases_of_time else 1))
    assert stage.ran == ran
    # What was begun and has not ended is told, and nothing is planned that was never begun.
    rounds = 1 + max((int(name[1:]) for name in ran), default=0)
    assert sorted(stage.planned()) == sorted([*ROUNDS[: 3 * rounds], "z0"])


def test_a_broken_context_ends_the_rounds_and_says_what_broke_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.broken.append("b")
    later = time.monotonic() + 3600
    meters.measure(stage.session, SIZE, later)
    assert stage.ran == [*ROUNDS, "z0"]  # a failure that spares the context costs nobody else
    assert stage.session.broken == ""
    stage.ran.clear()
    monkeypatch.setattr(meters, "context_is_broken", lambda _: True)
    meters.measure(stage.session, SIZE, later)
    assert stage.ran == ["a0", "b0"]
    assert stage.session.broken == "b"
    stage.ran.clear()
    meters.measure(stage.session, SIZE, later, ["b", "z"])
    assert stage.ran == [name for name in ROUNDS if "b" not in name]


def test_managed_memory_that_breaks_the_context_costs_nobody_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.broken.append("z")
    monkeypatch.setattr(meters, "context_is_broken", lambda _: True)
    meters.measure(stage.session, SIZE, time.monotonic() + 3600)
    assert stage.ran[-1] == "z0"
    assert stage.session.broken == ""  # so nothing is measured once more


def test_what_was_planned_and_not_measured_says_so(session: Session) -> None:
    table, batches = make_table(SIZE), make_batches(SIZE)
    assert cases()[1].measure(session, table, batches, SIZE.workload, 0) == "ok"
    finish(session)
    finish(session)  # a second time adds nothing
    run = load_run(session.store.folder)
    found = problems(run)
    assert len(found) == len(cases())  # six of seven
    assert set(found["status"]) == {"skipped"}
    assert set(found["reason"]) == {meters.NOT_MEASURED}
    assert (found["variant"] == "managed").sum() == 1


def test_what_comes_once_is_not_said_to_have_been_repeated(session: Session) -> None:
    plan(session, SIZE, 1)
    finish(session)
    assert provenance(load_run(session.store.folder)).startswith("1 to 2 repeats × 3 epochs, ")


def test_managed_memory_is_refused_on_the_host_with_a_reason(session: Session) -> None:
    table, batches = make_table(SIZE), make_batches(SIZE)
    status = last_case().measure(session, table, batches, SIZE.workload, 0)
    assert status.startswith("skipped: unsupported: memory = managed is a property of a GPU")
    assert last_case().label == "unified_zero_copy managed"


def test_faults_of_managed_memory_come_after_all_that_is_measured(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mapped_memory._managed, 64, 4096)
    MeteredCase(AllInGpu()).measure(session, make_table(SIZE), make_batches(SIZE), SIZE.workload, 0)
    *before, last = [row.stage for row in session.store.rows()]
    assert last == "case"
    assert before[-5:] == ["uvm"] * 5
    assert "uvm" not in before[:-5]
    for row in session.store.rows():
        if row.stage == "uvm":
            assert str(row.reason).startswith("no_device: ")


def test_all_but_figures_is_on_disk_before_managed_memory_is_touched(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[set[str]] = []

    @dataclass(frozen=True)
    class Case:
        label: str = "kills the process"

        def measure(self, session: Session, *_: Any) -> str:
            found.append({path.name for path in session.store.folder.iterdir()})
            return "ok"

    series = {"kind": "series", "workload": SIZE.workload.id, "strategy": "all_in_gpu"}
    series |= {"variant": "default", "repeat": 0, "epoch": 0, "metric": "gpu_power", "unit": "W"}
    session.series.append({**series, "points": [(0.0, 100.0)]})
    monkeypatch.setattr(meters, "cases", list)
    monkeypatch.setattr(meters, "last_case", Case)
    meters.measure(session, SIZE, time.monotonic() + 3600)
    assert found[0] >= {"rows.csv", "plan.json", "timeline.parquet", "calibration.csv"}


def test_what_broke_the_context_is_left_out_in_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(meters.subprocess, "run", lambda command, **_: started.append(command))
    given = ["--out", str(tmp_path / "run"), "--table", "2", "--batch-rows", "7"]
    options = meters.parse([*given, "--without", "all_in_gpu default"])
    meters.again_without(options, "cpu_gather naive", 200.0)
    (command,) = started
    again, both = meters.parse(command[3:]), ["all_in_gpu default", "cpu_gather naive"]
    assert (again.out, again.budget) == (tmp_path / "run-without-2", 200)
    assert (again.table, again.batch_rows, again.without) == (2, 7, both)
    meters.again_without(options, "cpu_gather naive", meters.LEAST_S - 1)
    assert len(started) == 1
    assert "--without 'all_in_gpu default' 'cpu_gather naive'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (["aligned"], "--without 'aligned': one of 'cpu_gather naive', "),
        ([c.label for c in (*cases(), last_case())], "nothing is left to measure"),
    ],
)
def test_what_to_leave_out_is_checked_before_anything_is_measured(
    without: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        meters.parse(["--out", "x", "--without", *without])
    assert said in capsys.readouterr().err


def test_the_calibration_table_holds_every_source_size_and_direction(session: Session) -> None:
    found = Calibration(
        [
            Comparison("counters", "host_to_device", 1.04e9, 1e9),
            Comparison("counters", "device_to_host", 1.67e9, 1e9),
            Comparison("gpm", "host_to_device", None, 0.0, "unsupported: older than Hopper"),
        ],
        None,
        None,
    )
    for size in ("1 MiB", "16 MiB"):
        for row in rows_of_calibration(found, session.whole, f"copies of {size}"):
            session.emit(row)
    rows = pd.DataFrame([{"metric": r.metric, "source": r.source, "value": r.value,
                          "reason": r.reason} for r in session.store.rows()])  # fmt: skip
    table = calibration_table(rows)
    assert table["copied"].tolist() == ["copies of 1 MiB"] * 3 + ["copies of 16 MiB"] * 3
    first = table.to_dict("records")[:3]
    assert [r["source"] for r in first] == ["counters", "counters", "gpm"]
    assert [r["verdict"] for r in first] == [
        "trusted",
        "untrusted",
        "unsupported: older than Hopper",
    ]
    assert first[1]["ratio"] == pytest.approx(1.67)
    assert first[1]["direction"] == "device_to_host"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert meters.main(["--out", str(tmp_path / "out")]) == 2
    assert "sees no CUDA GPU" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_second_measurement_of_a_day_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    class StopHereError(Exception): ...

    def begin(folder: Path, *_: object) -> Session:
        opened.append(folder)
        (folder / "rows.csv").touch()
        raise StopHereError

    monkeypatch.setattr(meters, "no_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, 0))
    monkeypatch.setattr(meters, "describe_here", dict)
    monkeypatch.setattr(Session, "open", begin)
    for _ in range(2):
        with pytest.raises(StopHereError):
            meters.main(["--out", str(tmp_path / "today")])
    assert opened == [tmp_path / "today", tmp_path / "today-2"]


class FakeMonitor:
    """Stands for ``zeus.monitor.ZeusMonitor`` (its window calls and measurement)."""

    joules = 2100.0

    def __init__(self, gpu_indices: list[int]) -> None:
        self.indices = gpu_indices

    def begin_window(self, key: str) -> None:
        self.key = key

    def end_window(self, key: str) -> Any:
        assert key == self.key
        return types.SimpleNamespace(gpu_energy=dict.fromkeys(self.indices, FakeMonitor.joules))


def test_zeus_is_asked_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("zeus.monitor")
    module.ZeusMonitor = FakeMonitor
    monkeypatch.setitem(sys.modules, "zeus", types.ModuleType("zeus"))
    monkeypatch.setitem(sys.modules, "zeus.monitor", module)
    meter = ZeusMeter(1)
    meter.start()
    (reading,) = meter.stop()
    assert reading.value == 2100
    monkeypatch.setattr(FakeMonitor, "joules", 0.0)
    meter.start()
    assert meter.stop()[0].value is None


def test_without_zeus_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus", None)
    meter = ZeusMeter(0)
    meter.start()
    (reading,) = meter.stop()
    assert reading.value is None
    assert "pip install zeus" in str(reading.reason)
