"""Runs on several ranks: every number worked out by hand, from rows that were made up."""

import functools
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gatherbench.bench.read.derive import stage_breakdown
from gatherbench.bench.read.scaling import (
    FASTER,
    NO_FASTER,
    OPEN,
    UNKNOWN_SEEDS,
    by_rank,
    families,
    over_ranks,
    scaling,
)
from gatherbench.bench.read.tables import Run, load_run, only

from ..ranks_run import workload_of, write_ranks
from ..written_run import edit

MakeRun = Callable[..., Path]
NAIVE, ALIGNED = ("cpu_gather", "naive"), ("aligned_zero_copy", "given")


scaled = functools.lru_cache(maxsize=2)(scaling)


def of(run: Run, ranks: int, names: tuple[str, str] = ALIGNED) -> Any:
    table = scaled(run)
    mine = table[(table["strategy"] == names[0]) & (table["variant"] == names[1])]
    (line,) = mine[mine["ranks"] == ranks].to_dict("records")
    return line


@pytest.fixture
def make(make_run: MakeRun) -> Callable[..., Run]:
    """The run of ``aligned_zero_copy`` whose epochs take so long, by the number of ranks."""

    def one(times: dict[int, float], **more: Any) -> Run:
        return load_run(write_ranks(make_run, {ALIGNED: times}, **more))

    return one


def test_strong_scaling_is_time_of_one_over_ranks_times_theirs(make):
    run = make({1: 2.0, 2: 1.25, 4: 1.0})
    (family,) = families(run)
    assert family.name == "wordnet GraphSAGE, strong scaling"
    assert list(family.worlds.values()) == [1, 2, 4]
    assert [of(run, n)["efficiency"] for n in (1, 2, 4)] == pytest.approx([1.0, 0.8, 0.5])
    assert [of(run, n)["epoch"] for n in (1, 2, 4)] == pytest.approx([2.0, 1.25, 1.0])
    assert set(scaled(run)["why"]) == {""}
    assert set(scaled(run)["seeds"]) == {20_000}


def test_its_interval_is_that_of_a_ratio_over_repeats(make):
    """Two ranks take 1.0, 1.2 and 1.4 s, one rank 2 s each time; t(2) is 4.3027."""
    run = make({1: 2.0, 2: 1.0}, longer=lambda w, repeat, _: 1.0 + w * 0.2 * repeat)
    logs = [math.log(t) for t in (1.0, 1.2, 1.4)]
    reach = 4.3027 * statistics.stdev(logs) / math.sqrt(3)
    typical = 2.0 / (2 * math.exp(statistics.mean(logs)))
    found = of(run, 2)
    assert found["efficiency"] == pytest.approx(typical)
    assert found["efficiency_low"] == pytest.approx(typical * math.exp(-reach), rel=1e-4)
    assert found["efficiency_high"] == pytest.approx(typical * math.exp(reach), rel=1e-4)
    one = of(run, 1)
    assert [one[f"efficiency{end}"] for end in ("", "_low", "_high")] == [1, 1, 1], "by definition"


def test_a_weak_epoch_with_twice_the_seeds_in_the_same_time_is_ideal(make):
    run = make({1: 2.0, 2: 2.0}, scaling="weak", seeds={1: 15_000, 2: 30_000})
    (family,) = families(run)
    assert family.name == "wordnet GraphSAGE, weak scaling"
    assert of(run, 2)["efficiency"] == pytest.approx(1.0)
    assert (of(run, 1)["more"], of(run, 2)["more"]) == (FASTER, ""), "for a seed, not an epoch"


@pytest.mark.parametrize(
    ("times", "failures", "why"),
    [
        ({2: 1.0, 4: 0.6}, {}, "one rank is not in the plan"),
        ({1: 2.0, 2: 1.0}, {(1, *ALIGNED): "out of memory"}, "one rank: failed: out of memory"),
    ],
)
def test_without_one_rank_there_is_no_efficiency_and_a_reason(make, times, failures, why):
    run = make(times, failures=failures)
    table = scaled(run)
    assert table["efficiency"].isna().all()
    assert set(table["why"]) == {why}
    assert table["epoch"].notna().all()


