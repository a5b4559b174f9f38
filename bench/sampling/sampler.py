"""What minibatches are drawn with: the contract of all samplers, and which one a workload has."""

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
    """A number that is declared of a set of minibatches."""

    metric: str
    unit: str
    value: float
    source: str


class Tally(ABC):
    """Counts what a model or a sampler wants to know of a set of minibatches."""

    @abstractmethod
    def add(self, batch: MiniBatch) -> None:
        """Count one more, drawn in host memory."""

    @abstractmethod
    def counted(self, scale: float) -> Iterator[Counted]:
        """What was found; ``scale``: the minibatches of the set over those that were counted."""


class Sampler(ABC):
    """Draws minibatches of a graph.

    Attributes:
        num_nodes: of the graph.
        partitions: the parts of the nodes of which a minibatch sees some; ``None``: it sees all.
    """

    num_nodes: int
    partitions: Partitions | None = None

    def tasks(self, steps: Sequence[Tensor], seed: int, epoch: int, rank: int) -> Sequence[Any]:
        """What :meth:`sample` is given for each minibatch of a rank's epoch: here, its seed nodes.

        Args:
            steps: the seed nodes of each minibatch, int64 ``[S]``, of the whole epoch.
            seed: the workload's.
        """
        return steps

    @abstractmethod
    def sample(self, seeds: Any, seed: int) -> MiniBatch:
        """Draw the minibatch of an element of :meth:`tasks`; ``seed`` decides every draw."""

    @abstractmethod
    def clone(self, threads: int) -> Self:
        """One more sampler of this graph, for another thread."""

    def tally(self) -> Tally | None:
        """What counts its minibatches beside nodes and edges."""
        return None


def sampler_of(workload: Workload, indptr: NDArray[Any], indices: NDArray[Any]) -> Sampler:
    """What draws the workload's minibatches, on the CPU."""
    from gatherbench.bench.sampling.numba_sampler import NeighborSampler

    if not workload.sampler:
        return NeighborSampler(indptr, indices, workload.fanouts)
    own = opened(workload.sampler, OwnSampler)  # type: ignore[type-abstract]
    sampler: Sampler = own.open(indptr, indices, workload.fanouts, workload.seed)
    return sampler
