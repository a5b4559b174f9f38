"""A run with a budget ends in time, loses nothing, and is completed by a later one."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gatherbench.bench.plan.case import Case
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run import deadline as deadline_module
from gatherbench.bench.run import runner as runner_module
from gatherbench.bench.run.deadline import Deadline, TimeUp
from gatherbench.bench.run.runner import Runner
from gatherbench.bench.run.store import RunStore

FAKE = (sys.executable, str(Path(__file__).parent / "fake_worker.py"))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path, "box", {"name": "mine", "cases": []}, {})


def runner(
    store: RunStore, variants: list[str], budget_s: float | None, timeout_s: float = 30
) -> Runner:
    cases = [Case(Workload("tiny"), "cpu_gather", v, {}, i) for i, v in enumerate(variants)]
    measure = Measure(repeats=1, timeout_s=timeout_s)
    return Runner(store, cases, measure, "cpu", "abc", "box", worker=FAKE, budget_s=budget_s)


def test_a_case_in_flight_is_cut_off_and_run_again_later(store: RunStore) -> None:
    first = runner(store, ["good", "hang", "last"], budget_s=8)
    assert first.run() == 0, "what was not measured has not failed"
    assert first.left == 2, "the hanging case was not waited for"
    assert {r.variant for r in store.rows()} == {"good"}
    assert store.parts.is_dir(), "the parts wait for the run that completes this one"

    none = runner(store, ["good", "hang", "last"], budget_s=0)
    none.run()
    assert none.left == 2, "what the first run measured is not left to do"

    later = runner(store, ["good", "hang", "last"], budget_s=None, timeout_s=2)
    assert later.run() >= 1, "the hanging case fails now that its own time is up"
    assert later.left == 0
    ran = Counter((store.folder / "executions").read_text().split())
    assert ran[later.cases[0].id] == 1, "the complete case was not run again"
    assert len(list(store.interrupted.iterdir())) == 1


def test_a_process_that_no_signal_ends_is_not_waited_for(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one is that hangs in a driver."""
    spared: list[subprocess.Popen[str]] = []
    kill = subprocess.Popen.kill

    def spare(process: subprocess.Popen[str]) -> None:
        spared.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", spare)
    monkeypatch.setattr(deadline_module, "LATE_S", 0.1)
    monkeypatch.setattr(runner_module, "_KILL_S", 0.1)
    run = runner(store, ["hang", "last"], budget_s=2)
    assert run.run() == 0
    assert run.left == 2
    assert store.rows() == [], "its own time was not up"
    for process in spared:
        kill(process)
        process.wait()


def test_time_that_suffices_changes_nothing(store: RunStore) -> None:
    run = runner(store, ["good", "raises"], budget_s=60)
    assert run.run() == 1
    assert run.left == 0
    assert not store.parts.exists()


def test_no_time_at_all_measures_nothing(store: RunStore) -> None:
    run = runner(store, ["good"], budget_s=0)
    assert run.run() == 0
    assert run.left == 1
    assert store.rows() == []


def test_without_a_budget_there_is_always_time() -> None:
    Deadline(None).check()
    with pytest.raises(TimeUp):
        Deadline(0).check()
