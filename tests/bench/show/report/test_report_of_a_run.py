"""What `gatherbench run` does about the report when its cases are done."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from gatherbench.bench.commands import finish as finishing
from gatherbench.bench.commands.execute import FAILED, OK, PreparedRun, execute
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.plan.plan import Measure, ResolvedPlan
from gatherbench.bench.run.store import RunStore

MakeRun = Callable[..., Path]


def finish(folder: Path, profile: LinkProfile | None = None) -> tuple[int, str, str]:
    """Execute a run whose cases have all been measured: status, and what it printed."""
    store = RunStore.open(folder)
    plan = store.plan()
    out, err = io.StringIO(), io.StringIO()
    cases = ResolvedPlan.model_validate(plan).expanded()
    prepared = PreparedRun(
        store, cases, Measure.model_validate(plan["measure"]), "cpu", "cpu-amd-epyc-2c", 2, profile
    )
    status = execute(prepared, Console(file=out, width=120), Console(file=err, width=120))
    return status, out.getvalue(), err.getvalue()


def test_a_run_ends_with_its_report_and_says_where(make_run: MakeRun) -> None:
    folder = make_run()
    status, out, err = finish(folder)
    assert (status, err.count("no report")) == (OK, 0)
    report = folder / "report.html"
    assert f"report    {report}" in out
    assert report.read_text().startswith("<!doctype html>")


def test_a_report_that_cannot_be_written_loses_nothing_else(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run()
    before = RunStore.open(folder).rows()

    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(finishing, "write_report", full)
    status, out, err = finish(folder)
    assert status == FAILED
    assert "No space left on device" in err
    assert f"gatherbench report {folder}" in err
    assert RunStore.open(folder).rows() == before
    assert "speedup.png" in out
    assert "report.html" not in out


def test_predictions_that_cannot_be_written_are_no_success(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunStore, "replace", full)
    folder = make_run()
    status, out, err = finish(folder, load_profile("rtx3090-pcie4"))
    assert status == FAILED
    assert "no predictions" in err
    assert f"gatherbench predict {folder}" in err
    assert "report.html" in out
