"""Other work beside a case: found where it was, and said wherever the case's numbers are shown."""

from pathlib import Path

import pytest

from gatherbench.bench.read.derive import mostly_noisy, noise, noisy_series, stage_breakdown
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.show.answer import cautions

from ..written_run import (
    BASELINE,
    PINNED,
    WORKLOAD,
    Change,
    append_rows,
    change,
    edit,
    fail,
    put,
    seen,
)


def read(folder: Path, *changes: Change, cores: int = 2) -> Run:
    """The run in a folder after these changes, of a machine with so many cores."""
    if changes:
        edit(folder, *changes)
    change(folder / "env.json", lambda env: env["cpu"].update(logical_cores=cores))
    return load_run(folder)


def more_busy(seconds: float, **where: str) -> Change:
    return put(lambda row: float(row["value"]) + seconds, metric="system_cpu_busy", **where)


def test_other_load_is_what_the_host_did_beside_us(make_run):
    folder = make_run("20261121-a-1", other_cores=1.5)
    busy = read(folder)
    assert list(busy.ended["other_cores"]) == pytest.approx([1.5] * 9)
    assert busy.cases["noisy"].all()
    assert noise(read(folder, cores=64)) == ""  # no more than 5 % of the machine
    assert noise(load_run(make_run("20261121-q-3", other_cores=0.25))) == ""
    assert noise(load_run(make_run("20261121-n-4", series=()))) == ""


@pytest.mark.parametrize("metric", ["system_cpu_busy", "cpu_user", "cpu_system", "window_time"])
def test_what_was_not_metered_is_not_called_quiet_or_busy(make_run, metric):
    folder = make_run("20261121-b-2", other_cores=1.5)
    edit(folder, keep=lambda row: row["metric"] != metric)
    without = load_run(folder)
    assert without.ended["other_cores"].isna().all()
    assert noise(without) == ""


def test_a_tick_of_the_clock_beside_a_short_case_is_no_other_work(make_run):
    """On 16 cores each may be charged 10 ms too much: of 100 ms that is more than a core."""
    folder = make_run(series=[BASELINE], repeats=1, epochs=1, other_cores=0.0)
    window, busy = put(lambda _: 0.1, metric="window_time"), more_busy(0.15)
    short = read(folder, window, busy, cores=16)
    assert list(short.ended["other_cores"]) == pytest.approx([1.5])
    assert noise(short) == ""
    assert noise(read(folder))


def test_a_burst_beside_one_case_is_found(make_run):
    """The median over the whole run would call it quiet."""
    run = load_run(make_run(other_cores=1.5, beside=("cpu_gather", "pinned", 1)))
    assert run.ended["other_cores"].median() == pytest.approx(0)
    assert run.ended.loc[run.ended["noisy"], "other_cores"].to_dict() == {
        (WORKLOAD, "cpu_gather", "pinned", "host", "measured", 1): pytest.approx(1.5)
    }
    said = "other work had up to 1.5 cores of the host while 1 of 9 cases ran"
    assert noise(run) == said
    lines = run.epochs.loc[run.epochs["noisy"], ["variant", "repeat"]].drop_duplicates()
    assert lines.to_numpy().tolist() == [["pinned", 1]]
    assert f"Noisy: {said}. Only quiet repeats count; every path has some" in cautions(run)


def test_a_series_without_a_quiet_repeat_stays_out_of_the_answer_and_is_named(make_run):
    run = load_run(make_run(repeats=1, other_cores=1.5, beside=("cpu_gather", "pinned", 0)))
    assert (
        "Noisy: other work had up to 1.5 cores of the host while 1 of 3 cases ran. Only quiet"
        " repeats count; these have none: cpu_gather (pinned); measure again on an idle machine"
    ) in cautions(run)


def test_what_a_hypervisor_gave_to_others_is_other_work(make_run):
    folder = make_run(series=[BASELINE, PINNED], repeats=1, epochs=1)
    stolen = seen("epoch", "s", {"system_cpu_steal": 2.0}, epoch=0)
    append_rows(folder, stolen, strategy=PINNED[0], variant=PINNED[1])
    assert list(load_run(folder).ended["other_cores"]) == pytest.approx([0, 1])


def test_what_was_measured_beside_other_work_stays_out_while_there_are_quiet_repeats(make_run):
    folder = make_run(other_cores=1.5, beside=("cpu_gather", "pinned", 1), repeats=3)
    where = {"variant": "pinned", "repeat": "1", "metric": "wall_time"}
    mixed = read(folder, put(lambda row: 10 * float(row["value"]), **where))
    times = stage_breakdown(mixed).set_index("variant")
    assert times["count"].to_dict() == {"naive": 12, "pinned": 8, "registered": 12}
    assert noisy_series(mixed) == {}
    assert len(mixed.epochs) == 36, "every epoch stays in the frame"
    noisy = load_run(make_run("20261122-b-2", other_cores=1.5))
    assert set(stage_breakdown(noisy)["count"]) == {12}, "there are no quiet ones"
    assert list(noisy_series(noisy).values()) == pytest.approx([1.5] * 3)


def test_epochs_of_a_failed_case_count_nowhere(make_run):
    folder = make_run(repeats=2)
    changed = read(folder, fail("other losses", "pinned", "0"))
    repeats = changed.measured.loc[(WORKLOAD, "cpu_gather")].reset_index()
    found = repeats.groupby("variant")["repeat"].unique().map(list).to_dict()
    assert found == {"naive": [0, 1], "pinned": [1]}


def test_half_of_the_series_without_a_quiet_repeat_are_not_most_of_them(make_run):
    of_two = {"series": [BASELINE, PINNED], "repeats": 1, "other_cores": 1.5}
    half = load_run(make_run("20261121-a-1", **of_two, beside=("cpu_gather", "pinned", 0)))
    assert (len(noisy_series(half)), mostly_noisy(half)) == (1, False)
    assert mostly_noisy(load_run(make_run("20261121-b-2", **of_two)))


def test_a_series_is_as_noisy_as_its_worst_repeat(make_run):
    """Three cores more in repeat 1 of two, in windows of 2 s an epoch."""
    folder = make_run(series=[BASELINE], repeats=2, other_cores=1.5)
    found = noisy_series(read(folder, more_busy(6.0, repeat="1")))
    assert list(found.values()) == pytest.approx([4.5])
