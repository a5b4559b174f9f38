"""Several ranks and machines without any process: what one makes of all, their ends, their rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed import DistNetworkError, HashStore  # type: ignore[attr-defined]
from torch.multiprocessing.spawn import ProcessExitedException

from gatherbench.bench.run import group as group_module
from gatherbench.bench.run import machines
from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run import rank_processes as ranks_module
from gatherbench.bench.run import session as session_module
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.group import Alone, RanksDisagreeError, Together
from gatherbench.bench.run.guards import RunStopped
from gatherbench.bench.run.job import Block, Job, Ready
from gatherbench.bench.run.joined import joined
from gatherbench.bench.run.launch import Launch
from gatherbench.bench.run.part import PartWriter, rank_part, ranks_folder, read_part, rows_of
from gatherbench.bench.run.rank_processes import measure_ranks
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.session import Session
from gatherbench.bench.run.table import load_table
from gatherbench.bench.run.untimed import EnergyBlock
from gatherbench.bench.sampling.epoch import batch_seed, draws
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.store import open_dataset
from gatherbench.outside import fresh
from gatherbench.strategies.knowledge import Ranks

from .fakes import skipped


class Told(Together):
    """A rank without a group: ``others`` is what the others say where it says something."""

    def __init__(self, ranks: Ranks, *others: Any) -> None:
        self.ranks, self.others, self._device = ranks, others, torch.device("cpu")
        self._model = nn.Linear(1, 1, bias=False)
        self._begin, self._entered, self._left = 0.0, [], []

    def gathered(self, value: Any) -> list[Any]:
        found = [other(value) if callable(other) else other for other in self.others]
        found.insert(self.rank, value)
        return found

    def wrap(self, model: nn.Module) -> nn.Module:
        return model


def entered(*seconds: float) -> Any:
    """A rank that came to each exchange so long after its epoch's begin, with this one's model."""
    return lambda mine: (list(seconds), mine[1])


class Event:
    """A moment on a GPU."""

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at_s - self.at_s)


@pytest.mark.parametrize(
    ("rank", "others", "mine", "left", "waits", "exchanges"),
    [
        # Step 0: at 1, 3 and 2 s, left at 3.5 s. Step 1: at 6, 4 and 9 s, left at 10 s.
        (0, [(3.0, 4.0), (2.0, 9.0)], [1.0, 6.0], [3.5, 10.0], [2.0, 3.0], [0.5, 1.0]),
        # The last waits for nobody, and clocks that differ make no time below 0.
        (1, [(1.0, 5.0)], [2.0, 3.0], [2.5, 4.75], [0.0, 2.0], [0.5, 0.0]),
    ],
)
@pytest.mark.parametrize("moment", [float, Event])
def test_a_step_waits_for_the_last_rank_and_exchanges_from_then_on(
    rank, others, mine, left, waits, exchanges, moment
):
    world = len(others) + 1
    group = Told(Ranks(rank, world, world), *(entered(*seconds) for seconds in others))
    group._begin = moment(100.0)
    group._entered, group._left = ([moment(100 + at) for at in marks] for marks in (mine, left))
    assert group.end_epoch() == {"wait": waits, "all_reduce": exchanges}


def test_other_parameters_are_no_one_model():
    group = Told(Ranks(0, 2, 2), lambda _mine: ([], "of other parameters"))
    with pytest.raises(RanksDisagreeError, match="the parameters differ"):
        group.end_epoch()
    before = group._digest()
    with torch.no_grad():
        next(group._model.parameters()).add_(1.0)  # type: ignore[union-attr]
    assert group._digest() != before


def test_a_step_enters_with_its_first_bucket_and_leaves_when_its_last_is_there(monkeypatch):
    group, now = Told(Ranks(0, 2, 2)), [0.0]
    monkeypatch.setattr(group, "_now", lambda: now[0])
    futures: list[Any] = [torch.futures.Future() for _ in range(3)]
    monkeypatch.setattr(group_module, "allreduce_hook", lambda _, bucket: futures[bucket.index()])
    told = []
    for number in range(3):
        now[0] = 10.0 + number
        bucket = mock.Mock(index=lambda n=number: n, is_last=lambda n=number: n == 2)
        told.append(group._exchange(bucket))
    for number in range(3):
        now[0] = 20.0 + number
        futures[number].set_result(torch.tensor(number))
    assert [int(one.wait()) for one in told] == [0, 1, 2]
    assert (group._entered, group._left) == ([10.0], [22.0])


def test_what_a_step_sends_is_what_is_learnt():
    group = Told(Ranks(0, 2, 2))
    group._model = nn.Linear(10, 3)  # 30 weights and 3 biases, of which the weights stay as is
    group._model.weight.requires_grad_(False)
    (row,) = group.rows(RowMaker("run", "abc", "box", "host", "w", "d", "s", "v", 0))
    assert (row.stage, row.metric, row.value) == ("all_reduce", "payload", 12.0)


def test_ranks_of_one_node_share_its_cores():
    unbound = [Told(Ranks(rank, 4, 2), None, None, None).cores_of(None) for rank in range(4)]
    assert unbound == [(0, 2), (1, 2), (0, 2), (1, 2)], "ranks 2 and 3 are another machine"
    assert Told(Ranks(1, 4, 2), 0, 1, 1).cores_of(1) == (0, 1), "its neighbour has the other node"
    assert Told(Ranks(3, 4, 2), 0, 1, 1).cores_of(1) == (1, 2)
    assert Alone().cores_of(1) == (0, 1), "one process has all"


class Twin(Told):
    """Rank 1 of two, whose other one says the same but where ``answers`` has something else."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(Ranks(1, 2, 2), lambda mine: next(self.answers, None) or mine)
        self.answers, self.epochs = iter(answers), 0

    def begin_epoch(self) -> None:
        self.epochs += 1


