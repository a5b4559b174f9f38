"""A run on a GPU calibrates its sensors once, tells every case, and survives when it cannot."""

from __future__ import annotations

import os
import signal

import pytest
from tests.bench.observations import rows_of_run

from gatherbench.bench.commands.execute import new_run
from gatherbench.bench.plan.workload import Case
from gatherbench.bench.run.part import LISTS
from gatherbench.bench.run.store import RunStore
from gatherbench.outside import InputError

from .fakes import cases, runner

CASES = cases("one", "two")


def run(store: RunStore, wanted: list[Case] = CASES, device: str = "cuda") -> int:
    return runner(store, wanted, device=device).run()


def executions(store: RunStore) -> list[str]:
    return (store.folder / "executions").read_text().split()


def test_every_case_is_told_what_the_calibration_trusts_and_a_resumed_run_keeps_it(
    store, monkeypatch
):
    monkeypatch.setenv("TEST_TRUSTED_SOURCE", "counters")
    run(store, CASES[:1])
    monkeypatch.delenv("TEST_TRUSTED_SOURCE")
    assert run(store) == 0
    assert executions(store) == ["calibration", *(case.id for case in CASES)]
    rows = rows_of_run(store)
    assert [r.source for r in rows if r.metric == "sensors"] == ["counters", "counters"]
    own = [r for r in rows if r.stage == "calibration"]
    assert [r.metric for r in own] == ["pcie_host_to_device_ratio", "wall_time"]
    assert {(r.workload, r.strategy, r.backend) for r in own} == {("", "", "cuda")}
    timeline = store.lists("timeline")
    assert list(timeline.columns) == list(LISTS["timeline"])
    assert timeline["value"].tolist() == [0.0, 5e6] * 2
    assert timeline["time_s"].tolist() == [0.0, 0.02] * 2
    assert set(timeline["variant"]) == {"one", "two"}
    before = (store.folder / "timeline.parquet").read_bytes()
    run(store)  # nothing is missing: nothing is gathered anew
    assert (store.folder / "timeline.parquet").read_bytes() == before
    store.sensors_file.write_text("{}{")
    run(store, cases("one", "two", "three"))
    last = [r.source for r in rows_of_run(store) if r.metric == "sensors"][-1]
    assert "left no choice" in last


def test_another_run_of_the_machine_may_have_calibrated(store, tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_TRUSTED_SOURCE", "counters")
    run(store, CASES[:1])
    plan = {"name": "p", "measure": {}, "workloads": {}, "cases": []}
    other = RunStore.create(tmp_path / "other", "box", plan, {"gpu_in_use": "a"})
    other.take_sensors(store)
    assert run(other) == 0
    assert executions(other) == [case.id for case in CASES]
    rows = rows_of_run(other)
    assert {r.run_id for r in rows} == {other.run_id}
    assert [r.source for r in rows if r.metric == "sensors"] == ["counters", "counters"]
    told = [r.metric for r in rows if r.stage == "calibration"]
    assert told == ["pcie_host_to_device_ratio", "wall_time"]
    none = RunStore.create(tmp_path / "none", "box", plan, {})
    with pytest.raises(InputError, match="has not checked this GPU's sensors"):
        new_run("quick", tmp_path, "cpu", sensors=none.folder)


def test_a_calibration_that_dies_costs_the_counters_and_no_case(store):
    assert run(store) == 0
    rows = rows_of_run(store)
    (last,) = [r for r in rows if (r.stage, r.metric) == ("calibration", "wall_time")]
    assert last.status == "failed"
    assert "SIGSEGV" in str(last.reason)
    # What it had found before stands.
    assert [r.value for r in rows if r.metric == "pcie_host_to_device_ratio"] == [1.04]
    assert all("left no choice" in r.source for r in rows if r.metric == "sensors")


def test_ctrl_c_during_the_calibration_leaves_a_run_that_resumes(store, monkeypatch, once):
    monkeypatch.setenv("TEST_TRUSTED_SOURCE", "hang")
    # Started in the background, pytest may have inherited a SIGINT that is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = once(store.parts, lambda: os.kill(os.getpid(), signal.SIGINT), names="check")
    with pytest.raises(KeyboardInterrupt), interrupt:
        run(store)
    assert rows_of_run(store) == []
    assert not store.sensors_file.exists()
    monkeypatch.setenv("TEST_TRUSTED_SOURCE", "gpm")
    assert run(store) == 0
    assert executions(store).count("calibration") == 2
    ratios = [r for r in rows_of_run(store) if r.metric == "pcie_host_to_device_ratio"]
    assert len(ratios) == 1, "what the calibration that was cut off had said is not said twice"
    assert [r.source for r in rows_of_run(store) if r.metric == "sensors"] == ["gpm", "gpm"]


def test_a_run_without_a_gpu_has_none(store):
    assert run(store, device="cpu") == 0
    assert "calibration" not in executions(store)
    assert not store.sensors_file.exists()
    assert not (store.folder / "timeline.parquet").exists()
    assert store.lists("timeline").empty
