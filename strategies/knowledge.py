"""The knowledge that a data path may have before it opens.

A path that keeps rows may choose them by the graph, the training nodes, and minibatches that were
drawn with another seed, but not by those on which it is measured: no training has such a forecast.
A strategy names its ``needs``, and gets only those. Using them counts as set-up of the path.
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

#: The needs that a strategy may name: the fields of :class:`Knowledge`, and ``process``.
Need = Literal[
    "graph", "training_ids", "earlier", "measured", "ranks", "file", "partitions", "process"
]
#: Needs of a path that must be the only open one: it empties the page cache, fetches together with
#: other ranks (which then all open, fetch equally often and close), or has to start before CUDA
#: (``process``: a separate process).
ALONE: frozenset[Need] = frozenset({"file", "partitions", "ranks", "process"})


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The graph: ``indices[indptr[v]:indptr[v + 1]]`` are the in-neighbours of node ``v``, whose
    rows are fetched when ``v`` is sampled."""

    indptr: NDArray[np.int64]  #: ``[N + 1]``
    indices: NDArray[Any]  #: int32 or int64 ``[E]``


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that train together in ``torch.distributed``."""

    rank: int  #: Ranks are numbered machine by machine.
    world: int
    local_world: int  #: The number of ranks on a machine.

    @property
    def first(self) -> int:
        """Return the first rank of this machine."""
        return self.rank // self.local_world * self.local_world


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """The knowledge of a path; a field is ``None`` if it is unknown or not needed."""

    graph: Adjacency | None = None  #: Its nodes are the rows of the table.
    training_ids: NDArray[np.int64] | None = None  #: ``[T]``
    #: Draws the input ids of the minibatches of epoch 0, 1, …, with another seed than those on
    #: which the path is measured.
    earlier: Callable[[int], Iterable[Tensor]] | None = None
    #: Input ids of the measured minibatches themselves; only for bounds.
    measured: Iterable[Tensor] | None = None
    ranks: Ranks | None = None
    file: TableFile | None = None  #: It holds the table; then ``features`` is a map of it.
    partitions: Partitions | None = None  #: A minibatch uses only rows of those in memory.

    @functools.lru_cache(maxsize=8)  # noqa: B019 - few, and what is computed of one is kept by it
    def limited_to(self, needs: frozenset[Need]) -> Knowledge:
        """Return only what ``needs`` names; the object itself if it holds nothing else."""
        rest: Any = dict.fromkeys(set(get_args(Need)) - needs - {"process"})
        same = all(getattr(self, name) is None for name in rest)
        return self if same else replace(self, **rest)

    def missing(self, needs: frozenset[Need]) -> list[Need]:
        """List the needs that are unknown."""
        return sorted(need for need in needs - {"process"} if getattr(self, need) is None)


#: No knowledge: enough for every path that keeps no rows.
NOTHING = Knowledge()


def current_ranks() -> Ranks:
    """Return this process's rank in ``torch.distributed``'s default group, or a sole rank. One of
    several that has joined no group yet is a ``ValueError``, and so is a number of ranks on a
    machine (``LOCAL_WORLD_SIZE``) that is unknown or differs between machines."""
    if not (dist.is_available() and dist.is_initialized()):
        started = os.environ.get("WORLD_SIZE", "1")
        if started != "1":
            raise ValueError(
                f"one of {started} ranks (WORLD_SIZE), and in no group yet: call "
                "torch.distributed.init_process_group() first"
            )
        return Ranks(0, 1, 1)
    rank, world = dist.get_rank(), dist.get_world_size()
    local = os.environ.get("LOCAL_WORLD_SIZE", "1" if world == 1 else "")
    if not local.isdecimal() or not int(local) or world % int(local):
        raise ValueError(
            f"LOCAL_WORLD_SIZE={local!r}: expected the ranks of a machine, as many on each, of "
            f"{world} in all; torchrun sets it"
        )
    return Ranks(rank, world, int(local))


def adjacency_of(edge_index: Tensor, num_nodes: int) -> Adjacency:
    """Build the graph of PyG's ``edge_index`` (``[2, E]``: sources above targets); a wrong shape,
    or a node that is not below ``num_nodes``, is a ``ValueError``."""
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"graph: expected an edge_index [2, E], got {tuple(edge_index.shape)}")
    source, target = edge_index.cpu().long()
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        raise ValueError(f"graph: edge_index names nodes outside of 0..{num_nodes - 1}")
    order = torch.argsort(target, stable=True)
    ends = torch.cumsum(torch.bincount(target, minlength=num_nodes), 0)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
    return Adjacency(indptr.numpy(), source[order].numpy())