@pytest.fixture
def rank_job(make_job: Any, tmp_path: Path) -> Job:
    """Of rank 1 of two."""
    job: Job = make_job(warmup_epochs=1, epochs=2, eval_batches=1)
    workload = replace(job.case.workload, gpus=2)
    case = replace(job.case, workload=workload)
    return replace(job, case=case, rank=1)


def test_a_rank_measures_as_one_of_several(rank_job, monkeypatch):
    told: list[Any] = []

    class Noted(EnergyBlock):
        def rows(self, epochs: int, one_epoch: Any, make: Any, gathered: Any = None) -> Any:
            one_epoch()
            told.append(gathered("wants to go on"))
            return iter(())

    def bound(_device: object, _threads: int, _numa: str, *, part_of: Any) -> tuple[int, str]:
        told.append(part_of(None))
        return 0, ""

    monkeypatch.setattr(measure_module, "EnergyBlock", Noted)
    monkeypatch.setattr(session_module, "bind_case", bound)
    group = Twin()
    assert skipped(rank_job, group=group) is None
    rows = rows_of(read_part(rank_job.part))
    assert told == [(1, 2), ["wants to go on"] * 2]
    assert group.epochs == 1 + 1 + 2 + 1 + 1, "checks before and after, warm-up, two, energy"
    assert not [row for row in rows if row.stage == "eval"], "rank 0 does that for all"
    assert {row.rank for row in rows} == {1}


@pytest.mark.parametrize("asked", [0, 1])
def test_a_rank_skips_what_another_one_cannot_run(rank_job, monkeypatch, asked):
    monkeypatch.setattr(session_module, "bind_case", lambda *_, part_of: (0, ""))
    other = [None] * asked + ["no room there"]
    assert skipped(rank_job, group=Twin(*other)) == "no room there"


def test_ranks_begin_with_one_model_and_draw_a_dropout_each(make_job):
    job: Job = make_job()
    found = []
    for rank in range(3):
        group = Told(Ranks(rank, 3, 3))
        trainer = Session(job, None, group).trainer()
        group._model = trainer.model
        found.append((group._digest(), torch.rand(8).tolist()))
    assert len({digest for digest, _ in found}) == 1
    assert len({tuple(draws) for _, draws in found}) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_has_minibatches_of_its_own(make_job, rank):
    job: Job = make_job()
    workload, graph = replace(job.case.workload, gpus=2), open_dataset(job.dataset)
    sampler = NeighborSampler(graph.indptr, graph.indices, workload.fanouts)
    seeds = [nodes for nodes, _ in draws(workload, sampler, graph.train_ids, 0, rank)]
    mine = [sampler.sample(s, batch_seed(0, 0, i, rank, 2)) for i, s in enumerate(seeds)]
    job = replace(job, case=replace(job.case, workload=workload), rank=rank)
    epochs = Epochs(job, graph)
    for drawn in (list(epochs.measured(0)), epochs.first):
        assert [b.input_ids.tolist() for b in drawn] == [b.input_ids.tolist() for b in mine]