def test_without_seeds_nothing_is_compared(make_run):
    folder = write_ranks(make_run, {ALIGNED: {1: 2.0, 2: 1.0}})
    edit(folder, keep=lambda row: row["metric"] != "seeds")
    run = load_run(folder)
    assert of(run, 2)["why"] == UNKNOWN_SEEDS
    assert math.isnan(of(run, 2)["efficiency"])
    assert of(run, 1)["more"] == OPEN


def test_one_number_of_ranks_is_no_family(make, make_run):
    for run in (make({2: 1.0}), load_run(make_run())):
        assert families(run) == []
        assert scaled(run).empty
    assert over_ranks(load_run(make_run("20261122-other-b"))).empty


def test_one_repeat_has_no_interval_and_decides_nothing(make):
    found = of(make({1: 2.0, 2: 1.0}, repeats=1), 2)
    assert found["efficiency"] == pytest.approx(1.0)
    assert math.isnan(found["efficiency_low"])
    first = of(make({1: 2.0, 2: 1.0}, repeats=1, name="20261122-again-b"), 1)
    assert (first["more"], first["cores_full"]) == (OPEN, False)


def test_the_speed_up_is_over_as_many_ranks(make_run):
    times = {NAIVE: {1: 3.0, 2: 2.4}, ALIGNED: {1: 2.0, 2: 1.2}}
    run = load_run(write_ranks(make_run, times))
    assert [of(run, n)["speedup"] for n in (1, 2)] == pytest.approx([1.5, 2.0])
    assert of(run, 2, NAIVE)["speedup"] == 1
    assert of(run, 2, NAIVE)["efficiency"] == pytest.approx(3 / 4.8)


def test_quiet_repeats_alone_count(make_run):
    """Beside the last of three repeats with two ranks, which took 9 s each, was other work."""
    beside = (*ALIGNED, 2)
    folder = write_ranks(
        make_run,
        {ALIGNED: {1: 2.0, 2: 1.0}},
        other_cores=1.5,
        beside=beside,
        longer=lambda _, repeat, __: 9.0 if repeat == 2 else 1.0,
    )
    run = load_run(folder)
    assert of(run, 2)["efficiency"] == pytest.approx(1.0)
    assert not of(run, 2)["disturbed"]
    assert of(run, 1)["more"] == FASTER
    noisy = load_run(
        write_ranks(make_run, {ALIGNED: {1: 2.0, 2: 1.0}}, name="20261122-n-b", other_cores=1.5)
    )
    assert of(noisy, 2)["disturbed"]
    assert of(noisy, 1)["more"] == OPEN, "beside other work nothing is decided"


# ---- where it ends -------------------------------------------------------------------------------


def test_more_ranks_are_faster_until_they_are_not(make):
    run = make({1: 2.0, 2: 1.0, 4: 0.99, 8: 1.01})
    assert [of(run, n)["more"] for n in (1, 2, 4, 8)] == [FASTER, NO_FASTER, NO_FASTER, ""]
    again = make({1: 2.0, 2: 1.0, 4: 0.99, 8: 0.5}, name="20261122-again-b")
    assert [of(again, n)["more"] for n in (1, 2, 4)] == [FASTER] * 3, "a plateau is no end"


def test_what_an_interval_does_not_tell_is_not_decided(make):
    """One rank scatters by a factor of three, two and four are alike and steady."""
    run = make({1: 1.2, 2: 1.0, 4: 1.0}, longer=lambda w, repeat, _: 1.0 if w else 1.0 + repeat)
    assert [of(run, n)["more"] for n in (1, 2)] == [OPEN, NO_FASTER]
    last = make(
        {1: 1.2, 2: 1.0}, name="20261122-last-b", longer=lambda w, repeat, _: 1.0 + w * repeat
    )
    assert of(last, 1)["more"] == OPEN


