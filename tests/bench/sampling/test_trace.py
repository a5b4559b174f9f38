"""Traces: what was drawn comes back bit for bit, or is refused by name."""

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds, rank_seeds, workload_seeds
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.trace import FILE, Trace, TraceError, draw_trace
from gatherbench.datasets.dataset import DatasetError

from .minibatches import same

NODES, SEED = 300, 11


def make_sampler(threads: int = 1) -> NeighborSampler:
    rng = np.random.default_rng(0)
    degrees = rng.integers(0, 40, NODES)
    indptr = np.cumsum([0, *degrees], dtype=np.int64)
    return NeighborSampler(indptr, rng.integers(0, NODES, indptr[-1]), (5, 3), threads)


SEEDS = epoch_seeds(np.arange(200), 32, SEED, 0)


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


def test_strong_scaling_splits_the_steps_and_weak_scaling_joins_them():
    ids, one = np.arange(100), Workload("wordnet", batch_size=8)
    sampler = make_sampler()
    alone = workload_seeds(one, sampler, ids, 0)
    assert [s.numel() for s in alone] == [8] * 12 + [4]
    strong, weak = (replace(one, gpus=2, scaling=scaling) for scaling in ("strong", "weak"))
    first, second = (workload_seeds(strong, sampler, ids, 0, rank) for rank in range(2))
    assert [s.numel() for s in first] == [4] * 12 + [2]
    assert all(map(torch.equal, map(torch.cat, zip(first, second, strict=True)), alone))
    first, second = (workload_seeds(weak, sampler, ids, 0, rank) for rank in range(2))
    assert [s.numel() for s in first] == [8] * 6 + [2]
    assert torch.equal(torch.cat([*first, *second]).sort().values, torch.arange(100))
    few = replace(weak, max_batches=3)
    assert [s.numel() for s in workload_seeds(few, sampler, ids, 0, 1)] == [8] * 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw_trace(tmp_path / "trace", make_sampler(), SEEDS, SEED)
    return tmp_path / "trace"


def test_live_sampling_gives_the_trace(folder):
    trace, sampler = Trace.open(folder), make_sampler()
    assert len(trace) == len(SEEDS) == 7
    for i, seeds in enumerate(SEEDS):
        live = sampler.sample(seeds, batch_seed(SEED, 0, i))
        assert same(trace[i], live)
    assert trace.num_nodes.shape == (7, 3)
    assert trace.num_edges.sum() == sum(e.shape[1] for batch in trace for e in batch.edges)


def test_one_seed_one_sequence_of_bytes(folder, tmp_path):
    draw_trace(tmp_path / "again", make_sampler(threads=3), iter(SEEDS), SEED)
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    draw_trace(tmp_path / "other", make_sampler(), SEEDS, SEED + 1)
    assert (folder / FILE).read_bytes() != (tmp_path / "other" / FILE).read_bytes()


def test_a_trace_is_replaced_and_progress_reported(folder):
    seen: list[float] = []
    draw_trace(folder, make_sampler(), SEEDS[:2], SEED, lambda _, part: seen.append(part))
    assert len(Trace.open(folder)) == 2
    assert seen == [0.5, 1.0]


def test_a_graph_without_edges(tmp_path):
    sampler = NeighborSampler(np.zeros(6, np.int64), np.empty(0, np.int32), (2, 2))
    draw_trace(tmp_path / "t", sampler, [torch.tensor([3, 1])], 0)
    batch = Trace.open(tmp_path / "t")[0]
    assert batch.num_nodes == (2, 2, 2)
    assert [edges.shape for edges in batch.edges] == [(2, 0), (2, 0)]
    assert batch.seeds.tolist() == [3, 1]


class HugeGraph:
    """Answers with nodes whose ids need more than 32 bits."""

    num_nodes = 2**40

    def sample(self, seeds: Tensor, seed: int) -> MiniBatch:
        return MiniBatch(seeds + 2**35, (torch.zeros((2, 1), dtype=torch.int64),), (2, 2))


def test_ids_that_need_64_bits(tmp_path):
    draw_trace(tmp_path / "t", HugeGraph(), [torch.tensor([3, 1])], 0)
    assert Trace.open(tmp_path / "t")[0].input_ids.tolist() == [2**35 + 3, 2**35 + 1]


def test_a_trace_that_fails_leaves_nothing(folder):
    with pytest.raises(ValueError, match="at least one minibatch"):
        draw_trace(folder, make_sampler(), [], 0)
    before = (folder / FILE).read_bytes()
    with pytest.raises(IndexError, match="outside"):
        draw_trace(folder, make_sampler(), [*SEEDS, torch.tensor([NODES])], SEED)
    assert [path.name for path in folder.parent.iterdir()] == ["trace"]
    assert (folder / FILE).read_bytes() == before


class FullDisk:
    """Fails as a write to a full disk does, on the way."""

    num_nodes = NODES

    def sample(self, seeds: Tensor, seed: int) -> MiniBatch:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named(tmp_path):
    with pytest.raises(DatasetError, match="the disk is full; free some space"):
        draw_trace(tmp_path / "t", FullDisk(), SEEDS, SEED)
    assert list(tmp_path.iterdir()) == []


def _flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _no_trace(path: Path) -> None:
    path.write_bytes(b"{}")


@pytest.mark.parametrize("damage", [_flip_a_byte, _cut_short, _no_trace, Path.unlink])
def test_damage_is_named(folder, damage):
    damage(folder / FILE)
    with pytest.raises(TraceError, match=f"{FILE}.*delete the folder and draw the trace again"):
        Trace.open(folder)
