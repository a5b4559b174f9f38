"""The views of activations and of structure: each shown number by hand."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from gatherbench.bench.model.advise.memory import lists_placed
from gatherbench.bench.model.advise.question import Question, graph_of
from gatherbench.bench.plan.plan import Plan
from gatherbench.bench.show.views.structure import accuracy_by, mean_of


def test_a_score_holds_from_the_end_of_its_epoch():
    curve = pd.DataFrame({"time_s": [1.0, 2.0, 3.0], "accuracy": [0.2, 0.5, 0.4]})
    said = [accuracy_by(curve, at) for at in (0.5, 1.0, 2.9, 3.0, 9.0)]
    assert said == [0.0, 0.2, 0.5, 0.4, 0.4]


def test_the_mean_over_seeds_has_students_interval():
    """1, 2, 3, 4, 5: mean 3, deviation √2.5; t of four degrees of freedom is 2.776."""
    mean, low, high = mean_of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert [mean - low, high - mean] == pytest.approx([half, half])
    assert math.isnan(mean_of([0.5])[1])


def test_where_the_lists_belong():
    """1.6e9 edges of 4 B are 5.96 GiB, and 111e6 nodes of 16 B 1.65 GiB."""
    papers = Question(graph_of(111_059_956, 1_600_000_000, 128))
    assert "take 5.96 GiB: keep them on the GPU, or read them in place" in str(
        lists_placed(papers, 80 * 2**30)
    )
    assert "too much for 8 GiB" in str(lists_placed(papers, 8 * 2**30))
    assert lists_placed(papers, None) is None
    small = replace(papers, graph=graph_of(1000, 10_000, 128))
    assert lists_placed(small, 8 * 2**30) is None


PLAN = {
    "name": "p",
    "measure": {"repeats": 1, "epochs": 1, "warmup_epochs": 0},
    "workload": [{"dataset": "wordnet", "max_batches": 2, "batch_size": 100, "fanouts": [3, 3]}],
    "strategy": [{"name": "cpu_gather"}],
}


def test_structures_of_a_plan_expand_each_once():
    table = {"policy": ["fbl", "otf", "dependent"], "refresh": [0.1, 0.2], "keep": 0.5}
    measure = {**PLAN["measure"], "sampling": "snapshot"}
    plan = Plan.model_validate({**PLAN, "measure": measure, "structure": table})
    rest = "fetch=0.1 threshold=30 shared=False"
    assert [one.structure for one in plan.workloads()] == [
        "",
        f"otf alpha=2 refresh=0.1 {rest}",
        f"otf alpha=2 refresh=0.2 {rest}",
        "dependent keep=0.5",
    ]
    for wrong in ({"structure": table}, {"measure": {**measure, "sampler_workers": 2}}):
        with pytest.raises(ValueError, match=r"structure|in order"):
            Plan.model_validate({**PLAN, **wrong})
