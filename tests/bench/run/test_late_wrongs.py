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
from gatherbench.strategies.base import Fetcher, Strategy, Ticket

from ...strategies.right_paths import Made, RightFetcher, WhenUsed
from . import fakes

#: Of the jobs below: fetches that are compared before timing, of an epoch, and of the check after
#: the last epoch.
CHECKED, EPOCH, LAST = 2, 5, 5


class Right(RightFetcher):
    """Its fetches are numbered from 1."""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        self.number = 0
        #: What lies ready, or was fetched last.
        self.kept = features.clone()

    def rows(self, ids: Tensor) -> Tensor:
        self.number += 1
        return self.spoilt(super().rows(ids))

    def spoilt(self, rows: Tensor) -> Tensor:
        return rows


def spoilt_by(spoil: Callable[[Any, Tensor], Tensor], role: str = "other") -> type[Right]:
    """The class of a fetcher whose rows are what ``spoil`` makes of it and its right rows."""
    return type("Spoilt", (Right,), {"spoilt": spoil, "role": role})


def from_the_second(spoil: Callable[[Tensor], Tensor]) -> type[Right]:
    return spoilt_by(lambda path, rows: spoil(rows) if path.number > 1 else rows)


def last_byte_flipped(rows: Tensor) -> Tensor:
    rows.view(torch.uint8)[-1, -1] ^= 1
    return rows


def stops_fetching(first_wrong: int) -> type[Right]:
    """From then on it has the rows that it had fetched last, or as many of them as are wanted."""

    def spoil(path: Right, rows: Tensor) -> Tensor:
        if path.number < first_wrong:
            path.kept[: len(rows)] = rows
        return path.kept[: len(rows)].clone()

    return spoilt_by(spoil)


def loses_a_value(path: Right, rows: Tensor) -> Tensor:
    """Of each fetch from the second minibatch of the warm-up on."""
    if path.number >= CHECKED + 2:
        rows.view(torch.uint8)[7, 4 * 20] ^= 1
    return rows


def wrong_during_timed_epochs(path: Right, rows: Tensor) -> Tensor:
    timed = CHECKED + EPOCH < path.number <= CHECKED + 3 * EPOCH
    return torch.zeros_like(rows) if timed else rows


def wrong_after_the_last_epoch(path: Right, rows: Tensor) -> Tensor:
    return torch.zeros_like(rows) if path.number > CHECKED + 3 * EPOCH else rows


def gathers_when_used(path: Right, rows: Tensor) -> Tensor:
    """In timed epochs alone."""
    if path.number <= CHECKED + EPOCH:
        return rows
    later = torch.empty(0).as_subclass(WhenUsed)  # type: ignore[arg-type]
    later.gather = lambda: rows
    return later


#: Right until the first timed epoch and after the last: all rows in between are wrong.
DuringTimedEpochs = spoilt_by(wrong_during_timed_epochs)


class SortsTheIds(Right):
    """Of the caller, from the warm-up on: then the rows are right for ids that are not."""

    def _submit(self, ids: Tensor) -> Ticket:
        return super()._submit(ids.copy_(ids.sort().values) if self.number >= CHECKED else ids)


class BesideTraining(Right):
    """Does something to the rows while they are trained on: the test's step calls ``beside``."""

    lookahead = 1
    opened: ClassVar[BesideTraining]

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        BesideTraining.opened = self
        self.training, self.early = False, set[int]()

    def beside(self, x: Tensor) -> None:
        raise NotImplementedError


class WritesOverThem(BesideTraining):
    """The fetch that is on its way has the same buffer."""

    def beside(self, x: Tensor) -> None:
        x.zero_()


class HandsThemOutTooEarly(BesideTraining):
    """Once there is training, rows become right while they are trained on."""

    def spoilt(self, rows: Tensor) -> Tensor:
        if self.training:
            self.early.add(rows.neg_().data_ptr())
        return rows

    def beside(self, x: Tensor) -> None:
        self.training = True
        if x.data_ptr() in self.early:
            self.early.remove(x.neg_().data_ptr())


class ChangesLater(BesideTraining):
    """Hands out its staging buffer, into which it goes on writing."""

    lookahead = 0

    def beside(self, x: Tensor) -> None:
        x[-1] = 0


