"""Laws that a graph which is not at hand may follow: how many neighbours its nodes have, and which.

Nodes fall into classes that are alike, so that sampling is a step of expected counts from class to
class and no graph of that size needs to be made. The laws span what graphs of this field are like:
hubs and many nodes without edges (RMAT), hubs and no node without edges (power law), no hubs at all
(uniform). A real graph may still lie outside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from gatherbench.datasets.rmat import Rmat

Array = NDArray[np.float64]

#: Classes of a power law: the largest hubs are one each, the others fall into these many.
_HUBS, _CLASSES = 64, 200


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """A graph as classes of nodes.

    Attributes:
        nodes: of each class, ``[C]``.
        degree: in-neighbours that a node of each class has on average, ``[C]``; over all nodes
            they are the edges.
        neighbours: ``[C, C]``: of the in-neighbours of a node of one class, the share in each.
        scattered: degrees scatter about their mean as Poisson counts do; else they are their mean,
            rounded up or down.
        mutual: edges run both ways, so a node that was reached leads back to where it was reached
            from.
    """

    nodes: Array
    degree: Array
    neighbours: Array
    scattered: bool
    mutual: bool

    @property
    def connected(self) -> Array:
        """The share of each class's nodes that have in-neighbours."""
        some: Array = -np.expm1(-self.degree) if self.scattered else np.minimum(1.0, self.degree)
        return some

    def drawn(self, fanout: int) -> Array:
        """In-neighbours that are expected to be drawn for a node of each class."""
        most: Array = np.minimum(self.degree, float(fanout))
        expected: Array = most
        if not self.scattered:
            return expected
        exactly = np.exp(-self.degree)  # the chance of x neighbours
        at_most = exactly.copy()
        expected = 1 - at_most
        for x in range(1, fanout):
            exactly = exactly * self.degree / x
            at_most = at_most + exactly
            expected = expected + np.maximum(0.0, 1 - at_most)
        expected = np.minimum(expected, most)  # which rounding would exceed
        return expected


def rmat(num_nodes: int, num_edges: int) -> Law:
    """The project's generator, with the weights of Graph500; classes by ones in a node's number.

    Raises:
        DatasetError: so many edges that hardly any RMAT graph has them.
    """
    law = Rmat(num_nodes, undirected=False)
    draws = law.draws_for(num_edges)
    levels = law.levels
    nodes = _ones_below(num_nodes, levels)
    inside = nodes / np.array([math.comb(levels, k) for k in range(levels + 1)])
    edges = np.zeros((levels + 1, levels + 1))
    for ones in range(levels + 1):
        zeros = levels - ones
        # A neighbour has i ones where the node has zeros, and j where it has ones.
        i, j = np.arange(zeros + 1)[:, None], np.arange(ones + 1)[None, :]
        chance = law.a ** (zeros - i) * law.b ** (i + ones - j) * law.d**j
        count = _binomials(zeros)[:, None] * _binomials(ones)[None, :]
        expected = count * -np.expm1(draws * np.log1p(-chance))
        np.add.at(edges[ones], i + j, expected)
    edges *= inside[None, :]
    # The number of draws is whole, so what is expected of it is not quite the number of edges.
    edges *= num_edges / float(nodes @ edges.sum(axis=1))
    degree: Array = edges.sum(axis=1)
    neighbours = edges / np.maximum(degree, 1e-300)[:, None]
    return Law(nodes, degree, neighbours, scattered=True, mutual=False)


def uniform(num_nodes: int, num_edges: int) -> Law:
    """Every edge joins two nodes drawn alike (Erdős and Rényi): no node is a hub."""
    one = np.ones((1, 1))
    nodes, degree = np.array([float(num_nodes)]), np.array([num_edges / num_nodes])
    return Law(nodes, degree, one, scattered=True, mutual=False)


def powerlaw(num_nodes: int, num_edges: int) -> Law:
    """Preferential attachment (Barabási and Albert, Science 286, 1999): exponent 3, both ways.

    The degree of the node of rank r falls with the root of r, and none exceeds the other nodes.
    A neighbour is drawn in proportion to its degree.
    """
    spread = np.geomspace(_HUBS, max(num_nodes, _HUBS), _CLASSES).round()
    ranks = np.unique(np.concatenate((np.arange(_HUBS), spread)).clip(max=num_nodes))
    nodes = np.diff(ranks)
    shape = math.sqrt(num_nodes) * np.diff(np.sqrt(ranks)) / nodes  # 1 over all nodes

    def degrees(scale: float) -> Array:
        capped: Array = np.minimum(scale * shape, num_nodes - 1.0)
        return capped

    mean = num_edges / num_nodes
    most = num_nodes / float(shape[-1])
    scale = brentq(lambda x: float(nodes @ degrees(x)) / num_nodes - mean, 0.0, most)
    degree = degrees(scale)
    degree *= num_edges / float(nodes @ degree)
    share = nodes * degree / num_edges
    neighbours = np.broadcast_to(share, (len(nodes), len(nodes)))
    return Law(nodes, degree, neighbours, scattered=False, mutual=True)


#: Name → the law of a graph of so many nodes and edges.
LAWS: Mapping[str, Callable[[int, int], Law]] = {
    "rmat": rmat,
    "uniform": uniform,
    "powerlaw": powerlaw,
}


def _ones_below(bound: int, levels: int) -> Array:
    """How many numbers below ``bound`` have 0, 1, … ``levels`` ones."""
    counts = np.zeros(levels + 1)
    ones = 0
    for level in reversed(range(levels + 1)):
        if bound >> level & 1:
            counts[ones : ones + level + 1] += _binomials(level)
            ones += 1
    return counts


def _binomials(n: int) -> Array:
    return np.array([math.comb(n, k) for k in range(n + 1)], np.float64)
