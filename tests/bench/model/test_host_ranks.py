"""Ranks on a host beside what one rank makes expect, worked out by hand; wrong formulas fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatherbench.bench.model.host_ranks import (
    COLUMNS,
    WORK,
    _stages_s,
    epoch_of_ranks,
    host_ranks,
)
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.model import FROM_ONE_RANK, model_tables

from ..printed import printed
from ..written_run import WORKLOAD, edit

MakeRun = Callable[..., Path]
Formula = Callable[..., tuple[float, str]]
STAGES = {"sample": 1.0, "fetch": 4.0, "train": 4.5, "other": 0.5}
ALIKE = dict.fromkeys(STAGES, 1.0)


def check_formula(model: Formula) -> None:
    """An epoch of 10 s on 8 cores."""
    # One core busy: two and four ranks have one each.
    assert model(STAGES, ALIKE, 10.0, 2, 8) == (5.0, "ranks")
    assert model(STAGES, ALIKE, 10.0, 4, 8) == (2.5, "ranks")
    # All cores busy: more ranks have no more of them.
    assert model(STAGES, ALIKE, 80.0, 4, 8) == (10.0, "cores")
    # Half of them: two ranks fill the machine, and four take as long.
    assert model(STAGES, ALIKE, 40.0, 2, 8) == (5.0, "ranks")
    assert model(STAGES, ALIKE, 40.0, 4, 8) == (5.0, "cores")
    # Smaller minibatches share fewer rows: half as much again is fetched, 2 s of work more.
    more = ALIKE | {"fetch": 1.5}
    assert model(STAGES, more, 10.0, 2, 8) == (6.0, "ranks")
    assert model(STAGES, more, 80.0, 2, 8) == (12.0, "cores")


def added(stages: Any, more: Any, core_s: float, ranks: int, cores: float) -> Any:
    return sum(stages.values()) / ranks + core_s / cores, "ranks"


WRONG = {
    "split": lambda stages, more, core_s, ranks, cores: (sum(stages.values()) / ranks, "ranks"),
    "cores": lambda stages, more, core_s, ranks, cores: (core_s / cores, "cores"),
    "same work": lambda stages, more, *rest: epoch_of_ranks(stages, ALIKE, *rest),
    "added": added,
}


def test_an_epoch_is_the_longer_of_two_bounds() -> None:
    check_formula(epoch_of_ranks)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_formula_is_rejected(wrong: Formula) -> None:
    with pytest.raises(AssertionError):
        check_formula(wrong)


def run_of_two(make_run: MakeRun, other_cores: float = 0.0, **changes: Any) -> Path:
    """Epochs of one rank, and of two that took twice as long; ``changes``: of the two's fields."""
    two = (WORKLOAD, "two")
    name = f"20261121-beside{other_cores:.0f}-abc123"
    folder = make_run(name, workloads=two, declared=True, other_cores=other_cores)
    plan = json.loads((folder / "plan.json").read_text())
    plan["workloads"]["two"] |= {"gpus": 2, "nodes": 1, "scaling": "strong"} | changes
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


def test_measured_ranks_stand_beside_what_one_rank_makes_expect(make_run: MakeRun) -> None:
    """0.2, 1 and 0.5 s and 0.01 between them; 2 · 1 + 0.5 + 0.1 core-seconds on two cores."""
    lines = host_ranks(load_run(run_of_two(make_run)))
    assert tuple(lines.columns) == COLUMNS
    assert set(lines["workload"]) == {"two"}
    line = lines.set_index("variant").loc["naive"]
    assert line["ranks"] == 2
    assert line["measured_s"] == pytest.approx(3.41)
    assert line["modelled_s"] == pytest.approx(2.6 / 2)
    assert line["error"] == pytest.approx(1.3 / 3.41 - 1)
    assert (line["bound"], line["basis"], line["reason"]) == ("cores", "predicted", "")


