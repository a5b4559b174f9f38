"""The runner: whatever ends a case, or the run, nothing measured is lost and nothing runs twice."""

import errno
import fcntl
import io
import math
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from unittest import mock

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from tests.bench.observations import rows_of_run

from gatherbench.bench.commands.execute import execute, reporter
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.engine import TimeUp
from gatherbench.bench.run.guards import RunStopped, Terminated
from gatherbench.bench.run.part import PartWriter, StoreError
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.run.runner import News, PreparedRun, Runner, other_data
from gatherbench.bench.run.store import RunStore
from gatherbench.bench.show.terminal import progress_bar

from .fakes import WORKLOAD, cases, runner

MAKE = RowMaker("run", "abc", "box", "host")


def same_repeat(*variants: str) -> list[Case]:
    return [replace(case, repeat=0) for case in cases(*variants)]


def outcomes(store: RunStore) -> dict[str, tuple[str, str | None]]:
    return {r.variant: (r.status, r.reason) for r in rows_of_run(store) if r.stage == "case"}


def executions(store: RunStore) -> Counter[str]:
    log = store.folder / "executions"
    return Counter(log.read_text().split() if log.exists() else [])


@pytest.mark.parametrize("together", [False, True])
def test_every_outcome_becomes_a_row_and_the_plan_goes_on(store, together):
    """What was measured before is kept; a second run of the complete folder runs nothing.

    Of paths that take turns a crash costs the one whose turn it was.
    """
    expected = {
        "good": "", "skips": "no GPU here", "raises": "RuntimeError: wrong | rows",
        "crash": "exit status 3; last words: the driver says: unspecified launch failure",
        "segfault": "killed by SIGSEGV; last words: it printed nothing",
        "cut_short": "killed by SIGBUS (most likely a mapped file that was cut short, or whose",
        "killed": "killed by SIGKILL (most likely out of memory)",
        "hangs_since_long": "timed out after 200 s",
        "strays": "it trained on other rows: train.loss of minibatch set 0 is 2.0, and", "last": "",
    }  # fmt: skip
    wanted = same_repeat(*expected) if together else cases(*expected)
    assert runner(store, wanted, together=together).run() == 7
    said = outcomes(store)
    statuses = {name: status for name, (status, _) in said.items() if status != "failed"}
    assert statuses == {"good": "ok", "last": "ok", "skips": "skipped"}
    for name, reason in expected.items():
        assert str(said[name][1] or "").startswith(reason), name
    epochs = {r.variant: r.value for r in rows_of_run(store) if r.stage == "epoch"}
    assert epochs == dict.fromkeys(expected, 0.5)
    assert {r.rank for r in rows_of_run(store) if r.stage == "case"} == {-1}
    assert pq.read_table(store.folder / "samples.parquet").num_rows == 2 * len(wanted)
    before = (store.folder / "epochs.csv").read_bytes()
    again = runner(store, wanted, together=together)
    assert (again.run(), again.left) == (7, 0)
    assert (store.folder / "epochs.csv").read_bytes() == before
    assert executions(store) == Counter(case.id for case in wanted)


def test_the_runner_s_own_clock_ends_a_case_and_what_fails_before_any_turn_fails_once(store):
    assert runner(store, cases("hang"), timeout_s=0.3).run() == 1
    assert outcomes(store)["hang"] == ("failed", "timed out after 0.3 s")
    wanted = same_repeat("good", "dies_before_any_turn")
    assert runner(store, wanted, together=True).run() == 1 + 2
    said = {reason for name, (_, reason) in outcomes(store).items() if name != "hang"}
    assert said == {"exit status 4; last words: it printed nothing"}


def test_repeats_and_workloads_have_a_process_each(store):
    other = cases("good", workload=Workload("tiny", batch_size=7))
    wanted = [*cases("good", "good"), *other, *same_repeat("late")]
    assert runner(store, wanted, together=True).run() == 0
    groups = runner(store, wanted, together=True)._groups(wanted)
    variants = [[case.variant for case in group] for group in groups]
    assert variants == [["good", "late"], ["good"], ["good"]]


def test_a_run_does_not_go_on_with_another_graph_of_the_same_name(store, monkeypatch):
    monkeypatch.setenv("TEST_DATA", "as imported")
    runner(store, cases("good")).run()
    monkeypatch.setenv("TEST_DATA", "imported anew")
    wanted = cases("good", "last")
    again = runner(store, wanted)
    assert again.run() == 1
    assert again.unprepared == 1
    said = outcomes(store)
    assert said["good"] == ("ok", None)
    assert "tiny is not what this run began with" in said["last"][1]
    monkeypatch.setenv("TEST_DATA", "as imported")
    assert runner(store, wanted).run() == 0
    assert outcomes(store)["last"] == ("ok", None)


