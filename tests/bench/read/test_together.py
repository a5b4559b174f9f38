"""Runs whose paths took turns: ratios are paired by the rows, and what is measured next."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.read.compare import compare_runs
from gatherbench.bench.read.derive import speedup_over
from gatherbench.bench.read.stopping import StoppingRule, imprecise
from gatherbench.bench.read.tables import Run, run_of
from gatherbench.bench.run.frames import frames_of
from gatherbench.bench.run.rows import PROCESS, Row, RowMaker

WORKLOADS = Workload("tiny"), Workload("tiny", batch_size=7)
NAIVE, PINNED = "naive", "pinned"
FIRST = [
    Case(workload, "cpu_gather", variant, {}, 0)
    for workload in WORKLOADS
    for variant in (NAIVE, PINNED, "mps")
]


def measured(
    variant: str,
    repeat: int,
    *epochs: float,
    began: float | None,
    workload: Workload = WORKLOADS[0],
    took: float = 2.0,
) -> list[Row]:
    """The rows of a case whose process began then; ``None``: it had one of its own."""
    make = RowMaker("r", "c", "m", "host", workload.id, "tiny", "cpu_gather", variant, repeat)
    shared = [make.ok(*PROCESS, began, "time.time")] if began is not None else []
    clocked = [make.ok("epoch", "wall_time", "s", s, "clock", e) for e, s in enumerate(epochs)]
    return [*shared, *clocked, make.ok("case", "wall_time", "s", took, "clock")]


def run_with(rows: Sequence[Row], measure: Measure | None = None) -> Run:
    text = {"workloads": {one.id: {**asdict(one)} for one in WORKLOADS}}
    text["cases"] = [one.names for one in FIRST]
    text |= {"measure": (measure or Measure(together=True)).model_dump()}
    return run_of(Path(), text, {}, frames_of(rows), going=True)


def paired(second: float) -> list[Row]:
    """Two processes, the second of which is three times as slow; ``pinned`` is in ``second``."""
    return [
        *measured(NAIVE, 0, 2.0, 2.2, began=100.25),
        *measured(PINNED, 0, 1.0, 1.1, began=100.25),
        *measured(NAIVE, 1, 6.6, 8.0, began=200.5),
        *measured(PINNED, 1, 3.0, 4.0, began=second),
    ]


def test_a_speed_up_is_paired_within_the_blocks_of_a_process():
    """2 and 2 in one process, 2.2 and 2 in the other: of their logarithms the means are 0.6931 and
    0.7408, 0.0337 apart from their own mean; t(1) is 12.706."""
    found = speedup_over(run_with(paired(200.5))).set_index("variant").loc[PINNED]
    middle = (math.log(2) + math.log(math.sqrt(4.4))) / 2
    assert found["speedup"] == pytest.approx(math.exp(middle))
    reach = 12.706 * (math.log(math.sqrt(4.4)) - math.log(2)) / 2
    assert math.log(found["high"] / found["speedup"]) == pytest.approx(reach, rel=1e-4)


def test_a_repeat_of_the_same_number_in_another_process_is_no_pair():
    """As where a crash cut the repeat in two: what is left is Welch's interval, and wide."""
    found = speedup_over(run_with(paired(second=201.5))).set_index("variant").loc[PINNED]
    assert found["high"] / found["speedup"] > 1e4


def test_two_designs_of_one_plan_can_be_compared():
    """Alone and among others: the check of what isolation is worth, path by path."""
    alone, among = (
        run_with(
            [
                row
                for repeat in range(6)
                for variant, epoch in ((NAIVE, 2.0), (PINNED, pinned))
                for row in measured(
                    variant,
                    repeat,
                    *(epoch * (1 + 0.002 * repeat),) * 2,
                    began=100.0 + repeat if together else None,
                )
            ],
            Measure(together=together),
        )
        for together, pinned in ((False, 1.0), (True, 0.8))
    )
    said = compare_runs(alone, among, metrics=["epoch"]).set_index("variant")["verdict"]
    assert said.to_dict() == {NAIVE: "SAME", PINNED: "FAST"}, "its neighbours warm its caches"


LIMITS = Measure(together=True, repeats=[2, 9], precision=0.03)


def repeats(workload: Workload, pinned: Sequence[float], **more: float) -> list[Row]:
    """So many processes, each slower than the one before, of two paths; another has its own."""
    found = []
    for repeat, ratio in enumerate(pinned):
        slow, began = 2.0**repeat, 100.0 * repeat + WORKLOADS.index(workload)
        for variant, epoch in ((NAIVE, slow), (PINNED, slow * ratio)):
            found += measured(variant, repeat, epoch, began=began, workload=workload, **more)
        found += measured("mps", repeat, 1.0, began=None, workload=workload, **more)
    return found


