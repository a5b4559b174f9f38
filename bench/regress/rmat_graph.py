"""Make a synthetic graph in memory, for benchmarks that need no dataset folder."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.draw import rmat_columns
from gatherbench.datasets.rmat import Rmat


def rmat_graph(num_nodes: int, num_edges: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Make a directed RMAT graph with Graph500's weights: ``indptr [N + 1]``, ``indices [E]``.

    ``num_edges`` is met to about 0.1 %.
    """
    law = Rmat(num_nodes, undirected=False)
    columns = zip(*rmat_columns(law, law.draws_for(num_edges), seed=0), strict=True)
    degrees, neighbours = map(np.concatenate, columns)
    return np.append(0, np.cumsum(degrees)), neighbours.astype(np.int32)
