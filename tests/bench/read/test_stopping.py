"""Which case comes next: by hand-made rows of a run, and a whole run that stops by itself."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.read.stopping import StoppingRule, imprecise, widths
from gatherbench.bench.read.tables import Run, run_of
from gatherbench.bench.run.frames import frames_of
from gatherbench.bench.run.rows import PROCESS, Key, Row, RowMaker
from gatherbench.stats.interval import Logs

WORKLOAD = Workload("tiny")
NAMES = ("a", "b", "c")
FIRST = [Case(WORKLOAD, "cpu_gather", name, {"mode": name}, 0) for name in NAMES]


def ended(
    name: str, repeat: int, seconds: float, *, busy: float = 0.0, took: float = 2.0
) -> list[Row]:
    """The rows of a case with one epoch; other work had ``busy`` cores beside it."""
    make = RowMaker("r", "c", "m", "host", WORKLOAD.id, "tiny", "cpu_gather", name, repeat)
    metered = {"window_time": 1.0, "cpu_user": 1.0, "cpu_system": 0.0, "system_cpu_busy": 1 + busy}
    return [
        make.ok("epoch", "wall_time", "s", seconds, "clock", 0),
        *(make.ok("epoch", metric, "s", value, "clock", 0) for metric, value in metered.items()),
        make.ok("case", "wall_time", "s", took, "clock"),
    ]


def series(name: str, *seconds: float, **more: float) -> list[Row]:
    return [row for r, s in enumerate(seconds) for row in ended(name, r, s, **more)]


def read(rows: list[Row], measure: Measure | None = None, env: dict[str, Any] | None = None) -> Run:
    text = {"workloads": {WORKLOAD.id: {**asdict(WORKLOAD)}}, "cases": []}
    text |= {"measure": (measure or Measure()).model_dump()}
    return run_of(Path(), text, env or {}, frames_of(rows), going=True)


def further(measure: Measure) -> Callable[[list[Row]], Any]:
    """The next case; ``None``: there is none."""
    ask = StoppingRule(FIRST, measure, {})
    return lambda rows: next(iter(ask(frames_of(rows))), None)


STEADY = (1.0, 1.0001) * 3
WIDE, WIDER = (1.0, 1.1) * 3, (1.0, 1.4) * 3
LIMITS = Measure(repeats=[2, 8], precision=0.03)


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


def processes(name: str, repeats: int) -> list[Row]:
    """A process for each repeat, which paths of that repeat share."""
    make = RowMaker("r", "c", "m", "host", WORKLOAD.id, "tiny", "cpu_gather", name)
    return [replace(make, repeat=r).ok(*PROCESS, 100.0 + r, "clock") for r in range(repeats)]


def test_how_fast_a_process_is_on_the_whole_makes_no_path_of_it_wide():
    """b takes twice as long as a in each of them."""
    rows = series("a", *WIDER) + series("b", *(2 * seconds for seconds in WIDER))
    assert further(LIMITS)(rows) is not None
    assert further(LIMITS)(processes("a", 6) + processes("b", 6) + rows) is None


def test_of_paths_that_the_host_bounds_the_shortest_alone_may_be_wanted():
    keys = [Key(WORKLOAD.id, "all_in_gpu", name, "cuda", "measured") for name in NAMES]
    blocks = [{p: {0: float(of)} for p in range(6)} for of in range(3)]
    logs = {key: Logs([0.0] * 6, of) for key, of in zip(keys, blocks, strict=True)}
    assert widths(logs, keys[:2]) == {keys[0]: 0.0, keys[2]: 0.0}


@pytest.mark.parametrize(("budget_s", "asks"), [(33.1, True), (32.9, False)])
def test_all_that_take_turns_go_with_a_series_and_take_their_time_together(budget_s, asks):
    """Beyond the first cases a took 5 times 2 s, and b, of one repeat more, 6 times 3 s."""
    rows = series("a", *WIDER) + series("b", *STEADY, 1.0, took=3.0)
    rows += processes("a", 6) + processes("b", 7)
    measure = LIMITS.model_copy(update={"budget_s": budget_s})
    found = StoppingRule(FIRST, measure, {})(frames_of(rows))
    assert [(case.variant, case.repeat) for case in found] == [("a", 7), ("b", 7)] * asks


def test_noisy_repeats_are_made_good_first():
    rows = series("a", *WIDER) + series("b", *STEADY) + series("c", *STEADY[:5])
    rows += ended("c", 5, 1.0, busy=1.5)
    wanted = further(LIMITS)(rows)
    assert (wanted.variant, wanted.repeat) == ("a", 6), "not twice running"
    assert further(LIMITS)(rows + ended("a", 6, 1.2)) == Case(
        WORKLOAD, "cpu_gather", "c", {"mode": "c"}, 6
    )


def test_a_narrow_interval_ends_no_series_before_it_has_six_repeats():
    rows = series("a", *STEADY) + series("b", *STEADY[:5]) + series("c", *STEADY[:4])
    assert further(LIMITS)(rows).variant == "b", "c was the last"
    two = LIMITS.model_copy(update={"repeats": [2, 4]})
    assert further(two)(rows) is None


def test_where_other_work_never_ends_repeats_do():
    rows = [row for n in NAMES for row in series(n, *[1.0] * 15, busy=1.5)]
    rows += ended("a", 15, 1.0, busy=1.5) + ended("b", 15, 1.0, busy=1.5)
    assert further(LIMITS)(rows).variant == "c"
    assert further(LIMITS)(rows + ended("c", 15, 1.0, busy=1.5)) is None


def test_what_failed_or_was_skipped_is_not_asked_for_again():
    make = RowMaker("r", "c", "m", "host", WORKLOAD.id, "tiny", "cpu_gather", "a", 5)
    for status in ("failed", "skipped"):
        bad = make.missing("case", "wall_time", "s", "clock", "no", status)
        rows = [*series("a", *WIDER[:5]), bad, *series("b", *STEADY), *series("c", *STEADY)]
        assert further(LIMITS)(rows) is None


@pytest.mark.parametrize(("busy", "much"), [(0.0, False), (0.29, False), (0.31, True)])
def test_one_case_is_judged_by_its_own_rows(busy, much):
    (found,) = read(ended("a", 0, 1.0, busy=busy)).ended.to_dict("records")
    assert (found["other_cores"], found["noisy"]) == (pytest.approx(busy), much)
    unmetered = [ended("a", 0, 1.0)[of] for of in (0, -1)]
    assert not read(unmetered).ended["noisy"].any()


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_a_repeat_without_a_measurement_is_no_quiet_one(status):
    """The others count, although there was other work beside them."""
    make = RowMaker("r", "c", "m", "host", WORKLOAD.id, "tiny", "cpu_gather", "a", 2)
    lost = ended("a", 2, 1.0)[:-1] if status == "failed" else []
    lost.append(make.missing("case", "wall_time", "s", "clock", "no", status))
    found = read([*series("a", 1.0, 1.1, busy=1.5), *lost])
    assert found.ended["used"].tolist()[:2] == [True, True]
    assert len(found.measured) == 2


def test_repeats_beside_other_work_make_no_precise_series_wide():
    """Six quiet repeats within a ten-thousandth, and two noisy ones of three times that."""
    rows = series("a", *STEADY) + ended("a", 6, 3.0, busy=0.9) + ended("a", 7, 3.1, busy=0.9)
    ask = further(LIMITS.model_copy(update={"repeats": [2, 20]}))
    assert ask(rows) is None
    quiet = [row for name in (6, 7) for row in ended("a", name, 3.0)]
    assert ask(series("a", *STEADY) + quiet) is not None, "were they quiet, they would count"
