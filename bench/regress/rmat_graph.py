"""Make a synthetic graph in memory, for benchmarks that need no dataset folder."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.draw import rmat_columns
from gatherbench.datasets.rmat import Rmat


def rmat_graph(
    num_nodes: int, num_edges: int, seed: int = 0, threads: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Make a directed RMAT graph with Graph500's weights: ``indptr [N + 1]``, ``indices [E]``.

    ``num_edges`` is met to about 0.1 %.
    """
    law = Rmat(num_nodes, undirected=False)
    degrees, neighbours = zip(
        *rmat_columns(law, law.draws_for(num_edges), seed, threads=threads), strict=True
    )
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.concatenate(degrees), out=indptr[1:])
    return indptr, np.concatenate(neighbours).astype(np.int32)