def lies_ready(path: Right, rows: Tensor) -> Tensor:
    return path.kept[: len(rows)]


def fetches_once_timed(path: Right, rows: Tensor) -> Tensor:
    """What it was asked for, in the timed epochs alone."""
    timed = CHECKED + 2 + EPOCH < path.number <= CHECKED + 2 + 3 * EPOCH
    return rows if timed else lies_ready(path, rows)


def strategy_of(fetcher: type[Fetcher]) -> Strategy:
    role = getattr(fetcher, "role", "other")
    late: Strategy = type("Late", (Made,), {"name": "late", "role": role, "fetcher": fetcher})()
    return late


def measured(job: Job, fetcher: type[Fetcher], monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    with monkeypatch.context() as patch:
        patch.setattr(measure_module, "build", lambda *_: strategy_of(fetcher))
        return fakes.measured(job)


def sizes_of(job: Job, epoch: int) -> list[int]:
    """Rows of each minibatch of an epoch of the workload."""
    return [len(ids) for ids in Epochs(job, open_dataset(job.dataset)).ids(epoch)]


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
        (stops_fetching(4), 2, "minibatch 1, in the warm-up: row"),
        # 2 fetches before timing, 5 in the warm-up: of the 11th epoch 50 + 7 + 4 is the fourth.
        (stops_fetching(61), 11, "in epoch 10: row|after the last epoch: row"),
        (
            spoilt_by(loses_a_value),
            2,
            r"minibatch 1, in the warm-up: row 7, column 20: .* \(1 of \d+ rows differ",
        ),
        (DuringTimedEpochs, 2, "in epoch 0: row"),
        (SortsTheIds, 2, "minibatch 0, in the warm-up: the path changed the ids that"),
        (spoilt_by(gathers_when_used), 2, "minibatch 0, in epoch 0: rows are a plain torch.Ten"),
        (spoilt_by(wrong_after_the_last_epoch), 2, "minibatch 0, after the last epoch: row 0"),
    ],
)
def test_a_path_that_is_right_for_a_while(make_job, monkeypatch, fetcher, epochs, why):
    rows = rejected(make_job(epochs=epochs), fetcher, monkeypatch, why)
    if fetcher is DuringTimedEpochs:
        assert not [r for r in rows if r.epoch >= 0], "and nothing of it stands"


def test_a_floor_has_times_and_neither_payload_nor_scores(make_job, monkeypatch):
    rows = {
        (r.stage, r.metric): r
        for r in measured(make_job(), spoilt_by(lies_ready, "no_fetch"), monkeypatch)
    }
    assert rows["fetch", "payload"].value == 0
    assert str(rows["train", "loss"].reason).startswith("not_applicable: ")
    assert ("eval", "test_accuracy") not in rows
    assert (rows["epoch", "wall_time"].value or 0) > 0


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda _, rows: rows, "before timing: row 0, column 0"),  # it is no floor at all
        (
            lambda path, rows: lies_ready(path, rows).clone(),
            "no_fetch must fetch nothing, but a fetch of it writes rows",
        ),
        (fetches_once_timed, "in epoch 0: row"),
    ],
)
def test_a_floor_that_fetches_is_rejected(make_job, monkeypatch, spoil, why):
    with pytest.raises(WrongRowsError, match=why):
        measured(make_job(), spoilt_by(spoil, "no_fetch"), monkeypatch)


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
    why = "minibatch 1, before timing: "
    rows = rejected(make_job(), from_the_second(spoil), monkeypatch, why)
    assert {r.stage for r in rows if r.value is not None} == {"setup"}


def test_a_path_that_forgets_the_last_row_of_large_minibatches(make_job, monkeypatch):
    job = make_job()
    sizes = sizes_of(job, 2)  # of the warm-up
    largest = max(range(2, EPOCH), key=sizes.__getitem__)
    assert sizes[largest] > max(sizes[:2]), "the first minibatches would tell"
    row = sizes[largest] - 1

    def forgets(_: Right, rows: Tensor) -> Tensor:
        if len(rows) > row:
            rows[-1] = 0
        return rows

    why = rf"minibatch {largest}, in the warm-up: row {row}, column 0: 0.0 is not"
    rejected(job, spoilt_by(forgets), monkeypatch, why)


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
