"""Cases of several ranks: they train as one process would, and none of them ends unnoticed."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.bench.observations import rows_of_run

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.engine import KILL_S, Engine
from gatherbench.bench.run.part import read_part, rows_of
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.runner import PreparedRun, Runner
from gatherbench.bench.run.store import RunStore

from .ranks_worker import FAULTS

WORKER = (sys.executable, str(Path(__file__).parent / "ranks_worker.py"))
#: The model without dropout: what it learns does not depend on who draws. 30 seeds a step: as many
#: for each of 2 and of 3 ranks, so none is left out.
ALONE = Workload("tiny", model="mlp", fanouts=(4, 3), batch_size=30, max_batches=5)
TWO, THREE = replace(ALONE, gpus=2), replace(ALONE, gpus=3)
WEAK = replace(TWO, scaling="weak", max_batches=2)


@pytest.fixture(scope="module")
def engine(tiny_root: Path) -> Iterator[Engine]:
    """One for all runs of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATHERBENCH_DATA", str(tiny_root))
        kept = Engine(tiny_root, dict(os.environ), WORKER)
        kept.close = lambda: None  # type: ignore[method-assign]
        yield kept
    kept._end(KILL_S)


def run(
    store: RunStore,
    engine: Engine,
    cases: list[Case],
    epochs: int = 3,
    look: Callable[[], None] = lambda: None,
) -> list[Row]:
    measure = Measure(repeats=1, epochs=epochs, timeout_s=600, eval_batches=1)
    runner = Runner(PreparedRun(store, cases, measure, "cpu", "abc", "box"), worker=WORKER)
    runner.engine, engine.folder, engine.look = engine, store.parts, look
    runner.run()
    assert nothing_is_left(store, engine)
    return rows_of_run(store)


@pytest.fixture(scope="module")
def rows(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Of a run of every workload, and of a case for each fault."""
    store = RunStore.create(tmp_path_factory.mktemp("ranks"), "box", {"name": "mine"}, {})
    cases = [Case(w, "cpu_gather", "pinned", {}, 0) for w in (ALONE, TWO, THREE, WEAK)]
    return run(store, engine, cases + [Case(TWO, "cpu_gather", f, {}, 0) for f in FAULTS])


def values(
    rows: list[Row], workload: Workload, metric: str, rank: int = -1, variant: str = "pinned"
) -> list[float]:
    stage, name = metric.split(".")
    wanted = (workload.id, variant, stage, name, rank)
    return [
        row.value
        for row in rows
        if (row.workload, row.variant, row.stage, row.metric, row.rank) == wanted
        and row.value is not None
    ]


def mine() -> list[psutil.Process]:
    """The server and all that it has forked, whoever their parent is by now: a fork has its command
    line, which ends with the number of this process."""
    own = [*WORKER, str(os.getpid())]
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == own]


def nothing_is_left(store: RunStore, engine: Engine) -> bool:
    """No process but the server, if it lives, and no file of the ranks in the run's folder."""
    until = time.monotonic() + 100.0  # one that was killed takes a moment to be gone
    own = [] if engine.server is None else [engine.server.pid]
    while (left := [one.pid for one in mine()] != own) and time.monotonic() < until:
        time.sleep(0.05)
    return not left and not list(store.folder.rglob("*rank*"))


@pytest.mark.parametrize("several", [TWO, THREE])
def test_ranks_learn_what_one_process_learns_on_the_joined_minibatches(several, rows):
    alone, together = (values(rows, of, "train.loss") for of in (ALONE, several))
    assert len(alone) == len(together) == 3
    assert together == pytest.approx(alone, rel=1e-4)
    assert len(set(alone)) == 3  # of minibatches that no other epoch has
    assert values(rows, ALONE, "eval.test_accuracy") == values(rows, several, "eval.test_accuracy")


def test_the_case_is_as_slow_as_its_slowest_rank_and_uses_what_all_use(rows):
    ranks = [[values(rows, TWO, "epoch.wall_time", rank)[e] for rank in (0, 1)] for e in range(3)]
    assert values(rows, TWO, "epoch.wall_time") == [max(times) for times in ranks]
    assert values(rows, TWO, "epoch.minibatches") == [10.0] * 3
    for metric in ("fetch.payload", "epoch.cpu_user"):
        each = [values(rows, TWO, metric, rank) for rank in (0, 1)]
        summed = [sum(of) for of in zip(*each, strict=True)]
        assert values(rows, TWO, metric) == pytest.approx(summed)
    for epoch in range(3):
        for stage in ("fetch", "train", "wait", "all_reduce"):
            its = [values(rows, TWO, f"{stage}.wall_time", rank)[epoch] for rank in (0, 1)]
            assert values(rows, TWO, f"{stage}.wall_time")[epoch] == pytest.approx(sum(its) / 2)
            assert min(its) >= 0


def test_weak_scaling_gives_every_rank_the_whole_batch(rows):
    assert values(rows, WEAK, "epoch.minibatches") == [4.0] * 3
    assert values(rows, WEAK, "sample.seeds") == [4 * 30] * 3
    assert values(rows, TWO, "sample.seeds") == [5 * 30] * 3


def test_a_rank_that_goes_wrong_ends_its_case_with_its_words(rows):
    last = [row for row in rows if row.stage == "case" and row.variant in FAULTS]
    assert {row.status for row in last} == {"failed"}
    ended = {row.variant: str(row.reason) for row in last}
    for stage in ("train", "all_reduce"):
        assert ended[f"killed in {stage}"] == "RankError: rank 1 was killed by SIGKILL"
    for stage in ("open", "train"):
        said = ended[f"raises in {stage}"]
        assert said.startswith("RankError: rank 1: RuntimeError: ")
        assert f"rank 1 broke in {stage}" in said
    hung = ended["hangs in train"]
    assert hung.startswith("RankError: rank 0: RuntimeError: ")
    assert hung.endswith("; rank 1 ended without a word")
    assert "RanksDisagreeError: the ranks have other minibatches" in ended["other data"]
    own = ended["gradients of their own"]
    assert "RanksDisagreeError: the parameters differ from rank to rank" in own


def test_a_case_whose_time_is_up_ends_with_its_ranks(store, engine):
    """Until then they were out of reach for whoever shares a network with them."""
    case = Case(TWO, "cpu_gather", "pinned", {}, 0)
    listens: set[str] = set()

    def look() -> None:
        """The time is up when both have measured three epochs."""
        parts = [rows_of(read_part(part)) for part in store.folder.rglob("rank?.jsonl")]
        measured = [{row.epoch for row in part if row.stage == "epoch"} for part in parts]
        if sum(3 in epochs for epochs in measured) == 2:
            sockets = [of for one in mine() for of in one.net_connections("tcp")]
            listens.update(of.laddr.ip for of in sockets if of.status == psutil.CONN_LISTEN)
            raise TimeoutError

    (row,) = run(store, engine, [case], epochs=500, look=look)
    assert (row.stage, row.status, row.reason) == ("case", "failed", "timed out after 600 s")
    assert listens == {"127.0.0.1"}
