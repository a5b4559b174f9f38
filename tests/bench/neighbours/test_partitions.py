"""Cases of a workload with partitions: one set of minibatches, all swaps, accuracy over time."""

from dataclasses import replace

import pytest
import torch
from tests.bench.observations import write_rows

from gatherbench.bench.commands.execute import new_run
from gatherbench.bench.read.axis import accuracy_by_then
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.part import read_part, rows_of
from gatherbench.bench.run.rows import Row, RowMaker
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
    for changes in (
        {"sampling": "live"},
        {"sampling": "live", "sampler_workers": 2},
    ):
        job = parted(make_job(**changes))
        epochs = Epochs(job, open_dataset(job.dataset))
        drawn.append([batch.input_ids for batch in epochs.measured(0)])
    other = [batch.input_ids for batch in epochs.measured(1)]
    first, *rest = drawn
    assert len(first) > 20
    for more in rest:
        assert all(torch.equal(a, b) for a, b in zip(first, more, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=False))
    cut_short = Epochs(parted(make_job(), max_batches=3), open_dataset(job.dataset)).first
    assert len(cut_short) == 3
    assert all(torch.equal(first[i], cut_short[i].input_ids) for i in range(3))


@pytest.mark.parametrize("ahead", ["0", "1"])
def test_the_buffer_swaps_as_it_was_declared_in_each_epoch(make_job, ahead):
    """8 partitions, 2 at a time: 6 + 7 (6 - 3) = 27 swaps, and 29 reads."""
    rows = measured(parted(make_job("partition_buffer", params={"ahead": ahead}, epochs=2)))
    assert values(rows, "swaps") == [27, 27]
    assert values(rows, "disk_requests") == [29, 29] == values(rows, "disk_requests", "declared")
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


def test_a_run_of_two_workloads_has_the_rows_and_the_accuracy_of_both(plan, tmp_path, make_job):
    text = plan.read_text().replace(
        "max_batches = 2", f'sampler = ["", "{BUFFERED} parts=4 held=2"]'
    )
    text = text.replace("aligned_zero_copy", "partition_buffer").replace("threads = 1", "")
    more = "epochs = 2\neval_batches = 1\neval_every_epoch = true"
    plan.write_text(text.replace("epochs = 1", more))
    prepared = new_run(str(plan), tmp_path / "results", "cpu", profile="a100-pcie4")
    rows = list[Row]()
    for case in prepared.cases:
        dataset, _ = prepare(case.workload)
        run, part = RowMaker("run", "abc", "box", "host"), tmp_path / "part.jsonl"
        job = Job(case, prepared.measure, "cpu", run, dataset, part)
        last = ("case", "wall_time", "s", "clock")
        if (why := skipped(job)) is None:
            end = job.rows.ok(*last[:3], 1.0, last[3])
        else:
            end = job.rows.missing(*last, why)
        rows += [*rows_of(read_part(part)), end]
    write_rows(prepared.store, rows)
    run = load_run(prepared.store.folder)
    whole, some = run.workloads
    ended = run.ended.reset_index()
    status = {(r["workload"], r["strategy"]): r["status"] for r in ended.to_dict("records")}
    assert status == {
        (whole, "cpu_gather"): "ok",
        (whole, "partition_buffer"): "skipped",
        (some, "cpu_gather"): "ok",
        (some, "partition_buffer"): "ok",
    }
    swaps = run.measured["fetch_swaps"].dropna()
    assert set(swaps.index.get_level_values("workload")) == {some}
    assert swaps.tolist() == [5, 5]  # 2 + 3 (2 - 1) = 5

    scores = accuracy_by_then(run)
    assert len(scores) == 3
    assert (scores > 0).any()
