"""GraphSAGE on WordNet in plain PyG, with the features moved by a strategy of your choice.

A user of PyG changes the two marked lines: they let a strategy fetch the features. Everything else
is ordinary PyG, on a GPU if there is one. It takes under a minute on a CPU::

    python examples/train_wordnet.py
    python examples/train_wordnet.py --strategy cpu_gather --epochs 5
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GraphSAGE

import gatherbench
from gatherbench.datasets.registry import prepare_dataset
from gatherbench.datasets.store import open_dataset
from gatherbench.pyg import FeatureLoader, NeighborSampler

FANOUTS = (10, 5)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and test; return the accuracy on the test nodes."""
    options = _options(arguments)
    torch.manual_seed(options.seed)
    graph = open_dataset(prepare_dataset("wordnet"))
    x, y, train_ids, test_ids = (
        torch.from_numpy(np.array(array))
        for array in (graph.features, graph.labels, graph.train_ids, graph.test_ids)
    )
    # The sampler holds the graph; PyG requires an edge_index as a sign that there are edges.
    data = Data(y=y, edge_index=torch.empty((2, 0), dtype=torch.int64), num_nodes=len(y))
    sampler = NeighborSampler(graph.indptr, graph.indices, FANOUTS)

    # Line 1 replaces `data.x = x`.
    features = gatherbench.unified(x, strategy=options.strategy, device=options.device)

    def loader(ids: torch.Tensor) -> FeatureLoader:
        # Shuffled, as ids are sorted by class and --max-batches needs nodes of every class.
        batches = NodeLoader(data, sampler, ids, batch_size=1024, shuffle=True)
        # Line 2: each batch gets its x, prefetched if the strategy overlaps.
        return FeatureLoader(batches, features)

    model = GraphSAGE(x.shape[1], options.hidden, len(FANOUTS), graph.spec.num_classes, dropout=0.5)
    model = model.to(features.device)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    print(f"data path: {features}")

    for epoch in range(options.epochs):
        started, losses = time.perf_counter(), []
        model.train()
        for batch in _first(loader(train_ids), options.max_batches):
            optimiser.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean().item()
        seconds = time.perf_counter() - started
        print(f"epoch {epoch + 1}: loss {mean:.4f}, {len(losses)} batches, {seconds:.2f} s")

    right = seen = 0
    model.eval()
    with torch.no_grad():
        for batch in _first(loader(test_ids), options.max_batches):
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            right += int((out.argmax(dim=1) == batch.y[: batch.batch_size]).sum())
            seen += batch.batch_size
    features.close()
    print(f"test accuracy {right / seen:.4f} on {seen} nodes, neighbours sampled as in training")
    return right / seen


def _first(loader: FeatureLoader, count: int) -> Iterator[Data]:
    """Yield the first ``count`` batches; all of them for 0."""
    return islice(loader, count or None)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="async_zero_copy", help="gatherbench list strategies")
    parser.add_argument("--device", help="cpu or cuda (default: a GPU where there is one)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--max-batches", type=int, default=0, help="batches of an epoch; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
