"""How large the minibatches of a graph are: sampled where the graph is at hand, else computed.

A graph that is not at hand may follow one of several laws. Its nodes fall into classes that are
alike, so that sampling is a step of expected counts from class to class, and no graph of that size
needs to be made. The laws span what graphs of this field are like: hubs and many nodes without
edges (RMAT), hubs and no node without edges (power law), no hubs at all (uniform). The counts are
within a tenth of those sampled from graphs of that law; a real graph may differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds
from gatherbench.bench.sampling.knowledge import knowledge_of
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.rmat import Rmat
from gatherbench.strategies.knowledge import NOTHING, Knowledge

Array = NDArray[np.float64]

#: Minibatches that are drawn from a graph at hand.
DRAWN = 8
#: Ids of a minibatch that is only computed: enough to count the requests of its rows.
_COUNTED_IDS = 20_000
#: Classes of a power law: the largest hubs are one each, the others fall into these many.
_HUBS, _CLASSES = 64, 200


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """A graph as ``C`` classes of nodes."""

    nodes: Array  # of each class, [C]
    degree: Array  # mean in-neighbours of a node of each class, [C]; over all nodes the edges
    neighbours: Array  # [C, C]: of the in-neighbours of a node of one class, the share in each
    scattered: bool  # degrees are Poisson counts; else their mean, rounded up or down
    mutual: bool  # edges run both ways: a node leads back to where it was reached from

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


@dataclass(frozen=True, slots=True, eq=False)
class MinibatchSizes:
    """The average minibatch of an epoch."""

    num_nodes: tuple[float, ...]  # L + 1 counts from the seeds outwards; the last are its rows
    num_edges: tuple[float, ...]  # L counts from the seeds outwards
    ids: tuple[Tensor, ...]  # node ids of some minibatches, or a sample of such, int64
    seen: tuple[Tensor, ...] = ()  # those of others, for paths that learn from what they fetch
    #: That the graph is taken to follow, one of ``LAWS``; every node is then asked for alike in
    #: ``ids`` and ``seen``, as in no graph. Empty: sampled from the graph itself.
    law: str = ""
    knowledge: Knowledge = NOTHING  # what a path may know; nothing of a graph that is not at hand
    #: Of a graph that is not at hand: its classes of nodes, [2, C]: how many there are, and the
    #: chance that a minibatch asks for one of them.
    asked: Array | None = None

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
    workload = Workload("", fanouts=tuple(fanouts), batch_size=batch_size, seed=seed)
    known = knowledge_of(workload, dataset)
    return MinibatchSizes(tuple(nodes.tolist()), tuple(edges.tolist()), ids, seen, knowledge=known)


def expected_sizes(
    law: str,
    num_nodes: int,
    num_edges: int,
    fanouts: Sequence[int],
    seeds: float,
    train_nodes: float,
) -> MinibatchSizes:
    """Expected sizes on a graph of that law.

    Args:
        num_edges: as they are stored, both directions counted where both are.
        seeds: of a minibatch on average, at most all nodes.
        train_nodes: of the graph, from which seeds are drawn; they have in-neighbours, as in the
            graphs of this field, unless there are more of them than nodes that do.

    Raises:
        DatasetError: the law has no graph of so many edges.
    """
    graph = LAWS[law](num_nodes, num_edges)
    able = graph.nodes * graph.connected
    among = able if train_nodes <= able.sum() else graph.nodes
    known = among * min(1.0, seeds / float(among.sum()))
    # Nodes that came in together: their number, by how much more they draw than others of their
    # class, and the share of their edges that no earlier layer drew (those bring nothing new).
    more_drawn = graph.nodes / np.maximum(among, 1e-300)
    cohorts: list[tuple[Array, Array, Array]] = [(known, more_drawn, np.ones_like(known))]
    back = 1 / np.maximum(1.0, graph.degree) if graph.mutual else np.zeros_like(known)
    nodes, edges = [float(known.sum())], []
    for fanout in fanouts:
        drawn = graph.drawn(fanout)
        every = sum(count * more for count, more, _ in cohorts)
        drawn_each = drawn * np.minimum(1.0, graph.nodes / np.maximum(every, 1e-300))
        edges.append(float((every * drawn_each).sum()))
        fresh = sum(count * more * left for count, more, left in cohorts) * drawn_each
        draws = fresh @ graph.neighbours
        reached = -(graph.nodes - known) * np.expm1(-draws / np.maximum(graph.nodes, 1e-300))
        undrawn = 1 - drawn / np.maximum(graph.degree, 1e-300)
        cohorts = [(count, more, left * undrawn) for count, more, left in cohorts]
        cohorts.append((reached, np.ones_like(known), 1 - back))
        known = known + reached
        nodes.append(float(known.sum()))
    count = max(1, min(_COUNTED_IDS, math.ceil(nodes[-1])))
    draw = np.random.default_rng(0)

    def minibatch() -> Tensor:
        """Distinct ids, as a minibatch's are, and in no order."""
        return torch.from_numpy(draw.permutation(np.unique(draw.integers(0, num_nodes, count))))

    ids, seen = (minibatch(),), tuple(minibatch() for _ in range(DRAWN))
    asked = np.stack((graph.nodes, known / np.maximum(graph.nodes, 1e-300)))
    return MinibatchSizes(tuple(nodes), tuple(edges), ids, seen, law, asked=asked)
