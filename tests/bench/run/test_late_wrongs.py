"""Paths that are right for as long as somebody usually looks: the harness must reject every one."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from gatherbench.bench.run import check as check_module
from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run.agreement import fail_strays
from gatherbench.bench.run.check import WrongRowsError
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.measure import measure
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.store import PartWriter, RunStore, read_part, rows_of
from gatherbench.bench.sampling.trace import Trace
from gatherbench.strategies.base import Fetcher, Strategy, Ticket
from gatherbench.strategies.buffers import TicketRing
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.knowledge import Knowledge

#: Of the jobs below: fetches before timing, of an epoch, and of the check after the last epoch.
CHECKED, EPOCH, LAST = 2, 5, 5


class Right(Fetcher):
    """A fetcher without mistakes; fetches are numbered from 1."""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        self.table, self.number = features, 0
        self.ring = TicketRing(self.lookahead + 1)

    def _submit(self, ids: Tensor) -> Ticket:
        self.ring.claim()
        self.number += 1
        rows = self.spoilt(self.table[ids])
        return self.ring.issue(lambda: rows)

    def spoilt(self, rows: Tensor) -> Tensor:
        return rows

    def _close(self) -> None:
        self.ring.close()


class StopsFetching(Right):
    """Returns the rows that it had fetched last, or as many of them as are wanted."""

    FIRST_WRONG: ClassVar[int]

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        self.buffer = torch.zeros((len(features), self.row_width), dtype=self.dtype)

    def spoilt(self, rows: Tensor) -> Tensor:
        if self.number < self.FIRST_WRONG:
            self.buffer[: len(rows)] = rows
        return self.buffer[: len(rows)].clone()


class FromTheFourth(StopsFetching):
    FIRST_WRONG = 4


class FromTheSixtyFirst(StopsFetching):
    FIRST_WRONG = 61


class LastRowOfLarge(Right):
    """Forgets the last row of minibatches that are larger than those that are looked at first."""

    LARGE: ClassVar[int]

    def spoilt(self, rows: Tensor) -> Tensor:
        if len(rows) >= self.LARGE:
            rows[-1] = 0
        return rows


class OneColumn(Right):
    """Loses one value of each fetch from the second minibatch of the warm-up on."""

    def spoilt(self, rows: Tensor) -> Tensor:
        if self.number >= CHECKED + 2:
            rows.view(torch.uint8)[7, 4 * 20] ^= 1
        return rows


class BesideTraining(Right):
    """Does something to the rows while they are trained on: the test's step calls ``beside``."""

    lookahead = 1
    opened: ClassVar[BesideTraining]

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        BesideTraining.opened = self

    def beside(self, x: Tensor) -> None:
        raise NotImplementedError


class WritesOverThem(BesideTraining):
    """The fetch that is on its way has the same buffer."""

    def beside(self, x: Tensor) -> None:
        x.zero_()


class HandsThemOutTooEarly(BesideTraining):
    """Once there is training, rows become right while they are trained on."""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        self.training, self.early = False, set[int]()

    def spoilt(self, rows: Tensor) -> Tensor:
        if self.training:
            self.early.add(rows.neg_().data_ptr())
        return rows

    def beside(self, x: Tensor) -> None:
        self.training = True
        if x.data_ptr() in self.early:
            self.early.remove(x.neg_().data_ptr())


class DuringTimedEpochs(Right):
    """Right until the first timed epoch and after the last: all rows in between are wrong."""

    def spoilt(self, rows: Tensor) -> Tensor:
        timed = CHECKED + EPOCH < self.number <= CHECKED + 3 * EPOCH
        return torch.zeros_like(rows) if timed else rows


class AfterTheLastEpoch(Right):
    def spoilt(self, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows) if self.number > CHECKED + 3 * EPOCH else rows


def strategy_of(fetcher: type[Fetcher]) -> Strategy:
    class Late(Strategy):
        name = "late"
        summary = "for tests"

        def skip(self, device: torch.device, table_bytes: int = 0) -> str | None:
            return None

        def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
            return DataPath(0)

        def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
            return fetcher(features, device)

    return Late()


