"""Plans: what expands to what, and what a typo is answered with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gatherbench.bench.plan import Plan, PlanError, cases_from_json, resolved
from gatherbench.bench.plan_file import load_plan, plan_names

SMALL = """
[measure]
repeats = 3
[[workload]]
dataset = "wordnet"
model = ["sage", "gat"]
[[strategy]]
name = "cpu_gather"
mode = ["naive", "pinned"]
[[strategy]]
name = "all_in_gpu"
"""


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_lists_expand_to_every_combination(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, SMALL))
    cases = plan.cases()
    assert plan.name == "mine"
    assert len(plan.workloads()) == 2
    assert len(cases) == 3 * 2 * 3
    assert len({c.id for c in cases}) == len(cases)
    assert {(c.strategy, c.variant) for c in cases} == {
        ("cpu_gather", "naive"),
        ("cpu_gather", "pinned"),
        ("all_in_gpu", "default"),
    }


def test_repeats_are_outermost_and_the_order_of_strategies_varies(tmp_path: Path) -> None:
    cases = load_plan(write(tmp_path, SMALL.replace("repeats = 3", "repeats = 8"))).cases()
    assert [c.repeat for c in cases] == sorted(c.repeat for c in cases)
    blocks = [tuple(c.variant for c in cases[i : i + 3]) for i in range(0, len(cases), 3)]
    assert all(sorted(b) == sorted(blocks[0]) for b in blocks)
    assert len(set(blocks)) > 1, "every block runs the strategies in the same order"


def test_the_order_is_the_same_every_time(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    assert [c.id for c in load_plan(path).cases()] == [c.id for c in load_plan(path).cases()]


def test_plan_json_gives_the_same_cases(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, SMALL))
    text = json.loads(json.dumps(resolved(plan, plan.cases())))
    assert cases_from_json(text) == plan.cases()


@pytest.mark.parametrize("name", plan_names())
def test_every_shipped_plan_is_right(name: str) -> None:
    plan = load_plan(name)
    assert plan.description
    assert plan.cases()


def test_quick_covers_every_strategy_and_both_models() -> None:
    from gatherbench.strategies.registry import STRATEGIES

    cases = load_plan("quick").cases()
    covered = {(c.strategy, c.workload.model) for c in cases}
    missing = {(s.name, m) for s in STRATEGIES for m in ("sage", "gat")} - covered
    assert not missing, "each strategy has a [[strategy]] in bench/plans/quick.toml"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("repeats = 3", "repeat = 3", "measure.repeat: unknown key; did you mean 'repeats'?"),
        ("[measure]", "[mesure]", "mesure: unknown key; did you mean 'measure'?"),
        ("[[workload]]", "[workload]", "workload: there may be several: write [[workload]]"),
        ('dataset = "wordnet"', 'datset = "wordnet"', "did you mean 'dataset'?"),
        ('"sage", "gat"', '"sage", "gta"', "unknown model 'gta'; did you mean 'gat'?"),
        ("repeats = 3", "repeats = 0", "measure.repeats: Input should be greater than"),
        ("repeats = 3", 'repeats = "x"', "measure.repeats: Input should be a valid integer"),
        ("repeats = 3", "repeats = ", "not valid TOML"),
        ('[[workload]]\ndataset = "wordnet"', "", "workload: Field required"),
        ('dataset = "wordnet"', 'dataset = "wordnet"\nfanouts = [0]', "positive number"),
        ('dataset = "wordnet"', 'dataset = "wordnet"\nbatch_size = 0', "at least 1"),
        ('dataset = "wordnet"', 'dataset = "wordnet"\nscale = -1', "above 0"),
        ('dataset = "wordnet"', "dataset = []", "workload[0].dataset: an empty list"),
        ('dataset = "wordnet"', 'dataset = "wordnet"\nbatch_size = true', "no values here"),
        ('"naive", "pinned"', "", "strategy[0]: an empty list"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in SMALL
    with pytest.raises(PlanError) as caught:
        load_plan(write(tmp_path, SMALL.replace(before, after)))
    assert said in str(caught.value)
    assert "mine.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('name = "cpu_gather"', 'name = "cpu_gathr"', "cpu_gather"),
        ("mode =", "mod =", "mode"),
        ('"naive", "pinned"', '"naive", "pined"', "pinned"),
        ('"wordnet"', '"wordnett"', "wordnet"),
        ('dataset = "wordnet"', 'dataset = "wordnet"\nscale = 0.5', "one fixed graph"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    plan = load_plan(write(tmp_path, SMALL.replace(before, after)))
    with pytest.raises(PlanError, match=said):
        plan.cases()


def test_a_file_name_becomes_a_name_that_folders_can_bear(tmp_path: Path) -> None:
    path = tmp_path / "my plan (2).toml"
    path.write_text(SMALL)
    assert load_plan(str(path)).name == "my-plan-2-"


def test_an_unknown_plan_names_the_nearest() -> None:
    with pytest.raises(PlanError, match="did you mean 'quick'"):
        load_plan("quik")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such file"):
        load_plan(str(tmp_path / "none.toml"))


def test_a_name_cannot_leave_the_results_folder() -> None:
    fields = {"workload": [{"dataset": "wordnet"}], "strategy": [{"name": "all_in_gpu"}]}
    with pytest.raises(ValueError, match="name"):
        Plan.model_validate({"name": "../x", **fields})
