"""One case, measured for real on a tiny graph: every strategy, and strategies that are wrong."""

import math
import os
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import Tensor

from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.run import captured as captured_module
from gatherbench.bench.run import counting as counting_module
from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run import session as session_module
from gatherbench.bench.run import table as table_module
from gatherbench.bench.run.captured import CapturedTrainer
from gatherbench.bench.run.check import WrongMemoryError
from gatherbench.bench.run.counting import UNCHOSEN
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.loop import STAGES, EpochTimes, run_epoch
from gatherbench.bench.run.measure import MeasuredCase
from gatherbench.bench.run.models import NOTHING_AROUND, Trainer, WrongStepError
from gatherbench.bench.run.part import PartWriter, read_part, rows_of
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.session import Session
from gatherbench.bench.run.untimed import EnergyBlock
from gatherbench.bench.sampling.epoch import knowledge_of
from gatherbench.datasets.store import open_dataset
from gatherbench.strategies import auto, places
from gatherbench.strategies.base import SetupStep
from gatherbench.strategies.cpu_gather import CpuGather
from gatherbench.strategies.host_fetcher import HostFetcher
from gatherbench.strategies.registry import STRATEGIES

from .fakes import counted, measured, skipped

HOST = torch.device("cpu")


def value(rows: list[Row], stage: str, metric: str, epoch: int = -1) -> float:
    found = [r.value for r in rows if (r.stage, r.metric, r.epoch) == (stage, metric, epoch)]
    assert len(found) == 1
    assert found[0] is not None
    return found[0]


#: What runs here and brings the table's rows, on a workload without partitions (those:
#: tests/bench/neighbours/test_sampling.py).
HERE = [
    s.name
    for s in (kind() for kind in STRATEGIES)
    if "partitions" not in s.needs and s.skip(HOST) is None and s.role != "no_fetch"
]


@pytest.mark.parametrize(("model", "strategies"), [("sage", HERE), ("gat", HERE[::4])])
def test_all_strategies_yield_complete_rows_and_train_to_the_same_bits(make_job, model, strategies):
    outcomes = set()
    for strategy in strategies:
        rows = measured(make_job(strategy, model))
        is_complete(rows)
        declared = {r.metric: r.value for r in rows if r.basis == "declared"}
        assert (declared["gpu_table"] == 400 * 33 * 4) == (strategy == "all_in_gpu")
        # Of each of 5 steps: 28 a layer - 8 (71 - 4 of GAT), 8 of Adam and 3 copies.
        assert declared["launches"] == 5 * {"sage": 59, "gat": 149}[model]
        losses = tuple(value(rows, "train", "loss", e) for e in range(2))
        outcomes.add((losses, value(rows, "eval", "test_accuracy")))
    assert len(outcomes) == 1
    (first, second), accuracy = outcomes.pop()
    assert first != second, "each epoch has minibatches of its own"
    assert max(first, second) < math.log(3), "more than nothing was learnt in the warm-up"
    assert accuracy > 0.5, "three classes, and labels that the features tell"


def test_the_path_that_a_training_chose_is_told_with_what_the_search_cost(make_job, monkeypatch):
    """It trains to the bits of any other; its bytes depend on the choice, so none are declared."""
    paths = [CpuGather(), CpuGather("prefetch")]
    monkeypatch.setattr(auto, "candidates", lambda *_: paths)
    rows = measured(make_job("auto", warmup_epochs=60))
    (kept,) = (r for r in rows if r.metric.startswith("kept "))
    assert kept.metric.removeprefix("kept ") in map(auto.path_words, paths)
    # How many minibatches each path has depends on how long theirs take.
    assert 0 < value(rows, "setup", "search_minibatches") <= auto.LONGEST
    assert value(rows, "setup", "search_time") > 0
    assert len([r for r in rows if r.metric.startswith("over_kept ")]) == 1
    declared = {r.metric: r for r in rows if r.basis == "declared"}
    assert declared["declared_payload"].reason == UNCHOSEN
    assert not {"gpu_link_read", "lookahead", "gpu_table"} & set(declared)
    other = measured(make_job("cpu_gather", warmup_epochs=60))
    for epoch in range(2):
        assert value(rows, "train", "loss", epoch) == value(other, "train", "loss", epoch)


