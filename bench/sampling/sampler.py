"""Define the contract of all samplers, and choose a workload's sampler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

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
        """Count one more minibatch, drawn in host memory."""

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
        """Return :meth:`sample`'s argument for each minibatch of a rank's epoch: its seed nodes.

        Args:
            steps: the seed nodes of each minibatch, int64 ``[S]``, of the whole epoch.
            seed: the workload's seed.
        """
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


def sampler_of(workload: Workload, indptr: NDArray[Any], indices: NDArray[Any]) -> Sampler:
    """Make the sampler of the workload's minibatches, on the CPU."""
    from gatherbench.bench.sampling.numba_sampler import NeighborSampler

    if not workload.sampler:
        return NeighborSampler(indptr, indices, workload.fanouts)
    own = opened(workload.sampler, OwnSampler)  # type: ignore[type-abstract]
    sampler: Sampler = own.open(indptr, indices, workload.fanouts, workload.seed)
    return sampler
