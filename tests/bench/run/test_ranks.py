"""Cases of several ranks: they train as one process would, and none of them ends unnoticed."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gatherbench.bench.plan.case import Case
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.ranks import Launch
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.runner import Runner
from gatherbench.bench.run.store import RunStore

from .ranks_worker import FAULTS, STAGES

WORKER = (sys.executable, str(Path(__file__).parent / "ranks_worker.py"))
#: The model without dropout: what it learns does not depend on who draws.
ALONE = Workload("tiny", model="mlp", fanouts=(4, 3), batch_size=32, max_batches=5)
TWO = replace(ALONE, gpus=2)


@pytest.fixture(autouse=True)
def small(tiny_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATHERBENCH_DATA", str(tiny_root))


def measured(store: RunStore, *workloads: Workload, timeout_s: float = 150) -> list[Row]:
    cases = [Case(workload, "cpu_gather", "pinned", {}, 0) for workload in workloads]
    return run(store, cases, timeout_s)


def run(store: RunStore, cases: list[Case], timeout_s: float = 150, epochs: int = 3) -> list[Row]:
    measure = Measure(repeats=1, epochs=epochs, timeout_s=timeout_s, eval_batches=1)
    Runner(store, cases, measure, "cpu", "abc", "box", worker=WORKER).run()
    return store.rows()


def values(rows: list[Row], workload: Workload, metric: str, rank: int = -1) -> list[float]:
    stage, name = metric.split(".")
    return [
        row.value
        for row in rows
        if (row.workload, row.stage, row.metric, row.rank) == (workload.id, stage, name, rank)
        and row.value is not None
    ]


def nothing_is_left(store: RunStore) -> bool:
    """No process of the ranks, and no file of theirs in the run's folder."""
    mine = str(Path(__file__).parent / "ranks_worker.py")
    until = time.monotonic() + 10.0  # one that was killed takes a moment to be gone

    def alive() -> bool:
        processes = (folder for folder in Path("/proc").iterdir() if folder.name.isdigit())
        return any(mine.encode() in _command(folder) for folder in processes)

    while alive() and time.monotonic() < until:
        time.sleep(0.05)
    return not alive() and not list(store.folder.rglob("*rank*"))


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_before_the_fork_the_launcher_asks_nothing_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name, answer in (("is_available", True), ("device_count", 2)):
        monkeypatch.setattr(torch.cuda, name, lambda n=name, a=answer: (asked.append(n), a)[1])
    config = Launch(min_nodes=1, max_nodes=1, nproc_per_node=2, start_method="fork")
    assert not asked
    assert getattr(config, "numa_options", None) is None  # ranks bind themselves


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_learn_what_one_process_learns_on_the_joined_minibatches(
    world: int, store: RunStore
) -> None:
    # 30 seeds a step: as many for each of 2 and of 3 ranks, so none is left out.
    one = replace(ALONE, batch_size=30)
    several = replace(one, gpus=world)
    rows = measured(store, one, several)
    assert not [row for row in rows if row.status == "failed"]
    alone, together = (values(rows, of, "train.loss") for of in (one, several))
    assert len(alone) == len(together) == 3
    assert together == pytest.approx(alone, rel=1e-4)
    assert alone[0] > alone[2]  # it did learn
    assert values(rows, one, "eval.test_accuracy") == values(rows, several, "eval.test_accuracy")
    assert nothing_is_left(store)


