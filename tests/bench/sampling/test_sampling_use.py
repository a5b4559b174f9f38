"""How a sampler is used: threads, forks, wrong input, and the order of an epoch."""

import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling import numba_sampler
from gatherbench.bench.sampling.device_sampler import DeviceSampler
from gatherbench.bench.sampling.epoch import batch_seed, draws, epoch_seeds, rank_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler, Targets
from gatherbench.bench.sampling.splitmix import derive, mix, stream

from .minibatches import same

NODES, DEGREE = 3000, 40
HOST = torch.device("cpu")
FORK = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def graph() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    return np.arange(NODES + 1, dtype=np.int64) * DEGREE, rng.integers(0, NODES, NODES * DEGREE)


@pytest.mark.parametrize("threads", [2, 5, None])
def test_the_number_of_threads_changes_nothing(graph, threads):
    seeds = torch.randperm(NODES, generator=torch.Generator().manual_seed(0))[:1000]
    one = NeighborSampler(*graph, (25, 10), threads=1)
    many = NeighborSampler(*graph, (25, 10), threads)
    for seed in range(5):
        assert same(one.sample(seeds, seed), many.sample(seeds, seed))


def test_threads_of_the_caller_wait_for_one_another(graph):
    sampler = NeighborSampler(*graph, (20, 10), threads=3)
    seeds = torch.arange(1000)
    alone = [sampler.sample(seeds, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: sampler.sample(seeds, seed), range(8)))
    assert all(map(same, alone, together))


def _sample_in_child(sampler: NeighborSampler, queue) -> None:
    batch = sampler.sample(torch.arange(1000), 3)
    queue.put((batch.num_nodes, int(batch.input_ids.sum()), int(batch.edges[1][0].sum())))


@FORK
def test_in_a_forked_process(graph):
    sampler = NeighborSampler(*graph, (20, 10), threads=2)
    batch = sampler.sample(torch.arange(1000), 3)  # its threads live, and do not come along
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with sampler._lock:  # forked in the middle of a minibatch
        child = context.Process(target=_sample_in_child, args=(sampler, queue))
        child.start()
    child.join(100)
    assert child.exitcode == 0
    expected = (batch.num_nodes, int(batch.input_ids.sum()), int(batch.edges[1][0].sum()))
    assert queue.get() == expected


def test_pickled_and_back(graph):
    sampler = NeighborSampler(*graph, (4, -1), threads=1)
    copy = pickle.loads(pickle.dumps(sampler))
    assert same(copy.sample(torch.arange(9), 1), sampler.sample(torch.arange(9), 1))


@pytest.mark.parametrize("fails", [0, 2])
def test_a_layer_ends_for_all_when_it_fails_for_one(graph, monkeypatch, fails):
    ended = []

    def part(_layer: int, _key: Any, targets: Targets, *_into: Any) -> None:
        member = targets[-2] // 400  # each draws for a third of 1200
        if member == fails:
            raise OSError(f"part {member}")
        threading.Event().wait(0.02)
        ended.append(member)

    sampler = NeighborSampler(*graph, (3,), threads=3)
    monkeypatch.setattr(numba_sampler, "_EDGES_PER_THREAD", 1)
    monkeypatch.setattr(sampler, "_draw_part", part)
    with pytest.raises(OSError, match=f"part {fails}"):
        sampler.sample(torch.arange(1200), 0)
    assert sorted(ended) == sorted({0, 1, 2} - {fails})


SEEDS_REFUSED = [
    (torch.tensor([], dtype=torch.int64), ValueError, "at least one seed node"),
    (torch.tensor([4, 2, 4]), ValueError, "unique"),
    (torch.tensor([0, -1]), IndexError, "-1, ?outside|-1 is outside"),
    (torch.tensor([NODES]), IndexError, f"{NODES}.*outside the graph's nodes 0..{NODES - 1}"),
    (torch.tensor([1], dtype=torch.int32), TypeError, "expected int64, got torch.int32"),
    (torch.tensor([[1]]), ValueError, r"shape \[S\]"),
    (torch.tensor([1], device="meta"), ValueError, "expected on cpu, got meta"),
    ([1, 2], TypeError, "torch tensor, got list"),
]


@pytest.mark.usefixtures("kernels_on_host")
@pytest.mark.parametrize(("seeds", "error", "message"), SEEDS_REFUSED)
def test_wrong_seeds_and_then_right_ones(graph, seeds, error, message):
    for sampler in (NeighborSampler(*graph, (3,)), DeviceSampler(*graph, (3,), HOST)):
        before = sampler.sample(torch.arange(5), 0)
        with pytest.raises(error, match=message):
            sampler.sample(seeds, 0)
        assert same(before, sampler.sample(torch.arange(5), 0))


I64 = np.int64
GRAPHS_REFUSED = [
    (np.array([0, 1], np.int32), np.array([0]), TypeError, "indptr: expected int64"),
    (np.array([0, 1], I64), np.array([0.0]), TypeError, "indices: expected int32 or int64"),
    (np.array([0, 1], I64), np.array([[0]]), ValueError, "indices: expected one dimension"),
    (np.array([0], I64), np.array([], I64), ValueError, "without nodes"),
    (np.array([0, 2], I64), np.array([0]), ValueError, "from 0 to 2, expected from 0 to the 1"),
    (np.array([1, 1], I64), np.array([0]), ValueError, "from 1 to 1"),
    (np.array([0, 2, 1, 3], I64), np.array([0, 1, 2]), ValueError, "decreases"),
]


@pytest.mark.usefixtures("kernels_on_host")
@pytest.mark.parametrize(("indptr", "indices", "error", "message"), GRAPHS_REFUSED)
def test_what_is_no_graph(indptr, indices, error, message):
    with pytest.raises(error, match=message):
        NeighborSampler(indptr, indices, (2,))
    with pytest.raises(error, match=message):
        DeviceSampler(indptr, indices, (2,), HOST)


