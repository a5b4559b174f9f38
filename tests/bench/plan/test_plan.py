"""Plans: what expands to what, and what a typo is answered with."""

import json
import math
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gatherbench.bench.commands import execute as execute_module
from gatherbench.bench.commands.execute import new_run, reopen
from gatherbench.bench.machine.env import describe_machine
from gatherbench.bench.plan.plan import Plan, PlanError, ResolvedPlan, load_plan, plan_names
from gatherbench.bench.plan.workload import Workload, workload_name
from gatherbench.bench.run.counting import UNCOUNTED
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.models import build_model
from gatherbench.datasets.store import open_dataset
from gatherbench.outside import InputError
from gatherbench.strategies.declared import declared

from ..run.fakes import measured
from ..written_run import change

TO_HOST = "gatherbench.bench.neighbours.ssdtrain:ToHost"
BUFFERED = "gatherbench.bench.neighbours.mariusgnn:Buffered"
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


def test_lists_expand_to_every_combination(tmp_path):
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
gpus = [1, 2, 4]
scaling = ["strong", "weak"]
[[strategy]]
name = "all_in_gpu"
"""


def test_both_scalings_are_workloads_of_their_own_but_of_one_rank(tmp_path):
    found = load_plan(write(tmp_path, RANKS)).workloads()
    assert [(w.gpus, w.scaling, w.step_seeds) for w in found] == [
        (1, "strong", 1000), (2, "strong", 1000), (2, "weak", 2000),
        (4, "strong", 1000), (4, "weak", 4000),
    ]  # fmt: skip
    names, digests = zip(*(w.id.rsplit("-b1000", 1)[1].rsplit("-", 1) for w in found), strict=True)
    assert names == ("", "-x2s", "-x2w", "-x4s", "-x4w")
    assert len(set(digests)) == 5
    one = RANKS.replace("[1, 2, 4]", "2\nbatch_size = 1").replace('["strong", "weak"]', '"weak"')
    load_plan(write(tmp_path, one)).check()  # a seed for each rank; strong scaling is refused


def test_ids_of_one_rank_are_those_of_before_there_were_several():
    """Runs of then and now are compared by them."""
    few = {"fanouts": (25, 10), "max_batches": 12}
    for model, known in (("sage", "8b339ac0"), ("gat", "d6f6b61d")):  # of results/example/plan.json
        assert Workload("wordnet", model=model, **few).id == f"wordnet-{model}16x2-b1000-{known}"


def test_a_workload_of_several_ranks_or_another_seed_in_words():
    def words(**fields: Any) -> str:
        return workload_name(asdict(Workload("wordnet", **fields)))

    assert words() == "wordnet GraphSAGE"
    assert words(seed=3) == "wordnet GraphSAGE (seed 3)"
    assert words(gpus=2) == "wordnet GraphSAGE (2 ranks, strong scaling)"
    assert words(gpus=4, scaling="weak") == "wordnet GraphSAGE (4 ranks, weak scaling)"


def test_repeats_are_outermost_and_the_order_of_strategies_varies(tmp_path):
    path = write(tmp_path, SMALL.replace("repeats = 3", "repeats = 8"))
    plan = load_plan(path)
    cases = plan.cases()
    assert [c.repeat for c in cases] == sorted(c.repeat for c in cases)
    assert all(a.variant == b.variant for a, b in zip(cases[::2], cases[1::2], strict=True))
    assert [c.workload for c in cases[:2]] == plan.workloads(), "a strategy on all, then the next"
    blocks = [tuple(c.variant for c in cases[i : i + 6 : 2]) for i in range(0, len(cases), 6)]
    assert all(sorted(b) == sorted(blocks[0]) for b in blocks)
    assert len(set(blocks[1:])) > 1, "every block runs the strategies in the same order"
    assert len({b[0] for b in blocks}) > 1, "the baseline is the first in the first block alone"
    assert load_plan(path).cases() == cases, "the order is the same every time"
    text = ResolvedPlan.of(plan, cases).model_dump_json()
    assert ResolvedPlan.model_validate_json(text).expanded() == cases
    with pytest.raises(ValueError, match=r"measure\n *Field required"):
        ResolvedPlan.model_validate({k: v for k, v in json.loads(text).items() if k != "measure"})


@pytest.mark.parametrize("name", plan_names())
def test_every_shipped_plan_is_right(name):
    plan = load_plan(name)
    assert plan.description
    assert plan.cases()
    if name == "several":  # one that is cut short has the baseline on every number of ranks
        first = [(c.workload.dataset, c.workload.gpus, c.variant) for c in plan.cases()[:4]]
        assert first == [(d, g, "naive") for d in ("wordnet", "products-like") for g in (1, 2)]


def test_quick_covers_every_strategy_and_both_models():
    from gatherbench.strategies.registry import STRATEGIES

    cases = load_plan("quick").cases()
    covered = {(c.strategy, c.workload.model) for c in cases}
    alone = [s for s in STRATEGIES if "file" not in s().needs]
    assert covered == {(s.name, m) for s in alone for m in ("sage", "gat")}
    variants = {(c.strategy, c.variant) for c in cases}
    assert len([v for name, v in variants if name == "cpu_gather"]) == 2, "as the plan names them"
    assert len(variants) == len(alone) + 1, "the others with their default parameters"


def test_a_plan_whose_datasets_can_lie_nowhere_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_DATA", "/dev/null/data")
    with pytest.raises(PlanError, match=r"cannot be written to \(Not a d.* set GATHERBENCH_DATA"):
        new_run(write(tmp_path, SMALL), tmp_path / "none", "cpu")
    assert not (tmp_path / "none").exists(), "nothing has been begun"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("[measure]", "[mesure]", "mesure: unknown key; did you mean 'measure'?"),
        ("[[workload]]", "[workload]", "workload: this is a list of tables: write [[workload]]"),
        ('dataset = "wordnet"', 'datset = "wordnet"', "did you mean 'dataset'?"),
        ('dataset = "wordnet"', "dataset = 1", "dataset: Input should be a valid string, not 1"),
        ('dataset = "wordnet"', "dataset = []", "[0].dataset: List should have at least"),
        ('"sage", "gat"', '"sage", "gta"', "unknown model 'gta'; did you mean 'gat'?"),
        ('"sage", "gat"', '"saga"', "unknown model 'saga'; did you mean 'sage'?"),
        ('"sage", "gat"', '"x"', "unknown model 'x' (known: sage, gat, mlp, my_module:MyGNN)"),
        ('[[workload]]\ndataset = "wordnet"', "", "workload: Field required"),
        ('"naive", "pinned"', "", "strategy[0]: a parameter cannot be an empty list"),
        *(
            ("repeats = 3", line, said)
            for line, said in (
                ("hidden = 3", "'hidden' is a key of [[workload]]: write it there"),
                ("repeat = 3", "measure.repeat: unknown key; did you mean 'repeats'?"),
                ("repeats = ", "not valid TOML"),
                ("repeats = 10_001", ":\n  measure.repeats: Input should be less than or equal to"),
                (f"repeats = [3, {10**20}]", ":\n  measure.repeats[1]: Input should be less than"),
                ("repeats = true", ":\n  measure.repeats: Input should be a valid integer, not Tr"),
                ("repeats = [3, 1]", "the smaller number comes first"),
                ("repeats = [3]", "measure.repeats: List should have at least 2 items"),
                ("energy = 1", "measure.energy: Input should be a valid boolean, not 1"),
                ("budget_s = inf", "measure.budget_s: Input should be a finite number"),
                ("sampler_workers = -1", "measure.sampler_workers"),
                ("together = true\nepochs = 1", "measure: together needs epochs = 2 or more"),
                ("eval_every_epoch = true", "set eval_batches"),
                (
                    "together = true\neval_batches = 1\neval_every_epoch = true",
                    "eval_every_epoch scores the model after each epoch of one path: set",
                ),
            )
        ),
        *(
            ('dataset = "wordnet"', f'dataset = "wordnet"\n{line}', said)
            for line, said in (
                ("peak = true", "'peak' is a key of [measure]:"),
                ("scale = 0", "greater than 0"),
                ("scale = [0.5, inf]", "[0].scale[1]: Input should be a finite number"),
                ('scale = "0.1"', "[0].scale: Input should be a valid number, not '0.1'"),
                ("batch_size = 2147483648", "[0].batch_size: Input should be less than or equal"),
                ("gpus = [2, -1]", "[0].gpus[1]: Input should be greater than or equal to 1"),
                ('scaling = "both"', "'strong' or 'weak'"),
                ("fanouts = {a = 1}", "[0].fanouts: Input should be a valid list, not {'a': 1}"),
                ("scale = {a = 1}", "[0].scale: Input should be a valid number, not {'a': 1}"),
                *(
                    (f"fanouts = {fanouts}", "[0].fanouts")
                    for fanouts in ("[0]", "[1.5]", "1.5", "[]", "[[]]", "[[25], [1.5]]", '["25"]')
                ),
                (f'sampler = "{BUFFERED} order=bta"', "no order is called 'bta'"),
                (f'sampler = ["", "{BUFFERED} held=17"]', "a buffer of 17 of 16 partitions"),
                (f'sampler = "{BUFFERED} held=1"', "a buffer of 1 is too small"),
                (f'sampler = "{BUFFERED} hold=4"', "no parameter 'hold'; did you mean 'held'?"),
                (f'sampler = "{BUFFERED} held=four"', "held = 'four': Input should be a valid int"),
                (f'sampler = "{BUFFERED}s"', "has no attribute 'Buffereds'"),
                (f'around_step = "{BUFFERED}"', "is not a subclass of AroundStep"),
            )
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, before, after, said):
    assert before in SMALL
    with pytest.raises(PlanError) as caught:
        load_plan(write(tmp_path, SMALL.replace(before, after)))
    assert said in str(caught.value)
    assert "mine.toml" in str(caught.value)


CAPTURED = '[measure]\nstep = ["issued", "captured"]'
REFUSED = [
    ('"cpu_gather"', '"cpu_gathr"', "no strategy is called 'cpu_gathr'; did you mean 'cpu_gather'"),
    (
        '"all_in_gpu"',
        '"x"',
        "strategy[1]: no strategy is called 'x'; `gatherbench list strategies`",
    ),
    ("mode =", "mod =", "no parameter 'mod'; its parameters are mode; did you mean 'mode'"),
    ('"naive", ', '"naiv", ', "strategy[0]: cpu_gather: mode = 'naiv' is not one of pinned"),
    ('"all_in_gpu"', '"all_in_gpu"\nmode = "x"', "all_in_gpu has no parameter 'mode'; it has none"),
    ('"wordnet"', '"wordnett"', "did you mean 'wordnet'"),
    ('"wordnet"', '"wordnet"\nscale = 0.5', "one fixed graph"),
    ('"wordnet"', '"wordnet"\nbatch_size = 1\ngpus = 2', "batch_size = 1 leaves no seed node for"),
    ("[measure]", CAPTURED, 'works for model = "sage" on one GPU'),
    ("[[workload]]", f"{CAPTURED}\n[[workload]]\ngpus = 2", "on one GPU, without around_step"),
    ("[[workload]]", f'{CAPTURED}\n[[workload]]\naround_step = "{TO_HOST}"', "without around_step"),
]


@pytest.mark.parametrize(("before", "after", "said"), REFUSED)
def test_what_cannot_run_is_refused_before_anything_does(tmp_path, before, after, said):
    text = SMALL.replace(before, after)
    if after.startswith(f"{CAPTURED}\n"):
        text = text.replace("[measure]\nrepeats = 3\n", "").replace('["sage", "gat"]', '"sage"')
    plan = load_plan(write(tmp_path, text))
    with pytest.raises(PlanError, match=f"^plan mine: .*{re.escape(said)}"):
        plan.cases()


def test_a_plan_is_a_file_with_a_name_that_folders_can_bear(tmp_path):
    path = tmp_path / "my plan (2).toml"
    path.write_text(SMALL)
    assert load_plan(str(path)).name == "my-plan-2-"
    with pytest.raises(PlanError, match="did you mean 'quick'"):
        load_plan("quik")
    with pytest.raises(PlanError, match="no such file"):
        load_plan(str(tmp_path / "none.toml"))
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


def test_the_example_of_a_model_trains_and_is_counted(own_models, make_job):
    """33 columns, 16 hidden, 3 classes: a step's operations by hand, from the epoch's counts."""
    text = (Path(__file__).parents[3] / "examples" / "own_model.py").read_text()
    (own_models / "models_for_a_test.py").write_text(text)
    job = make_job(model="models_for_a_test:SumGNN", epochs=3)
    rows = {(r.stage, r.metric, r.epoch): r for r in measured(job)}
    assert all((rows["train", "loss", epoch].value or 9) < math.log(3) for epoch in range(3))
    batches = Epochs(job, open_dataset(job.dataset)).first
    seeds, inner, _ = map(sum, zip(*(batch.num_nodes for batch in batches), strict=True))
    near, far = (sum(batch.edges[layer].shape[1] for batch in batches) for layer in (0, 1))
    first, last = 2 * inner * 33 * 16, 2 * seeds * 16 * 3
    operations = rows["train", "operations", 0]
    assert operations.value == 2 * first + far * 33 + 3 * last + near * 16
    assert operations.source == "models_for_a_test:SumGNN.cost"
    assert rows["train", "launches", 0].value == 5 * 60
    assert rows["train", "structure", 0].value == 16 * (near + far)


def test_a_model_of_ones_own_is_found_in_the_current_folder(own_models):
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
        ("models_for_a_test:linear", "is not a subclass of Module"),
        (":Seeds", "Empty module name"),
    ],
)
def test_a_model_that_is_not_there_is_named_before_anything_runs(own_models, name, said):
    with pytest.raises(PlanError, match=said) as caught:
        load_plan(with_model(own_models, name)).cases()
    assert repr(name) in str(caught.value)


def test_a_model_of_ones_own_is_trained_and_nothing_of_it_is_predicted(own_models, make_job):
    job = make_job(model="models_for_a_test:Seeds")
    rows = {(row.stage, row.metric): row for row in measured(job)}
    assert (rows["train", "loss"].value or 0) > 0
    assert rows["train", "operations"].reason == UNCOUNTED


@pytest.mark.parametrize(
    ("key", "most", "also", "gpus", "said"),
    [
        ("sampler_workers", 8, "", "1", "9, but a case may use only 8 cores: at most 8"),
        ("sampler_workers", 3, "threads = 3", "1", "4, but .* only 3 cores: at most 3"),
        ("sampler_workers", 2, "", "[1, 3]", "3 for each of 3 ranks, .* 8 cores: at most 2"),
        ("threads", 8, "", "1", "9, but this process may use only 8 cores"),
    ],
)
def test_more_threads_or_workers_than_cores_are_refused(
    tmp_path, monkeypatch, key, most, also, gpus, said
):
    """Of eight cores."""
    machine = describe_machine()
    machine["cpu"]["usable_cores"] = 8
    monkeypatch.setattr(execute_module, "describe_machine", lambda: machine)
    plan = SMALL.replace('"wordnet"', f'"wordnet"\ngpus = {gpus}')
    plan = plan.replace("repeats = 3", f"repeats = 3\n{key} = {most}\n{also}")
    run = new_run(write(tmp_path, plan), tmp_path, "cpu")
    assert getattr(run.measure, key) == most
    said = f"{key}: {said}"
    more = write(tmp_path, plan.replace(f"{key} = {most}", f"{key} = {most + 1}"))
    with pytest.raises(InputError, match=said):
        new_run(more, tmp_path / "none", "cpu")
    assert not (tmp_path / "none").exists(), "nothing has been begun"
    change(run.store.folder / "plan.json", lambda of: of["measure"].update({key: most + 1}))
    with pytest.raises(InputError, match=said):
        reopen(run.store.folder)


def test_a_run_of_a_plan_with_words_that_are_gone_is_not_resumed(tmp_path):
    run = new_run(write(tmp_path, SMALL), tmp_path, "cpu")
    change(run.store.folder / "plan.json", lambda of: of["measure"].update(minibatches="same"))
    with pytest.raises(InputError, match=r"minibatches: .*older gatherbench.*measure again"):
        reopen(run.store.folder)


def test_a_sampler_is_another_workload_and_draws_on_the_cpu_alone(tmp_path):
    own = SMALL.replace('"sage", "gat"', '"sage"').replace('"all_in_gpu"', '"*"')
    own = own.replace('"wordnet"', f'"wordnet"\nsampler = ["", "{BUFFERED}"]')
    plan = load_plan(write(tmp_path, own))
    plain, some = plan.workloads()
    assert (plain.sampler, some.sampler) == ("", BUFFERED)
    assert plain.id != some.id
    assert "-Buffered-" in some.id
    assert workload_name(asdict(some)) == "wordnet GraphSAGE (sampler: Buffered)"
    assert not [c for c in plan.cases() if c.strategy == "partition_buffer"], "by its name alone"
    on_gpu = load_plan(write(tmp_path, own.replace("[measure]", '[measure]\nsampling = "gpu"')))
    with pytest.raises(PlanError, match='draws on the CPU: set sampling = "live"'):
        on_gpu.cases()
    in_order = own.replace(BUFFERED, "gatherbench.bench.neighbours.graphsnapshot:OTF")
    two = load_plan(
        write(tmp_path, in_order.replace("[measure]", "[measure]\nsampler_workers = 2"))
    )
    with pytest.raises(PlanError, match="draws in order: set sampler_workers to 0 or 1"):
        two.cases()


def test_a_captured_step_is_another_workload_on_the_same_minibatches(tmp_path):
    text = SMALL.replace("[measure]", CAPTURED).replace('["sage", "gat"]', '"sage"')
    issued, captured = load_plan(write(tmp_path, text)).workloads()
    assert issued == Workload("wordnet")
    assert captured == Workload("wordnet", step="captured")
    assert "-captured-" in captured.id
    assert issued.id.rpartition("-")[2] != captured.id.rpartition("-")[2]
    assert workload_name(asdict(issued)) == "wordnet GraphSAGE"
    assert workload_name(asdict(captured)) == "wordnet GraphSAGE (captured step)"


def test_no_wrong_plan_loads_torch_to_be_refused(tmp_path):
    folder = tmp_path / "plans"
    folder.mkdir()
    for number, (before, after, _) in enumerate(REFUSED[:8]):
        (folder / f"{number}.toml").write_text(SMALL.replace(before, after))
    code = f"""
import pathlib, sys
from typer.testing import CliRunner
from gatherbench.bench.cli import app
for path in pathlib.Path({str(folder)!r}).iterdir():
    refused = CliRunner().invoke(app, ["run", str(path)])
    if refused.exit_code == 2 and str(refused.output).startswith("error: plan "):
        path.unlink()
print({{"torch", "numba"}} & set(sys.modules))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
    assert not list(folder.iterdir()), "each was refused"


def test_declared_strategies_are_those_of_the_registry():
    from gatherbench.strategies.registry import CHOICES, STRATEGIES, parameters

    found = {strategy.name: parameters(strategy) for strategy in (*STRATEGIES, *CHOICES)}
    assert declared() == found
