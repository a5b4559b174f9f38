"""The law of graphs made by hash (datasets/synthetic.py), written once more in numpy."""

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.generated import ALPHA, MOST, PRIME
from gatherbench.datasets.synthetic import HashedSource

DEGREES, NEIGHBOURS = 2 << 60, 3 << 60


def splitmix64(counter: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Outputs of splitmix64 with seed 0 by their number."""
    z = counter * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ z >> np.uint64(shift)) * np.uint64(factor)
    return z ^ z >> np.uint64(31)


def uniform(counter: NDArray[np.uint64]) -> NDArray[np.float64]:
    return (splitmix64(counter) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def degrees(source: HashedSource, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    u = uniform(nodes.astype(np.uint64) + np.uint64(DEGREES)) + 2.0**-53
    return np.minimum((source.least * u ** (-1 / ALPHA)).astype(np.int64), MOST)


def neighbours(
    source: HashedSource, scale: float, nodes: NDArray[np.int64], entries: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The in-neighbour of each node that stands in that entry of its list."""
    counter = (nodes.astype(np.uint64) << np.uint64(14)) + entries.astype(np.uint64)
    u = uniform(counter + np.uint64(NEIGHBOURS))
    total = round(source.shape.nodes * scale)
    rank = (total * u**2 * u ** (source.shape.skew - 2)).astype(np.uint64)
    return (rank * np.uint64(PRIME) % np.uint64(total)).astype(np.int64)


def rows_of_a_minibatch(
    source: HashedSource, scale: float, seeds: int, fanouts: tuple[int, ...]
) -> int:
    """Distinct nodes of one minibatch. Of a list, entries in a row from a random one on are drawn:
    as entries are hashes of their own, that is as any others."""
    draw, total = np.random.default_rng(0), round(source.shape.nodes * scale)
    known = draw.choice(total, seeds, replace=False)
    for fanout in fanouts:
        degree = degrees(source, known)
        node, entry = np.nonzero(np.arange(fanout) < degree[:, None])
        entries = (draw.integers(degree)[node] + entry) % degree[node]
        drawn = neighbours(source, scale, known[node], entries)
        known = np.unique(np.concatenate([known, drawn]))
    return len(known)