@pytest.mark.parametrize(
    ("device", "threads"), [("cuda", 1), ("cpu", len(os.sched_getaffinity(0)))]
)
def test_torch_has_one_thread_beside_a_gpu(make_job, monkeypatch, device, threads):
    """Those of its pool spin on the cores of whoever gathers and samples."""
    given: list[int] = []
    monkeypatch.setattr(session_module, "bind_case", lambda *_, **__: None)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    Session(replace(make_job(), device=device)).binding  # noqa: B018 - it binds when it is asked for
    assert given == [threads]


def is_complete(rows: list[Row]) -> None:
    for epoch in range(2):
        total = value(rows, "epoch", "wall_time", epoch)
        stages = sum(value(rows, stage, "wall_time", epoch) for stage in STAGES)
        assert 0 < stages <= total
        assert value(rows, "epoch", "minibatches", epoch) == 5
        assert value(rows, "fetch", "payload", epoch) % (33 * 4) == 0
        assert value(rows, "epoch", "cpu_user", epoch) >= 0
        overhead = value(rows, "harness", "overhead", epoch)
        assert overhead * 5 == pytest.approx(total - stages, abs=1e-6)
    assert value(rows, "check", "batches") >= 2
    assert value(rows, "setup", "table") == 400 * 33 * 4
    assert {(r.backend, r.basis) for r in rows} == {("host", "measured"), ("host", "declared")}
    declared = {r.metric: r.value for r in rows if r.basis == "declared"}
    assert {"cpu_read", "cpu_write", "copy_engine", "gpu_link_read"} <= set(declared)
    requests = [(int(n.split("_")[2]), n) for n in declared if n.startswith("gpu_requests_")]
    requested = sum(size * declared[name] for size, name in requests)
    assert (requested > 0) == (declared["gpu_link_read"] > 0)
    visits = [declared[f"{place}_page_visits"] for place in ("gpu", "managed")]
    assert (sum(visits) > 0) == (declared["gpu_link_read"] > 0)
    assert min(visits) == 0, "the table lies in memory of one kind"
    assert requested >= declared["gpu_link_read"], "the link carries less than the payload"


def test_an_epoch_is_written_as_the_loop_timed_it(make_job, monkeypatch):
    stages = {"sample": [1.0, 2.0], "fetch": [3.0, 5.0], "train": [10.0, 30.0]}

    def timed(*arguments: Any) -> EpochTimes:
        run_epoch(*arguments)
        return EpochTimes(60.0, stages, [2.0, 0.5], 1000)

    monkeypatch.setattr(measure_module.loop, "run_epoch", timed)
    job = make_job(epochs=1)
    rows = measured(job)
    seconds = {s: value(rows, s, "wall_time", 0) for s in ("sample", "fetch", "train", "epoch")}
    assert seconds == {"sample": 3.0, "fetch": 8.0, "train": 40.0, "epoch": 60.0}
    assert value(rows, "epoch", "minibatches", 0) == 2
    assert value(rows, "fetch", "payload", 0) == 132_000  # 1000 rows of 33 floats
    assert value(rows, "train", "loss", 0) == 1.25
    assert value(rows, "harness", "overhead", 0) == 4.5  # (60 - 3 - 8 - 40) s over two minibatches
    samples = {s["stage"]: s["value_s"] for s in read_part(job.part) if s["kind"] == "samples"}
    assert samples == stages


def test_the_model_is_scored_on_test_nodes(make_job, monkeypatch):
    scored: list[int] = []
    job = make_job(eval_batches=100)
    dataset = open_dataset(job.dataset)

    def correct(_trainer: Any, x: Tensor, batch: Any) -> int:
        assert torch.equal(x, torch.from_numpy(np.array(dataset.features))[batch.input_ids])
        scored.extend(batch.seeds.tolist())
        return len(batch.seeds) // 4

    monkeypatch.setattr(Trainer, "correct", correct)
    rows = measured(job)
    assert sorted(scored) == sorted(dataset.test_ids.tolist())
    assert [r.source for r in rows if r.stage == "eval"] == ["100 test nodes"]
    # Batches of 32, 32, 32 and 4 seeds: 8 + 8 + 8 + 1 of 100.
    assert value(rows, "eval", "test_accuracy") == 0.25


