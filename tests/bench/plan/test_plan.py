"""Plans: what expands to what, and what a typo is answered with."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gatherbench.bench.commands import execute as execute_module
from gatherbench.bench.commands.execute import BadRunError, execute, new_run, reopen
from gatherbench.bench.machine.env import describe_machine
from gatherbench.bench.plan.plan import Plan, PlanError, ResolvedPlan
from gatherbench.bench.plan.plan_file import load_plan, plan_names
from gatherbench.bench.plan.workload import Workload, workload_name
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run.models import build_model

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


RANKS = """
[[workload]]
dataset = "wordnet"
gpus = [1, 2]
nodes = [1, 2]
[[strategy]]
name = "all_in_gpu"
"""


def test_ranks_expand_and_stand_in_the_id(tmp_path: Path) -> None:
    workloads = load_plan(write(tmp_path, RANKS)).workloads()
    assert [(w.nodes, w.gpus, w.world) for w in workloads] == [
        (1, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 4)
    ]  # fmt: skip
    for name in ("id", "trace_id"):
        names = [getattr(w, name).rsplit("-b1000", 1)[1] for w in workloads]
        assert [n[: n.rindex("-")] for n in names] == ["", "-1x2s", "-2x1s", "-2x2s"]
        assert len({n[n.rindex("-") :] for n in names}) == 4
    assert {w.step_seeds for w in workloads} == {1000}


def test_weak_scaling_is_another_workload_but_for_one_rank(tmp_path: Path) -> None:
    strong = load_plan(write(tmp_path, RANKS)).workloads()
    text = RANKS.replace("nodes", 'scaling = "weak"\nnodes')
    weak = load_plan(write(tmp_path, text)).workloads()
    assert [a.id == b.id for a, b in zip(strong, weak, strict=True)] == [True, *[False] * 3]
    assert [a == b for a, b in zip(strong, weak, strict=True)] == [True, *[False] * 3]
    assert "-b1000-2x2w-" in weak[3].id
    assert [w.step_seeds for w in weak] == [1000, 2000, 2000, 4000]


def test_ids_of_one_rank_are_those_of_before_there_were_several() -> None:
    """Runs of then and now are compared by them, and traces are kept by theirs."""
    few = {"fanouts": (25, 10), "max_batches": 12}
    for model, known in (("sage", "8b339ac0"), ("gat", "d6f6b61d")):  # of results/example/plan.json
        assert Workload("wordnet", model=model, **few).id == f"wordnet-{model}16x2-b1000-{known}"
    assert Workload("wordnet", **few).trace_id == "wordnet-f25x10-b1000-2bda5e99"


def test_a_workload_of_several_ranks_in_words() -> None:
    def words(**fields: Any) -> str:
        return workload_name(asdict(Workload("wordnet", **fields)))

    assert words() == "wordnet GraphSAGE"
    assert words(gpus=2) == "wordnet GraphSAGE (2 ranks, strong scaling)"
    both = "2 ranks on each of 3 machines, weak scaling"
    assert words(gpus=2, nodes=3, scaling="weak") == f"wordnet GraphSAGE ({both})"
    assert "1 rank on each of 2 machines" in words(nodes=2)


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
    text = ResolvedPlan.of(plan, plan.cases()).model_dump_json()
    assert ResolvedPlan.model_validate_json(text).expanded() == plan.cases()


@pytest.mark.parametrize("name", plan_names())
def test_every_shipped_plan_is_right(name: str) -> None:
    plan = load_plan(name)
    assert plan.description
    assert plan.cases()


def test_quick_covers_every_strategy_and_both_models() -> None:
    from gatherbench.strategies.registry import STRATEGIES

    cases = load_plan("quick").cases()
    covered = {(c.strategy, c.workload.model) for c in cases}
    alone = [s for s in STRATEGIES if not s().collective and "file" not in s().needs]
    assert covered == {(s.name, m) for s in alone for m in ("sage", "gat")}
    variants = {(c.strategy, c.variant) for c in cases}
    assert len([v for name, v in variants if name == "cpu_gather"]) == 2, "as the plan names them"
    assert len(variants) == len(alone) + 1, "the others with their default parameters"


def test_every_other_path_between_ranks_is_measured_where_there_are_several(tmp_path: Path) -> None:
    text = SMALL.replace('"sage", "gat"]', '"sage"]\ngpus = [1, 2]')

    def ranks_of_sharded(name: str) -> list[int]:
        cases = load_plan(write(tmp_path, text.replace("all_in_gpu", name))).cases()
        return [c.workload.world for c in cases if (c.strategy, c.repeat) == ("sharded", 0)]

    assert ranks_of_sharded("*") == [2]
    assert ranks_of_sharded("sharded") == [1, 2]


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
        ('"sage", "gat"', '"gcn"', "unknown model 'gcn' (known: sage, gat, mlp, my_module:MyGNN)"),
        *(
            ('dataset = "wordnet"', f'dataset = "wordnet"\nfanouts = {fan}', "whole numbers above")
            for fan in ("[0]", "[1.5]", "1.5", "[true]", "[]", "[[]]", "[[25], [1.5]]", '["25"]')
        ),
        ('dataset = "wordnet"', 'dataset = "wordnet"\nbatch_size = 0', "at least 1"),
        ('dataset = "wordnet"', 'dataset = "wordnet"\nscale = -1', "above 0"),
        ('dataset = "wordnet"', "dataset = []", "workload[0].dataset: an empty list"),
        ('dataset = "wordnet"', 'dataset = "wordnet"\nbatch_size = true', "no values here"),
        ('"naive", "pinned"', "", "strategy[0]: an empty list"),
        *(
            ('dataset = "wordnet"', f'dataset = "wordnet"\n{key} = {value}', f"[0].{key}{said}")
            for key in ("gpus", "nodes")
            for value, said in (
                ("0", ": must be at least 1"),
                ("[2, -1]", ": must be at least 1"),
                ("true", ": true and false are no values here"),
                ("[]", ": an empty list leaves nothing to measure"),
                ("1.5", ".int: Input should be a valid integer"),
                ('"two"', ".int: Input should be a valid integer"),
            )
        ),
        ('dataset = "wordnet"', 'dataset = "wordnet"\nscaling = "both"', "'strong' or 'weak'"),
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


OWN_MODEL = """
from torch import nn