@pytest.mark.parametrize(("seconds", "full"), [(2.7, True), (2.5, False)])
def test_cores_are_full_where_the_whole_interval_says_so(make, seconds, full):
    """Half of an epoch is fetching: 2.1 core-seconds a second; 0.4 training: 1. Windows of 2 s."""
    found = of(make({1: seconds, 2: 1.0}), 1)
    assert found["cores"] == pytest.approx((2.1 * 0.5 + 0.4) * seconds / 2)
    assert found["cores_full"] == full  # of two cores: 1.96 is, 1.81 is not within 5 %
    wide = make({1: seconds, 2: 1.0}, name="20261122-w-b", longer=lambda w, r, _: 0.9 + 0.1 * r)
    assert not of(wide, 1)["cores_full"], "a tenth more or less from repeat to repeat"


# ---- families ------------------------------------------------------------------------------------


def test_strong_and_weak_scaling_are_families_of_their_own(make):
    run = make({1: 1.0, 2: 1.0})
    fields = next(iter(run.plan["workloads"].values()))
    table = {
        str(number): {**fields, "gpus": gpus, "scaling": scaling}
        for number, (gpus, scaling) in enumerate(
            [(1, "strong"), (2, "strong"), (2, "weak"), (4, "weak")]
        )
    }
    found = families(replace(run, plan={**run.plan, "workloads": table}))
    assert [(family.name, list(family.worlds.values())) for family in found] == [
        ("wordnet GraphSAGE, strong scaling", [1, 2]),
        ("wordnet GraphSAGE, weak scaling", [1, 2, 4]),
    ]


# ---- from rank to rank ---------------------------------------------------------------------------


def test_each_rank_and_how_far_they_are_apart(make):
    """Of two ranks in an epoch of 2 s: the first waits 0.04 s and ends 0.02 s earlier."""
    run = make({1: 3.0, 2: 2.0})
    ranks = by_rank(run)
    assert list(ranks["rank"]) == [0, 1]
    assert list(ranks["epoch"]) == pytest.approx([1.98, 2.0])
    assert list(ranks["wait"]) == pytest.approx([0.04, 0.0])
    assert list(ranks["wait_share"]) == pytest.approx([0.04 / 1.98, 0.0])
    assert list(ranks["all_reduce_share"]) == pytest.approx([0.1 / 1.98, 0.05])
    assert list(ranks["cpu"]) == [10, 11]
    (apart,) = over_ranks(run).to_dict("records")
    assert (apart["ranks"], apart["slowest"], apart["fastest"]) == (2, 2.0, pytest.approx(1.98))
    assert apart["apart"] == pytest.approx(2 / 1.98)
    assert apart["wait"] == pytest.approx(0.02)
    assert apart["wait_share"] == pytest.approx(0.02 / 1.99)
    assert apart["all_reduce"] == pytest.approx(0.1)
    assert (apart["cpu_least"], apart["cpu_most"]) == (10, 11)


def test_ranks_of_repeats_that_do_not_count_are_left_out(make_run):
    folder = write_ranks(make_run, {ALIGNED: {1: 3.0, 2: 2.0}})

    def damage(row: dict[str, str]) -> None:
        if row["repeat"] == "2" and row["workload"] == workload_of(2):
            if row["stage"] == "case":
                row |= {"status": "failed", "value": "", "reason": "rank 1 was killed by SIGKILL"}
            elif row["rank"] != "-1" and (row["stage"], row["metric"]) == ("epoch", "wall_time"):
                row["value"] = "50"

    edit(folder, damage, keep=lambda row: row["rank"] == "-1" or row["metric"] != "cpu_user")
    (apart,) = over_ranks(load_run(folder)).to_dict("records")
    assert apart["slowest"] == 2.0
    assert math.isnan(apart["cpu_least"]), "that was not metered"


def test_an_exchange_without_an_epoch_is_no_stage_of_one(make):
    run = make({2: 2.0})
    rows = run.rows[run.rows["stage"] == "all_reduce"]
    assert len(rows)
    assert stage_breakdown(replace(run, rows=rows)).empty


def test_a_run_cut_down_keeps_its_ranks(make):
    run = make({1: 3.0, 2: 2.0, 4: 1.0})
    cut = only(run, workloads={workload_of(1), workload_of(2)})
    assert set(cut.ranks["workload"]) == {workload_of(2)}
    assert list(over_ranks(cut)["ranks"]) == [2]
    assert only(run, backends={"cuda"}).ranks.empty