@pytest.mark.parametrize("content", ["{", "3"])
def test_workloads_of_one_graph_have_minibatches_of_their_own(content, tmp_path):
    whole, small = Workload("mine"), Workload("mine", batch_size=10)
    assert other_data(tmp_path, whole, "1") is other_data(tmp_path, small, "2") is None
    assert other_data(tmp_path, whole, "1") is None
    assert other_data(tmp_path, small, "1") is not None
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(StoreError, match=r"data\.json: cannot be read .* start a new run"):
        other_data(tmp_path, whole, "1")


@pytest.mark.parametrize("content", ["as it was", "another graph"])
def test_a_graph_imported_anew_between_two_cases_is_looked_at_again(
    content, store, tmp_path, monkeypatch
):
    """Else the rest of the cases would read its rows by the minibatches of the other."""
    folder = tmp_path / "imported"
    folder.mkdir()
    (folder / "spec.json").write_text("as it was")
    monkeypatch.setenv("TEST_FOLDER", str(folder))
    prepared: list[str] = []

    def anew(news: News) -> None:
        prepared.extend([news.step] * bool(news.step))
        if news.status and news.done == 2:
            (folder / "spec.json").write_text(content)

    one = runner(store, cases("good", "slow", "last"), tell=anew)
    another = content == "another graph"
    assert one.run() == one.unprepared == another
    assert len(prepared) == 1 + another
    status, reason = outcomes(store)["last"]
    assert status == ("failed" if another else "ok")
    assert not another or "tiny is not what this run began with" in str(reason)


def test_a_preparation_that_failed_is_tried_again_when_the_run_is_resumed(store, monkeypatch):
    monkeypatch.setenv("TEST_NETWORK", "down")
    wanted = cases("fine") + cases("good", "crash", workload=Workload("downloaded"))
    first = runner(store, wanted)
    assert first.run() == 2
    assert (first.left, first.unprepared) == (2, 2)
    said = outcomes(store)["good"][1]
    assert said == "downloaded could not be prepared: OSError: no route to host"
    monkeypatch.delenv("TEST_NETWORK")
    with closing(PartWriter(store.parts / "prepare0.jsonl")) as out:
        out.write("answer", failed="it was killed")
    again = runner(store, wanted)
    assert again.run() == 1, "only what fails on its own"
    assert (again.left, again.unprepared) == (0, 0)
    ended = [(r.variant, r.status) for r in rows_of_run(store) if r.stage == "case"]
    assert ended == [("fine", "ok"), ("good", "ok"), ("crash", "failed")]
    assert set(executions(store).values()) == {1}
    assert pq.read_table(store.folder / "samples.parquet").num_rows == 3 * 2


def test_a_full_disk_under_the_datasets_stops_the_run_and_it_resumes(store):
    full = cases("good", workload=Workload("full"))
    with pytest.raises(RunStopped, match="no space left to prepare full"):
        runner(store, full).run()
    assert not rows_of_run(store)
    assert runner(store, cases("good")).run() == 0


def test_progress_tells_of_every_case(store):
    told: list[News] = []
    runner(store, wanted := cases("good", "skips"), tell=told.append).run()
    assert [one._replace(total=2) for one in told] == [
        News(0, 2, wanted[0]),
        News(0, 2, wanted[0], step="drawing", fraction=0.5),
        News(0, 2, wanted[0]),
        News(1, 2, wanted[0], status="ok"),
        *[News(1, 2, wanted[1])] * 2,
        News(2, 2, wanted[1], status="skipped", reason="no GPU here"),
    ]


def test_where_there_is_no_terminal_a_quarter_has_a_line_and_a_reason_one(tmp_path):
    wanted = cases("good", "good", "skips", "skips")
    text = {"name": "mine", "cases": [], "workloads": {WORKLOAD.id: asdict(WORKLOAD)}}
    store, out = RunStore.create(tmp_path, "box", text, {}), Console(file=io.StringIO(), width=200)
    runner(store, wanted, tell=reporter(progress_bar(out), out)).run()
    lines = out.file.getvalue().splitlines()
    (skipped,) = (line for line in lines if "skips" in line)
    assert skipped.endswith("skips r2 skipped no GPU here")
    counts = [line for line in lines if line != skipped]
    assert counts == ["1 of 4 cases", "2 of 4 cases", "3 of 4 cases", "4 of 4 cases"]


