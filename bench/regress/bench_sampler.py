"""Time neighbour sampling by the CPU sampler, on one thread and on two."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from gatherbench.bench.sampling.epoch import epoch_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.draw import rmat_graph

NODES, EDGES = 300_000, 7_750_000  # the mean degree of ogbn-products
FANOUTS, BATCH_SIZE, BATCHES = (25, 10), 1024, 60


@pytest.fixture(scope="module")
def graph() -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    return rmat_graph(NODES, EDGES)


@pytest.mark.parametrize("threads", [1, 2])
def test_numba(benchmark: BenchmarkFixture, graph: tuple[NDArray[Any], ...], threads: int) -> None:
    """Time one minibatch after another; all differ."""
    indptr, indices = graph
    seeds = epoch_seeds(np.flatnonzero(np.diff(indptr)), BATCH_SIZE, 0, 0)[:BATCHES]
    batches = enumerate(itertools.cycle(seeds))
    benchmark.group = "neighbour sampling, a minibatch"
    batch = benchmark.pedantic(
        NeighborSampler(indptr, indices, FANOUTS, threads).sample,
        setup=lambda: (next(batches)[::-1], {}),  # seed nodes, then the seed of the draws
        rounds=BATCHES,
        warmup_rounds=5,
    )
    assert batch.num_nodes[0] == BATCH_SIZE
    assert batch.num_nodes[-1] > 10 * BATCH_SIZE