class Seeds(nn.Module):
    def __init__(self, in_channels, hidden, out_channels, num_layers):
        super().__init__()
        widths = [in_channels, *[hidden] * (num_layers - 1), out_channels]
        self.layers = nn.Sequential(*(nn.Linear(a, b) for a, b in zip(widths, widths[1:])))

    def forward(self, x, batch):
        return self.layers(x[: batch.num_nodes[0]])

class TooFew(nn.Module):
    def __init__(self, width):
        super().__init__()

def linear(in_channels, hidden, out_channels, num_layers):
    return nn.Linear(in_channels, out_channels)
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of one's own in it."""
    (tmp_path / "models_for_a_test.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.delitem(sys.modules, "models_for_a_test", raising=False)
    return tmp_path


def with_model(folder: Path, name: str) -> str:
    return write(folder, SMALL.replace('"sage", "gat"', f'"{name}"'))


def test_a_model_of_ones_own_is_found_in_the_current_folder(own_models: Path) -> None:
    cases = load_plan(with_model(own_models, "models_for_a_test:Seeds")).cases()
    (workload,) = {case.workload for case in cases}
    assert workload.id.startswith("wordnet-Seeds16x2-b1000-"), "files are named by it"
    weights = build_model(workload, 7, 5).state_dict().values()
    assert [tuple(w.shape) for w in weights] == [(16, 7), (16,), (5, 16), (5,)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:Seeds", "No module named 'no_such_module'"),
        ("models_for_a_test:Sedes", "has no attribute 'Sedes'"),
        ("models_for_a_test:TooFew", "too many positional arguments"),
        ("models_for_a_test:linear", "no class of torch.nn.Module"),
        (":Seeds", "Empty module name"),
    ],
)
def test_a_model_that_is_not_there_is_named_before_anything_runs(
    own_models: Path, name: str, said: str
) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        load_plan(with_model(own_models, name)).cases()
    assert repr(name) in str(caught.value)


def test_a_run_trains_a_model_of_ones_own_and_predicts_nothing_of_it(
    own_models: Path, plan: Path, undrawn: None
) -> None:
    own = 'dataset = "tiny"\nmodel = ["sage", "models_for_a_test:Seeds"]'
    plan.write_text(plan.read_text().replace('dataset = "tiny"', own))
    run = new_run(str(plan), own_models / "results", "cpu", profile="a100-pcie4")
    said = io.StringIO()
    assert execute(run, Console(file=said), Console(file=said)) == 0, said.getvalue()
    folder = run.store.folder
    rows = load_run(folder).rows
    own_rows = rows[rows["model"] == "models_for_a_test:Seeds"]
    assert (own_rows[own_rows["metric"] == "loss"]["value"] > 0).any()
    for model, predicted in (("sage", True), ("models_for_a_test:Seeds", False)):
        found = rows[(rows["model"] == model) & (rows["basis"] == "predicted")]
        epochs = found[(found["stage"] == "epoch") & (found["metric"] == "wall_time")]
        assert epochs["value"].notna().all() == predicted
        assert epochs["reason"].str.contains("or a model of one's own").any() != predicted


