"""A run's time is a bound, and what it left out is said; by a clock of the test's own."""

import io
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.bench.observations import rows_of_run

from gatherbench.bench.commands import execute as execute_module
from gatherbench.bench.commands.execute import execute
from gatherbench.bench.meters.load import Load, Waiting
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case
from gatherbench.bench.run import runner as runner_module
from gatherbench.bench.run.engine import TimeUp
from gatherbench.bench.run.job import Block, Ready
from gatherbench.bench.run.part import PartWriter
from gatherbench.bench.run.runner import News, PreparedRun, Runner
from gatherbench.bench.run.store import RunStore

from .fakes import WORKLOAD, runner

IDLE, BUSY = Load(0.1, 4, 0.2), Load(3.0, 4, 9.8)


class Clocked:
    """Does a case in as many seconds of the test's clock as its variant says."""

    now, begun, preparing_s, told = 0.0, 0, 1000.0, 0.0
    checks_all: list[bool]

    def __init__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def prepare(self, *_: Any) -> Ready:
        Clocked.now += Clocked.preparing_s
        return Ready(Path("/nowhere"), "-it")

    def ask(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    def run(self, block: Block, *_: Any) -> None:
        Clocked.told = block.until
        with closing(PartWriter(block.part)) as out:
            for job in block.jobs:
                Clocked.begun += 1
                Clocked.checks_all.append(job.first)
                takes_s = float(job.case.variant)
                if Clocked.now + takes_s > block.until:
                    Clocked.now = block.until
                    raise TimeUp
                Clocked.now += takes_s
                out.end(job.rows, "ok", None, takes_s)


@pytest.fixture(autouse=True)
def clocked(monkeypatch: pytest.MonkeyPatch) -> None:
    Clocked.now, Clocked.begun, Clocked.preparing_s, Clocked.checks_all = 0.0, 0, 1000.0, []
    monkeypatch.setattr(runner_module, "state_of", lambda _: "-")
    monkeypatch.setattr(runner_module.time, "monotonic", lambda: Clocked.now)
    monkeypatch.setattr(runner_module, "Engine", Clocked)


def series(*seconds: float) -> list[Case]:
    """Cases of as many series, each of which takes so long."""
    return [Case(WORKLOAD, "cpu_gather", f"{s:g}", {}, 0) for s in seconds]


def left(
    store: RunStore, wanted: list[Case], given: float | None = None, **measure: Any
) -> tuple[int, float]:
    """How many cases a run does not measure, and seconds that it took."""
    began = Clocked.now
    task = PreparedRun(store, wanted, Measure(repeats=1, **measure), "cpu", "abc", "box")
    run = Runner(task, budget_s=given)
    assert run.run() == 0, "what is left out has not failed"
    return run.left, Clocked.now - began


def test_the_least_repeats_are_measured_however_long_they_take(store):
    """The plan's 100 s are less than the 115 of its cases, whose preparation takes 1000."""
    assert left(store, series(20, 30, 60, 5), budget_s=100) == (0, 1000 + 115)


@pytest.mark.parametrize(("budget_s", "ends", "took"), [(100, 3, 90), (35, 1, 30), (0, 9, 270)])
def test_the_plan_s_budget_is_time_in_further_cases(store, budget_s, ends, took):
    """Of 30 s each, behind one of the run's own: the fourth would be cut off, or the second."""
    first = series(30)[0]
    asked = [[replace(first, repeat=one)] for one in range(9, 0, -1)]
    Clocked.preparing_s = 0.0
    task = PreparedRun(store, [first], Measure(repeats=1, budget_s=budget_s), "cpu", "abc", "box")
    run = Runner(task, further=lambda _: asked.pop() if asked else [])
    run._took = {}
    assert (run.run(), run.left) == (0, 0)
    assert Clocked.now == 30 + took
    assert sum(row.stage == "case" for row in rows_of_run(store)) == 1 + ends


def test_in_a_run_that_goes_on_its_own_cases_are_not_of_the_budget_and_further_ones_are(store):
    """30 s each, and 50 for further ones: one of these, and 20 s are left."""
    Clocked.preparing_s = 0.0
    own = series(30)
    assert left(store, own, budget_s=50) == (0, 30)
    task = PreparedRun(store, own, Measure(repeats=1, budget_s=50), "cpu", "abc", "box")
    for number in (1, 2):
        asked = [[replace(own[0], repeat=number)]]
        run = Runner(task, further=lambda _, asked=asked: asked.pop() if asked else [])
        assert (run.run(), Clocked.begun) == (0, 2)


def test_all_rows_are_compared_in_one_repeat_of_a_path(store):
    left(store, [replace(one, repeat=number) for number in range(3) for one in series(20, 30)])
    assert Clocked.checks_all == [True, True, False, False, False, False]


def test_the_time_that_is_given_is_that_of_the_whole_run_and_cuts_off_the_case_in_flight(store):
    wanted = series(20, 30, 60, 5)
    assert left(store, wanted, 1100, budget_s=7) == (2, 1100)
    assert left(store, wanted, 1063) == (1, 1063), "of 60 and 5 s one fits"


def test_of_paths_that_take_turns_those_that_have_ended_in_time_are_in_the_table(store):
    assert left(store, series(20, 30, 60, 5), 1100, together=True)[0] == 2
    assert Clocked.told == 1100
    assert [(r.variant, r.value) for r in rows_of_run(store) if r.stage == "case"] == [
        ("20", 20.0),
        ("30", 30.0),
    ]


def test_no_repeat_is_begun_that_would_be_cut_off_as_far_as_is_known(store):
    wanted = [replace(series(30)[0], repeat=repeat) for repeat in range(9)]
    assert left(store, wanted, 1100) == (6, 1090)
    assert Clocked.begun == 3
    Clocked.preparing_s = 0.0
    assert left(store, wanted, 30) == (6, 0), "it would end with the budget"
    assert left(store, wanted, 31) == (5, 30)
    assert Clocked.begun == 4


def test_alone_no_path_has_a_repeat_before_one_that_did_not_fit(store):
    """Else the quick paths would have more of them than the slow ones."""
    wanted = [replace(one, repeat=repeat) for repeat in range(3) for one in series(60, 10)]
    assert left(store, wanted, 1100)[0] == 4
    took = [r.value for r in rows_of_run(store) if r.stage == "case"]
    assert took == [60.0, 10.0]


def test_where_paths_take_turns_a_repeat_that_fits_is_run_in_place_of_one_that_does_not(store):
    large, small = series(60)[0], replace(series(10)[0], workload=replace(WORKLOAD, hidden=7))
    wanted = [replace(one, repeat=repeat) for repeat in range(3) for one in (large, small)]
    Clocked.preparing_s = 0.0
    assert left(store, wanted, 100, together=True)[0] == 2, "of the large one"
    took = [r.value for r in rows_of_run(store) if r.stage == "case"]
    assert took == [60.0, 10.0, 10.0, 10.0]


@pytest.mark.parametrize(
    ("given", "left", "status", "more"), [(50.0, 3, 0, []), (5.0, 4, 1, ["nothing was measured"])]
)
def test_what_was_left_out_is_said(tmp_path, monkeypatch, given, left, status, more):
    Clocked.preparing_s = 0.0
    shown = lambda *_: True if not more else pytest.fail("nothing to show")  # noqa: E731
    monkeypatch.setattr(execute_module, "finish", shown)
    monkeypatch.setattr(execute_module, "load_run", lambda _: None)
    wanted = [*series(20, 60, 40), replace(series(20)[0], repeat=1)]
    store, out = a_run(tmp_path)
    task = PreparedRun(store, wanted, Measure(repeats=1), "cpu", "abc", "box")
    assert execute(task, out, out, given) == status
    first, *_ = said = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first.startswith("4 cases. No GPU here: data paths run in host memory. Results: ")
    again = f"{left} of 4 cases left. Go on with: gatherbench run --resume {store.folder}"
    assert said[-1 - len(more) :] == [again, *more]


HOST = "2 cases, about 4 minutes on an idle machine. No GPU here: data paths run in host memory."
BUSY_SAID = (
    "The machine is busy: other work uses 3.0 of 4 cores (load average 9.8). Epochs take longer and"
    " differ more, so fewer paths are separated; measure again when it is idle."
)


@pytest.mark.parametrize(
    ("device", "load", "minutes", "said"),
    [
        ("cpu", IDLE, 4, [HOST]),
        ("cuda", IDLE, 0, ["2 cases."]),
        ("cpu", BUSY, 4, [HOST, BUSY_SAID]),
    ],
)
def test_a_run_says_first_whether_the_machine_is_busy_and_how_long_it_takes(
    tmp_path, monkeypatch, device, load, minutes, said
):
    monkeypatch.setattr(execute_module, "finish", lambda *_: True)
    monkeypatch.setattr(execute_module, "load_run", lambda _: None)
    monkeypatch.setattr(execute_module.Runner, "run", lambda _: 0)
    store, out = a_run(tmp_path, load, minutes=minutes)
    task = PreparedRun(store, series(20, 30), Measure(repeats=1), device, "abc", "box", load)
    execute(task, out, out)
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[: len(said)] == [f"{said[0]} Results: {store.folder}", *said[1:]]


def a_run(folder: Path, load: Load = IDLE, **more: Any) -> tuple[RunStore, Console]:
    text = {"name": "mine", "cases": [], "workloads": {WORKLOAD.id: asdict(WORKLOAD)}, **more}
    cpu = {"logical_cores": 4, "usable_cores": 4, "quota_cores": None}
    waiting = asdict(Waiting.chosen(0, cpu, load, {}))
    store = RunStore.create(folder, "box", text, {"cpu": cpu, "waiting": waiting})
    return store, Console(file=io.StringIO(), width=200)


def test_a_process_says_how_much_of_its_work_is_done_and_the_runner_passes_it_on(
    store, monkeypatch
):
    """Of two paths with two epochs each half is done behind the first of two blocks."""
    told = list[tuple[float, int, str]]()
    wanted = series(20, 30)

    def tell(news: News) -> None:
        told.append((news.done, news.total, news.case.variant))

    run = runner(store, wanted, tell=tell)
    first, second = (one.id for one in wanted)

    def says(_block: Block, _timeout_s: float, hear: Any, **_: Any) -> None:
        for case, done in ((first, 0.0), (second, 0.5), (second, 0.5), (None, 0.5)):
            hear({"kind": "turn", "case": case, "since": 0.0, "before_s": 0.0, "done": done})

    run._ended, run._total = 4, 8
    ready = Ready(Path("/nowhere"), "-it")
    monkeypatch.setattr(run.engine, "run", says)
    jobs = [run._job(case, store.new_part(), ready) for case in wanted]
    assert (run._measured(jobs), run._turn) == (None, None), "it is nobody's turn by the end"
    assert told == [(4, 8, "20"), *[(4 + 0.5 * 2, 8, "30")] * 2]
