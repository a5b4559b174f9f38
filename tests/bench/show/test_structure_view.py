"""The views of activations and of structure: each shown number by hand."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import copytree
from typing import Any

import pandas as pd
import pytest

from gatherbench.bench.plan.plan import Plan
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.figures.draw import draw
from gatherbench.bench.show.views.structure import STRUCTURE, accuracy_by, mean_of, snapshots

from ..printed import charts_of
from ..written_run import write_run
from .pictures import stands_free

REFERENCE = Path(__file__).parents[3] / "results" / "reference"
OTF = "otf alpha=2 refresh=0.1 fetch=0.1 threshold=30 shared=True"
#: Seconds of an epoch by way of sampling and seed.
EPOCHS = {"": (1.0, 2.0), OTF: (0.8, 1.8)}
#: By workload: way of sampling, seed, and seconds of sampling, fetching and training.
SAMPLED = {
    f"wordnet-sage16x2-b1000-{number:08x}": (way, seed, EPOCHS[way][seed] - 0.01)
    for number, (way, seed) in enumerate((way, seed) for way in EPOCHS for seed in (0, 1))
}


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
    assert mean_of([1.0, math.nan, 3.0]) == mean_of([1.0, 3.0])
    assert math.isnan(mean_of([])[0])


def seen(case: tuple[str, str, str], _repeat: int, epoch: int) -> Iterator[Mapping[str, Any]]:
    plain = SAMPLED[case[0]][0] == ""
    if epoch < 0:
        counts = {"distinct_neighbours": ("1", 900 if plain else 300)}
        counts["structure_cache"] = ("B", 0 if plain else 4096)
        for metric, (unit, value) in counts.items():
            what = {"basis": "declared", "stage": "sample", "metric": metric}
            yield {**what, "unit": unit, "value": value}
        return
    right = 0.1 * (epoch + 1) - (0.0 if plain else 0.02)
    yield {"stage": "eval", "metric": "test_accuracy", "unit": "1", "value": right}


def test_ways_of_sampling_beside_plain_sampling_and_what_was_claimed(tmp_path):
    """Epochs of 0.8 and 1.8 s over 1 and 2 s are 0.8 and 0.9: a mean of 0.85."""
    folder = write_run(
        tmp_path / "results" / "machine" / "20261124-structure-abc1",
        series=[("cpu_gather", "naive", {w: (0.0, 0.0, of[2]) for w, of in SAMPLED.items()})],
        workloads={w: {"structure": of[0], "seed": of[1]} for w, of in SAMPLED.items()},
        repeats=1,
        epochs=2,
        longer=lambda *_: 1.0,
        more=seen,
    )
    copytree(REFERENCE, tmp_path / "results" / "reference")
    run = load_run(folder)
    plain, cached = snapshots(run).to_dict("records")
    assert (plain["structure"], plain["seeds"], cached["seeds"]) == ("fbl", 2, 2)
    assert math.isnan(plain["over"])
    half = 12.7062 * 0.05 * math.sqrt(2) / math.sqrt(2)  # t of one degree; deviation 0.05 √2
    ends = [cached[f"over{end}"] for end in ("", "_low", "_high")]
    assert ends == pytest.approx([0.85, 0.85 - half, 0.85 + half], rel=1e-4)
    # All had 1.6 s: plain sampling ended one epoch with the first seed and none with the second.
    assert cached["by"] == pytest.approx(1.6)
    assert plain["then"] == pytest.approx((0.1 + 0.0) / 2)
    assert cached["then"] == pytest.approx((0.18 + 0.0) / 2)
    assert (plain["distinct"], cached["distinct"], cached["cache"]) == (900, 300, 4096)
    charts = charts_of(run)
    mine, *published = charts["structure_times"].panels
    assert [line.parts["over"] for line in mine.lines] == pytest.approx([0.85])
    assert [panel.title for panel in published] == [
        f"published: fanouts {wide},{wide},{wide}" for wide in (20, 10, 5)
    ]
    claimed = {line.name: line.parts["over"] for line in published[0].lines}
    assert claimed == pytest.approx({"fcr": 0.929, "otf": 0.889, "otf shared": 0.865})
    assert {line.look for panel in published for line in panel.lines} == {"published"}
    for name in ("structure_times", "structure_accuracy"):
        stands_free(draw(charts[name]))
    assert [table.ident for table in STRUCTURE.frame(run)] == ["snapshots"]
    drawn = charts["structure_accuracy"].panels[0].lines
    assert [line.spread for line in drawn] == ["0 to 68.5", "0 to 100"]
    assert [line.ends[0] for line in drawn if line.ends] == [0, 0], "below nothing there is none"


def test_one_seed_has_no_interval_and_no_whisker(tmp_path):
    """A single seed is drawn as it is: 0.8 s over 1 s, and no whisker up to all or to infinity."""
    one = {name: of for name, of in SAMPLED.items() if of[1] == 0}
    folder = write_run(
        tmp_path / "20261124-structure-abc1",
        series=[("cpu_gather", "naive", {w: (0.0, 0.0, of[2]) for w, of in one.items()})],
        workloads={w: {"structure": of[0], "seed": of[1]} for w, of in one.items()},
        repeats=1,
        epochs=2,
        longer=lambda *_: 1.0,
        more=seen,
    )
    charts = charts_of(load_run(folder))
    (line,) = charts["structure_times"].panels[0].lines
    assert line.parts["over"] == pytest.approx(0.8)
    assert line.ends is None
    lines = charts["structure_accuracy"].panels[0].lines
    assert [one.ends for one in lines] == [None, None]


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
