"""Relational models beside untyped ones: times and ratios by hand, and what is said of them."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gatherbench.bench.show.figures.draw import draw
from gatherbench.bench.show.views.relations import RELATIONS, trained

from ..printed import charts_of
from .conftest import RunOf
from .pictures import stands_free

#: Seconds of sampling, fetching and training, of each model.
TIMES = {"sage": (0.2, 0.1, 0.2), "rgcn": (0.2, 0.1, 1.8), "rgcn-compact": (0.2, 0.1, 0.6)}
IDS = {model: f"wordnet-{model}16x2-b1000-{number:08x}" for number, model in enumerate(TIMES)}
RIGHT = {"sage": 0.12, "rgcn": 0.36, "rgcn-compact": 0.36}
PEAK = {"rgcn": 160e6, "rgcn-compact": 40e6}


def more(case: tuple[str, str, str], _repeat: int, epoch: int) -> Iterator[Mapping[str, Any]]:
    model = next(model for model, ident in IDS.items() if ident == case[0])
    if epoch >= 0:
        return
    yield {"stage": "eval", "metric": "test_accuracy", "unit": "1", "value": RIGHT[model]}
    if model in PEAK:
        yield {"stage": "train", "metric": "peak", "unit": "B", "value": PEAK[model]}
        counts = {"pairs": 90, "edges": 100}
        for metric, value in counts.items():
            what = {"basis": "declared", "stage": "sample", "metric": metric, "unit": "1"}
            yield (
                {**what, "value": value, "repeat": 0} if _repeat == 0 else {**what, "value": value}
            )


@pytest.fixture
def run(run_of: RunOf) -> Any:
    times = {IDS[model]: of for model, of in TIMES.items()}
    return run_of(
        series=[("aligned_zero_copy", "given", times)],
        workloads={ident: {"model": model} for model, ident in IDS.items()},
        longer=lambda _workload, repeat, _epoch: (1.0, 1.1, 1.21)[repeat],
        more=more,
    )


def test_ratios_are_those_of_layers_of_the_same_values(run):
    sage, theirs, ours = trained(run)
    assert [one.model for one in (sage, theirs, ours)] == ["sage", "rgcn", "rgcn-compact"]
    assert {one.graph for one in (sage, theirs, ours)} == {"wordnet"}
    assert ours.train.value == pytest.approx(0.6 * 1.1)
    assert ours.faster is not None
    assert ours.faster.value == pytest.approx(3)
    # Welch: logarithms 0, x, 2x on each side, x = log 1.1: variance x² · 2/3, four degrees.
    reach = 2.776445 * math.log(1.1) * math.sqrt(2 / 3)
    assert ours.faster.low == pytest.approx(3 * math.exp(-reach), rel=1e-5)
    assert sage.faster is theirs.faster is None
    assert (theirs.peak, ours.peak, sage.peak) == (160e6, 40e6, None)
    assert ours.distinct == 0.9
    assert (sage.distinct, sage.accuracy) == (None, 0.12)


def test_the_view_has_a_line_a_model(run):
    assert RELATIONS.applies(run)
    (table,) = RELATIONS.frame(run)
    assert len(table.lines) == 3


def test_the_picture_has_a_bar_a_model(run):
    chart = charts_of(run)["relations"]
    (panel,) = chart.panels
    assert [(line.name, line.detail) for line in panel.lines] == [
        ("GraphSAGE", ""),
        ("R-GCN", "peak 160 MB"),
        ("R-GCN compact", "peak 40.0 MB"),
    ]
    assert panel.lines[2].parts == {"aligned_zero_copy": pytest.approx(0.66)}
    stands_free(draw(chart))


def test_a_run_without_relational_models_has_no_such_view(run_of):
    assert not RELATIONS.applies(run_of())
