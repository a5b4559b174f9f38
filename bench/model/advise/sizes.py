"""How large the minibatches of a graph are: sampled where the graph is at hand, else computed.

A graph that is not at hand is taken to follow a law (``laws.py``). The counts are within a tenth
of those sampled from graphs of that law; a real graph may differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gatherbench.bench.model.advise.laws import LAWS, Array
from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.dataset import GraphDataset

#: Minibatches that are drawn from a graph at hand.
DRAWN = 8
#: Ids of a minibatch that is only computed: enough to count the requests of its rows.
_COUNTED_IDS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class MinibatchSizes:
    """The average minibatch of an epoch.

    Attributes:
        num_nodes: ``L + 1`` counts from the seeds outwards; the last are the rows it needs.
        num_edges: ``L`` counts from the seeds outwards.
        ids: node ids of some minibatches, or a sample of such, int64.
        seen: node ids of other minibatches, for paths that learn from earlier ones.
        law: that the graph is taken to follow, one of ``LAWS``; every node is then asked for alike
            in ``ids`` and ``seen``, as in no graph. Empty: sampled from the graph itself.
    """

    num_nodes: tuple[float, ...]
    num_edges: tuple[float, ...]
    ids: tuple[Tensor, ...]
    seen: tuple[Tensor, ...] = ()
    law: str = ""

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
    return MinibatchSizes(tuple(nodes.tolist()), tuple(edges.tolist()), ids, seen)


def expected_sizes(
    law: str,
    num_nodes: int,
    num_edges: int,
    fanouts: Sequence[int],
    seeds: float,
    *,
    connected: bool = False,
) -> MinibatchSizes:
    """Expected sizes on a graph of that law.

    Args:
        num_edges: as they are stored, both directions counted where both are.
        seeds: of a minibatch on average, at most all nodes.
        connected: seeds are drawn from the nodes that have in-neighbours, while there are any.

    Raises:
        DatasetError: the law has no graph of so many edges.
    """
    graph = LAWS[law](num_nodes, num_edges)
    able = graph.nodes * graph.connected
    among = able if connected and seeds <= able.sum() else graph.nodes
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
    return MinibatchSizes(tuple(nodes), tuple(edges), ids, seen, law)