def test_more_threads_than_cores_are_refused(
    tmp_path: Path, shell_run: tuple[object, Path]
) -> None:
    cores = len(os.sched_getaffinity(0))
    most = SMALL.replace("repeats = 3", f"repeats = 3\nthreads = {cores}")
    assert new_run(write(tmp_path, most), tmp_path, "cpu").measure.threads == cores
    said = f"measure.threads: {cores + 1}, and this process may use {cores} cores"
    more = most.replace(f"threads = {cores}", f"threads = {cores + 1}")
    with pytest.raises(BadRunError, match=said):
        new_run(write(tmp_path, more), tmp_path / "none", "cpu")
    assert not (tmp_path / "none").exists(), "nothing has been begun"
    earlier = shutil.copytree(shell_run[1], tmp_path / "run")
    text = json.loads((earlier / "plan.json").read_text())
    text["measure"]["threads"] = cores + 1
    (earlier / "plan.json").write_text(json.dumps(text))
    with pytest.raises(BadRunError, match=said):
        reopen(earlier)


@pytest.mark.parametrize("of", ["cores", "threads", "ranks"])
def test_more_sampler_workers_than_cores_are_refused(
    tmp_path: Path, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight cores: 8 workers; of 3 threads 3; for each of 3 ranks 2."""
    machine = describe_machine()
    machine["cpu"]["usable_cores"] = 8
    monkeypatch.setattr(execute_module, "describe_machine", lambda: machine)
    most = {"cores": 8, "threads": 3, "ranks": 2}[of]
    plan = SMALL.replace("repeats = 3", f"repeats = 3\nsampler_workers = {most}")
    if of == "threads":
        plan = plan.replace("repeats = 3", "repeats = 3\nthreads = 3")
    if of == "ranks":
        plan = plan.replace('"wordnet"', '"wordnet"\ngpus = [1, 3]')
    run = new_run(write(tmp_path, plan), tmp_path, "cpu")
    assert run.measure.sampler_workers == most
    folder, more = run.store.folder, most + 1
    said = {
        "cores": "sampler_workers: 9, and a case may use 8 cores: at most 8",
        "threads": "sampler_workers: 4, and a case may use 3 cores: at most 3",
        "ranks": "sampler_workers: 3 for each of 3 ranks, and a case may use 8 cores: at most 2",
    }[of]
    plan = plan.replace(f"sampler_workers = {most}", f"sampler_workers = {more}")
    with pytest.raises(BadRunError, match=said):
        new_run(write(tmp_path, plan), tmp_path / "none", "cpu")
    assert not (tmp_path / "none").exists(), "nothing has been begun"
    text = json.loads((folder / "plan.json").read_text())
    text["measure"]["sampler_workers"] = more
    (folder / "plan.json").write_text(json.dumps(text))
    with pytest.raises(BadRunError, match=said):
        reopen(folder)


def test_a_gpu_that_samples_needs_no_workers(tmp_path: Path) -> None:
    for how, refused in (("live", False), ("replay", False), ("gpu", True)):
        text = SMALL.replace("repeats = 3", f'sampling = "{how}"\nsampler_workers = 1')
        if refused:
            with pytest.raises(PlanError, match=r'leave sampler_workers out, or .* = "live"'):
                load_plan(write(tmp_path, text))
        else:
            assert load_plan(write(tmp_path, text)).measure.sampler_workers == 1
    with pytest.raises(PlanError, match="sampler_workers"):
        load_plan(write(tmp_path, SMALL.replace("repeats = 3", "sampler_workers = -1")))


def test_a_path_that_learns_while_it_fetches_wants_fresh_minibatches(tmp_path: Path) -> None:
    strategy = '[[strategy]]\nname = "cached_zero_copy"\npolicy = "lru"\n'
    learns = f'[[workload]]\ndataset = "wordnet"\n{strategy}'
    with pytest.raises(PlanError, match=r'lru.* learns .* say minibatches = "fresh"'):
        load_plan(write(tmp_path, learns)).cases()
    fresh = f'[measure]\nminibatches = "fresh"\n{learns}'
    assert load_plan(write(tmp_path, fresh)).cases()
    with pytest.raises(PlanError, match=r"fresh.* are drawn"):
        load_plan(write(tmp_path, fresh.replace("[measure]", '[measure]\nsampling = "replay"')))


def test_minibatches_too_small_to_be_split_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL.replace('"wordnet"', '"wordnet"\nbatch_size = 1\ngpus = 2'))
    with pytest.raises(PlanError, match="batch_size = 1 leaves no seed node for some of 2 ranks"):
        load_plan(str(path)).cases()
    path.write_text(path.read_text().replace("gpus = 2", 'gpus = 2\nscaling = "weak"'))
    assert load_plan(str(path)).cases()  # a seed for each
