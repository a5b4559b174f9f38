"""Which minibatches an epoch has: its own, which no other has."""

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest
from torch import Tensor

from gatherbench.bench.run import epoch_minibatches as epochs_module
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.sampling import workers
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.datasets.store import open_dataset


def numbers(ids: Iterable[Tensor]) -> list[list[int]]:
    return [of.tolist() for of in ids]


def of(batches: Iterable[MiniBatch]) -> list[list[int]]:
    return numbers(batch.input_ids for batch in batches)


def test_fresh_epochs_have_minibatches_that_no_other_has(make_job):
    """Of two measured, a warm-up and two further ones no two are alike."""
    job = make_job(epochs=2, warmup_epochs=1)
    epochs = Epochs(job, open_dataset(job.dataset))
    measured = [of(epochs.measured(number)) for number in (0, 1)]
    warm_up, further = of(epochs.warm_up(0)), [of(epochs.further()) for _ in range(2)]
    drawn = [*measured, warm_up, *further]
    assert [len(epoch) for epoch in drawn] == [5] * 5
    assert all(a != b for i, a in enumerate(drawn) for b in drawn[:i])
    for _ in range(2):  # as often as wanted
        assert numbers(epochs) == measured[0] + measured[1]
    assert numbers(epochs.ids(2)) == warm_up


def test_paths_that_take_turns_have_the_order_of_an_epoch_drawn_once(make_job, monkeypatch):
    job, drawn = make_job(), list[int]()
    epochs = Epochs(job, open_dataset(job.dataset))
    draws = epochs_module.draws
    monkeypatch.setattr(
        epochs_module, "draws", lambda *given: drawn.append(given[3]) or draws(*given)
    )
    found = [of(epochs.measured(number)) for number in (0, 0, 1, 1, 0)]
    assert drawn == [0, 1]
    assert found[0] == found[1] == found[4]
    assert found[2] == found[3]


def test_waits_for_what_a_gpu_draws_are_those_of_the_epoch(make_job, monkeypatch):
    """A clock that goes on by a second whenever it is read: one for each of 5 minibatches."""
    job = make_job()
    epochs = Epochs(job, open_dataset(job.dataset))
    of(epochs.measured(0))
    assert epochs.waited_s() is None, "no GPU draws"
    clock = itertools.count()
    monkeypatch.setattr(workers.time, "perf_counter", lambda: float(next(clock)))
    batch = epochs.first[0]
    epochs._begin = lambda *_: lambda: batch
    for draw in (epochs.measured, epochs.warm_up, epochs.measured):
        of(draw(1))
        assert epochs.waited_s() == 5.0


def test_what_a_path_may_know_is_drawn_by_the_cpu(make_job):
    job = make_job()
    epochs = Epochs(job, open_dataset(job.dataset))
    wanted = numbers(epochs)
    epochs._begin = lambda *_: 1 / 0  # type: ignore[assignment, return-value]
    assert numbers(epochs) == wanted


def test_workers_bring_the_kinds_of_edges_along(make_job):
    job = make_job(sampling="live", sampler_workers=1)
    epochs = Epochs(job, open_dataset(job.dataset))
    epochs.typed = lambda batch: replace(batch, kinds=batch.edges[:1])
    assert [len(batch.kinds) for batch in epochs.measured(0)] == [1] * 5


@pytest.mark.parametrize("sampler", ["", "gatherbench.bench.neighbours.graphsnapshot:OTF"])
def test_epochs_may_be_drawn_side_by_side(make_job, sampler):
    job = make_job()
    workload = replace(job.case.workload, sampler=sampler)
    job = replace(job, case=replace(job.case, workload=workload))
    epochs = Epochs(job, open_dataset(job.dataset))
    apart = [numbers(epochs.ids(number)) for number in (0, 1)]
    both = [list(pair) for pair in zip(epochs.ids(0), epochs.ids(1), strict=True)]
    assert [numbers(one) for one in zip(*both, strict=True)] == apart
