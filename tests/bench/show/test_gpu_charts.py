"""Energy and power of runs that this file makes up: no GPU has ever said these."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gatherbench.bench.read.derive import gpu_energy
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.show.drawing import draw
from gatherbench.bench.show.views.resources import gpu_energy_per_epoch

from ..printed import lines_of, stands_free
from ..written_run import WORKLOAD, edit, seen
from .gpu_rows import add_rows

MakeRun = Callable[..., Path]
SERIES = (
    ("cpu_gather", "naive", (0.2, 1.0, 0.5)),
    ("aligned_zero_copy", "registered,given", (0.2, 0.35, 0.5)),
    ("async_zero_copy", "stream", (0.2, 0.05, 0.55)),
)
IDLE_W = 70.0
#: Joules of a block of 10 epochs and its seconds, by strategy.
BLOCKS = {"cpu_gather": (3400.0, 17.0), "aligned_zero_copy": (2100.0, 10.5)}


@pytest.fixture
def folder(make_run: MakeRun) -> Path:
    """A run on a made-up GPU: two series with energy, one without, and an idle power."""
    made = make_run(series=SERIES, backend="cuda", machine="nvidia-h200", repeats=2)
    nobody = {"workload": "", "dataset": "", "strategy": "", "variant": ""}
    add_rows(made, seen("calibration", "W", {"idle_power": IDLE_W}), **nobody)
    lost = {"status": "failed", "reason": "failed: the GPU is lost; reset it"}
    for (strategy, variant, _), repeat in itertools.product(SERIES, (0, 1)):
        at = {"strategy": strategy, "variant": variant, "repeat": repeat}
        if strategy not in BLOCKS:
            add_rows(made, seen("energy", "J", {"gpu_energy": ""}), **at, **lost)
            continue
        joules, seconds = BLOCKS[strategy]
        rows = seen("energy", "J", {"gpu_energy": joules * (1 + 0.1 * repeat)})
        rows += seen("energy", "s", {"window_time": seconds}) + seen("energy", "1", {"epochs": 10})
        add_rows(made, rows, **at)
    return made


@pytest.fixture
def run(folder: Path) -> Run:
    return load_run(folder)


def by_strategy(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return {r["strategy"]: r for r in table.to_dict("records")}


def test_rows_of_the_whole_run_are_no_cases(run):
    assert set(run.epochs["workload"]) == set(run.cases["workload"]) == {WORKLOAD}
    assert len(run.calibration) == 1
    assert run.idle_power_w == IDLE_W


def test_energy_an_epoch_splits_at_the_idle_power(run):
    found = by_strategy(gpu_energy(run))
    assert set(found) == set(BLOCKS)
    baseline = found["cpu_gather"]
    assert baseline["median"] == pytest.approx(340 * 1.05)  # of two repeats
    assert baseline["idle"] == pytest.approx(IDLE_W * 1.7)
    assert baseline["idle"] + baseline["above idle"] == pytest.approx(baseline["median"])
    assert baseline["not split"] == 0


def test_power_is_energy_over_the_window(run):
    watts = run.medians["gpu_watts"].groupby("strategy").first()
    assert watts["aligned_zero_copy"] == pytest.approx(200 * 1.05)
    read = run.ended["gpu_watts"].groupby("strategy").count().to_dict()
    assert read == {"aligned_zero_copy": 2, "async_zero_copy": 0, "cpu_gather": 2}


def test_energy_of_repeats_that_do_not_count_stays_out(folder):
    """Those beside other work, where there are quiet ones."""
    run = load_run(folder)
    quiet = replace(run, cases=run.cases.assign(used=run.cases["repeat"] != 1))
    both, one = (by_strategy(gpu_energy(of))["cpu_gather"] for of in (run, quiet))
    assert (both["count"], one["count"], one["median"]) == (2, 1, 340)


def test_without_an_idle_power_nothing_is_split(run):
    bare = replace(run, calibration=run.calibration.query("metric != 'idle_power'"))
    found = by_strategy(gpu_energy(bare))["cpu_gather"]
    assert (found["idle"], found["above idle"]) == (0, 0)
    assert found["not split"] == found["median"]
    assert "Idle power, with a process on the GPU: unknown" in gpu_energy_per_epoch(bare).reading


def test_bars_are_as_long_as_the_energy_and_the_missing_is_named(run):
    chart = gpu_energy_per_epoch(run)
    naive, aligned, lost = lines_of(chart)
    idle = IDLE_W * 1.7
    assert (naive["idle"], naive["above idle"]) == pytest.approx((idle, 357 - idle))
    assert (naive["text"], aligned["text"]) == ("357 J", "220 J")
    assert lost["reason"] == "failed: the GPU is lost; reset it"
    assert "Idle power, with a process on the GPU: 70 W" in chart.reading
    assert list(chart.legend) == ["idle", "above idle"]


def test_a_repeat_without_energy_has_a_reason_of_its_own(make_run):
    """That the other repeats have not been run is none for the one that has."""
    folder = make_run(series=SERIES[:1], backend="cuda", repeats=2)
    edit(folder, keep=lambda row: row["repeat"] == "0")
    (line,) = lines_of(gpu_energy_per_epoch(load_run(folder)))
    assert line["reason"] == "no_device: none here"


def test_a_run_in_which_nothing_was_read_says_so_in_place(run_of):
    chart = gpu_energy_per_epoch(run_of(series=SERIES, backend="cuda"))
    assert {line["reason"] for line in lines_of(chart)} == {"no_device: none here"}


def test_no_text_leaves_the_paper(run):
    stands_free(draw(gpu_energy_per_epoch(run)))
