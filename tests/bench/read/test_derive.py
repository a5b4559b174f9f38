"""Derived numbers: against values worked out by hand, and against what they must never do."""

import math
import statistics
from functools import partial
from typing import Any

import pandas as pd
import pytest

from gatherbench.bench.read import tables
from gatherbench.bench.read.derive import (
    baseline,
    gpu_energy,
    problems,
    repeat_logs,
    speedup_over,
    stage_breakdown,
)
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run.rows import Key
from gatherbench.stats.interval import interval_of
from gatherbench.strategies import registry

from ..written_run import EIGHT, append_rows, edit, fail, put, seen

NAIVE, PINNED, PREFETCH, ZERO_COPY = EIGHT[:4]
PINNED_ONLY = (PINNED,)
EPOCH = {"stage": "epoch", "metric": "wall_time"}


def of(table: pd.DataFrame, strategy: str, variant: str) -> Any:
    found = table[(table["strategy"] == strategy) & (table["variant"] == variant)]
    assert len(found) == 1
    return found.iloc[0]


def test_speedup_is_a_ratio_of_medians(make_run):
    table = speedup_over(load_run(make_run()))
    zero_copy = of(table, "unified_zero_copy", "registered")
    assert zero_copy["speedup"] == pytest.approx(1.71 / 1.11)
    assert zero_copy["low"] == pytest.approx(zero_copy["high"])  # no scatter, no interval
    once = speedup_over(load_run(make_run("20261122-once-b", repeats=1)))
    assert math.isnan(of(once, "unified_zero_copy", "registered")["low"])
    assert of(once, "cpu_gather", "naive")["high"] == 1, "by definition"
    assert of(table, "cpu_gather", "naive")["speedup"] == 1.0


def test_the_interval_knows_that_epochs_of_one_process_are_alike(make_run):
    """Repeats that differ as wholes must widen it: pooling the epochs would hide them."""
    folder = make_run(repeats=3, epochs=30)
    edit(folder, put(lambda row: 1.0 + 0.2 * int(row["repeat"]), **EPOCH, variant="pinned"))
    pinned = of(speedup_over(load_run(folder)), "cpu_gather", "pinned")
    logs = [math.log(x) for x in (1.0, 1.2, 1.4)]
    reach = 4.3027 * statistics.stdev(logs) / math.sqrt(3)  # the baseline does not vary
    typical = 1.71 / math.exp(statistics.mean(logs))
    assert pinned["speedup"] == pytest.approx(typical)
    assert pinned["low"] == pytest.approx(typical * math.exp(-reach), rel=1e-4)
    assert pinned["high"] == pytest.approx(typical * math.exp(reach), rel=1e-4)


def test_what_is_shown_of_epochs_is_their_median_and_quartiles(make_run):
    """Epochs of 1, 2, 3 and 10 s in each of two repeats."""
    folder = make_run(repeats=2, epochs=4)
    times = put(lambda row: (1.0, 2.0, 3.0, 10.0)[int(row["epoch"])], metric="wall_time")
    edit(folder, lambda row: times(row) if row["epoch"] != "-1" else None)
    run = load_run(folder)
    assert stage_breakdown(load_run(make_run("20261122-no-b", series=PINNED_ONLY, epochs=0))).empty
    found = of(stage_breakdown(run), "cpu_gather", "pinned")
    assert [found[c] for c in ("median", "low", "high", "count")] == pytest.approx(
        [2.5, 1.75, 4.75, 8]
    )
    assert set(run.medians.xs("pinned", level="variant")["train_s"]) == {2.5}


