"""The seed nodes of an epoch's minibatches, and the random seed that each is sampled with.

Both live sampling and traces use this module, so they give the same minibatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.snapshot import NumberedSeeds
from gatherbench.bench.sampling.splitmix import derive, stream
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.strategies.partition_orders import Partitions

# Apart from one another, so that the order of an epoch says nothing about its draws.
_ORDER, _DRAWS, _STATES, _REMEMBERED = 1, 2, 3, 6


class StateSeeds(NamedTuple):
    """Seed nodes of a minibatch that sees only what a buffer of partitions holds in a state.

    ``nodes`` are int64 ``[S]``, ``state`` is a place in ``Partitions.states()``.
    """

    nodes: Tensor
    state: int


def epoch_seeds(
    train_ids: NDArray[np.int64] | Tensor,
    batch_size: int,
    seed: int,
    epoch: int,
    max_batches: int = 0,
) -> list[Tensor]:
    """The seed nodes of each minibatch of an epoch: int64 ``[batch_size]``, the last one shorter.

    Args:
        train_ids: distinct node ids, int64 ``[T]``; not changed.
        batch_size: seed nodes a minibatch.
        seed, epoch: decide the order, on every machine and for ever.
        max_batches: cut the epoch short; 0: the whole epoch.

    Raises:
        ValueError: there is no node, or a size makes no sense.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size = {batch_size}: expected at least 1")
    if max_batches < 0:
        raise ValueError(f"max_batches = {max_batches}: expected 0 (the whole epoch) or more")
    ids = np.asarray(train_ids, dtype=np.int64)
    if len(ids) == 0:
        raise ValueError("train_ids: an epoch needs at least one seed node, got none")
    order = np.argsort(stream(derive(seed, epoch, _ORDER), len(ids)), kind="stable")
    if max_batches:
        order = order[: max_batches * batch_size]
    return list(torch.split(torch.from_numpy(ids[order]), batch_size))


def state_seeds(
    partitions: Partitions,
    num_nodes: int,
    train_ids: NDArray[np.int64],
    batch_size: int,
    seed: int,
    epoch: int,
    max_batches: int = 0,
) -> list[StateSeeds]:
    """The seed nodes of each minibatch of an epoch that goes from state to state of a buffer.

    Each node is trained in one of the states in which its partition is there: drawn anew in each
    epoch, each as likely as the others, so that the last states have their share too. The last
    minibatch of each state is shorter; a state without seed nodes has none.

    Args:
        num_nodes: of the graph.

    The others are those of :func:`epoch_seeds`.

    Raises:
        ValueError: as :func:`epoch_seeds`; or the graph has fewer nodes than partitions.
    """
    (ids,) = epoch_seeds(train_ids, max(1, len(train_ids)), seed, epoch)
    held = np.zeros((partitions.count, len(states := partitions.states())), bool)
    for number, state in enumerate(states):
        held[list(state), number] = True
    partitions.bounds(num_nodes)  # refuses a graph that is too small
    part = partitions.of(ids.numpy(), num_nodes)
    often = held.sum(axis=1)
    where = np.nonzero(held)[1]  # the states of partition 0, then of partition 1, …
    draws = stream(derive(seed, epoch, _STATES), len(ids)) % often.astype(np.uint64)[part]
    drawn = where[(np.cumsum(often) - often)[part] + draws.astype(np.int64)]
    by_state = ids[torch.from_numpy(np.argsort(drawn, kind="stable"))]
    shares = torch.split(by_state, np.bincount(drawn, minlength=len(states)).tolist())
    found = [
        StateSeeds(batch, state)
        for state, share in enumerate(shares)
        if share.numel()
        for batch in torch.split(share, batch_size)
    ]
    return found[: max_batches or None]


def workload_seeds(
    workload: Workload,
    train_ids: NDArray[np.int64],
    epoch: int,
    rank: int = 0,
    num_nodes: int = 0,
) -> Sequence[Tensor | StateSeeds | NumberedSeeds]:
    """:func:`epoch_seeds` of a workload; where several ranks train, the share of one.

    Of a workload with partitions :func:`state_seeds`, for a graph of ``num_nodes``; of one whose
    sampling remembers, each with its number.
    """
    if (parts := workload.parted) is not None:
        size, cut = workload.batch_size, workload.max_batches
        return state_seeds(parts, num_nodes, train_ids, size, workload.seed, epoch, cut)
    steps = epoch_seeds(train_ids, workload.step_seeds, workload.seed, epoch, workload.max_batches)
    steps = steps if workload.gpus == 1 else rank_seeds(steps, rank, workload.gpus)
    if not workload.remembers:
        return steps
    key = derive(workload.seed, epoch, rank, _REMEMBERED)
    return [NumberedSeeds(nodes, number, key) for number, nodes in enumerate(steps)]


def rank_seeds(steps: list[Tensor], rank: int, world: int) -> list[Tensor]:
    """The seed nodes that ``rank`` of ``world`` takes of each step's, as many as any other rank.

    Of ``n`` seeds of a step each rank has ``n // world``, in order; the last ``n % world`` are left
    out, and so is a step that has fewer seeds than there are ranks. DDP averages the gradients of
    ranks, so their mean is that of the joined seeds.

    Raises:
        ValueError: no step has a seed for every rank.
    """
    shares = [step.numel() // world for step in steps]
    if not any(shares):
        raise ValueError(f"no minibatch has a seed node for each of {world} ranks")
    return [
        step[rank * share : (rank + 1) * share]
        for step, share in zip(steps, shares, strict=True)
        if share
    ]


def batch_seed(seed: int, epoch: int, batch: int, rank: int = 0, world: int = 1) -> int:
    """The seed that ``rank``'s minibatch ``batch`` of an epoch is sampled with, below 2^64."""
    return derive(seed, epoch, batch * world + rank, _DRAWS)


def draws(
    workload: Workload, dataset: GraphDataset, epoch: int = 0, rank: int = 0
) -> Iterator[tuple[Tensor | StateSeeds | NumberedSeeds, int]]:
    """What a rank's minibatches of an epoch are drawn from: the seed nodes and seed of each.

    Of epoch 0 a sampler draws the trace from them. The order of the seed nodes is drawn when this
    is called, before any clock: to sort those of a large graph takes some minibatches' time.
    """
    nodes = dataset.spec.num_nodes
    order = workload_seeds(workload, dataset.train_ids, epoch, rank, nodes)
    return (
        (seeds, batch_seed(workload.seed, epoch, i, rank, workload.gpus))
        for i, seeds in enumerate(order)
    )
