"""Which case comes next, by hand-made rows of a run; and ratios of paths that took turns."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.read.compare import compare_runs
from gatherbench.bench.read.derive import speedup_over
from gatherbench.bench.read.stopping import StoppingRule, imprecise, widths
from gatherbench.bench.read.tables import Run, run_of
from gatherbench.bench.run.frames import frames_of
from gatherbench.bench.run.rows import PROCESS, Key, Row, RowMaker
from gatherbench.stats.interval import Logs

WORKLOAD, OTHER = WORKLOADS = Workload("tiny"), Workload("tiny", batch_size=7)
NAMES = ("a", "b", "c")
FIRST = [Case(w, "cpu_gather", name, {"mode": name}, 0) for w in WORKLOADS for name in NAMES]


def ended(
    name: str,
    repeat: int,
    *epochs: float,
    busy: float = 0.0,
    took: float = 2.0,
    began: float | None = None,
    workload: Workload = WORKLOAD,
) -> list[Row]:
    """The rows of a case; other work had ``busy`` cores beside it; ``began``: its process, which
    others share; ``None``: it had one of its own.
    """
    make = RowMaker("r", "c", "m", "host", workload.id, "tiny", "cpu_gather", name, repeat)
    metered = {"window_time": 1.0, "cpu_user": 1.0, "cpu_system": 0.0, "system_cpu_busy": 1 + busy}
    rows = [make.ok(*PROCESS, began, "time.time")] if began is not None else []
    for epoch, seconds in enumerate(epochs):
        times = {"wall_time": seconds, **metered}
        rows += [
            make.ok("epoch", name, "s", value, "clock", epoch) for name, value in times.items()
        ]
    return [*rows, make.ok("case", "wall_time", "s", took, "clock")]


def series(name: str, *seconds: float, turns: bool = False, **more: float) -> list[Row]:
    """Cases of one epoch; in ``turns``: those of a repeat share a process."""
    began = [100.0 + repeat if turns else None for repeat in range(len(seconds))]
    pairs = enumerate(zip(seconds, began, strict=True))
    return [row for r, (s, process) in pairs for row in ended(name, r, s, began=process, **more)]


def read(rows: Sequence[Row], measure: Measure | None = None) -> Run:
    text = {"workloads": {one.id: {**asdict(one)} for one in WORKLOADS}, "cases": []}
    text |= {"measure": (measure or Measure()).model_dump()}
    return run_of(Path(), text, {}, frames_of(rows), going=True)


def further(measure: Measure) -> Callable[[list[Row]], Any]:
    """The next case; ``None``: there is none."""
    ask = StoppingRule(FIRST, measure, {})
    return lambda rows: next(iter(ask(frames_of(rows))), None)


def asked(rows: Sequence[Row], measure: Measure, first: Sequence[Case] = FIRST) -> list[Any]:
    """Workload, name and repeat of all that come next."""
    wanted = StoppingRule(first, measure, {})(frames_of(rows))
    return [(case.workload, case.variant, case.repeat) for case in wanted]


STEADY = (1.0, 1.0001) * 3
WIDE, WIDER = (1.0, 1.1) * 3, (1.0, 1.4) * 3
LIMITS = Measure(repeats=[2, 8], precision=0.03)

# ---- alone ---------------------------------------------------------------------------------------


def test_the_series_that_is_furthest_from_its_target_comes_next():
    rows = series("a", *WIDER) + series("b", *WIDE) + series("c", *STEADY)
    assert further(LIMITS)(rows) == Case(WORKLOAD, "cpu_gather", "a", {"mode": "a"}, 6)


def test_not_twice_running_while_another_is_wanted():
    rows = series("c", *STEADY) + series("b", *WIDE) + series("a", *WIDER)
    assert further(LIMITS)(rows).variant == "b"
    alone = series("c", *STEADY) + series("b", *STEADY) + series("a", *WIDER)
    assert further(LIMITS)(alone).variant == "a"


def test_it_ends_when_all_are_precise_or_have_their_repeats():
    precise = [row for name in NAMES for row in series(name, *STEADY)]
    assert further(LIMITS)(precise) is None
    most = series("a", *WIDER, 1.0, 1.4) + series("b", *STEADY) + series("c", *STEADY)
    assert further(LIMITS)(most) is None
    assert further(LIMITS.model_copy(update={"repeats": [2, 9]}))(most).repeat == 8


def test_the_target_is_a_share_of_the_epoch_on_either_side():
    """Of six repeats with s = 0.01 in the logarithm t(5) = 2.5706 makes ±1.055 %."""
    logs = [d * 0.01 * math.sqrt(5 / 6) for d in (-1, 1, -1, 1, -1, 1)]
    rows = [row for name in NAMES for row in series(name, *(7 * math.exp(x) for x in logs))]
    for precision, asks in ((0.0105, True), (0.0106, False)):
        measure = LIMITS.model_copy(update={"precision": precision})
        assert (further(measure)(rows) is not None) == asks
        assert bool(imprecise(read(rows, measure))) == asks


def test_a_number_of_repeats_that_was_asked_for_is_kept():
    rows = series("a", *WIDER)
    assert further(Measure(repeats=6))(rows) is None
    assert imprecise(read(rows, Measure(repeats=6))) == {}
    assert len(imprecise(read(rows, LIMITS))) == 1


@pytest.mark.parametrize(("budget_s", "asks"), [(32.1, True), (31.9, False), (0, True)])
def test_time_spent_in_cases_is_the_budget(budget_s, asks):
    """Fifteen cases beyond the first three took 30 s; one of the wanted series takes 2 s more."""
    rows = series("a", *WIDER) + series("b", *STEADY) + series("c", *STEADY)
    measure = LIMITS.model_copy(update={"budget_s": budget_s})
    assert (further(measure)(rows) is not None) == asks
    longer = series("a", *WIDER, took=5.0) + series("b", *WIDE, took=1.0) + series("c", *STEADY)
    within = LIMITS.model_copy(update={"budget_s": 41.5})  # of which 40 are spent
    assert further(within)(longer).variant == "b", "a shorter series still fits"
    burst = series("a", *WIDER[:5], took=1.0) + ended("a", 5, 1.4, took=5.0)
    burst += series("b", *STEADY) + series("c", *STEADY)  # of 34 s in all, 29 beyond the first
    for allowed, fits in ((33.9, False), (34.1, True)):
        within = LIMITS.model_copy(update={"budget_s": allowed})
        assert (further(within)(burst) is not None) == fits, "as long as its longest"


def test_a_narrow_interval_ends_no_series_before_it_has_six_repeats():
    rows = series("a", *STEADY) + series("b", *STEADY[:5]) + series("c", *STEADY[:4])
    assert further(LIMITS)(rows).variant == "b", "c was the last"
    two = LIMITS.model_copy(update={"repeats": [2, 4]})
    assert further(two)(rows) is None


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_what_failed_or_was_skipped_is_not_asked_for_again_nor_a_quiet_repeat(status):
    """The noisy repeats beside it count."""
    make = RowMaker("r", "c", "m", "host", WORKLOAD.id, "tiny", "cpu_gather", "a", 5)
    bad = make.missing("case", "wall_time", "s", "clock", "no", status)
    rows = [*series("a", *WIDER[:5]), bad, *series("b", *STEADY), *series("c", *STEADY)]
    assert further(LIMITS)(rows) is None
    lost = ended("a", 5, 1.0)[:-1] if status == "failed" else []
    found = read([*series("a", 1.0, 1.1, busy=1.5), *lost, bad])
    assert found.ended["used"].tolist()[:2] == [True, True]
    assert len(found.measured) == 2


# ---- beside other work ---------------------------------------------------------------------------


def test_noisy_repeats_are_made_good_first():
    rows = series("a", *WIDER) + series("b", *STEADY) + series("c", *STEADY[:5])
    rows += ended("c", 5, 1.0, busy=1.5)
    wanted = further(LIMITS)(rows)
    assert (wanted.variant, wanted.repeat) == ("a", 6), "not twice running"
    wanted = further(LIMITS)(rows + ended("a", 6, 1.2))
    assert wanted == Case(WORKLOAD, "cpu_gather", "c", {"mode": "c"}, 6)


def test_where_other_work_never_ends_repeats_do():
    rows = [row for n in NAMES for row in series(n, *[1.0] * 15, busy=1.5)]
    rows += ended("a", 15, 1.0, busy=1.5) + ended("b", 15, 1.0, busy=1.5)
    assert further(LIMITS)(rows).variant == "c"
    assert further(LIMITS)(rows + ended("c", 15, 1.0, busy=1.5)) is None


def test_repeats_beside_other_work_make_no_precise_series_wide():
    """Six quiet repeats within a ten-thousandth, and two noisy ones of three times that."""
    rows = series("a", *STEADY) + ended("a", 6, 3.0, busy=0.9) + ended("a", 7, 3.1, busy=0.9)
    ask = further(LIMITS.model_copy(update={"repeats": [2, 20]}))
    assert ask(rows) is None
    quiet = [row for name in (6, 7) for row in ended("a", name, 3.0)]
    assert ask(series("a", *STEADY) + quiet) is not None, "were they quiet, they would count"


@pytest.mark.parametrize(("busy", "much"), [(0.0, False), (0.29, False), (0.31, True)])
def test_one_case_is_judged_by_its_own_rows(busy, much):
    (found,) = read(ended("a", 0, 1.0, busy=busy)).ended.to_dict("records")
    assert (found["other_cores"], found["noisy"]) == (pytest.approx(busy), much)
    unmetered = [ended("a", 0, 1.0)[of] for of in (0, -1)]
    assert not read(unmetered).ended["noisy"].any()


# ---- in turns ------------------------------------------------------------------------------------


def paired(second: float) -> list[Row]:
    """Two processes, the second of which is three times as slow; b is in ``second``."""
    return [
        *ended("a", 0, 2.0, 2.2, began=100.25),
        *ended("b", 0, 1.0, 1.1, began=100.25),
        *ended("a", 1, 6.6, 8.0, began=200.5),
        *ended("b", 1, 3.0, 4.0, began=second),
    ]


def test_a_speed_up_is_paired_within_the_blocks_of_a_process():
    """2 and 2 in one process, 2.2 and 2 in the other: of their logarithms the means are 0.6931 and
    0.7408, 0.0337 apart from their own mean; t(1) is 12.706. In another process the repeat of the
    same number is no pair, as where a crash cut it in two: Welch's interval is left, and wide.
    """
    found, other = (
        speedup_over(read(paired(second)), variant="a").set_index("variant").loc["b"]
        for second in (200.5, 201.5)
    )
    middle = (math.log(2) + math.log(math.sqrt(4.4))) / 2
    assert found["speedup"] == pytest.approx(math.exp(middle))
    reach = 12.706 * (math.log(math.sqrt(4.4)) - math.log(2)) / 2
    assert math.log(found["high"] / found["speedup"]) == pytest.approx(reach, rel=1e-4)
    assert other["high"] / other["speedup"] > 1e4


def test_two_designs_of_one_plan_can_be_compared():
    """Alone and among others: the check of what isolation is worth, path by path."""
    alone, among = (
        read(
            [
                row
                for variant, epoch in (("a", 2.0), ("b", b))
                for repeat in range(6)
                for row in ended(
                    variant,
                    repeat,
                    *(epoch * (1 + 0.002 * repeat),) * 2,
                    began=100.0 + repeat if together else None,
                )
            ],
            Measure(together=together),
        )
        for together, b in ((False, 1.0), (True, 0.8))
    )
    said = compare_runs(alone, among, metrics=["epoch"]).set_index("variant")["verdict"]
    assert said.to_dict() == {"a": "SAME", "b": "FAST"}, "its neighbours warm its caches"


def test_how_fast_a_process_is_on_the_whole_makes_no_path_of_it_wide():
    """b takes twice as long as a in each of them."""
    for turns in (False, True):
        rows = series("a", *WIDER, turns=turns)
        rows += series("b", *(2 * seconds for seconds in WIDER), turns=turns)
        assert (further(LIMITS)(rows) is None) == turns


@pytest.mark.parametrize(("budget_s", "asks"), [(33.1, True), (32.9, False)])
def test_all_that_take_turns_go_with_a_series_and_take_their_time_together(budget_s, asks):
    """Beyond the first cases a took 5 times 2 s, and b, of one repeat more, 6 times 3 s."""
    rows = series("a", *WIDER, turns=True) + series("b", *STEADY, 1.0, took=3.0, turns=True)
    measure = LIMITS.model_copy(update={"budget_s": budget_s})
    assert asked(rows, measure) == [(WORKLOAD, "a", 7), (WORKLOAD, "b", 7)] * asks


def repeats(workload: Workload, ratios: Sequence[float]) -> list[Row]:
    """So many processes, each slower than the one before, of two paths; another has its own."""
    found = []
    for repeat, ratio in enumerate(ratios):
        slow, began = 2.0**repeat, 100.0 * repeat + WORKLOADS.index(workload)
        for name, epoch in (("a", slow), ("b", slow * ratio)):
            found += ended(name, repeat, epoch, began=began, workload=workload)
        found += ended("c", repeat, 1.0, workload=workload)
    return found


TURNS = Measure(together=True, repeats=[2, 9], precision=0.03)
PRECISE = repeats(WORKLOAD, [1.1, 1.1001] * 3)


def test_all_that_take_turns_are_measured_again_where_a_ratio_is_wide():
    """Processes that differ twofold make epochs imprecise, and no ratio."""
    rows = PRECISE + repeats(OTHER, [1.1, 1.4] * 3)
    assert asked(rows, TURNS) == [(OTHER, "a", 6), (OTHER, "b", 6)]
    assert asked(PRECISE, TURNS) == []
    assert imprecise(read(PRECISE, TURNS)) == {}
    assert [key[2] for key in imprecise(read(rows, TURNS))] == ["b"]


def test_a_path_with_a_process_of_its_own_is_measured_again_alone():
    rows = PRECISE + ended("c", 6, 9.0) + repeats(OTHER, [1.1] * 6)
    assert asked(rows, TURNS) == [(WORKLOAD, "c", 7)]


@pytest.mark.parametrize(("alone", "wanted"), [(0, ["a", "b"]), (5, ["b"])])
def test_the_last_repeat_tells_whether_paths_take_turns(alone, wanted):
    """As where a run went on in the other way: one of six repeats had processes of its own."""
    rows = [
        row
        for row in repeats(OTHER, [1.1, 1.4] * 3)
        if (row.stage, row.metric, row.repeat) != (*PROCESS[:2], alone)
    ]
    assert [name for _, name, _ in asked(rows, TURNS)] == wanted


@pytest.mark.parametrize(("issue", "wanted"), [(0.6, True), (0.7, False)])
def test_no_repeat_is_spent_on_two_paths_that_the_host_bounds(issue, wanted):
    """Ratios of 1.1 and 1.4 in turns: not precise, but no repeat gives a verdict beyond 2/3.

    Of 1 and 1.4 s 0.6 and 0.6 of them are issued, or 0.7 and 0.7.
    """
    paths = [("unified_zero_copy", "registered"), ("aligned_zero_copy", "given")]
    rows: list[Row] = []
    for repeat, ratio in enumerate([1.1, 1.4] * 3):
        for names, epoch in zip(paths, (1.0, ratio), strict=True):
            make = RowMaker("r", "c", "m", "cuda", WORKLOAD.id, "tiny", *names, repeat)
            times = {("epoch", "wall_time"): epoch, ("sample", "wall_time"): 0.1}
            times |= {("host", "wait_sample"): 0.1, ("host", "issue_train"): issue * epoch}
            times |= {("host", "issue_fetch"): 0.0, ("host", "drain"): 0.0}
            rows += [
                make.ok(*PROCESS, 100.0 * repeat, "clock"),
                make.ok("epoch", "minibatches", "1", 4, "count", 0),
                *(make.ok(*of, "s", value, "clock", 0) for of, value in times.items()),
                make.ok("case", "wall_time", "s", 2.0, "clock"),
            ]
    limits = TURNS.model_copy(update={"sampling": "gpu"})
    first = [Case(WORKLOAD, *names, {}, 0) for names in paths]
    assert bool(asked(rows, limits, first)) == wanted
    assert bool(imprecise(read(rows, limits))) == wanted


def test_of_paths_that_the_host_bounds_the_shortest_alone_may_be_wanted():
    keys = [Key(WORKLOAD.id, "all_in_gpu", name, "cuda", "measured") for name in NAMES]
    blocks = [{p: {0: float(of)} for p in range(6)} for of in range(3)]
    logs = {key: Logs([0.0] * 6, of) for key, of in zip(keys, blocks, strict=True)}
    assert widths(logs, keys[:2]) == {keys[0]: 0.0, keys[2]: 0.0}