def test_a_repeat_counts_as_one_by_its_median_epoch(make_run):
    """Repeat 0 has epochs of 1, 1 and 9 s, repeat 1 a single one of 4 s."""
    folder = make_run(repeats=2, epochs=3)

    def edited(row: dict[str, str]) -> None:
        if (row["stage"], row["metric"], row["variant"]) != ("epoch", "wall_time", "pinned"):
            return
        if row["repeat"] == "1":
            lost = {"value": "", "status": "skipped", "reason": "unsupported: for a test"}
            row.update({"value": "4"} if row["epoch"] == "0" else lost)
        else:
            row["value"] = "9" if row["epoch"] == "2" else "1"

    edit(folder, edited)
    run = load_run(folder)
    assert of(speedup_over(run), "cpu_gather", "pinned")["speedup"] == pytest.approx(1.71 / 2)
    key = (run.workloads[0], "cpu_gather", "pinned", "host", "measured")
    found = interval_of(repeat_logs(run)[Key(*key)])
    assert found.value == pytest.approx(2)
    assert found.half_width == pytest.approx(math.exp(12.7062 * math.log(4) / 2) - 1, rel=1e-3)


def test_a_model_is_never_compared_with_a_measurement(make_run):
    modelled = [("unified_zero_copy", "registered", (0.1, 0.1, 0.1))]
    table = speedup_over(load_run(make_run(modelled=modelled)))
    assert set(table["basis"]) == {"measured"}, "without a modelled baseline there is no ratio"
    assert of(table, "unified_zero_copy", "registered")["speedup"] == pytest.approx(1.71 / 1.11)


@pytest.mark.parametrize(
    ("measured", "found"),
    [((PINNED, NAIVE), "naive"), ((PINNED, PREFETCH), "pinned"), ((ZERO_COPY,), "naive")],
)
def test_ratios_are_over_the_papers_baseline_or_the_first_gather(make_run, measured, found):
    """One that was only modelled is none, nor is one that delivers other values."""
    run = load_run(make_run(series=measured, modelled=[NAIVE]))
    assert baseline(run) == ("cpu_gather", found)
    assert speedup_over(run).query("basis == 'measured'").empty == (NAIVE not in measured)


def test_a_reference_is_told_by_its_role_and_not_by_its_name(make_run, monkeypatch):
    run, roles = load_run(make_run(series=[PINNED, NAIVE])), {"naive": "upper_bound"}
    monkeypatch.setattr(registry, "role_of", lambda _, variant: roles.get(variant, "conventional"))
    assert baseline(run) == ("cpu_gather", "pinned")
    roles["pinned"] = "baseline"
    roles["naive"] = "conventional"
    assert baseline(run) == ("cpu_gather", "pinned"), "before one of a smaller name"


def test_rates_and_cpu_seconds_are_derived(make_run):
    """2 GB in a wait of 1 s; 2.5 s of the user and 0.1 s of the system."""
    naive = load_run(make_run()).medians.xs("naive", level="variant").iloc[0]
    assert naive["payload_rate"] == pytest.approx(2e9)
    assert naive["cpu_s"] == pytest.approx(2.6)


def test_a_gpu_that_drew_less_than_idle_has_nothing_above_it(make_run):
    """100 J in two epochs of 2 s; 30 W would have been 60 J an epoch."""
    folder = make_run(series=PINNED_ONLY, repeats=1)
    rows = seen("energy", "J", {"gpu_energy": 100}) + seen("energy", "1", {"epochs": 2})
    rows += seen("energy", "s", {"window_time": 4})
    append_rows(folder, rows, strategy=PINNED[0], variant=PINNED[1])
    of_the_run = {"workload": "", "dataset": "", "strategy": "", "variant": ""}
    append_rows(folder, seen("calibration", "W", {"idle_power": 30}), **of_the_run)
    found = of(gpu_energy(load_run(folder)), *PINNED[:2])
    assert (found["median"], found["idle"], found["above idle"]) == (50, 50, 0)


def test_nothing_counts_of_a_case_that_was_cut_off(make_run):
    folder = make_run()
    head, *_ = (folder / "cases.csv").read_text().splitlines(keepends=True)
    (folder / "cases.csv").write_text(head)
    run = load_run(folder)
    assert run.measured.empty
    assert stage_breakdown(run).empty