def test_the_case_is_as_slow_as_its_slowest_rank_and_uses_what_all_use(store: RunStore) -> None:
    rows = measured(store, TWO)
    ranks = [[values(rows, TWO, "epoch.wall_time", rank)[e] for rank in (0, 1)] for e in range(3)]
    assert values(rows, TWO, "epoch.wall_time") == [max(times) for times in ranks]
    assert values(rows, TWO, "epoch.minibatches") == [10.0] * 3
    for metric in ("fetch.payload", "epoch.cpu_user"):
        each = [values(rows, TWO, metric, rank) for rank in (0, 1)]
        assert values(rows, TWO, metric) == pytest.approx(
            [sum(of) for of in zip(*each, strict=True)]
        )
    for epoch in range(3):
        for stage in ("fetch", "train", "wait", "all_reduce"):
            its = [values(rows, TWO, f"{stage}.wall_time", rank)[epoch] for rank in (0, 1)]
            assert values(rows, TWO, f"{stage}.wall_time")[epoch] == pytest.approx(sum(its) / 2)
        train = values(rows, TWO, "train.wall_time")[epoch]
        inside = [values(rows, TWO, f"{s}.wall_time")[epoch] for s in ("wait", "all_reduce")]
        assert 0 <= sum(inside) <= train * 1.01 + 1e-3


def test_in_a_step_somebody_waits_for_nobody(store: RunStore) -> None:
    rows = measured(store, TWO)
    # Minibatch by minibatch the last rank waits 0 s, so over an epoch no two wait all the time.
    waits = [values(rows, TWO, "wait.wall_time", rank) for rank in (0, 1)]
    epochs = [values(rows, TWO, "epoch.wall_time", rank) for rank in (0, 1)]
    for first, second, one, other in zip(*waits, *epochs, strict=True):
        assert first + second < max(one, other)


def test_weak_scaling_gives_every_rank_the_whole_batch(store: RunStore) -> None:
    weak = replace(TWO, scaling="weak", max_batches=2)
    rows = measured(store, replace(TWO, max_batches=2), weak)
    # 300 rows in the graph, 200 to train on: 2 steps of 2 ranks at 32 seeds.
    assert values(rows, weak, "epoch.minibatches") == [4.0] * 3
    strong = values(rows, replace(TWO, max_batches=2), "fetch.payload")
    assert all(w > s for w, s in zip(values(rows, weak, "fetch.payload"), strong, strict=True))


def test_a_rank_that_goes_wrong_ends_its_case_with_its_words_and_nothing_is_left(
    store: RunStore,
) -> None:
    cases = [Case(TWO, "cpu_gather", "pinned", {}, number) for number in range(len(FAULTS))]
    rows = run(store, cases)
    ended = {
        FAULTS[row.repeat]: (row.status, row.reason or "") for row in rows if row.stage == "case"
    }
    assert ended.pop("none") == ("ok", "")
    assert {status for status, _ in ended.values()} == {"failed"}
    for stage in STAGES:
        assert ended[f"killed in {stage}"][1] == "RankError: rank 1 was killed by SIGKILL"
        said = ended[f"raises in {stage}"][1]
        assert said.startswith("RankError: rank 1: RuntimeError: ")
        assert f"rank 1 broke in {stage}" in said
    hung = ended["hangs in train"][1]
    assert hung.startswith("RankError: rank 0: RuntimeError: ")
    assert hung.endswith("; rank 1 said nothing")
    assert "RanksDisagreeError: the ranks have other minibatches" in ended["other data"][1]
    own = ended["gradients of their own"][1]
    assert "RanksDisagreeError: the parameters differ from rank to rank" in own
    assert nothing_is_left(store)


def test_a_case_whose_time_is_up_keeps_what_its_ranks_measured(store: RunStore) -> None:
    rows = run(store, [Case(TWO, "cpu_gather", "pinned", {}, 0)], timeout_s=6, epochs=10**6)
    assert (rows[-1].stage, rows[-1].status) == ("case", "failed")
    assert rows[-1].reason == "timed out after 6 s"
    for rank in (0, 1):
        assert len(values(rows, TWO, "epoch.wall_time", rank)) > 2
    assert values(rows, TWO, "epoch.wall_time") == [], "of the case as a whole nothing is known"
    assert nothing_is_left(store)


def test_more_machines_than_take_part_are_skipped(store: RunStore) -> None:
    rows = measured(store, replace(TWO, nodes=2))
    assert rows[-1].status == "skipped"
    assert rows[-1].reason == (
        "unsupported: 2 machines are asked for and 1 take part: torchrun --nnodes 2 starts"
        " gatherbench on each"
    )
