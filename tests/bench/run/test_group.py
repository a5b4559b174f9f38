"""What one rank makes of all ranks' moments and nodes: by hand, with what the others tell."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from gatherbench.bench.run import group as group_module
from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run import session as session_module
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.group import Alone, RanksDisagreeError, Together
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.part import read_part, rows_of
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.run.session import Session
from gatherbench.bench.run.table import load_table
from gatherbench.bench.run.untimed import EnergyBlock
from gatherbench.bench.sampling.epoch import batch_seed, draws
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.store import open_dataset
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
