"""Define the RMAT (Kronecker) law: the chance of each edge, and the draws for a number of edges.

RMAT draws an edge by descending level by level into one of four quadrants of the adjacency matrix
(Chakrabarti, Zhan and Faloutsos, SDM 2004), here with the weights of Graph500 (section 3.2). The
matrix has a power of two of rows; a graph of ``N`` nodes is its restriction to the first ``N``.
Draws that fall outside and self-loops are dropped, and draws of one edge count once. The chance of
an edge depends only on how often each quadrant was entered, so the number of draws that is expected
to give the wanted edges is computed beforehand. Many nodes get no edge, which is a property of the
law (Seshadhri, Pinar and Kolda, J. ACM 60(2), 2013).
"""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import DatasetError

#: Above this many draws for each wanted edge, most draws would repeat an edge.
MAX_DRAWS_PER_EDGE = 64


@dataclass(frozen=True, slots=True)
class Rmat:
    """The law of a graph of ``num_nodes`` nodes.

    If it is ``undirected``, an edge and its reverse are one edge, which is stored both ways.
    """

    num_nodes: int
    undirected: bool
    #: Weights of the quadrants: upper left, upper right and lower left, lower right.
    a: ClassVar[float] = 0.57
    b: ClassVar[float] = 0.19
    d: ClassVar[float] = 1 - 0.57 - 2 * 0.19

    def __post_init__(self) -> None:
        if self.num_nodes < 2:
            raise DatasetError(f"an RMAT graph needs 2 nodes or more, not {self.num_nodes}")

    @property
    def levels(self) -> int:
        """Levels of the recursion: the matrix has ``2 ** levels`` rows, at least ``num_nodes``."""
        return (self.num_nodes - 1).bit_length()

    def cells(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the chances ``[n]`` that one draw gives an edge, and how many edges have each.

        The method descends the levels and counts cells by how often ``a`` and ``b`` were chosen; a
        cell is "tight" in its row (column) while the row's (column's) bits so far are those of
        ``num_nodes``, so that it may still lie outside.
        """
        count: Counter[tuple[bool, bool, bool, int, int]] = Counter({(True, True, True, 0, 0): 1})
        for level in reversed(range(self.levels)):
            limit = self.num_nodes >> level & 1 if self.num_nodes < 1 << self.levels else 2
            deeper: Counter[tuple[bool, bool, bool, int, int]] = Counter()
            for (tight_u, tight_v, loop, n_a, n_b), cells in count.items():
                for u, v in ((0, 0), (0, 1), (1, 0), (1, 1)):
                    if (tight_u and u > limit) or (tight_v and v > limit):
                        continue
                    tight = tight_u and u == limit, tight_v and v == limit
                    deeper[*tight, loop and u == v, n_a + (u == v == 0), n_b + (u != v)] += cells
            count = deeper
        inside = Counter[tuple[int, int]]()
        for (tight_u, tight_v, loop, n_a, n_b), cells in count.items():
            if not (tight_u or tight_v or loop):
                inside[n_a, n_b] += cells
        powers = np.array(list(inside), np.float64)
        n_d = self.levels - powers.sum(axis=1)
        chance = self.a ** powers[:, 0] * self.b ** powers[:, 1] * self.d**n_d
        return chance, np.array(list(inside.values()), np.float64)

    def draws_for(self, num_edges: int) -> int:
        """Return the number of draws whose expected number of stored edges is ``num_edges``.

        A graph so dense that most draws would be repetitions is a ``DatasetError``.
        """
        chance, cells = self.cells()
        log_miss = np.log1p(-np.minimum(2 * chance if self.undirected else chance, 1 - 1e-16))

        def enough(draws: int) -> bool:
            """Whether so many draws are expected to give so many different edges."""
            return float(-(cells * np.expm1(draws * log_miss)).sum()) >= num_edges

        most = num_edges * MAX_DRAWS_PER_EDGE
        if not enough(most):
            whole = self.num_nodes * (self.num_nodes - 1)
            dense = f"{num_edges:,} edges among {self.num_nodes:,} nodes are too dense for RMAT"
            raise DatasetError(f"{dense} (a complete graph has {whole:,}); choose a larger scale")
        return bisect.bisect_left(range(most), True, key=enough)
