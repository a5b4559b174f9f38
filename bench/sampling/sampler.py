"""Define the contract of all samplers, check their arguments, and choose a workload's sampler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.plan.doors import OwnSampler, opened
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.strategies.partition_orders import Partitions


class Counted(NamedTuple):
    """A number that is recorded for a set of minibatches."""

    metric: str
    unit: str
    value: float
    source: str


class Tally(ABC):
    """Counts properties of a set of minibatches for a model or a sampler."""

    @abstractmethod
    def add(self, batch: MiniBatch) -> None:
        """Count one more minibatch in host memory."""

    @abstractmethod
    def counted(self, scale: float) -> Iterator[Counted]:
        """Give the results; ``scale``: minibatches of the set over counted ones."""


class Sampler(ABC):
    """Draws minibatches of a graph.

    Attributes:
        num_nodes: the number of nodes of the graph.
        partitions: the parts of the nodes, if a minibatch sees only some; ``None``: it sees all.
    """

    num_nodes: int
    partitions: Partitions | None = None

    def tasks(self, steps: Sequence[Tensor], seed: int, epoch: int, rank: int) -> Sequence[Any]:
        """Return :meth:`sample`'s argument for each minibatch of a rank's epoch: its seed nodes,
        which ``steps`` has, int64 ``[S]``; ``seed`` is the workload's."""
        return steps

    @abstractmethod
    def sample(self, seeds: Any, seed: int) -> MiniBatch:
        """Draw the minibatch of an element of :meth:`tasks`; ``seed`` decides every draw."""

    @abstractmethod
    def clone(self, threads: int) -> Self:
        """Return one more sampler of this graph, for another thread."""

    def tally(self) -> Tally | None:
        """Return a counter for properties of its minibatches other than nodes and edges, if any."""
        return None


def check_fanouts(fanouts: Sequence[int]) -> tuple[int, ...]:
    """Return the fan-outs as a tuple; ``ValueError``: none, or other than 1, 2, … and -1."""
    if not len(fanouts):
        raise ValueError("fanouts: expected one number for each layer, got none")
    for layer, fanout in enumerate(fanouts):
        if fanout < -1 or fanout == 0 or fanout % 1:
            wanted = "expected a positive whole number, or -1: all"
            raise ValueError(f"fanouts[{layer}] = {fanout}: {wanted}")
    return tuple(int(fanout) for fanout in fanouts)


def check_graph(indptr: NDArray[Any], indices: NDArray[Any]) -> int:
    """Return the number of nodes of a graph in compressed sparse columns; its lists are not read.
    A wrong dtype is a ``TypeError``, a wrong shape or no node a ``ValueError``."""
    wanted = {"indptr": (indptr, ["int64"]), "indices": (indices, ["int32", "int64"])}
    for name, (array, allowed) in wanted.items():
        if array.dtype not in allowed:
            raise TypeError(f"{name}: expected {' or '.join(allowed)}, got {array.dtype}")
        if array.ndim != 1:
            raise ValueError(f"{name}: expected one dimension, got shape {array.shape}")
    if len(indptr) < 2:
        raise ValueError("indptr: a graph without nodes cannot be sampled")
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0 or last != len(indices):
        edges = f"the {len(indices)} edges of indices"
        raise ValueError(f"indptr: runs from {first} to {last}, expected from 0 to {edges}")
    return len(indptr) - 1


def check_seeds(seeds: Tensor) -> Tensor:
    """Return the seeds, contiguous; other than int64 ``[S]`` on the CPU they are a ``TypeError`` or
    ``ValueError``. The sampler checks their range and repetition."""
    if not isinstance(seeds, Tensor):
        raise TypeError(f"seeds: expected a torch tensor, got {type(seeds).__name__}")
    if seeds.dtype != torch.int64:
        raise TypeError(f"seeds: expected int64, got {seeds.dtype}; use .long()")
    if seeds.dim() != 1:
        raise ValueError(f"seeds: expected shape [S], got {tuple(seeds.shape)}")
    if seeds.numel() == 0:
        raise ValueError("seeds: a minibatch needs at least one seed node, got none")
    if seeds.device.type != "cpu":
        raise ValueError(f"seeds: expected on cpu, got {seeds.device}; move them first")
    return seeds.contiguous()


def sampler_of(workload: Workload, indptr: NDArray[Any], indices: NDArray[Any]) -> Sampler:
    """Make the sampler of the workload's minibatches, on the CPU."""
    from gatherbench.bench.sampling.numba_sampler import NeighborSampler

    if not workload.sampler:
        return NeighborSampler(indptr, indices, workload.fanouts)
    own = opened(workload.sampler, OwnSampler)  # type: ignore[type-abstract]
    sampler: Sampler = own.open(indptr, indices, workload.fanouts, workload.seed)
    return sampler
