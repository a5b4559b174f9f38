"""Rows without a graph, run as any others."""

from __future__ import annotations

import pytest

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.counting import UNCOUNTED
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.sampling.prepare import prepare

from .fakes import measured


def test_a_case_moves_its_rows_and_trains_on_them(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path))
    workload = Workload("uniform", 1e-4, "mlp", 8, (1,), 300, 4)
    dataset, trace = prepare(workload)
    case = Case(workload, "aligned_zero_copy", "default", {}, 0)
    plan = Measure(epochs=1)
    run = RowMaker("run", "abc", "box", "host")
    job = Job(case, plan, "cpu", run, dataset, trace, tmp_path / "part.jsonl")
    rows = {(r.stage, r.metric): r for r in measured(job)}
    moved = 4 * 300 * 400  # minibatches × rows × bytes: there is no neighbour to fetch
    assert rows["fetch", "payload"].value == moved
    assert rows["fetch", "declared_payload"].value == moved
    assert rows["sample", "edges"].value == 0
    assert rows["check", "batches"].value == 2
    # 47 classes at random: a loss near ln 47 = 3.85 says that all of them were seen.
    assert rows["train", "loss"].value == pytest.approx(3.85, abs=0.3)
    assert rows["train", "operations"].reason == UNCOUNTED
