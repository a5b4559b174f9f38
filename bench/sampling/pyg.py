"""Give PyG's loaders the CPU sampler: ``NodeLoader`` and ``LinkLoader`` without pyg-lib.

A user of PyG keeps the training loop and changes one argument. The subgraphs are like those of
PyG's ``NeighborLoader`` (each node is expanded once, by the hop that first reaches it), so
``trim_to_layer`` and ``num_sampled_nodes`` work as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.index import index2ptr
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample

from gatherbench.bench.sampling.kernels import Ids, Ints
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.checks import check_nodes, edges_of
from gatherbench.kernels.modes import plain_torch


class PygNeighborSampler(BaseSampler):
    """Uniform neighbour sampling without replacement on a homogeneous graph.

    The draws follow torch's default generator: ``torch.manual_seed`` makes an epoch repeatable,
    also with loader workers.

    ``NodeLoader`` adds sampled edges only to a ``Data`` that has an ``edge_index``. If the graph is
    too large for two copies, use an empty one: ``torch.empty(2, 0, dtype=torch.long)``.

    Args:
        indptr, indices, fanouts, threads: as for :class:`.numba_sampler.NeighborSampler`.
        edge_permutation: int64 ``[E]``, the column in ``Data.edge_index`` of each place in
            ``indices`` (for ``e_id`` and edge attributes); ``None``: they agree.
    """

    def __init__(
        self,
        indptr: Ids,
        indices: Ints,
        fanouts: Sequence[int],
        threads: int | None = None,
        edge_permutation: Tensor | None = None,
    ) -> None:
        self._sampler = NeighborSampler(indptr, indices, fanouts, threads)
        self._edge_permutation = edge_permutation

    @classmethod
    def from_data(cls, data: Data, fanouts: Sequence[int], threads: int | None = None) -> Self:
        """Make a sampler of the graph in ``data.edge_index`` (row 0: sources, row 1: targets).

        Raises:
            ValueError: the edges are unfit for :func:`gatherbench.checks.edges_of`; or there are
                several kinds of nodes; or labels or masks do not have ``data.num_nodes`` nodes.
        """
        if not isinstance(data, Data):
            raise ValueError(
                f"{type(data).__name__}: expected a Data of one kind of nodes; "
                "data.to_homogeneous() makes one of a HeteroData"
            )
        if data.edge_index is None and "adj_t" in data:
            raise ValueError(
                "data has adj_t and no edge_index, which PyG's loader wants for the sampled edges: "
                "data.edge_index = gatherbench.checks.edges_of(data); del data.adj_t"
            )
        with plain_torch():
            num_nodes = check_nodes(data)
            sources, targets = edges_of(data, num_nodes)
            order = torch.argsort(targets, stable=True)
            indptr = index2ptr(targets[order], num_nodes)
            return cls(indptr.numpy(), sources[order].numpy(), fanouts, threads, order)

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        """Sample the subgraph around ``index.node``; a node type or times, or a repeated node, is a
        ``ValueError``."""
        _refuse_types_and_times(index)
        out = self._subgraph(index.node)
        out.metadata = (index.input_id, index.time)
        return out

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput:
        """Sample the subgraph around the ends of edges in ``index``, with PyG's negative sampling;
        edge types or times are a ``ValueError``."""
        _refuse_types_and_times(index)
        num_nodes = self._sampler.num_nodes
        return edge_sample(index, self._subgraph, num_nodes, False, None, neg_sampling)

    @property
    def edge_permutation(self) -> Tensor | None:
        """The column of ``Data.edge_index`` for each place in ``indices``; ``None``: the same."""
        return self._edge_permutation

    def _subgraph(self, seeds: Tensor, _times: Tensor | None = None) -> SamplerOutput:
        seed = int(torch.randint(2**63 - 1, (1,), device="cpu"))
        batch, places = self._sampler.sample_frontiers(seeds, seed)
        sources, targets = torch.cat(batch.edges, dim=1)
        out = SamplerOutput(batch.input_ids, sources, targets, torch.cat(places))
        out.num_sampled_nodes = np.diff((0, *batch.num_nodes)).tolist()
        out.num_sampled_edges = [edges.shape[1] for edges in batch.edges]
        return out


def _refuse_types_and_times(index: NodeSamplerInput | EdgeSamplerInput) -> None:
    if index.input_type is not None:
        raise ValueError(f"input type {index.input_type!r}: only homogeneous graphs are sampled")
    if index.time is not None:
        raise ValueError("times: this sampler draws without regard to time; leave them out")