def test_a_case_on_the_host_says_where_its_table_lies_and_what_it_cannot_read(make_job):
    job = make_job()
    rows = measured(replace(job, first=False))
    assert {r.basis for r in rows} == {"measured"}, "the path is declared once for all repeats"
    (source,) = [r.source for r in rows if r.metric == "table_load_time"]
    assert source.endswith("copied into anonymous memory")
    fetched = sum(len(ids) for ids in Epochs(job, open_dataset(job.dataset)).ids(0))
    assert value(rows, "fetch", "payload", 0) == fetched * 33 * 4
    absent = [r for r in rows if r.stage == "epoch" and r.value is None]
    assert absent, "this machine reads every sensor there is?"
    kinds = {str(row.reason).split(":")[0] for row in absent}
    # An epoch on so small a graph may end before a counter has moved.
    assert kinds <= {"no_device", "unsupported", "no_permission", "too_short"}
    samples = [r for r in read_part(job.part) if r["kind"] == "samples"]
    assert {(s["epoch"], s["stage"]) for s in samples} == {(e, s) for e in (0, 1) for s in STAGES}
    for sample in samples:
        assert len(sample["value_s"]) == 5
        stored = value(rows, sample["stage"], "wall_time", sample["epoch"])
        assert sum(sample["value_s"]) == pytest.approx(stored)


def test_a_path_is_tuned_once_beside_a_step_that_has_been_made_before(make_job, monkeypatch):
    """The first one may capture; the model that is trained takes no part."""
    expected = measured(make_job("async_zero_copy"))
    steps, before = [], []
    found = SetupStep("budget_beside_training", "1", 0.1, "found beside training")

    def tune(fetcher: HostFetcher, _ids: Any, beside: Any) -> list[SetupStep]:
        before.append(list(steps))
        for _ in range(2):
            beside()
        assert len({id(one) for one in steps}) == 1
        fetcher.setup.append(found)  # and all the same it is told once
        return [found]

    def noted(self: Trainer, x: Tensor, batch: Any) -> Tensor:
        steps.append(self)
        return step(self, x, batch)

    step = Trainer.step
    monkeypatch.setattr(Trainer, "step", noted)
    monkeypatch.setattr(HostFetcher, "tunable", True)
    monkeypatch.setattr(HostFetcher, "tune", tune)
    rows = measured(make_job("async_zero_copy"))
    ((spare,),) = before
    assert spare not in steps[3:]
    assert len(steps) > 3
    for epoch in range(2):
        assert value(rows, "train", "loss", epoch) == value(expected, "train", "loss", epoch)
    assert value(rows, "setup", "budget_beside_training") == 0.1


def test_rows_are_checked_until_every_buffer_has_been_used_again(make_job):
    overlapped = measured(make_job("async_zero_copy"))
    assert value(overlapped, "check", "batches") == 3  # two buffers, and the first of them again


@pytest.mark.parametrize(
    ("policy", "ahead"),
    [("presampled", "0"), ("weighted_reverse_pagerank", "1"), ("random", "1"), ("oracle", "0")],
)
def test_cached_rows_train_to_the_same_bits_and_hits_are_those_told(make_job, policy, ahead):
    params = {"policy": policy, "share": "20%", "ahead": ahead}
    rows = measured(make_job("cached_zero_copy", params=params))
    plain = measured(make_job())
    for epoch in range(2):
        assert value(rows, "train", "loss", epoch) == value(plain, "train", "loss", epoch)
        counted = value(rows, "fetch", "rows_on_device", epoch)
        told = value(rows, "fetch", "gpu_memory_read", epoch) / value(rows, "fetch", "row")
        assert counted == told > 0
        payload = value(rows, "fetch", "declared_payload", epoch)
        assert payload == value(rows, "fetch", "payload", epoch)
        assert value(rows, "fetch", "gpu_link_read", epoch) == payload - counted * 33 * 4
    assert 0 < value(rows, "setup", "kept") <= value(rows, "fetch", "gpu_table")


