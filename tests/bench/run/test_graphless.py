"""Sensors beside copies of known size, and rows without a graph, run as any others."""

from __future__ import annotations

import io
from dataclasses import asdict, replace
from typing import cast

import pandas as pd
import pytest
from rich.console import Console

from gatherbench.bench.meters.trust import Comparison, SensorCheck
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run.declared_rows import UNCOUNTED
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.run.sensor_check import compared
from gatherbench.bench.sampling.prepare import prepare
from gatherbench.bench.show.run import render_all
from gatherbench.reason import Reason

from .fakes import measured


def test_the_run_prints_what_each_sensor_counted_of_each_copy(make_run):
    run = load_run(make_run())
    make = RowMaker("run", "abc", "box", "cuda")
    wrong = Comparison("counters", "host_to_device", 1.67e9, 1e9)
    silent = Comparison("gpm", "device_to_host", Reason("unsupported", "older than Hopper"), 0)
    rows = [
        *compared(SensorCheck([wrong, silent]), make, 256),
        *compared(SensorCheck([wrong]), make, 1, "_of_1_mib"),
    ]
    run = replace(run, whole=pd.DataFrame([asdict(row) for row in rows]))
    title = "Sensors of the link"
    console = Console(width=160, file=io.StringIO())
    console.print(render_all(run))
    measured = {**run.plan["measure"], "known_copies": [256, 1]}
    console.print(render_all(replace(run, plan={**run.plan, "measure": measured})))
    _, *said = cast("io.StringIO", console.file).getvalue().split(title)
    assert len(said) == 1, "only a run that was to find it out says so"
    (table,) = said
    for part in ("host to device", "1.670", "copies of 256 MiB", "copies of 1 MiB", "untrusted"):
        assert part in table
    assert "gpm: bytes counted for each byte copied" in table
    assert "older than Hopper" in table


def test_a_case_moves_its_rows_and_trains_on_them(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path))
    workload = Workload("uniform", 1e-4, "mlp", 8, (1,), 300, 4)
    dataset, trace = prepare(workload)
    case = Case(workload, "aligned_zero_copy", "default", {}, 0)
    plan = Measure(epochs=1, check_batches=3)
    run = RowMaker("run", "abc", "box", "host")
    job = Job(case, plan, "cpu", run, dataset, trace, tmp_path / "part.jsonl")
    rows = {(r.stage, r.metric): r for r in measured(job)}
    moved = 4 * 300 * 400  # minibatches × rows × bytes: there is no neighbour to fetch
    assert rows["fetch", "payload"].value == moved
    assert rows["fetch", "declared_payload"].value == moved
    assert rows["sample", "edges"].value == 0
    assert rows["check", "batches"].value == 3
    # 47 classes at random: a loss near ln 47 = 3.85 says that all of them were seen.
    assert rows["train", "loss"].value == pytest.approx(3.85, abs=0.3)
    assert rows["train", "operations"].reason == UNCOUNTED