def measured(job: Job, fetcher: type[Fetcher], monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    with monkeypatch.context() as patch, closing(PartWriter(job.part)) as out:
        patch.setattr(measure_module, "build", lambda *_: strategy_of(fetcher))
        assert measure(job, out) is None
    return rows_of(read_part(job.part))


def rejected(job: Job, fetcher: type[Fetcher], monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    with pytest.raises(WrongRowsError, match=why):
        measured(job, fetcher, monkeypatch)
    last = rows_of(read_part(job.part))[-1]
    assert (last.stage, last.metric, last.status) == ("check", "rows", "failed")


def test_the_fetcher_that_the_wrong_ones_spoil_is_right(make_job, monkeypatch) -> None:
    job = make_job()
    rows = measured(job, Right, monkeypatch)
    trace = Trace.open(job.trace)
    sizes = [len(trace.input_ids(i)) for i in range(EPOCH)]
    (compared,) = [r.value for r in rows if (r.stage, r.metric) == ("check", "rows")]
    # In full: two minibatches, the warm-up, and five after the last epoch; of two timed epochs
    # three minibatches each, of which every n-th row is looked at, n = rows // 32.
    full = sum(sizes[:CHECKED]) + 2 * sum(sizes)
    fewest = 6 * min(size // (size // 32) for size in sizes)
    most = 6 * max(-(-size // (size // 32)) for size in sizes)
    assert fewest <= compared - full <= most


def test_after_the_last_epoch_fetches_are_beside_training_too(make_job, monkeypatch) -> None:
    steps: list[int] = []
    step = measure_module.Trainer.step

    def counted(trainer: Any, x: Tensor, batch: Any) -> Tensor:
        steps.append(len(x))
        return step(trainer, x, batch)

    monkeypatch.setattr(measure_module.Trainer, "step", counted)
    measured(make_job(), Right, monkeypatch)
    assert len(steps) == 3 * EPOCH + LAST  # a warm-up, two epochs, and the check


def test_a_path_that_stops_at_its_fourth_fetch(make_job, monkeypatch) -> None:
    rejected(
        make_job(), FromTheFourth, monkeypatch, "minibatch 1 of the trace, in the warm-up: row"
    )


def test_a_path_that_stops_at_its_sixty_first_fetch(make_job, monkeypatch) -> None:
    # 2 fetches before timing, 5 in the warm-up: of the 11th timed epoch 50 + 7 + 4 is the fourth.
    job = make_job(epochs=11)
    rejected(job, FromTheSixtyFirst, monkeypatch, "in epoch 10: row|after the last epoch: row")


def test_a_path_that_forgets_the_last_row_of_large_minibatches(make_job, monkeypatch) -> None:
    job = make_job(check_batches=1)
    trace = Trace.open(job.trace)
    sizes = [len(trace.input_ids(i)) for i in range(EPOCH)]
    largest = max(range(2, EPOCH), key=sizes.__getitem__)
    assert sizes[largest] > max(sizes[:2]), "the first minibatches would tell"
    monkeypatch.setattr(LastRowOfLarge, "LARGE", sizes[largest], raising=False)
    row = sizes[largest] - 1
    why = rf"minibatch {largest} of the trace, in the warm-up: row {row}, column 0: 0.0 is not"
    rejected(job, LastRowOfLarge, monkeypatch, why)


def test_a_path_that_loses_one_value(make_job, monkeypatch) -> None:
    why = r"minibatch 1 of the trace, in the warm-up: row 7, column 20: .* \(1 of \d+ rows differ\)"
    rejected(make_job(), OneColumn, monkeypatch, why)


@pytest.mark.parametrize("fetcher", [WritesOverThem, HandsThemOutTooEarly])
def test_a_path_that_is_wrong_only_beside_the_training(make_job, monkeypatch, fetcher) -> None:
    step = measure_module.Trainer.step

    def beside(trainer: Any, x: Tensor, batch: Any) -> Tensor:
        loss = step(trainer, x, batch)
        fetcher.opened.beside(x)
        return loss

    monkeypatch.setattr(measure_module.Trainer, "step", beside)
    rejected(make_job(), fetcher, monkeypatch, "in the warm-up: row 0, column 0: ")


def test_a_path_that_is_wrong_in_timed_epochs_alone(make_job, monkeypatch) -> None:
    job = make_job()
    rejected(job, DuringTimedEpochs, monkeypatch, "in epoch 0: row")
    assert not [r for r in rows_of(read_part(job.part)) if r.epoch >= 0], "and nothing of it stands"


def test_a_path_that_goes_wrong_after_the_last_epoch(make_job, monkeypatch) -> None:
    rejected(
        make_job(), AfterTheLastEpoch, monkeypatch, "minibatch 0 .*after the last epoch: row 0"
    )


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No draw ever meets the wrong rows."""
    monkeypatch.setattr(check_module, "SPOT_BATCHES", 0)


@pytest.mark.usefixtures("unseen")
def test_wrong_rows_that_no_draw_met_are_betrayed_by_the_losses(
    make_job, tmp_path, monkeypatch
) -> None:
    jobs = [make_job("cpu_gather"), make_job("aligned_zero_copy"), make_job("all_in_gpu")]
    plan: dict[str, Any] = {"name": "mine", "cases": [], "workloads": {}, "measure": {}}
    store = RunStore.create(tmp_path / "results", "box", plan, {})
    for job, fetcher in zip(jobs, (Right, DuringTimedEpochs, Right), strict=True):
        end = job.rows.ok("case", "wall_time", "s", 1.0, "time.perf_counter")
        store.append([*measured(job, fetcher, monkeypatch), end])
    assert fail_strays(store) == 1
    assert fail_strays(store) == 0, "it has failed once and for all"
    ends = {r.strategy: r for r in store.rows() if r.stage == "case"}
    statuses = {name: end.status for name, end in ends.items()}
    assert statuses == {"cpu_gather": "ok", "aligned_zero_copy": "failed", "all_in_gpu": "ok"}
    assert "train.loss of epoch 0 is" in str(ends["aligned_zero_copy"].reason)


def test_repeats_of_right_paths_do_not_stray(make_job, tmp_path, monkeypatch) -> None:
    plan: dict[str, Any] = {"name": "mine", "cases": [], "workloads": {}, "measure": {}}
    store = RunStore.create(tmp_path / "results", "box", plan, {})
    for repeat in range(2):
        job = make_job("cpu_gather")
        job = replace(job, case=replace(job.case, repeat=repeat))
        end = job.rows.ok("case", "wall_time", "s", 1.0, "time.perf_counter")
        store.append([*measured(job, Right, monkeypatch), end])
    before = store.rows()
    assert fail_strays(store) == 0
    assert store.rows() == before
