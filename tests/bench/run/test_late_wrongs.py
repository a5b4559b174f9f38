"""Wrong paths, most of them right for as long as somebody usually looks: each must be rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from tests.bench.observations import rows_in
from torch import Tensor

from gatherbench.bench.run import check as check_module
from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run import models
from gatherbench.bench.run.agreement import judged
from gatherbench.bench.run.check import WrongRowsError
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.frames import frames_of
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.part import read_part, rows_of
from gatherbench.bench.run.rows import Row
from gatherbench.datasets.store import open_dataset
from gatherbench.reason import Reason
from gatherbench.strategies.base import Fetcher, Strategy, Ticket
from gatherbench.strategies.buffers import TicketRing
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.knowledge import Knowledge

from ...strategies.when_used import WhenUsed
from . import fakes

#: Of the jobs below: fetches that are compared before timing, of an epoch, and of the check after
#: the last epoch.
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


class FromTheSecond(Right):
    """Delivers what ``SPOIL`` makes of the right rows."""

    SPOIL: ClassVar[Callable[[Tensor], Tensor]]

    def spoilt(self, rows: Tensor) -> Tensor:
        return type(self).SPOIL(rows) if self.number > 1 else rows


def last_byte_flipped(rows: Tensor) -> Tensor:
    rows.view(torch.uint8)[-1, -1] ^= 1
    return rows


class StopsFetching(Right):
    """Returns the rows that it had fetched last, or as many of them as are wanted."""

    FIRST_WRONG = 4

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        self.buffer = torch.zeros((len(features), self.row_width), dtype=self.dtype)

    def spoilt(self, rows: Tensor) -> Tensor:
        if self.number < self.FIRST_WRONG:
            self.buffer[: len(rows)] = rows
        return self.buffer[: len(rows)].clone()


class StopsLate(StopsFetching):
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


class SortsTheIds(Right):
    """Of the caller, from the warm-up on: then the rows are right for ids that are not."""

    def _submit(self, ids: Tensor) -> Ticket:
        return super()._submit(ids.copy_(ids.sort().values) if self.number >= CHECKED else ids)


class AfterTheLastEpoch(Right):
    def spoilt(self, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows) if self.number > CHECKED + 3 * EPOCH else rows


class GathersWhenUsed(Right):
    """In timed epochs alone."""

    def spoilt(self, rows: Tensor) -> Tensor:
        if self.number <= CHECKED + EPOCH:
            return rows
        later = torch.empty(0).as_subclass(WhenUsed)  # type: ignore[arg-type]
        later.gather = lambda: rows
        return later


class ChangesLater(BesideTraining):
    """Hands out its staging buffer, into which it goes on writing."""

    lookahead = 0

    def beside(self, x: Tensor) -> None:
        x[-1] = 0


class Ready(Right):
    """Hands out rows that lie ready."""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        self.ready = features.clone()

    def spoilt(self, rows: Tensor) -> Tensor:
        return self.ready[: len(rows)]


class CopiesWhatLiesReady(Ready):
    def spoilt(self, rows: Tensor) -> Tensor:
        return super().spoilt(rows).clone()


class RightFloor(Right):
    """No floor at all."""


class FetchesOnceTimed(Ready):
    """What it was asked for, in the timed epochs alone."""

    def spoilt(self, rows: Tensor) -> Tensor:
        timed = CHECKED + 2 + EPOCH < self.number <= CHECKED + 2 + 3 * EPOCH
        return rows if timed else super().spoilt(rows)


def strategy_of(fetcher: type[Fetcher]) -> Strategy:
    class Late(Strategy):
        name = "late"
        role = "no_fetch" if issubclass(fetcher, Ready) or fetcher is RightFloor else "other"
        summary = "for tests"

        def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
            return None

        def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
            return DataPath(0)

        def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
            return fetcher(features, device)

    return Late()


def measured(job: Job, fetcher: type[Fetcher], monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    with monkeypatch.context() as patch:
        patch.setattr(measure_module, "build", lambda *_: strategy_of(fetcher))
        return fakes.measured(job)


def sizes_of(job: Job, epoch: int) -> list[int]:
    """Rows of each minibatch of an epoch of the workload."""
    epochs = Epochs(job, open_dataset(job.dataset))
    return [len(ids) for ids in epochs.ids(epoch)]


def rejected(
    job: Job, fetcher: type[Fetcher], monkeypatch: pytest.MonkeyPatch, why: str
) -> list[Row]:
    with pytest.raises(WrongRowsError, match=why):
        measured(job, fetcher, monkeypatch)
    rows = rows_of(read_part(job.part))
    last = rows[-1]
    assert (last.stage, last.metric, last.status) == ("check", "rows", "failed")
    assert str(last.reason).startswith("failed: minibatch")
    return rows


def test_the_fetcher_that_the_wrong_ones_spoil_is_right(make_job, monkeypatch):
    job = make_job()
    rows = measured(job, Right, monkeypatch)
    warm_up, sizes = sizes_of(job, 2), sizes_of(job, 0)
    (compared,) = [r.value for r in rows if (r.stage, r.metric) == ("check", "rows")]
    # In full: two minibatches, the warm-up, and five after the last epoch; of two timed epochs
    # three minibatches each, of which every n-th row is looked at, n = rows // 32.
    full = sum(warm_up[:CHECKED]) + sum(warm_up) + sum(sizes)
    timed = [*sizes, *sizes_of(job, 1)]
    fewest = 6 * min(size // (size // 32) for size in timed)
    most = 6 * max(-(-size // (size // 32)) for size in timed)
    assert fewest <= compared - full <= most


def test_after_the_last_epoch_fetches_are_beside_training_too(make_job, monkeypatch):
    steps: list[int] = []
    step = models.Trainer.step

    def counted(trainer: Any, x: Tensor, batch: Any) -> Tensor:
        steps.append(len(x))
        return step(trainer, x, batch)

    monkeypatch.setattr(models.Trainer, "step", counted)
    measured(make_job(), Right, monkeypatch)
    assert len(steps) == 3 * EPOCH + LAST  # a warm-up, two epochs, and the check


@pytest.mark.parametrize(
    ("fetcher", "epochs", "why"),
    [
        (StopsFetching, 2, "minibatch 1, in the warm-up: row"),
        # 2 fetches before timing, 5 in the warm-up: of the 11th epoch 50 + 7 + 4 is the fourth.
        (StopsLate, 11, "in epoch 10: row|after the last epoch: row"),
        (
            OneColumn,
            2,
            r"minibatch 1, in the warm-up: row 7, column 20: .* \(1 of \d+ rows differ",
        ),
        (DuringTimedEpochs, 2, "in epoch 0: row"),
        (SortsTheIds, 2, "minibatch 0, in the warm-up: the path changed the ids that"),
        (GathersWhenUsed, 2, "minibatch 0, in epoch 0: rows are a plain torch.Tensor, and there"),
        (AfterTheLastEpoch, 2, "minibatch 0, after the last epoch: row 0"),
    ],
)
def test_a_path_that_is_right_for_a_while(make_job, monkeypatch, fetcher, epochs, why):
    rows = rejected(make_job(epochs=epochs), fetcher, monkeypatch, why)
    if fetcher is DuringTimedEpochs:
        assert not [r for r in rows if r.epoch >= 0], "and nothing of it stands"


def test_a_floor_has_times_and_neither_payload_nor_scores(make_job, monkeypatch):
    rows = {(r.stage, r.metric): r for r in measured(make_job(), Ready, monkeypatch)}
    assert rows["fetch", "payload"].value == 0
    assert str(rows["train", "loss"].reason).startswith("not_applicable: ")
    assert ("eval", "test_accuracy") not in rows
    assert (rows["epoch", "wall_time"].value or 0) > 0


@pytest.mark.parametrize(
    ("fetcher", "why"),
    [
        (RightFloor, "before timing: row 0, column 0"),
        (CopiesWhatLiesReady, "no_fetch must fetch nothing, but a fetch of it writes rows"),
        (FetchesOnceTimed, "in epoch 0: row"),
    ],
)
def test_a_floor_that_fetches_is_rejected(make_job, monkeypatch, fetcher, why):
    with pytest.raises(WrongRowsError, match=why):
        measured(make_job(), fetcher, monkeypatch)


@pytest.mark.parametrize(
    "spoil",
    [
        last_byte_flipped,
        lambda rows: rows.roll(1, 0),
        lambda rows: rows[:-1],
        lambda rows: rows.half(),
        lambda rows: torch.cat([rows, rows[:1]]),
    ],
    ids=["last byte", "order", "truncated", "dtype", "too many"],
)
def test_wrong_rows_end_the_case_before_anything_is_timed(make_job, monkeypatch, spoil):
    monkeypatch.setattr(FromTheSecond, "SPOIL", spoil, raising=False)
    why = "minibatch 1, before timing: "
    rows = rejected(make_job(), FromTheSecond, monkeypatch, why)
    assert {r.stage for r in rows if r.value is not None} == {"setup"}


def test_a_path_that_forgets_the_last_row_of_large_minibatches(make_job, monkeypatch):
    job = make_job()
    sizes = sizes_of(job, 2)  # of the warm-up
    largest = max(range(2, EPOCH), key=sizes.__getitem__)
    assert sizes[largest] > max(sizes[:2]), "the first minibatches would tell"
    monkeypatch.setattr(LastRowOfLarge, "LARGE", sizes[largest], raising=False)
    row = sizes[largest] - 1
    why = rf"minibatch {largest}, in the warm-up: row {row}, column 0: 0.0 is not"
    rejected(job, LastRowOfLarge, monkeypatch, why)


@pytest.mark.parametrize("fetcher", [WritesOverThem, HandsThemOutTooEarly, ChangesLater])
def test_a_path_that_is_wrong_only_beside_the_training(make_job, monkeypatch, fetcher):
    step = models.Trainer.step

    def beside(trainer: Any, x: Tensor, batch: Any) -> Tensor:
        loss = step(trainer, x, batch)
        fetcher.opened.beside(x)
        return loss

    monkeypatch.setattr(models.Trainer, "step", beside)
    rejected(make_job(), fetcher, monkeypatch, r"in the warm-up: row \d+, column 0: ")


def test_wrong_rows_that_no_draw_met_are_betrayed_by_the_losses(make_job, monkeypatch):
    """Of three series and a repeat of one, of which a right one is none that strays."""
    monkeypatch.setattr(check_module, "SPOT_BATCHES", 0)
    jobs = [make_job(name) for name in ("cpu_gather", "aligned_zero_copy", "all_in_gpu")]
    jobs.append(replace(jobs[0], case=replace(jobs[0].case, repeat=1)))
    fetchers, rows = (Right, DuringTimedEpochs, Right, Right), list[Row]()
    for job, fetcher in zip(jobs, fetchers, strict=True):
        end = job.rows.ok("case", "wall_time", "s", 1.0, "time.perf_counter")
        rows += [*measured(job, fetcher, monkeypatch), end]
    frames = judged(frames_of(rows))
    assert judged(frames) is frames, "it has failed once and for all"
    found = rows_in(frames)
    assert len(found) == len(rows_in(frames_of(rows))) + 1
    ends = {(r.strategy, r.repeat): r for r in found if r.stage == "case"}
    wrong = ends.pop(("aligned_zero_copy", 0))
    assert (wrong.status, {end.status for end in ends.values()}) == ("failed", {"ok"})
    assert "train.loss of minibatch set 0 is" in str(wrong.reason)