def signalled(number: int) -> Callable[[], None]:
    """Sends this process a signal."""
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_are_answered_like_an_interrupt(number, store, once):
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(Terminated) as stop, once(store.parts, signalled(number)):
            runner(store, cases("hang")).run()
        assert stop.value.args == (number,)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_nohup_started_goes_on_without_its_terminal(store):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        wanted = cases("good")
        assert runner(store, wanted, tell=lambda _: signalled(signal.SIGHUP)()).run() == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert outcomes(store) == {"good": ("ok", None)}


@pytest.mark.parametrize(
    ("ended_by", "status"),
    [
        (KeyboardInterrupt(), 130),
        (Terminated(signal.SIGTERM), 143),
        (Terminated(signal.SIGHUP), 129),
    ],
)
def test_the_exit_status_tells_which_signal_ended_a_run(tmp_path, monkeypatch, ended_by, status):
    store = RunStore.create(tmp_path / "my results", "box", {"name": "mine", "cases": []}, {})

    def ends(_: Runner) -> int:
        raise ended_by

    monkeypatch.setattr(Runner, "run", ends)
    prepared = PreparedRun(store, cases("good"), Measure(), "cpu", "abc", "box")
    err = io.StringIO()
    assert execute(prepared, Console(file=io.StringIO()), Console(file=err, width=200)) == status
    assert f"Go on with: gatherbench run --resume '{store.folder}'" in err.getvalue()


def test_a_full_disk_in_the_case_stops_the_run_and_it_resumes(store):
    wanted = cases("good", "disk_full", "last")
    with pytest.raises(RunStopped, match="no space left"):
        runner(store, wanted).run()
    assert outcomes(store) == {"good": ("ok", None)}
    # The last one had ended, and the runner was killed before it knew.
    with closing(PartWriter(store.new_part())) as out:
        out.end(MAKE.of(wanted[2]), "ok", None, 4.5)
    roomy = [wanted[0], Case(WORKLOAD, "cpu_gather", "fits", {}, 1), wanted[2]]
    assert runner(store, roomy).run() == 0
    ends = {r.variant: r.value for r in rows_of_run(store) if r.stage == "case"}
    assert ends == {"good": 0.2, "fits": 0.2, "last": 4.5}
    counts = executions(store)
    assert (counts[wanted[0].id], counts[wanted[2].id]) == (1, 0)


def test_a_full_disk_under_the_tables_stops_the_run_and_it_resumes(store, monkeypatch):
    wanted, full = cases("good", "last"), OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr("gatherbench.bench.run.frames.Frames.write", mock.Mock(side_effect=full))
        with pytest.raises(RunStopped, match="no space left"):
            runner(store, wanted).run()
    assert set(outcomes(store)) == {"good", "last"}, "the parts have them"
    assert runner(store, wanted).run() == 0
    assert not store.parts.exists()
    assert set(outcomes(store)) == {"good", "last"}
    assert set(executions(store).values()) == {1}, "a case that had been measured was run again"


def test_a_file_system_without_locks_is_no_reason_not_to_run(store, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert runner(store, cases("good")).run() == 0
    assert set(outcomes(store)) == {"good"}


def test_two_runners_on_one_folder_are_refused(store):
    second: list[BaseException] = []

    def start_another(*_: object) -> None:
        try:
            runner(store, cases("good")).run()
        except StoreError as error:
            second.append(error)

    runner(store, cases("good"), tell=start_another).run()
    assert "another process is running" in str(second[0])


def test_a_case_in_flight_when_the_time_is_up_is_run_again_later(store):
    wanted = cases("good", "hang", "last")
    first = runner(store, wanted, budget_s=600)

    def look() -> None:
        if len(list(store.parts.glob("block*.jsonl"))) == 2:
            first._until = -math.inf
            raise TimeUp

    first.engine.look = look
    assert first.run() == 0, "what was not measured has not failed"
    assert first.left == 2, "the hanging case was not waited for"
    assert {r.variant for r in rows_of_run(store)} == {"good"}
    assert store.parts.is_dir(), "the parts wait for the run that completes this one"

    none = runner(store, wanted, budget_s=0)
    assert none.run() == 0
    assert none.left == 2, "what the first run measured is not left to do"

    later = runner(store, wanted, timeout_s=3, budget_s=600)
    assert later.run() >= 1
    assert later.left == 0
    assert outcomes(store)["hang"][1] == "timed out after 3 s", "now that its own time is up"
    assert executions(store)[wanted[0].id] == 1, "the complete case was not run again"
    assert not store.parts.exists()


def test_a_preparation_in_flight_when_the_time_is_up_has_not_failed(store):
    endless = runner(store, cases("good", workload=Workload("endless")), budget_s=2)
    assert endless.run() == 0
    assert (endless.left, endless.unprepared) == (1, 0)
    assert rows_of_run(store) == []