def test_work_is_scaled_by_what_is_declared(make_run: MakeRun) -> None:
    """Twice the edges, 1.5 times the rows, 1.25 times the operations, twice the minibatches."""
    folder = run_of_two(make_run)
    factors = {"edges": 2.0, "declared_payload": 1.5, "operations": 1.25, "minibatches": 2.0}
    assert {name.partition(".")[2] for name in WORK.values()} == set(factors)

    def more(row: dict[str, str]) -> None:
        if row["workload"] == "two" and row["basis"] == "declared":
            row["value"] = str(float(row["value"]) * factors.get(row["metric"], 1.0))

    edit(folder, more)
    line = host_ranks(load_run(folder)).set_index("variant").loc["naive"]
    work = 2 * 0.2 + 1.5 * 1.0 + 1.25 * 0.5 + 2 * 0.01
    assert line["modelled_s"] == pytest.approx(2.6 * work / 1.71 / 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"batch_size": 500}, "the plan has no workload of one rank that is otherwise alike"),
        ({"nodes": 2}, "several machines: whether they share their cores is not known"),
    ],
)
def test_what_cannot_be_expected_has_a_reason(
    make_run: MakeRun, changes: dict[str, int], reason: str
) -> None:
    folder = run_of_two(make_run, **changes)
    lines = host_ranks(load_run(folder))
    assert len(lines)
    assert set(lines["reason"]) == {reason}
    assert lines["modelled_s"].isna().all()
    assert reason in printed(*model_tables(load_run(folder)))


def test_a_series_that_one_rank_did_not_measure_has_a_reason(make_run: MakeRun) -> None:
    folder = run_of_two(make_run)
    edit(folder, keep=lambda row: (row["workload"], row["variant"]) != (WORKLOAD, "naive"))
    lines = host_ranks(load_run(folder)).set_index("variant")
    assert lines.loc["naive", "reason"] == "not measured with one rank"
    assert lines.loc["pinned", "reason"] == ""


def test_cores_are_those_that_the_plan_gives_a_case(make_run: MakeRun) -> None:
    folder = run_of_two(make_run)
    plan = json.loads((folder / "plan.json").read_text())
    plan["measure"]["threads"] = 1
    (folder / "plan.json").write_text(json.dumps(plan))
    line = host_ranks(load_run(folder)).set_index("variant").loc["naive"]
    assert line["modelled_s"] == pytest.approx(2.6)


def test_the_table_stands_with_the_models(make_run: MakeRun) -> None:
    run = load_run(run_of_two(make_run))
    said = printed(*model_tables(run))
    flat = " ".join(said.split())
    assert "GraphSAGE (2 ranks, strong scaling), and what one rank makes expect" in flat
    line = next(line for line in said.splitlines() if " naive " in line)
    assert line.split() == ["cpu_gather", "naive", "3.41", "1.30", "-62%", "cores"]
    assert FROM_ONE_RANK in flat
    assert "no roofline" in said
    assert "ranks" not in printed(*model_tables(load_run(make_run("20261122-alone-abc123"))))


def test_a_ratio_of_epochs_beside_other_work_is_marked(make_run: MakeRun) -> None:
    quiet, noisy = (load_run(run_of_two(make_run, cores)) for cores in (0.0, 1.5))
    assert not host_ranks(quiet)["disturbed"].any()
    assert host_ranks(noisy)["disturbed"].all()
    line = next(x for x in printed(*model_tables(noisy)).splitlines() if " naive " in x)
    assert line.split()[4] == "-62%!"


def test_the_stages_of_one_rank_add_up_to_its_median_epoch() -> None:
    """Medians of stages that take turns at being long do not: what is missing grows as the rest."""
    row = {"sample": 1.0, "fetch": 4.0, "train": 4.0, "other": 0.1, "median": 10.0}
    stages = {"sample": 1.0, "fetch": 4.0, "train": 4.0}
    assert _stages_s(row) == {**stages, "other": 1.0}
    assert _stages_s({**row, "median": 8.0}) == {**stages, "other": 0.0}
