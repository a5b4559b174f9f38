"""The plan of ``make gpu-meters``: random rows without a graph, run as any other plan."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gatherbench.bench.plan.case import Case
from gatherbench.bench.plan.plan_file import load_plan
from gatherbench.bench.plan.workload import GRAPHLESS, Workload
from gatherbench.bench.run.declared_rows import UNCOUNTED
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.measure import measure
from gatherbench.bench.run.store import PartWriter, read_part, rows_of
from gatherbench.bench.sampling.prepare import prepare
from gatherbench.strategies.registry import default_variants


def test_it_has_every_strategy_the_papers_baseline_and_managed_memory() -> None:
    plan = load_plan("gpu-meters")
    variants = {(case.strategy, case.variant) for case in plan.cases()}
    assert variants == {
        *((strategy.name, strategy.variant) for strategy in default_variants()),
        ("cpu_gather", "naive"),
        ("unified_zero_copy", "managed"),
    }
    (workload,) = plan.workloads()
    assert workload.model == GRAPHLESS
    assert plan.measure.sampling == "replay"
    assert plan.measure.known_copies == [256, 1, 16, 1024]


@pytest.mark.parametrize("strategy", ["cpu_gather", "aligned_zero_copy"])
def test_a_case_moves_its_rows_and_trains_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path))
    workload = Workload("uniform", 1e-4, "mlp", 8, (1,), 300, 4)
    dataset, trace = prepare(workload)
    case = Case(workload, strategy, "default", {}, 0)
    measured = {**load_plan("gpu-meters").measure.model_dump(), "epochs": 1}
    part = tmp_path / "part.jsonl"
    job = Job(case, measured, "cpu", "run", "abc", "box", dataset, trace, part)
    with closing(PartWriter(part)) as out:
        assert measure(job, out) is None
    rows = {(r.stage, r.metric): r for r in rows_of(read_part(part))}
    moved = 4 * 300 * 400  # minibatches × rows × bytes: there is no neighbour to fetch
    assert rows["fetch", "payload"].value == moved
    assert rows["fetch", "declared_payload"].value == moved
    assert rows["sample", "edges"].value == 0
    assert rows["check", "batches"].value == 3
    # 47 classes at random: a loss near ln 47 = 3.85 says that all of them were seen.
    assert rows["train", "loss"].value == pytest.approx(3.85, abs=0.3)
    assert rows["train", "operations"].reason == UNCOUNTED
