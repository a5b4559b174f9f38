"""Other work beside a case: found where it was, and said wherever the case's numbers are shown."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from gatherbench.bench.read.derive import epoch_times
from gatherbench.bench.read.disturbance import (
    disturbance,
    disturbed,
    disturbed_alone,
    mark_disturbed,
    mostly_disturbed,
    other_load,
)
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.show.answer import cautions

MakeRun = Callable[..., Path]
NAIVE = ("cpu_gather", "naive", (0.2, 1.0, 0.5))
PINNED = ("cpu_gather", "pinned", (0.2, 0.6, 0.5))
WORKLOAD = "wordnet-sage16x2-b1000-1f2e3d4c"


def of(run: Run, rows: pd.DataFrame | None = None, cores: int = 2) -> Run:
    """The run with other rows, or of a machine with other cores, as if it had been read so."""
    env = {"cpu": {"logical_cores": cores}}
    return replace(run, env=env, rows=mark_disturbed(run.rows if rows is None else rows, env))


def test_other_load_is_what_the_host_did_beside_us(make_run):
    busy = load_run(make_run("20261121-a-1", other_cores=1.5))
    assert list(other_load(busy)) == pytest.approx([1.5] * 9)
    assert len(disturbed(busy)) == 9
    assert disturbance(of(busy, cores=64)) == ""  # no more than 5 % of the machine
    assert disturbance(load_run(make_run("20261121-q-3", other_cores=0.25))) == ""


def test_what_was_not_metered_is_not_called_quiet_or_busy(make_run):
    assert disturbance(load_run(make_run("20261121-a-1", series=()))) == ""
    run = load_run(make_run("20261121-b-2", other_cores=1.5))
    for metric in ("system_cpu_busy", "cpu_user", "cpu_system", "window_time"):
        without = of(run, run.rows[run.rows["metric"] != metric])
        assert other_load(without).empty
        assert disturbance(without) == ""


def test_a_tick_of_the_clock_beside_a_short_case_is_no_other_work(make_run):
    """On 16 cores each may be charged 10 ms too much: of 100 ms that is more than a core."""
    run = load_run(make_run(series=[NAIVE], repeats=1, epochs=1, other_cores=0.0))
    rows = run.rows.copy()
    rows.loc[rows["metric"] == "window_time", "value"] = 0.1
    rows.loc[rows["metric"] == "system_cpu_busy", "value"] += 0.15
    short = of(run, rows, cores=16)
    assert list(other_load(short)) == pytest.approx([1.5])
    assert disturbance(short) == ""
    assert disturbance(of(short, cores=2))


def test_a_burst_beside_one_case_is_found(make_run):
    """The median over the whole run would call it quiet."""
    run = load_run(make_run(other_cores=1.5, beside=("cpu_gather", "pinned", 1)))
    assert other_load(run).median() == pytest.approx(0)
    assert disturbed(run).to_dict() == {
        (WORKLOAD, "cpu_gather", "pinned", "host", "measured", 1): pytest.approx(1.5)
    }
    said = "other work had up to 1.5 cores of the host beside 1 of 9 cases"
    assert disturbance(run) == said
    assert f"Noisy: {said}. Quiet repeats alone count; every path has some" in cautions(run)


def test_a_series_without_a_quiet_repeat_stays_out_of_the_answer_and_is_named(make_run):
    run = load_run(make_run(repeats=1, other_cores=1.5, beside=("cpu_gather", "pinned", 0)))
    assert (
        "Noisy: other work had up to 1.5 cores of the host beside 1 of 3 cases. Quiet repeats alone"
        " count; without one are cpu_gather (pinned): measure again on an idle machine"
    ) in cautions(run)


def test_what_a_hypervisor_gave_to_others_is_other_work(make_run):
    run = load_run(make_run(series=[NAIVE, PINNED], repeats=1, epochs=1))
    busy = run.rows[run.rows["metric"] == "system_cpu_busy"]
    stolen = busy.assign(metric="system_cpu_steal", value=2.0)
    stolen = stolen[stolen["variant"] == "pinned"]  # beside naive it was not read
    rows = pd.concat([run.rows, stolen])
    assert list(other_load(of(run, rows))) == pytest.approx([0, 1])


def test_what_was_measured_beside_other_work_stays_out_while_there_are_quiet_repeats(make_run):
    run = load_run(make_run(other_cores=1.5, beside=("cpu_gather", "pinned", 1), repeats=3))
    rows = run.rows.copy()
    slow = (rows["variant"] == "pinned") & (rows["repeat"] == 1) & (rows["metric"] == "wall_time")
    rows.loc[slow, "value"] *= 10
    mixed = of(run, rows)
    times = epoch_times(mixed).set_index("variant")
    assert times.loc["pinned", "max"] == pytest.approx(0.2 + 0.6 + 0.5 + 0.01)
    assert times["count"].to_dict() == {"naive": 12, "pinned": 8, "registered": 12}
    assert disturbed_alone(mixed) == {}
    assert len(mixed.rows) == len(run.rows), "every observation stays in the table"
    noisy = load_run(make_run("20261122-b-2", other_cores=1.5))
    assert set(epoch_times(noisy)["count"]) == {12}, "there are no quiet ones"
    assert list(disturbed_alone(noisy).values()) == pytest.approx([1.5] * 3)


def test_epochs_of_a_failed_case_count_nowhere(make_run):
    run = load_run(make_run(repeats=2))
    rows = run.rows.copy()
    case = (rows["stage"] == "case") & (rows["variant"] == "pinned") & (rows["repeat"] == 0)
    rows.loc[case, ["status", "reason", "value"]] = ["failed", "other losses", None]
    repeats = of(run, rows).values("epoch", "wall_time").loc[(WORKLOAD, "cpu_gather")]
    found = repeats.reset_index().groupby("variant")["repeat"].unique().map(list).to_dict()
    assert found == {"naive": [0, 1], "pinned": [1]}


def test_half_of_the_series_without_a_quiet_repeat_are_not_most_of_them(make_run):
    of_two = {"series": [NAIVE, PINNED], "repeats": 1, "other_cores": 1.5}
    half = load_run(make_run("20261121-a-1", **of_two, beside=("cpu_gather", "pinned", 0)))
    assert (len(disturbed_alone(half)), mostly_disturbed(half)) == (1, False)
    assert mostly_disturbed(load_run(make_run("20261121-b-2", **of_two)))


def test_a_series_is_as_disturbed_as_its_worst_repeat(make_run):
    """Three cores more in repeat 1 of two, in windows of 2 s an epoch."""
    run = load_run(make_run(series=[NAIVE], repeats=2, other_cores=1.5))
    rows = run.rows.copy()
    more = (rows["metric"] == "system_cpu_busy") & (rows["repeat"] == 1)
    windows = rows[(rows["metric"] == "window_time") & (rows["repeat"] == 1)]
    rows.loc[more, "value"] += 3.0 * windows["value"].to_numpy()
    assert list(disturbed_alone(of(run, rows)).values()) == pytest.approx([4.5])
