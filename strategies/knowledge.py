"""What a data path may know before it opens.

A path with a memory of its own has to choose what it keeps there. It may look at the graph, at the
training nodes, and at minibatches that were drawn from another seed. It may not look at the
minibatches that it is measured on: that would be a forecast that no training has. A strategy names
what it needs (``Strategy.needs``), the harness supplies that and nothing else, and what using it
costs is set-up of the path.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.partition_orders import Partitions

#: What a strategy may ask for: what :class:`Knowledge` holds, and ``process``.
Need = Literal[
    "graph",
    "training_ids",
    "earlier",
    "measured",
    "ranks",
    "file",
    "partitions",
    "process",
]
#: Needs of a path that is not to be opened beside others: it has the page cache emptied, fetches
#: together with other ranks (every one then opens, fetches as often and closes), or has to be there
#: before CUDA starts (``process``: a process of its own).
ALONE: frozenset[Need] = frozenset({"file", "partitions", "ranks", "process"})


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The graph: ``indices[indptr[v]:indptr[v + 1]]`` are the in-neighbours of node ``v``.

    Their rows are fetched when ``v`` is sampled. ``indptr`` is int64 ``[N + 1]``, ``indices`` int32
    or int64 ``[E]``; neither is to be changed.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that train together; ``torch.distributed`` is initialised.

    Attributes:
        rank, world: of the process, and how many there are.
        local_world: how many of them a machine has; they are numbered machine by machine.
    """

    rank: int
    world: int
    local_world: int

    def machine(self, rank: int) -> int:
        """On which machine a rank is."""
        return rank // self.local_world


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """What a path may know; ``None``: not known, or not asked for.

    Attributes:
        graph: whose nodes are the rows of the table.
        training_ids: the training nodes, int64 ``[T]``.
        earlier: gives the input ids of the minibatches of epoch 0, 1, …, drawn with another seed
            than those that the path is measured on; drawn when asked for.
        measured: input ids of the very minibatches that are measured; for bounds alone.
        ranks: the process among those that train together.
        file: in which the table lies; then ``features`` is a map of it.
        partitions: of which some are in memory together: a minibatch wants rows of no others.
    """

    graph: Adjacency | None = None
    training_ids: NDArray[np.int64] | None = None
    earlier: Callable[[int], Iterable[Tensor]] | None = None
    measured: Iterable[Tensor] | None = None
    ranks: Ranks | None = None
    file: TableFile | None = None
    partitions: Partitions | None = None

    @functools.lru_cache(maxsize=8)  # noqa: B019 - few, and what is computed of one is kept by it
    def limited_to(self, needs: frozenset[Need]) -> Knowledge:
        """The same without what was not asked for; the same object for the same needs."""
        rest: Any = dict.fromkeys(set(get_args(Need)) - needs - {"process"})
        same = all(getattr(self, name) is None for name in rest)
        return self if same else replace(self, **rest)

    def missing(self, needs: frozenset[Need]) -> list[Need]:
        """What was asked for and is not known."""
        return sorted(need for need in needs - {"process"} if getattr(self, need) is None)


#: Enough for every path that keeps nothing.
NOTHING = Knowledge()


def current_ranks() -> Ranks:
    """This process in ``torch.distributed``'s default group; the only one where there is no group.

    How many ranks a machine has stands in ``LOCAL_WORLD_SIZE``, which ``torchrun`` sets.

    Raises:
        ValueError: the process was started as one of several and has joined no group yet; or how
            many ranks a machine has is not said, or is not the same on all machines.
    """
    if not (dist.is_available() and dist.is_initialized()):
        started = os.environ.get("WORLD_SIZE", "1")
        if started != "1":
            raise ValueError(
                f"one of {started} ranks (WORLD_SIZE), and in no group yet: call "
                "torch.distributed.init_process_group() first"
            )
        return Ranks(0, 1, 1)
    rank, world = dist.get_rank(), dist.get_world_size()
    said = os.environ.get("LOCAL_WORLD_SIZE", "1" if world == 1 else "")
    if not said.isdecimal() or not int(said) or world % int(said):
        raise ValueError(
            f"LOCAL_WORLD_SIZE={said!r}: expected the ranks of a machine, as many on each, of "
            f"{world} in all; torchrun sets it"
        )
    return Ranks(rank, world, int(said))


def adjacency_of(edge_index: Tensor, num_nodes: int) -> Adjacency:
    """The graph of PyG's ``edge_index`` (``[2, E]``: sources above targets).

    Raises:
        ValueError: another shape, or a node that is not below ``num_nodes``.
    """
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"graph: expected an edge_index [2, E], got {tuple(edge_index.shape)}")
    source, target = edge_index.cpu().long()
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        raise ValueError(f"graph: edge_index names nodes outside of 0..{num_nodes - 1}")
    order = torch.argsort(target, stable=True)
    ends = torch.cumsum(torch.bincount(target, minlength=num_nodes), 0)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
    return Adjacency(indptr.numpy(), source[order].numpy())
