"""What this machine's GPU has measured takes the model's place, and nothing else does."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gatherbench.bench.model.advise.answer import measured_epochs
from gatherbench.bench.model.advise.option import MEASURED, MODELLED
from gatherbench.bench.model.advise.question import Question, graph_of, graph_sizes
from gatherbench.bench.model.advise.rank import advise
from gatherbench.bench.model.errors import error_of
from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.show.advice import recommendation

MACHINE = "cpu-amd-epyc-2c"  # the folder that make_run writes to
GRAPH = graph_of(
    117_659, 367_578, 300, classes=45, train_nodes=70_622, name="wordnet", laws=("rmat",)
)
QUESTION = Question(GRAPH)


def results_of(run: Path) -> Path:
    return run.parents[1]


def test_a_measured_epoch_takes_the_models_place(make_run):
    run = make_run(backend="cuda")
    found = measured_epochs(QUESTION, results_of(run), MACHINE)
    assert set(found) == {
        ("cpu_gather", "naive"), ("cpu_gather", "pinned"), ("unified_zero_copy", "registered")
    }  # fmt: skip
    assert found["cpu_gather", "naive"][0] == pytest.approx(1.71)
    sizes = graph_sizes(QUESTION)
    advice = advise(QUESTION, sizes, load_profile("rtx3090-pcie4"), found)
    by_name = {(o.strategy, o.variant): o for o in advice.ranked}
    seen = by_name["cpu_gather", "pinned"]
    assert (seen.basis, seen.longest_s) == (MEASURED, pytest.approx(1.31))
    assert seen.source == "20261121-quick-abc123, median of 12 epochs, sampling live"
    assert by_name["cpu_gather", "prefetch"].basis == MODELLED
    assert by_name["cpu_gather", "prefetch"].error == error_of("cpu_gather", 1, issue_known=False)
    assert seen.error is None, "it is no model's"
    times = [(o.rank, o.longest_s) for o in advice.ranked]
    assert times == sorted(times)
    assert "modelled epochs draw minibatches on the processor; measured ones say how" in (
        advice.remarks
    )


@pytest.mark.parametrize(
    ("ranks", "gpus", "machines", "counts"),
    [
        # As many seeds a rank, split of a step's or of its own.
        ({"gpus": 2, "nodes": 1, "scaling": "strong", "batch_size": 2000}, 2, 1, True),
        ({"gpus": 2, "nodes": 1, "scaling": "weak", "batch_size": 1000}, 2, 1, True),
        ({"gpus": 2, "nodes": 1, "scaling": "strong", "batch_size": 1000}, 2, 1, False),
        ({"gpus": 2, "nodes": 1, "scaling": "weak", "batch_size": 1000}, 1, 2, False),
        ({"gpus": 2, "nodes": 1, "scaling": "weak", "batch_size": 1000}, 1, 1, False),
        ({}, 1, 1, True),
        ({}, 2, 1, False),
    ],
)
def test_epochs_of_several_gpus_take_the_place_of_as_many(make_run, ranks, gpus, machines, counts):
    run = make_run(backend="cuda", workloads={"w": ranks})
    asked = replace(QUESTION, gpus=gpus, machines=machines)
    assert bool(measured_epochs(asked, results_of(run), MACHINE)) is counts


def test_what_was_measured_beside_other_work_says_so(make_run):
    make_run("20261120-busy-000000", backend="cuda", other_cores=1.5)
    run = make_run(backend="cuda", other_cores=1.5, beside=("cpu_gather", "pinned", 0))
    found = measured_epochs(QUESTION, results_of(run), MACHINE)
    said = [key for key, (_, source) in found.items() if source.endswith(", beside other work")]
    assert said == [("cpu_gather", "pinned")]
    assert found[said[0]][1].startswith("20261121-quick-abc123"), "the newest"


def test_an_older_quiet_run_is_taken_before_a_disturbed_one(make_run):
    make_run("20261121-quiet-aaaaaa", backend="cuda")
    run = make_run("20261122-busy-bbbbbb", backend="cuda", other_cores=1.5)
    found = measured_epochs(QUESTION, results_of(run), MACHINE)
    assert {source.split(",")[0] for _, source in found.values()} == {"20261121-quiet-aaaaaa"}
    make_run("20261123-quiet-cccccc", backend="cuda")
    found = measured_epochs(QUESTION, results_of(run), MACHINE)
    assert {source.split(",")[0] for _, source in found.values()} == {"20261123-quiet-cccccc"}


def test_where_the_gpu_draws_only_epochs_count_whose_minibatches_it_drew(make_run):
    folder = make_run(backend="cuda")
    asked = replace(QUESTION, gpu_samples=True)
    assert measured_epochs(asked, results_of(folder), MACHINE) == {}
    plan = json.loads((folder / "plan.json").read_text())
    plan["measure"]["sampling"] = "gpu"
    (folder / "plan.json").write_text(json.dumps(plan))
    found = measured_epochs(asked, results_of(folder), MACHINE)
    assert {source.rpartition(", ")[2] for _, source in found.values()} == {"sampling gpu"}
    advice = advise(asked, graph_sizes(asked), load_profile("nvidia-h200"), found)
    said = "modelled epochs draw minibatches on the GPU; measured ones say how"
    assert said in advice.remarks
    plan["measure"]["sampling"] = "replay"
    (folder / "plan.json").write_text(json.dumps(plan))
    assert measured_epochs(asked, results_of(folder), MACHINE) == {}
    found = measured_epochs(QUESTION, results_of(folder), MACHINE)
    assert {source.rpartition(", ")[2] for _, source in found.values()} == {"sampling replay"}


def test_a_prediction_is_not_set_against_a_measurement(make_run):
    sizes = graph_sizes(QUESTION)
    small = replace(QUESTION, gpu_memory_bytes=1.35e8)  # not the table
    found = measured_epochs(QUESTION, results_of(make_run(backend="cuda")), MACHINE)
    said = recommendation(advise(small, sizes, load_profile("rtx3090-pcie4"), found))
    assert said[0].endswith(", modelled.")
    assert said[1] == (
        "The usual way, cpu_gather pinned, takes 1.31 s (measured): a modelled epoch and a measured"
        " one give no ratio."
    )
    quick = {key: (value / 100, where) for key, (value, where) in found.items()}
    said = recommendation(advise(small, sizes, load_profile("rtx3090-pcie4"), quick))
    assert said[0].endswith(", measured.")
    assert "times as fast as the usual way, cpu_gather pinned (13.1 ms)" in said[1]
    assert said[2].startswith("How sure: measured here, 20261121-quick-abc123")


def test_what_was_measured_does_not_make_a_smaller_gpu_larger(make_run):
    run = make_run(backend="cuda", series=[("all_in_gpu", "default", (0.1, 0.1, 0.1))])
    found = measured_epochs(QUESTION, results_of(run), MACHINE)
    sizes = graph_sizes(QUESTION)
    little = load_profile("rtx3090-pcie4").with_constant("gpu.memory", 1.35e8, "made up")
    assert advise(QUESTION, sizes, little, found).table_fits is True
    asked = replace(QUESTION, gpu_memory_bytes=1.35e8)
    advice = advise(asked, sizes, little, found)
    assert advice.table_fits is False
    assert "all_in_gpu" in [o.strategy for o in advice.unranked]


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 500}, {"hidden": 32}, {"model": "gat"}, {"fanouts": (10, 25)}, {"gpus": 2}],
)
def test_another_question_is_not_answered_by_it(make_run, change):
    run = make_run(backend="cuda")
    assert not measured_epochs(replace(QUESTION, **change), results_of(run), MACHINE)


def test_another_machine_and_a_broken_run_say_nothing(make_run, tmp_path):
    run = make_run(backend="cuda")
    assert not measured_epochs(QUESTION, results_of(run), "nvidia-h200")
    in_host_memory = make_run("20260101-host-aaaaaa", backend="host")
    assert run.parent == in_host_memory.parent
    (run / "rows.csv").rename(run / "other.csv")
    assert not measured_epochs(QUESTION, results_of(run), MACHINE)
    (run / "other.csv").rename(run / "rows.csv")
    assert not measured_epochs(QUESTION, tmp_path / "absent", MACHINE)
    (run / "plan.json").write_text("{")
    assert not measured_epochs(QUESTION, results_of(run), MACHINE)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"sampling": "gpu"}, "gpu"),
        ({"sampler_workers": 1}, "live, 1 worker"),
        ({"sampling": "replay", "sampler_workers": 2}, "replay, 2 workers"),
    ],
)
def test_epochs_that_sampled_in_another_way_are_not_ranked_beside(make_run, how, said):
    """With minibatches drawn on the GPU an epoch is shorter whatever moves the features."""
    make_run("20261101-quick-aaaaaa", backend="cuda", series=[("all_in_gpu", "default", (9, 9, 9))])
    run = make_run(
        "20261102-quick-bbbbbb", backend="cuda", series=[("cpu_gather", "naive", (1, 1, 1))]
    )
    plan = json.loads((run / "plan.json").read_text())
    plan["measure"] |= how
    (run / "plan.json").write_text(json.dumps(plan))
    found = measured_epochs(QUESTION, results_of(run), MACHINE)
    assert set(found) == {("cpu_gather", "naive")}
    assert found["cpu_gather", "naive"][1].endswith(f"sampling {said}")