@pytest.mark.usefixtures("kernels_on_host")
@pytest.mark.parametrize("stranger", [-1, 2, 2**31 - 1])
def test_a_neighbour_outside_the_graph(stranger):
    indptr, indices = np.array([0, 1, 2], np.int64), np.array([1, stranger], np.int32)
    sampler = NeighborSampler(indptr, indices, (2,))
    assert sampler.sample(torch.tensor([0]), 0).num_nodes == (1, 2)
    with pytest.raises(IndexError, match=f"holds node {stranger}, outside"):
        sampler.sample(torch.tensor([1]), 0)
    with pytest.raises(IndexError, match="outside the graph"):
        DeviceSampler(indptr, indices, (2,), HOST)


@pytest.mark.parametrize("fanouts", [(), (5, 0), (-2,), (5, 2.5)])
def test_fanouts_and_threads_that_make_no_sense(graph, fanouts):
    with pytest.raises(ValueError, match="fanouts"):
        NeighborSampler(*graph, fanouts)
    with pytest.raises(ValueError, match="threads = 0"):
        NeighborSampler(*graph, (2,), threads=0)


def test_splitmix_gives_the_published_numbers():
    """The first five numbers of the seed 1234567, as listed with many implementations."""
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert stream(1234567, 5).tolist() == expected
    assert mix(1234567 + 0x9E3779B97F4A7C15) == expected[0]


def test_derived_keys_are_all_different():
    words = [(), (0,), (0, 0), (1, 0), (0, 1), (-1,), (2**63,), *((i, 7) for i in range(1000))]
    assert len({derive(*w) for w in words}) == len(words)
    seeds = {batch_seed(s, e, b) for s in range(9) for e in range(-1, 9) for b in range(9)}
    assert len(seeds) == 810


def test_an_epoch_has_every_seed_node_once_in_its_own_order():
    train = np.arange(1000, 0, -3)
    batches = epoch_seeds(train, 64, 3, 0)
    assert [len(batch) for batch in batches] == [64] * 5 + [14]
    together = torch.cat(batches)
    assert together.dtype == torch.int64
    assert sorted(together.tolist()) == sorted(train.tolist())
    assert together.tolist() != train.tolist()
    again, epoch, seed = (torch.cat(epoch_seeds(train, 64, *of)) for of in ((3, 0), (3, 1), (4, 0)))
    assert torch.equal(together, again)
    assert not torch.equal(together, epoch)
    assert not torch.equal(together, seed)
    with pytest.raises(ValueError, match="train_ids"):
        epoch_seeds(np.arange(0), 2, 0, 0)


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), world=st.integers(1, 9))
def test_ranks_share_the_seeds_of_each_step(sizes, world):
    """Equal counts, no seed twice, in order, and fewer left out than there are ranks."""
    steps = list(torch.randperm(sum(sizes)).split(sizes))
    if max(sizes) < world:
        with pytest.raises(ValueError, match=f"a seed node for each of {world} ranks"):
            rank_seeds(steps, 0, world)
        return
    shares = [rank_seeds(steps, rank, world) for rank in range(world)]
    kept = [step for step in steps if step.numel() >= world]
    assert {len(of_rank) for of_rank in shares} == {len(kept)}
    for step, *of_ranks in zip(kept, *shares, strict=True):
        assert {share.numel() for share in of_ranks} == {step.numel() // world}
        joined = torch.cat(of_ranks)
        assert torch.equal(joined, step[: joined.numel()])
        assert step.numel() - joined.numel() < world


def test_the_shares_of_two_ranks_by_hand():
    steps = [torch.tensor([5, 1, 9, 7, 3]), torch.tensor([4])]
    assert [s.tolist() for s in rank_seeds(steps, 0, 2)] == [[5, 1]]
    assert [s.tolist() for s in rank_seeds(steps, 1, 2)] == [[9, 7]]
    assert [s.tolist() for s in rank_seeds(steps, 0, 1)] == [[5, 1, 9, 7, 3], [4]]


@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(1, 8))
def test_no_two_minibatches_of_an_epoch_are_drawn_alike(seed, epoch, world):
    """One rank draws as it did before there were several."""
    drawn = [batch_seed(seed, epoch, b, r, world) for b in range(5) for r in range(world)]
    assert len(set(drawn)) == 5 * world
    if world == 1:
        assert drawn == [batch_seed(seed, epoch, b) for b in range(5)]


def test_strong_scaling_splits_the_steps_and_weak_scaling_joins_them(graph):
    ids, one = np.arange(100), Workload("wordnet", batch_size=8)
    sampler = NeighborSampler(*graph, (2,))

    def seeds(workload: Workload, rank: int = 0) -> list[torch.Tensor]:
        return [nodes for nodes, _ in draws(workload, sampler, ids, 0, rank)]

    alone = seeds(one)
    assert [s.numel() for s in alone] == [8] * 12 + [4]
    strong, weak = (replace(one, gpus=2, scaling=scaling) for scaling in ("strong", "weak"))
    first, second = (seeds(strong, rank) for rank in range(2))
    assert [s.numel() for s in first] == [4] * 12 + [2]
    assert all(map(torch.equal, map(torch.cat, zip(first, second, strict=True)), alone))
    first, second = (seeds(weak, rank) for rank in range(2))
    assert [s.numel() for s in first] == [8] * 6 + [2]
    assert torch.equal(torch.cat([*first, *second]).sort().values, torch.arange(100))
    few = replace(weak, max_batches=3)
    assert [s.numel() for s in seeds(few, 1)] == [8] * 3
