"""What a case declares of its workload and path: each sum worked out by hand."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gatherbench.bench.neighbours.pigeon import PairTally
from gatherbench.bench.run import counting
from gatherbench.bench.run.counting import (
    MinibatchSet,
    constant_facts,
    declared_rows,
    facts_of,
    set_facts,
    sizes_of,
)
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.part import read_part
from gatherbench.bench.run.rows import Row
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.datasets.store import open_dataset
from gatherbench.strategies.base import Minibatches, Strategy
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.knowledge import NOTHING, Knowledge

from ...strategies.right_paths import Made
from .fakes import counted


class FromPeers(Made):
    lookahead = 3

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return DataPath(ids.numel() * row_bytes, peer_bytes=8, gpu_share=0.25)

    def kept_bytes(self, table_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        return table_bytes // 4


def test_every_sum_is_its_own_and_each_epochs(make_job, monkeypatch):
    """5 minibatches of 32 seeds, fan-outs 4 and 3, over a table of 400 rows of 33 float32."""
    monkeypatch.setattr(counting, "build", lambda *_: FromPeers())
    (job,) = counted(make_job(epochs=2))
    epochs = Epochs(job, open_dataset(job.dataset))
    spec = epochs.dataset.spec
    constant = constant_facts(FromPeers(), spec, NOTHING)
    assert {f"{stage}.{metric}": value for stage, metric, _, value, _ in constant} == {
        "fetch.gpu_table": 400 * 33 * 4 / 4,
        "fetch.row": 33 * 4,
        "fetch.lookahead": 3,
        "fetch.gpu_share": 0.25,
    }
    edges = []
    for chosen, epoch in ((0, 7), (1, 4)):
        rows = declared_rows(job, facts_of(job)[chosen], epoch)
        assert {(row.basis, row.epoch, row.strategy) for row in rows} == {
            ("declared", epoch, "cpu_gather")
        }
        said = {f"{row.stage}.{row.metric}": row.value for row in rows}
        batches = list(epochs.on_cpu(chosen))
        edges.append(sum(int(part.shape[1]) for one in batches for part in one.edges))
        expected = {
            "fetch.declared_payload": sum(one.num_nodes[-1] for one in batches) * 33 * 4,
            "fetch.peer_read": 40,
            "fetch.gpu_link_read": 0,
            "sample.minibatches": 5,
            "sample.seeds": 5 * 32,
            "train.launches": 5 * (2 * 28 - 8 + 8 + 3),  # two layers of 28, Adam 8, three copies
            "sample.edges": edges[-1],
        }
        assert {name: said[name] for name in expected} == expected
        assert "fetch.copy_engine_copies" not in said, "its rows are no copies of an engine's"
    assert edges[0] != edges[1]
    assert {row.rank for row in rows} == {-1}


def declared(job: Job) -> dict[str, Row]:
    (job,) = counted(job)
    return {f"{row.stage}.{row.metric}": row for row in declared_rows(job, facts_of(job)[0], 0)}


def test_of_a_long_epoch_some_minibatches_say_what_all_ask_for(make_job, monkeypatch):
    """Two of five, the first and the third (5 // 2), count two and a half times."""
    monkeypatch.setattr(counting, "build", lambda *_: FromPeers())
    job = make_job(count_batches=2)
    epochs = Epochs(job, open_dataset(job.dataset))
    drawn = list(epochs.on_cpu(0))
    assert [b.input_ids.tolist() for b in epochs.on_cpu(0, [2])] == [drawn[2].input_ids.tolist()]
    two, rows = [drawn[0], drawn[2]], declared(job)
    expected = {
        "fetch.declared_payload": round(2.5 * sum(one.num_nodes[-1] for one in two) * 33 * 4),
        "fetch.peer_read": 40,
        "sample.minibatches": 5,
        "sample.seeds": 160,
        "train.launches": 5 * (2 * 28 - 8 + 8 + 3),
    }
    assert {name: rows[name].value for name in expected} == expected
    edges = sum(part.shape[1] for one in two for part in one.edges)
    assert rows["sample.edges"].value == pytest.approx(2.5 * edges, abs=2)
    assert {row.source.endswith("; 2 of 5, scaled") for row in rows.values()} == {True}


def test_what_some_minibatches_count_stands_for_all(make_job):
    """Two of five: 64 seeds, 260 edges and 70 pairs, two and a half times."""
    job, tally = make_job(), PairTally()
    tally.pairs = 70
    workload = replace(job.case.workload, model="gatherbench.bench.neighbours.pigeon:RGCN")
    seen = MinibatchSet(5, [(32, 50, 60)] * 2, [[40, 90]] * 2, [tally])
    rows = {fact[1]: fact[3] for fact in set_facts(workload, open_dataset(job.dataset).spec, seen)}
    assert (rows["seeds"], rows["edges"], rows["pairs"]) == (160, 650, 175)


@pytest.mark.parametrize("why", ["as many as there are", "captured", "sampler", "a disk"])
def test_each_minibatch_is_counted_where_some_do_not_stand_for_all(make_job, monkeypatch, why):
    job = make_job(count_batches=5 if why == "as many as there are" else 2)
    sampler = "gatherbench.bench.neighbours.mariusgnn:Buffered"
    changes = {"captured": {"step": "captured"}, "sampler": {"sampler": sampler}}
    workload = replace(job.case.workload, **changes.get(why, {}))
    job = replace(job, case=replace(job.case, workload=workload))
    monkeypatch.setattr(counting, "build", lambda *_: FromPeers())
    if why == "a disk":
        monkeypatch.setattr(FromPeers, "needs", frozenset({"file"}))
    rows = declared(job)
    assert not any("scaled" in row.source for row in rows.values())
    assert rows["fetch.peer_read"].value == 8 * rows["sample.minibatches"].value == 40


def test_requests_of_two_epochs_by_hand(make_job, monkeypatch):
    """Rows of 132 B, read in place: each of 5 minibatches asks for three rows, which begin 0, 4 and
    8 B behind a line of 128 B. Each is read with as many sectors of 32 B as it touches: five, in
    a request of four and one of one. In the second epoch nobody asks for the last of them."""
    batches = {0: torch.tensor([0, 32, 64]), 1: torch.tensor([0, 32])}
    edges = (torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int64))

    def drawn(_: Epochs, chosen: int, _numbers: None) -> Iterator[MiniBatch]:
        sizes = (1, 2, len(batches[chosen]))
        return (MiniBatch(batches[chosen], edges, sizes) for _ in range(5))

    monkeypatch.setattr(Epochs, "on_cpu", drawn)
    (job,) = counted(make_job("unified_zero_copy", epochs=2))
    found = []
    for chosen in (0, 1):
        rows = {row.metric: row.value for row in declared_rows(job, facts_of(job)[chosen])}
        found.append([rows[name] for name in ("declared_payload", "gpu_link_read", "copy_engine")])
        asks = ((int(m.split("_")[2]), n) for m, n in rows.items() if m.startswith("gpu_requests_"))
        carried = sum(size * (count or 0) for size, count in asks)
        assert carried == 5 * len(batches[chosen]) * 5 * 32
    assert found == [[5 * 3 * 132, 5 * 3 * 132, 5 * 3 * 8], [5 * 2 * 132, 5 * 2 * 132, 5 * 2 * 8]]
    nodes, sampled = sizes_of(job) or ()
    assert nodes.tolist() == [[1, 2, 3]] * 5 + [[1, 2, 2]] * 5
    assert sampled.tolist() == [[1, 2]] * 10