def test_all_that_take_turns_are_measured_again_where_a_ratio_is_wide():
    """Processes that differ twofold make epochs imprecise, and no ratio."""
    rows = repeats(WORKLOADS[0], [1.1, 1.1001] * 3) + repeats(WORKLOADS[1], [1.1, 1.4] * 3)
    wanted = StoppingRule(FIRST, LIMITS, {})(frames_of(rows))
    assert {(one.workload, one.variant, one.repeat) for one in wanted} == {
        (WORKLOADS[1], NAIVE, 6),
        (WORKLOADS[1], PINNED, 6),
    }
    precise = repeats(WORKLOADS[0], [1.1, 1.1001] * 3)
    assert StoppingRule(FIRST, LIMITS, {})(frames_of(precise)) == []
    assert imprecise(run_with(precise, LIMITS)) == {}
    assert [key[2] for key in imprecise(run_with(rows, LIMITS))] == [PINNED]


def test_a_process_has_to_fit_into_the_budget_with_all_its_paths():
    """30 cases of 2 s beyond the first six have taken 60: two paths take 4 more, one alone 2."""
    rows = repeats(WORKLOADS[0], [1.1, 1.1001] * 3) + repeats(WORKLOADS[1], [1.1, 1.4] * 3)
    for budget, fits in ((64, True), (63, False)):
        within = LIMITS.model_copy(update={"budget_s": budget})
        assert bool(StoppingRule(FIRST, within, {})(frames_of(rows))) == fits


def test_a_path_with_a_process_of_its_own_is_measured_again_alone():
    rows = repeats(WORKLOADS[0], [1.1, 1.1001] * 3)
    rows += measured("mps", 6, 9.0, began=None) + repeats(WORKLOADS[1], [1.1] * 6)
    (wanted,) = StoppingRule(FIRST, LIMITS, {})(frames_of(rows))
    assert (wanted.workload, wanted.variant, wanted.repeat) == (WORKLOADS[0], "mps", 7)


@pytest.mark.parametrize(("alone", "wanted"), [(0, [NAIVE, PINNED]), (5, [PINNED])])
def test_the_last_repeat_tells_whether_paths_take_turns(alone, wanted):
    """As where a run went on in the other way: one of six repeats had processes of its own."""
    rows = [
        row
        for row in repeats(WORKLOADS[1], [1.1, 1.4] * 3)
        if (row.stage, row.metric, row.repeat) != (*PROCESS[:2], alone)
    ]
    assert [one.variant for one in StoppingRule(FIRST, LIMITS, {})(frames_of(rows))] == wanted


@pytest.mark.parametrize(("issue", "wanted"), [(0.6, True), (0.7, False)])
def test_no_repeat_is_spent_on_two_paths_that_the_host_bounds(issue, wanted):
    """Ratios of 1.1 and 1.4 in turns: not precise, but no repeat gives a verdict beyond 2/3.

    Of 1 and 1.4 s 0.6 and 0.6 of them are issued, or 0.7 and 0.7.
    """
    paths = [("unified_zero_copy", "registered"), ("aligned_zero_copy", "given")]
    first = [Case(WORKLOADS[0], *names, {}, 0) for names in paths]
    rows: list[Row] = []
    for repeat, ratio in enumerate([1.1, 1.4] * 3):
        for names, epoch in zip(paths, (1.0, ratio), strict=True):
            make = RowMaker("r", "c", "m", "cuda", WORKLOADS[0].id, "tiny", *names, repeat)
            host = {"issue_train": issue * epoch, "issue_fetch": 0.0, "drain": 0.0}
            rows += [
                make.ok("setup", "process_began", "s", 100.0 * repeat, "clock"),
                make.ok("epoch", "wall_time", "s", epoch, "clock", 0),
                make.ok("epoch", "minibatches", "1", 4, "count", 0),
                make.ok("sample", "wall_time", "s", 0.1, "clock", 0),
                make.ok("host", "wait_sample", "s", 0.1, "clock", 0),
                *(make.ok("host", metric, "s", s, "clock", 0) for metric, s in host.items()),
                make.ok("case", "wall_time", "s", 2.0, "clock"),
            ]
    limits = LIMITS.model_copy(update={"sampling": "gpu"})
    assert bool(StoppingRule(first, limits, {})(frames_of(rows))) == wanted
    assert bool(imprecise(run_with(rows, limits))) == wanted
