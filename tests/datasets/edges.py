"""The edges of a dataset, as its arrays have them."""

import numpy as np

from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.edges import read_relations


def edges_of(data: GraphDataset) -> list[tuple[int, int]]:
    """Source and target of each edge."""
    targets = np.repeat(np.arange(data.spec.num_nodes), np.diff(data.indptr))
    return list(zip(data.indices.tolist(), targets.tolist(), strict=True))


def kinds_of(data: GraphDataset) -> dict[tuple[int, int], str]:
    """The kind of each edge, in words."""
    kinds = [data.spec.relations[kind] for kind in read_relations(data)]
    return dict(zip(edges_of(data), kinds, strict=True))
