"""Minibatches of several sizes, for tests of captured steps with a GPU and without one."""

from typing import Any

import numpy as np
import torch

from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler

WIDTH, NODES = 7, 300


def graph() -> NeighborSampler:
    rng = np.random.default_rng(0)
    degrees = rng.integers(0, 12, NODES)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return NeighborSampler(indptr, rng.integers(0, NODES, indptr[-1]), (4, 3))


def minibatches(count: int = 4, seeds: int = 20) -> list[MiniBatch]:
    """The last one has half as many seeds, as an epoch's last minibatch may."""
    ids = torch.arange(count * seeds).split(seeds)
    return [
        graph().sample(some[: seeds // 2] if one == count - 1 else some, one)
        for one, some in enumerate(ids)
    ]


def sizes(batches: list[MiniBatch]) -> tuple[Any, Any]:
    edges = [[block.shape[1] for block in one.edges] for one in batches]
    return np.array([one.num_nodes for one in batches]), np.array(edges)


def rows_of(batch: MiniBatch) -> torch.Tensor:
    table = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(1))
    return table[batch.input_ids]
