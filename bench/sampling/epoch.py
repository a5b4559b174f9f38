"""Give the seed nodes of an epoch's minibatches, and the random seed of each.

Draws, and what a path may know in advance, come from this module: they have the same minibatches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.sampler import Sampler, sampler_of
from gatherbench.bench.sampling.splitmix import derive, stream
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.strategies.knowledge import Adjacency, Knowledge
from gatherbench.strategies.partition_orders import Partitions

#: The number of minibatches by which a run recognises its graph and sampler.
FIRST = 8
# Different values, so that an epoch's order, its draws and earlier minibatches are independent.
_ORDER, _DRAWS, _EARLIER = 1, 2, 5


def epoch_seeds(
    train_ids: NDArray[np.int64] | Tensor, batch_size: int, seed: int, epoch: int
) -> list[Tensor]:
    """Return an epoch's seed nodes by minibatch: int64 ``[batch_size]``; the last may be shorter.

    Args:
        train_ids: distinct node ids, int64 ``[T]``; not changed.
        seed, epoch: determine the order, on every machine and in every version.

    Raises:
        ValueError: there is no node.
    """
    ids = np.asarray(train_ids, dtype=np.int64)
    if len(ids) == 0:
        raise ValueError("train_ids: an epoch needs at least one seed node, got none")
    order = np.argsort(stream(derive(seed, epoch, _ORDER), len(ids)), kind="stable")
    return list(torch.split(torch.from_numpy(ids[order]), batch_size))


def rank_seeds(steps: list[Tensor], rank: int, world: int) -> list[Tensor]:
    """Return the seed nodes of ``rank`` of ``world`` in each step; all ranks have as many.

    Of a step's ``n`` seeds each rank has ``n // world``, in order; the last ``n % world`` are left
    out, and so is a step with fewer seeds than ranks. DDP averages the gradients of the ranks, so
    their mean is that of the joined seeds. ``ValueError``: no step has a seed for every rank.
    """
    steps = [step for step in steps if step.numel() >= world]
    if not steps:
        raise ValueError(f"no minibatch has a seed node for each of {world} ranks")
    return [torch.split(step, step.numel() // world)[rank] for step in steps]


def batch_seed(seed: int, epoch: int, batch: int, rank: int = 0, world: int = 1) -> int:
    """Return the random seed of ``rank``'s minibatch ``batch`` of an epoch, below 2^64."""
    return derive(seed, epoch, batch * world + rank, _DRAWS)


def draws(
    workload: Workload, sampler: Sampler, train_ids: NDArray[np.int64], epoch: int, rank: int = 0
) -> list[tuple[Any, int]]:
    """Return the sampler's arguments for each minibatch of a rank's epoch: by default seed nodes,
    and a random seed. To order the nodes of a large graph takes as long as several minibatches.

    Raises:
        ValueError: the sampler would give ranks different numbers of minibatches.
    """
    steps, world = epoch_seeds(train_ids, workload.step_seeds, workload.seed, epoch), workload.gpus
    if world > 1:
        steps = rank_seeds(steps, rank, world)
    tasks = sampler.tasks(steps, workload.seed, epoch, rank)
    if world > 1 and len(tasks) != len(steps):
        text = "has minibatches of its own number: for one rank alone"
        raise ValueError(f"{workload.sampler} {text}")
    tasks = tasks[: workload.max_batches or None]
    keys = (batch_seed(workload.seed, epoch, i, rank, world) for i in range(len(tasks)))
    return list(zip(tasks, keys, strict=True))


def knowledge_of(
    workload: Workload,
    dataset: GraphDataset,
    measured: Iterable[Tensor] | None = None,
    partitions: Partitions | None = None,
) -> Knowledge:
    """Return all that may be known of a workload in advance; a strategy gets what it requests.

    Earlier minibatches have another seed than the measured ones. They come from whole epochs even
    where the measured ones, whose input ids are ``measured``, are cut short.
    """
    seed = derive(workload.seed, _EARLIER)
    other = replace(workload, seed=seed, max_batches=0, gpus=1)
    sampler, train_ids = sampler_of(other, dataset.indptr, dataset.indices), dataset.train_ids

    def earlier(epoch: int) -> Iterator[Tensor]:
        return (sampler.sample(*task).input_ids for task in draws(other, sampler, train_ids, epoch))

    graph = Adjacency(dataset.indptr, dataset.indices)
    return Knowledge(graph, train_ids, earlier, measured, partitions=partitions)
