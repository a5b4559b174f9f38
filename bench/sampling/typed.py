"""Look up the kinds of a minibatch's edges in the graph, whichever sampler drew it.

Samplers do not draw kinds. So every sampler serves relational and untyped models, which train on
the same minibatches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numba import njit

from gatherbench.bench.sampling.kernels import Ids, Ints
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.edges import read_relations


class EdgeKinds:
    """The kinds of a graph's edges; ``DatasetError``: it has none, or their file is damaged."""

    def __init__(self, data: GraphDataset) -> None:
        self._graph = data.indptr, data.indices, np.array(read_relations(data))

    def typed(self, batch: MiniBatch) -> MiniBatch:
        """Add the kind of each edge to a minibatch in host memory: int64 ``[E_k]`` a layer; an edge
        that is not in the graph is a ``ValueError``."""
        ids, kinds = batch.input_ids.numpy(), []
        for edges in batch.edges:
            edge_kinds = np.empty(edges.shape[1], np.int64)
            sources, targets = edges.numpy()
            bad = int(_look_up(*self._graph, ids, sources, targets, edge_kinds))
            if bad >= 0:
                source, target = ids[edges[:, bad].numpy()]
                raise ValueError(f"edge {source} -> {target} of a minibatch is not in the graph")
            kinds.append(torch.from_numpy(edge_kinds))
        return replace(batch, kinds=tuple(kinds))


@njit(nogil=True, cache=True)
def _look_up(
    indptr: Ids, indices: Ints, kinds: Any, ids: Ids, sources: Ids, targets: Ids, edge_kinds: Ids
) -> int:
    """Find the kind of each edge by binary search; return the first missing edge, or -1."""
    for edge in range(len(sources)):
        source, target = ids[sources[edge]], ids[targets[edge]]
        begin, end = indptr[target], indptr[target + 1]
        place = begin + np.searchsorted(indices[begin:end], source)
        if place == end or indices[place] != source:
            return edge
        edge_kinds[edge] = kinds[place]
    return -1