def test_a_path_that_learns_is_told_what_it_has_fetched_before_each_set(make_job, monkeypatch):
    """With a look-ahead of 1 the three that are checked first, the warm-up, and earlier sets."""
    told = []

    def heard(self: Strategy, asks: Minibatches) -> Iterator[DataPath]:
        told.append([[ids.tolist() for ids in epoch] for epoch in asks.before])
        return Strategy.data_paths(self, asks)

    monkeypatch.setattr(FromPeers, "data_paths", heard)
    monkeypatch.setattr(FromPeers, "lookahead", 1)
    monkeypatch.setattr(counting, "build", lambda *_: FromPeers())
    (job,) = counted(make_job(epochs=2, warmup_epochs=1))
    epochs = Epochs(job, open_dataset(job.dataset))
    warm, first = (
        [batch.input_ids.tolist() for batch in of] for of in (epochs.warm_up(0), epochs.measured(0))
    )
    assert told == [[warm[:3], warm], [warm[:3], warm, first]]


def test_each_rank_has_what_its_own_minibatches_ask_for(make_job):
    job = make_job(epochs=2)
    workload = replace(job.case.workload, gpus=2)
    job = replace(job, case=replace(job.case, workload=workload))
    (job,) = counted(job)
    assert job.counts is not None
    told = [r["fraction"] for r in read_part(job.counts) if r["kind"] == "work"]
    assert told == [0.25, 0.5, 0.75, 1.0], "two ranks of two epochs each"
    for rank in (0, 1):
        mine = replace(job, rank=rank)
        drawn = Epochs(mine, open_dataset(job.dataset)).first
        (edges,) = [r for r in declared_rows(mine, facts_of(mine)[0], 3) if r.metric == "edges"]
        assert (edges.value, edges.rank, edges.epoch) == (
            sum(edges.shape[1] for batch in drawn for edges in batch.edges),
            rank,
            3,
        )