def test_a_table_that_ranks_register_is_shared(make_job):
    dataset = open_dataset(make_job().dataset)
    table = load_table(dataset, "shared")
    assert table.where == "copied into anonymous shared memory"
    assert load_table(dataset).where == "copied into anonymous memory"
    child = os.fork()
    if not child:
        table.features[0, 0] = 12345.0
        os._exit(0)
    os.waitpid(child, 0)
    assert table.features[0, 0] == 12345.0


# ---- the launcher's process ----------------------------------------------------------------------


@pytest.fixture
def job(make_job: Any) -> Job:
    job: Job = make_job()
    workload = replace(job.case.workload, gpus=2)
    return replace(job, case=replace(job.case, workload=workload))


def launched(monkeypatch: pytest.MonkeyPatch, *statuses: str, killed: int | None = None) -> None:
    """Have the ranks write their parts: rank ``r`` takes ``r + 1`` s for epoch 0; ends so."""

    def write(_work: object, args: Any, *_: object, **__: object) -> None:
        job: Job = args[0]
        folder = ranks_folder(job.part)
        for rank, status in enumerate(statuses):
            with closing(PartWriter(folder / f"rank{rank}.jsonl")) as out:
                make = replace(job.rows, rank=rank)
                out.row(make.ok("epoch", "wall_time", "s", rank + 1, "clock", 0))
                values = {"batch": [0], "value_s": [float(rank)]}
                out.write("samples", **job.case.names, epoch=0, stage="train", **values)
                if status:
                    out.end(make, status, None if status == "ok" else f"it is {status}", 1.0)
        if killed is not None:
            raise ProcessExitedException("", killed, 1, exit_code=-9, signal_name="SIGKILL")

    monkeypatch.setattr(ranks_module, "start_processes", write)
    monkeypatch.setattr(ranks_module, "use_one_network", lambda _: None)