def test_series_stand_in_reading_order(make_run):
    series = [("zzz_new", "default", (0.1, 0.1, 0.1)), EIGHT[-1], PINNED, NAIVE]
    table = stage_breakdown(load_run(make_run(series=series)))
    names = list(zip(table["strategy"], table["variant"], strict=True))
    assert names == [NAIVE[:2], PINNED[:2], EIGHT[-1][:2], ("zzz_new", "default")]


def test_problems_name_failed_skipped_and_unrun_cases(make_run):
    failures = {
        ("cpu_gather", "pinned"): ("failed", "out of memory"),
        ("unified_zero_copy", "registered"): ("skipped", "no kernel yet"),
    }
    series = [NAIVE, PINNED, ZERO_COPY, ("all_in_gpu", "default", (0.2, 1.0, 0.5))]
    folder = make_run(series=series, failures=failures, cut_off=[("all_in_gpu", "default")])
    found = problems(load_run(folder)).drop(columns=["workload", "strategy"])
    assert found.to_numpy().tolist() == [
        ["pinned", "failed", "out of memory", 3, 3],
        ["registered", "skipped", "no kernel yet", 3, 3],
        ["default", "not run", "the run was cut off; --resume completes it", 3, 3],
    ]
    unplanned = load_run(folder)
    unplanned.plan["cases"] = []
    assert problems(unplanned)["variant"].tolist() == ["pinned", "registered"], "those of its rows"


def test_one_bad_repeat_is_counted(make_run):
    folder = make_run()
    edit(folder, fail("timed out", "pinned", "2"))
    found = of(problems(load_run(folder)), "cpu_gather", "pinned")
    assert (found["repeats"], found["of"], found["reason"]) == (1, 3, "timed out")
    assert len(problems(load_run(folder))) == 1, "a missing sensor is no problem of a case"


@pytest.mark.parametrize(("between", "other"), [((0.1, 0.2, 0.4), 0.2), ((0.1, -2.0, -1.0), 0.0)])
def test_what_stages_leave_is_that_of_each_epoch(make_run, between, other):
    """Medians of stages that take turns at being long leave far more; overlap leaves nothing."""
    seconds = {"sample": (1, 1, 5), "fetch": (5, 1, 1), "train": (1, 5, 1)}
    epochs = [sum(stage[n] for stage in seconds.values()) + between[n] for n in range(3)]
    folder = make_run(series=PINNED_ONLY, repeats=1, epochs=3)
    for stage, times in {**seconds, "epoch": epochs}.items():
        of_epoch = partial(lambda times, row: times[int(row["epoch"])], times)
        edit(folder, put(of_epoch, stage=stage, metric="wall_time"))
    found = of(stage_breakdown(load_run(folder)), "cpu_gather", "pinned")
    assert found[list(seconds)].tolist() == [1, 1, 1]
    assert found["other"] == pytest.approx(other)


def test_rounding_is_no_stage(make_run):
    """A modelled epoch is the sum of its stages, to the last digit but one."""
    folder = make_run(series=PINNED_ONLY)
    assert of(stage_breakdown(load_run(folder)), "cpu_gather", "pinned")["other"] > 0.009
    edit(folder, put(lambda _: 0.2 + 0.6 + 0.5 + 4e-16, **EPOCH))
    assert of(stage_breakdown(load_run(folder)), "cpu_gather", "pinned")["other"] == 0.0


def test_declared_columns_are_derived_of_the_right_bytes():
    """3 GB copied and 4 GB read in place cross the link; 0.5 of 2 GB lay there; 6 GB for 1.5."""
    given = {
        "declared_copy_engine_bytes": 3e9,
        "declared_gpu_link_read_bytes": 4e9,
        "declared_gpu_memory_read_bytes": 5e8,
        "declared_payload_bytes": 2e9,
        "declared_disk_read_bytes": 6e9,
        "declared_disk_payload_bytes": 1.5e9,
    }
    line = tables._derived("declared", pd.DataFrame([given])).iloc[0]
    assert line["declared_link_bytes"] == 7e9
    assert line["declared_on_device"] == 0.25
    assert line["declared_amplification"] == 4
