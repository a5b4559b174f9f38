"""The edges of a dataset, as its arrays have them."""

import numpy as np

from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.edges import read_relations


def edges_of(data: GraphDataset) -> list[tuple[int, int]]:
    """Source and target of each edge."""
    targets = np.repeat(np.arange(data.spec.num_nodes), np.diff(data.indptr))
    return list(zip(data.indices.tolist(), targets.tolist(), strict=True))


def kinds_of(data: GraphDataset) -> dict[str, list[tuple[int, int]]]:
    """The edges of each kind that there is, ascending."""
    found: dict[str, list[tuple[int, int]]] = {}
    for kind, edge in sorted(zip(read_relations(data), edges_of(data), strict=True)):
        found.setdefault(data.spec.relations[kind], []).append(edge)
    return found