def folded(job: Job) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How the case ended, and the records before that."""
    with closing(PartWriter(fresh(job.part))) as out:
        measure_ranks(Block("measure", (job,)), out)
    *records, end = read_part(job.part)
    assert end["kind"] == "end"
    return end, records


def test_samples_are_the_slowest_ranks_and_no_part_is_left(job, monkeypatch):
    launched(monkeypatch, "ok", "ok")
    end, records = folded(job)
    assert end["status"] == "ok"
    assert [r["value_s"] for r in records if r["kind"] == "samples"] == [[1.0]]
    assert [(r.rank, r.value) for r in rows_of(records)] == [(0, 1.0), (1, 2.0), (-1, 2.0)]
    assert [path.name for path in job.part.parent.iterdir()] == [job.part.name]
    launched(monkeypatch, "skipped", "skipped")
    end, records = folded(job)
    assert (end["status"], end["reason"]) == ("skipped", "it is skipped")
    assert {row.rank for row in rows_of(records)} == {0, 1}, "none of the case as a whole"


@pytest.mark.parametrize(
    ("statuses", "killed", "said"),
    [
        (("ok", ""), None, "rank 1 ended without a word"),
        (("", ""), None, "rank 0, 1 ended without a word"),
        (("ok",), None, "rank 1 ended without a word"),
        (("failed", "failed"), None, "rank 0: it is failed"),  # the first to fail
        (("failed", ""), None, "rank 0: it is failed; rank 1 ended without a word"),
        (("failed", ""), 1, "rank 1 was killed by SIGKILL"),
    ],
)
def test_a_case_fails_with_its_ranks_and_no_part_is_left(job, statuses, killed, said, monkeypatch):
    launched(monkeypatch, *statuses, killed=killed)
    end, records = folded(job)
    assert (end["status"], end["reason"]) == ("failed", f"RankError: {said}")
    rows = rows_of(records)
    assert [row.rank for row in rows] == list(range(len(statuses))), "none of the case as a whole"
    assert [path.name for path in job.part.parent.iterdir()] == [job.part.name]


def test_before_the_forks_no_team_of_threads_a_table_to_register_and_enough_gpus_or_cores(
    job, monkeypatch
):
    order: list[object] = []
    monkeypatch.setattr(torch, "set_num_threads", order.append)
    monkeypatch.setattr(ranks_module, "load_table", lambda _dataset, kind: order.append(kind))
    launched(monkeypatch, "ok", "ok")
    folded(job)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    folded(replace(job, device="cuda"))
    managed = replace(job.case, strategy="unified_zero_copy", params={"memory": "managed"})
    folded(replace(job, case=managed, device="cuda"))  # no fork has it: each loads its own
    assert order.pop() == 1
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    refused, _ = folded(replace(job, device="cuda"))
    assert refused["reason"] == "no_device: 2 GPUs are asked for and 1 are here"
    assert order == [1, "anonymous", 1, "shared"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert folded(job)[0]["status"] == "ok"
    monkeypatch.setattr(ranks_module, "RANKS_A_CORE", 1)
    refused, _ = folded(job)
    assert refused["reason"] == "unsupported: 2 ranks on 1 cores would only take turns"


@pytest.mark.parametrize(
    ("machine", "rank", "named", "own"),
    [(0, 1, "GPU-a,5", "5"), (1, 3, "", "1"), (0, 0, "GPU-a,5", "GPU-a")],
)
def test_a_rank_has_a_gpu_of_its_machine(job, monkeypatch, machine, rank, named, own):
    """Of 4 ranks on 2 machines rank 3 is the second of machine 1."""
    seen: list[Any] = []

    def group(_device: object, ranks: Ranks, store: object, patience_s: float) -> Any:
        seen.append((ranks, store, patience_s, os.environ["CUDA_VISIBLE_DEVICES"]))
        raise RuntimeError("enough")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    monkeypatch.setattr(ranks_module, "Together", group)
    monkeypatch.setattr(ranks_module, "die_with_parent", lambda _: None)
    monkeypatch.setattr(ranks_module, "store_of", lambda job, _: job.meeting)
    monkeypatch.setattr(ranks_module, "_LINGER_S", 0.0)
    monkeypatch.setattr(ranks_module.os, "_exit", seen.append)  # type: ignore[attr-defined]
    meeting = Launch("torchrun", machine, 2, 0, 1, "10.0.0.1", case="case7")
    four = replace(job.case, workload=replace(job.case.workload, gpus=4))
    job = replace(job, case=four, device="cuda", meeting=meeting)
    ranks_folder(job.part).mkdir()
    ranks_module._one_rank(rank % 2, job, None, 77)
    assert seen == [(Ranks(rank, 4, 2), meeting, 30.0, own), 1]
    assert os.environ["LOCAL_WORLD_SIZE"] == "2"


# ---- the rows of a case of several ranks ---------------------------------------------------------


MAKE = RowMaker("run", "abc", "box", "host", "w", "tiny", "cpu_gather", "pinned", 0)


def of_rank(rank: int, *observations: tuple[str, str, str, float, int]) -> list[Row]:
    make = replace(MAKE, rank=rank)
    return [make.ok(s, m, unit, value, "clock", epoch) for s, m, unit, value, epoch in observations]


def whole(folder: Path, ranks: Iterable[list[Row]]) -> list[Row]:
    path = fresh(folder / "part.jsonl")
    with closing(PartWriter(path)) as out:
        joined(list(ranks), out)
    return rows_of(read_part(path))


def test_an_epoch_is_its_slowest_rank_and_its_stages_are_means(tmp_path):
    times = (((2.0, 1.5), (1.0, 0.75)), ((1.9, 2.0), (1.1, 0.25)))  # by rank and epoch
    ranks = [
        of_rank(rank, *(
            (stage, "wall_time", "s", seconds, epoch)
            for epoch, both in enumerate(of)
            for stage, seconds in zip(("epoch", "fetch"), both, strict=True)
        ))
        for rank, of in enumerate(times)
    ]  # fmt: skip
    rows = whole(tmp_path, ranks)
    assert {(r.stage, r.epoch): (r.value, r.rank) for r in rows} == {
        ("epoch", 0): (2.0, -1),
        ("fetch", 0): (1.75, -1),
        ("epoch", 1): (1.1, -1),
        ("fetch", 1): (0.5, -1),
    }
    assert rows[0].source == "clock; rank 0, the slowest"


@pytest.mark.parametrize(
    ("expected", "how", "metrics"),
    [
        (10, "sum of 4 ranks", "fetch.payload.B epoch.cpu_user.s energy.gpu_energy.J "
         # What a process itself read off a disk adds up.
         "epoch.gpu_power.W epoch.disk_read.B fetch.disk_requests.1"),
        (10, "sum of 4 ranks, what they share counted for each", "epoch.peak_rss.B"),
        (2.5, "mean of 4 ranks", "train.loss.1 wait.wall_time.s harness.overhead.s"),
        (4, "longest of 4 ranks", "setup.open_time.s fetch.disk_latency_99th.s"),
        (1, "as the first rank saw it", "epoch.system_cpu_busy.s epoch.system_cpu_steal.s "
         "epoch.cpu_package_energy.J epoch.cpu_dram_energy.J epoch.disk_read_device.B "
         "epoch.disk_reads_device.1"),
    ],
)  # fmt: skip
def test_what_the_ranks_make_together(expected, how, metrics, tmp_path):
    for metric in metrics.split():
        stage, name, unit = metric.split(".")
        ranks = [of_rank(r, (stage, name, unit, value, -1)) for r, value in enumerate((1, 4, 2, 3))]
        (row,) = whole(tmp_path, ranks)
        assert (row.value, row.source) == (expected, f"clock; {how}"), metric


@pytest.mark.parametrize(
    "metric",
    [
        # Joules of all ranks are over as many epochs as each ran, not over all of theirs together.
        "energy.epochs.1", "all_reduce.payload.B", "fetch.row.B", "fetch.lookahead.1",
        "fetch.gpu_share.1", "fetch.gpu_table.B", "setup.numa_node.1", "check.residency.1",
        "setup.table_load_time.s", "setup.table.B",
    ],
)  # fmt: skip
def test_what_is_alike_is_not_added_up_and_what_nobody_can_add_is_left_out(metric, tmp_path):
    seen = ((*metric.split("."), 3.0, -1), ("epoch", "gpu_temperature", "K", 300.0, 0))
    (row,) = whole(tmp_path, [of_rank(rank, *seen) for rank in (0, 1)])
    assert (f"{row.stage}.{row.metric}.{row.unit}", row.value, row.source) == (metric, 3.0, "clock")


def test_what_one_rank_does_or_lacks_is_so_of_the_case(tmp_path):
    (row,) = whole(tmp_path, [of_rank(0, ("eval", "test_accuracy", "1", 0.5, -1)), []])
    assert (row.value, row.rank, row.source) == (0.5, -1, "clock")
    lacking = replace(MAKE, rank=1).missing("energy", "gpu_energy", "J", "NVML", "no_device: none")
    ranks = [of_rank(0, ("energy", "gpu_energy", "J", 3.0, -1)), [lacking]]
    (row,) = whole(tmp_path, ranks)
    assert (row.value, row.reason, row.rank) == (None, "no_device: none", -1)


@given(times=st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=6))
def test_no_rank_is_slower_than_the_case(times, tmp_path_factory):
    ranks = [of_rank(r, ("epoch", "wall_time", "s", t, 0)) for r, t in enumerate(times)]
    (row,) = whole(tmp_path_factory.mktemp("joined"), ranks)
    assert row.value == max(times)


# ---- machines ------------------------------------------------------------------------------------


FIRST = Launch("torchrun", 0, 2, 0, 1, served=True)


class Machine:
    """Stands for the engine of the second machine, and does what a case's variant says."""

    def __init__(self, _folder: Path, environment: dict[str, str], look: Callable[[], None]):
        self.environment = environment

    def prepare(self, block: Block) -> Ready | str:
        dataset = block.jobs[0].case.workload.dataset
        return Ready(Path("/there"), "same") if dataset == "tiny" else f"no {dataset} here"

    def run(self, block: Block, timeout_s: float) -> str | None:
        (job,), counts = block.jobs, ""
        if job.counts is not None:
            counts = job.counts.read_text()
        fresh(job.part)
        ranks_folder(job.part).mkdir(exist_ok=True)
        said = [job.dataset, job.identity, timeout_s, self.environment["OMP_WAIT_POLICY"], counts]
        rank_part(job.part, 1).write_text(repr(list(map(str, said))))
        if job.case.variant == "dies":
            return "killed by SIGKILL"
        failed = job.case.variant == "fails"
        with closing(PartWriter(job.part)) as out:
            out.end(job.rows, *(("failed", "rank 1 broke") if failed else ("ok", None)), 1.0)
        return None

    def close(self) -> None: ...


