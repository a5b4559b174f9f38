"""Cases of a workload with partitions: one set of minibatches, all swaps, accuracy over time."""

from dataclasses import replace

import pytest
import torch

from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.rows import Row
from gatherbench.bench.sampling.prepare import prepare
from gatherbench.datasets.store import open_dataset

from ..run.fakes import measured, skipped

BUFFERED = "gatherbench.bench.neighbours.mariusgnn:Buffered"


def parted(job: Job, words: str = "parts=8 held=2", max_batches: int = 0) -> Job:
    """The job with partitions, on epochs of whole length."""
    drawn = f"{BUFFERED} {words}"
    workload = replace(job.case.workload, sampler=drawn, max_batches=max_batches)
    prepare(workload)
    return replace(job, case=replace(job.case, workload=workload))


def values(rows: list[Row], metric: str, basis: str = "measured") -> list[float | None]:
    return [row.value for row in rows if (row.metric, row.basis) == (metric, basis)]


def test_every_way_to_have_them_gives_the_same_minibatches(make_job):
    drawn = []
    for workers in (0, 2):
        job = parted(make_job(sampling="live", sampler_workers=workers))
        epochs = Epochs(job, open_dataset(job.dataset))
        drawn.append([batch.input_ids for batch in epochs.measured(0)])
    other = [batch.input_ids for batch in epochs.measured(1)]
    first, more = drawn
    assert len(first) > 20
    assert all(torch.equal(a, b) for a, b in zip(first, more, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=False))
    cut_short = Epochs(parted(make_job(), max_batches=3), open_dataset(job.dataset)).first
    assert len(cut_short) == 3
    assert all(torch.equal(first[i], cut_short[i].input_ids) for i in range(3))


@pytest.mark.parametrize(("ahead", "parts", "swaps"), [("0", 8, 27), ("1", 8, 27), ("1", 4, 5)])
def test_the_buffer_swaps_as_it_was_declared_in_each_epoch(make_job, ahead, parts, swaps):
    """8 partitions, 2 at a time: 6 + 7 (6 - 3) = 27 swaps; 4: 2 + 3 (2 - 1) = 5; 2 reads more."""
    job = make_job("partition_buffer", params={"ahead": ahead}, epochs=2)
    rows = measured(parted(job, f"parts={parts} held=2"))
    assert values(rows, "swaps") == [swaps] * 2
    for basis in ("measured", "declared"):
        assert values(rows, "disk_requests", basis) == [swaps + 2] * 2
    assert values(rows, "disk_read") == values(rows, "disk_read", "declared")
    both = zip(values(rows, "payload"), values(rows, "disk_payload", "declared"), strict=True)
    assert values(rows, "rows_in_memory") == [(asked - missed) / 132 for asked, missed in both]


def test_all_paths_train_alike_on_partitions_and_otherwise_without(make_job):
    jobs = parted(make_job("partition_buffer")), parted(make_job()), make_job()
    buffered, gathered, whole = (values(measured(job), "loss") for job in jobs)
    assert buffered == pytest.approx(gathered, rel=1e-6)
    assert gathered != pytest.approx(whole, rel=1e-3)


def test_without_partitions_the_buffer_is_skipped(make_job):
    said = skipped(make_job("partition_buffer"))
    assert str(said).startswith("unsupported: minibatches keep to no partitions")


def test_the_model_is_scored_after_each_epoch_outside_the_clock(make_job):
    """Then it trains on from epoch to epoch; else each begins with what the warm-up has trained."""
    often, once = (
        measured(make_job(epochs=3, eval_batches=2, eval_every_epoch=word))
        for word in (True, False)
    )
    scored = {row.epoch: row.value for row in often if row.metric == "test_accuracy"}
    assert sorted(scored) == [-1, 0, 1, 2]
    assert scored[-1] == scored[2]
    assert len(values(once, "test_accuracy")) == 1
    on, anew = values(often, "loss"), values(once, "loss")
    assert on[0] == anew[0]
    assert all(more < less for more, less in zip(on[1:], anew[1:], strict=True))