def test_fresh_minibatches_are_others_in_each_epoch_and_the_same_for_all(make_job, monkeypatch):
    fetched: list[list[list[int]]] = []

    def kept(batches: Any, *rest: Any, **more: Any) -> Any:
        epoch = list(batches)
        fetched.append([batch.input_ids.tolist() for batch in epoch])
        return run_epoch(epoch, *rest, **more)

    monkeypatch.setattr(measure_module.loop, "run_epoch", kept)
    job = make_job(warmup_epochs=2, epochs=2)
    measured(job)
    again = fetched[1:]  # behind what is compared before timing
    fetched.clear()
    measured(make_job("async_zero_copy", warmup_epochs=2, epochs=2))
    assert fetched[1:] == again
    warm, warmer, one, two, _ = again  # the last is compared alone
    assert one == [ids.tolist() for ids in Epochs(job, open_dataset(job.dataset)).ids(0)]
    every = [tuple(ids) for epoch in (warm, warmer, one, two) for ids in epoch]
    assert len(set(every)) == len(every) == 4 * 5


def test_what_may_be_learned_from_is_not_what_is_measured(make_job):
    """Whole epochs of another seed: none of their minibatches is measured."""
    job = make_job()
    dataset = open_dataset(job.dataset)
    earlier = knowledge_of(job.case.workload, dataset).earlier
    assert earlier is not None
    drawn = [[tuple(ids.tolist()) for ids in earlier(epoch)] for epoch in (0, 1, 0)]
    measured_ids = {tuple(ids.tolist()) for ids in Epochs(job, dataset).ids(0)}
    assert drawn[0] == drawn[2] != drawn[1]
    assert len(drawn[0]) == -(-len(dataset.train_ids) // 32)  # not cut after 5 minibatches
    assert not measured_ids & {*drawn[0], *drawn[1]}


def test_a_case_reads_the_sensors_that_the_run_trusts(make_job, monkeypatch):
    monkeypatch.setattr(session_module, "gpu_under_test", lambda device, choice: (device, choice))
    job = replace(make_job(), sensors=SensorChoice("gpm", ""))
    assert Session(job).gpu == (HOST, job.sensors)


def captured(job: Job) -> Job:
    workload = replace(job.case.workload, step="captured")
    return replace(job, case=replace(job.case, workload=workload))


def test_a_captured_step_needs_a_gpu(make_job):
    job = captured(make_job())
    assert 'only a GPU replays captured steps; take step = "issued"' in str(skipped(job))
    there = replace(job, device="cuda")
    with closing(PartWriter(job.part)) as out:
        assert "captured" not in str(MeasuredCase(there, out, Session(there)).refused())


@pytest.mark.parametrize("fails", ["difference", "capture"])
def test_a_capture_that_fails_ends_the_process_and_wrong_gradients_the_case(
    make_job, monkeypatch, fails
):
    """torch may be left in the capture, and other paths of the process would train in it."""
    monkeypatch.setattr(MeasuredCase, "refused", lambda _: None)

    def failing(*_: object) -> None:
        raise raised

    where = CapturedTrainer if fails == "capture" else captured_module
    monkeypatch.setattr(where, fails, failing)
    raised: Exception = RuntimeError("operation not permitted when stream is capturing")
    with pytest.raises(SystemExit, match="1"):
        measured(captured(make_job()))
    raised = WrongStepError("by far")
    with pytest.raises(WrongStepError):
        measured(captured(make_job()))


def test_a_step_is_captured_before_the_warm_up(make_job, monkeypatch):
    """Without one the capture would be in the first measured epoch."""
    monkeypatch.setattr(MeasuredCase, "refused", lambda _: None)
    seen = []
    for name in ("capture", "step"):
        real = getattr(CapturedTrainer, name)
        noted = lambda *given, name=name, real=real: (seen.append(name), real(*given))[1]  # noqa: E731
        monkeypatch.setattr(CapturedTrainer, name, noted)
    measured(replace(captured(make_job(warmup_epochs=0)), first=False))
    assert seen[0] == "capture"
    assert set(seen[1:]) == {"step"}


def test_paths_train_to_the_same_bits_in_steps_of_a_fixed_size(make_job, monkeypatch):
    """Where the GPU would replay them they are issued here, which only a test may do."""
    monkeypatch.setattr(MeasuredCase, "refused", lambda _: None)
    outcomes, job = set(), make_job()
    epochs = Epochs(job, open_dataset(job.dataset))
    edges = np.array([[e.shape[1] for e in b.edges] for n in (0, 1) for b in epochs.on_cpu(n)])
    for strategy in ("cpu_gather", "aligned_zero_copy"):
        job = captured(make_job(strategy))
        rows = measured(job)
        is_complete(rows)
        assert value(rows, "train", "padding") == pytest.approx(
            edges.max(axis=0).sum() / edges.sum(axis=1).mean() - 1
        )
        assert 0 <= value(rows, "check", "gradient_difference") < 1e-5
        outcomes.add(tuple(value(rows, "train", "loss", e) for e in range(2)))
        again = measured(replace(job, first=False))
        assert not [row for row in again if row.metric == "gradient_difference"], "said once"
    ((first, second),) = outcomes
    assert first != second


def test_a_strategy_that_cannot_run_here_says_why(make_job, monkeypatch):
    """At once, or once the table has taken memory; no row is written."""
    managed = make_job("unified_zero_copy", params={"memory": "managed"})
    assert skipped(managed)
    job = make_job("all_in_gpu")
    free = iter((1 << 40, 1))
    monkeypatch.setattr(places, "available_bytes", lambda: next(free))
    assert str(skipped(job)).startswith("no_memory")
    assert not rows_of([*read_part(managed.part), *read_part(job.part)])


def test_a_table_that_moved_while_it_was_read_is_not_shown(make_job, monkeypatch):
    """What was measured before is there, and a row says that it is not to be believed."""

    class Managed(CpuGather):
        memory = "managed"

    used = iter([100, 100 + (1 << 30) + 1])
    monkeypatch.setattr(measure_module, "build", lambda *_: Managed())
    monkeypatch.setattr(table_module, "table_kind", lambda *_: "anonymous")
    monkeypatch.setattr(measure_module.check, "memory_beside_torch", lambda _: next(used))
    job = make_job()
    with pytest.raises(WrongMemoryError):
        skipped(job)
    rows = {(r.stage, r.metric): r for r in rows_of(read_part(job.part))}
    assert rows["epoch", "wall_time"].value is not None
    table = f"a table of {open_dataset(job.dataset).spec.table_bytes:,} B was read"
    assert table in str(rows["check", "memory"].reason)


def test_a_path_is_declared_for_each_set_as_it_is_after_what_it_fetched(make_job, monkeypatch):
    told: list[tuple[list[list[Tensor]], int]] = []

    class Learns(CpuGather):
        lookahead = 1  # so three minibatches are checked before timing

        def data_paths(self, of):
            told.append(([list(epoch) for epoch in of.before], of.num_rows))
            return super().data_paths(of)

    monkeypatch.setattr(counting_module, "build", lambda *_: Learns())
    job = make_job()
    measured(job)
    (first, num_rows), (second, _) = told
    assert num_rows == open_dataset(job.dataset).spec.num_nodes
    epochs = Epochs(job, open_dataset(job.dataset))
    warm_up, measured_first = list(epochs.ids(2)), list(epochs.ids(0))
    for found, wanted in (
        (first, [warm_up[:3], warm_up]),
        (second, [warm_up[:3], warm_up, measured_first]),
    ):
        assert [len(one) for one in found] == [len(one) for one in wanted]
        for epoch, of in zip(found, wanted, strict=True):
            assert all(map(torch.equal, epoch, of))


def test_what_a_path_cannot_declare_ends_the_case_before_anything_is_timed(make_job, monkeypatch):
    class Cannot(CpuGather):
        def data_path(self, ids, row_bytes):
            raise ZeroDivisionError("out of luck")

    job, good = make_job(), make_job("aligned_zero_copy")
    made = {job.case.strategy: Cannot()}
    built = counting_module.build
    monkeypatch.setattr(counting_module, "build", lambda n, p: made.get(n) or built(n, p))
    job, good = counted(job, good)
    words = "could not be counted: ZeroDivisionError: out of luck"
    with pytest.raises(RuntimeError, match=words):
        skipped(job)
    assert not [row for row in rows_of(read_part(job.part)) if row.epoch >= 0]
    rows = measured(good)  # who shares the process that counts is not touched
    assert value(rows, "fetch", "declared_payload", 1) == value(rows, "fetch", "payload", 1)


def test_where_nothing_was_counted_a_row_says_why(make_job):
    job = make_job()
    job = replace(job, counts=job.part.with_suffix(".json"))
    assert job.counts is not None
    with closing(PartWriter(job.counts)) as out:
        out.write("answer", uncounted="killed by SIGKILL")
    rows = measured(job)
    (lost, _) = [row for row in rows if row.metric == "declared_payload"]
    assert str(lost.reason).endswith("was not counted: killed by SIGKILL")
    assert value(rows, "epoch", "wall_time", 1) > 0


def test_what_a_path_counts_is_told_of_the_epoch_alone(make_job):
    """Before it 100 reads of a millisecond. In it 100: 50 under 2 µs (bin 4), 48 under 16 µs (16),
    2 under 1.024 ms (40); percentiles are upper edges."""
    before, after = np.zeros(81, np.int64), np.zeros(81, np.int64)
    before[40] = 100
    after[[4, 16, 40]] = 50, 48, 102
    path = SimpleNamespace(counts=lambda: {"disk_requests": 105}, latencies=lambda: after)
    trainer = SimpleNamespace(around=NOTHING_AROUND)
    case: Any = SimpleNamespace(fetcher=path, trainer=trainer, _ok=make_job().rows.ok)
    counted = MeasuredCase._path_rows(case, {"disk_requests": 100}, before, 7)
    rows = {row.metric: row for row in counted}
    assert {row.epoch for row in rows.values()} == {7}
    middles = 50 * 2**0.875 + 48 * 2**3.875 + 2 * 2**9.875
    assert {metric: row.value for metric, row in rows.items()} == {
        "disk_requests": 5,
        "disk_latency_mean": pytest.approx(middles / 100 * 1e-6),
        "disk_latency_median": pytest.approx(2e-6),
        "disk_latency_99th": pytest.approx(1.024e-3),
    }
    assert not list(measure_module.latencies_of(np.zeros(81, np.int64)))


def test_the_window_of_energy_holds_the_measured_epochs_and_nothing_else(make_job, monkeypatch):
    """Epochs of the warm-up come before it, and leave no rows. A plan may want none beyond them."""
    told: list[str] = []

    class Window(EnergyBlock):
        def __enter__(self) -> Self:
            told.append("opened")
            return super().__enter__()

        def __exit__(self, *error: object) -> None:
            told.append("closed")
            super().__exit__(*error)

        def rows(self, epochs: int, *of: Any):
            told.append(f"of {epochs}")
            return super().rows(epochs, *of)

    run_epoch = measure_module.loop.run_epoch
    monkeypatch.setattr(
        measure_module.loop, "run_epoch", lambda *of: (told.append("epoch"), run_epoch(*of))[1]
    )
    run_ons: list[bool] = []
    monkeypatch.setattr(
        measure_module, "EnergyBlock", lambda gpu, run_on: (run_ons.append(run_on), Window(gpu))[1]
    )
    rows = measured(make_job(epochs=3, warmup_epochs=2))
    assert {row.epoch for row in rows} == {-1, 0, 1, 2}
    # Before and behind all epochs there is a comparison.
    assert told == ["epoch"] * 3 + ["opened"] + ["epoch"] * 3 + ["closed", "epoch", "of 3"]
    measured(make_job(energy=False))
    assert run_ons == [True, False]