@pytest.fixture
def of_two(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> Job:
    """One of two ranks; both processes find the store, and the second one has the engine above."""
    store, made = HashStore(), make_job()
    monkeypatch.setattr(machines, "_connected", lambda *_: store)
    monkeypatch.setattr(machines, "Engine", Machine)
    case = replace(made.case, workload=replace(made.case.workload, gpus=2))
    ranks_folder(made.part).mkdir()
    return replace(made, case=case, counts=None)


def followed(end: list[BaseException]) -> None:
    try:
        with machines.Group(replace(FIRST, rank=1)) as second:
            machines.follow(second)
    except BaseException as error:
        end.append(error)


def test_another_machine_measures_its_ranks_and_answers_what_became_of_them(of_two, monkeypatch):
    """Its ranks' lines, and its words of each failure; then it leaves, and the first one knows."""
    keys, heard, end = list[str](), machines.heard, list[BaseException]()

    def recorded(store: Any, key: str, *more: Any, **named: Any) -> Any:
        value = heard(store, key, *more, **named)
        keys.append(key)
        return value

    monkeypatch.setattr(machines, "heard", recorded)
    monkeypatch.setattr(machines, "_LEAVE_S", 100.0)
    second = Thread(target=followed, args=(end,), daemon=True)
    second.start()
    counts = of_two.part.with_name("counts")
    counts.write_text("12 rows")
    with machines.Group(FIRST) as first:
        first.say("waiting", {"OMP_WAIT_POLICY": "PASSIVE"})
        for variant, counted, problems in (
            ("good", counts, []),
            ("fails", None, ["machine 1: rank 1 broke"]),
            ("dies", None, ["machine 1: killed by SIGKILL"]),
        ):
            case = replace(of_two.case, variant=variant)
            begun = first.begin(replace(of_two, case=case, counts=counted))
            assert isinstance(begun, Job)
            assert machines.collect_parts(begun) == problems
            said = ["/there", "same", "60.0", "PASSIVE", "12 rows" if counted else ""]
            assert rank_part(of_two.part, 1).read_text() == repr(said)
        other = replace(of_two.case, workload=replace(of_two.case.workload, dataset="other"))
        assert first.begin(replace(of_two, case=other)) == "machine 1: no other here"
    second.join(100)
    assert [type(error) for error in end] == [SystemExit]
    assert keys[-1] == "left1"
    monkeypatch.setattr(machines, "ANSWER_S", 0.1)
    nowhere = replace(begun, meeting=replace(FIRST, case="none"))
    assert machines.collect_parts(nowhere) == ["machine 1 does not answer"]
    hasty = replace(of_two, measure=of_two.measure.model_copy(update={"timeout_s": 0.1}))
    with pytest.raises(RunStopped, match=r"machine 1 was not ready in 0\.1 s \(timeout_s\)"):
        first.begin(hasty)

    def lost(*_: Any) -> None:
        raise DistNetworkError("the link is cut")

    monkeypatch.setattr(machines, "say", lost)
    assert first.begin(of_two) == "the link is cut"
