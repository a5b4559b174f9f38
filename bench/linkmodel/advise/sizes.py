"""How large the minibatches of a graph are: sampled where the graph is at hand, else computed.

A graph that is not at hand is taken to follow the law of the project's generator, RMAT with the
weights of Graph500. Its nodes fall into classes by the number of ones in their (unscrambled)
number; nodes of a class are alike, so degrees, and who neighbours whom, are known class by class,
and a layer of sampling is a step of expected counts. No graph of that size needs to be made. The
counts are within a tenth of those sampled from such graphs; a real graph may differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.rmat import Rmat

#: Minibatches that are drawn from a graph at hand.
DRAWN = 8
#: Ids of a minibatch that is only computed: enough to count the requests of its rows.
_COUNTED_IDS = 20_000

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class MinibatchSizes:
    """The average minibatch of an epoch.

    Attributes:
        num_nodes: ``L + 1`` counts from the seeds outwards; the last are the rows it needs.
        num_edges: ``L`` counts from the seeds outwards.
        ids: node ids of some minibatches, or a sample of such, int64.
        source: how the sizes came about, in words.
        seen: node ids of other minibatches, for paths that learn from earlier ones.
        uniform: every node is asked for alike in ``ids`` and ``seen``, as in no graph.
    """

    num_nodes: tuple[float, ...]
    num_edges: tuple[float, ...]
    ids: tuple[Tensor, ...]
    source: str
    seen: tuple[Tensor, ...] = ()
    uniform: bool = False

    @property
    def rows(self) -> float:
        """Feature rows of a minibatch."""
        return self.num_nodes[-1]


def drawn_sizes(
    dataset: GraphDataset, fanouts: Sequence[int], batch_size: int, seed: int = 0
) -> MinibatchSizes:
    """Sizes of the first minibatches of an epoch on a graph at hand."""
    sampler = NeighborSampler(dataset.indptr, dataset.indices, fanouts)

    def minibatches(epoch: int) -> list[MiniBatch]:
        seeds = epoch_seeds(dataset.train_ids, batch_size, seed, epoch, DRAWN)
        return [sampler.sample(part, batch_seed(seed, epoch, i)) for i, part in enumerate(seeds)]

    drawn = minibatches(0)
    nodes = np.mean([batch.num_nodes for batch in drawn], axis=0)
    edges = np.mean([[e.shape[1] for e in batch.edges] for batch in drawn], axis=0)
    ids, seen = (tuple(b.input_ids for b in batches) for batches in (drawn, minibatches(1)))
    source = f"sampled: the mean of {len(drawn)} minibatches of {dataset.name}"
    return MinibatchSizes(tuple(nodes.tolist()), tuple(edges.tolist()), ids, source, seen)


def expected_sizes(
    num_nodes: int, num_edges: int, fanouts: Sequence[int], batch_size: int
) -> MinibatchSizes:
    """Expected sizes on an RMAT graph of ``num_nodes`` nodes and ``num_edges`` stored edges.

    Seeds are drawn from the nodes that have in-neighbours, and at most all of those.

    Raises:
        DatasetError: so many edges that hardly any RMAT graph has them.
    """
    law = _ClassLaw(num_nodes, num_edges)
    able = law.nodes * -np.expm1(-law.degree)
    known = able * min(1.0, batch_size / able.sum())
    nodes, edges = [float(known.sum())], []
    for fanout in fanouts:
        draws = (known * _expected_min(law.degree, fanout)) @ law.neighbours
        edges.append(float(draws.sum()))
        left = law.nodes - known
        known = known - left * np.expm1(-draws / np.maximum(law.nodes, 1e-300))
        nodes.append(float(known.sum()))
    count = max(1, min(_COUNTED_IDS, math.ceil(nodes[-1])))
    draw = np.random.default_rng(0)

    def minibatch() -> Tensor:
        """Distinct ids, as a minibatch's are, and in no order."""
        return torch.from_numpy(draw.permutation(np.unique(draw.integers(0, num_nodes, count))))

    ids, seen = (minibatch(),), tuple(minibatch() for _ in range(DRAWN))
    source = "computed, not sampled: expected counts if the graph follows the law of RMAT"
    return MinibatchSizes(tuple(nodes), tuple(edges), ids, source, seen, uniform=True)


class _ClassLaw:
    """Classes of an RMAT graph's nodes by ones in their number.

    Attributes:
        nodes: how many nodes each class has, ``[L + 1]``.
        degree: expected in-neighbours of a node of each class.
        neighbours: ``[L + 1, L + 1]``: for a node of one class, the share of its in-neighbours in
            each.
    """

    def __init__(self, num_nodes: int, num_edges: int) -> None:
        law = Rmat(num_nodes, undirected=False)
        draws = law.draws_for(num_edges)
        levels = law.levels
        self.nodes = _ones_below(num_nodes, levels)
        inside = self.nodes / np.array([math.comb(levels, k) for k in range(levels + 1)])
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
        self.degree: Array = edges.sum(axis=1)
        self.neighbours = edges / np.maximum(self.degree, 1e-300)[:, None]


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


def _expected_min(mean: Array, most: int) -> Array:
    """The expected smaller one of ``most`` and a Poisson count of each mean."""
    below = np.exp(-mean)  # the chance of exactly x
    at_most = below.copy()
    expected = 1 - at_most
    for x in range(1, most):
        below = below * mean / x
        at_most = at_most + below
        expected = expected + np.maximum(0.0, 1 - at_most)
    return expected
