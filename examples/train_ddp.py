"""GraphSAGE on WordNet with DDP: ``train_wordnet.py`` on several GPUs, a process each.

On a machine without a GPU the processes train on its cores. On several machines, start the second
command on each, with the machine's number as K; HOST is machine 0::

    torchrun --nproc-per-node 2 examples/train_ddp.py
    torchrun --nnodes 2 --node-rank K --master-addr HOST --master-port 29500 --nproc-per-node 4 \
        examples/train_ddp.py
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GraphSAGE

import gatherbench
from gatherbench.datasets.registry import prepare_dataset
from gatherbench.datasets.store import open_dataset
from gatherbench.pyg import FeatureLoader, NeighborSampler

FANOUTS = (10, 5)


def main() -> None:
    options = _options()
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(options, device)
    dist.destroy_process_group()


def train(options: argparse.Namespace, device: torch.device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed + rank)  # seeds the draws; rank 0 gives the weights
    graph = open_dataset(prepare_dataset("wordnet"))
    y, train_ids = (torch.from_numpy(np.array(ids)) for ids in (graph.labels, graph.train_ids))
    # Every rank needs as many seeds, as all wait for one another's gradients in each step. Each
    # takes every world-th node, because ids are sorted by class.
    seeds = train_ids[: len(train_ids) // world * world][rank::world]

    # One table for each machine, which all its ranks read in place.
    x = gatherbench.shared_table(graph.features)
    features = gatherbench.unified(x, strategy=options.strategy, device=device)

    data = Data(y=y, edge_index=torch.empty((2, 0), dtype=torch.int64), num_nodes=len(y))
    sampler = NeighborSampler(graph.indptr, graph.indices, FANOUTS)
    batches = NodeLoader(data, sampler, seeds, batch_size=options.batch_size // world, shuffle=True)
    loader = FeatureLoader(batches, features)  # prefetches the next batch

    model = GraphSAGE(x.shape[1], options.hidden, len(FANOUTS), graph.spec.num_classes, dropout=0.5)
    model = DistributedDataParallel(model.to(device))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    if rank == 0:
        print(f"{world} ranks, each with {len(seeds)} seeds and {features}")

    for epoch in range(options.epochs):
        started, losses = time.perf_counter(), []
        for batch in islice(loader, options.max_batches or None):
            optimiser.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean)
        seconds = time.perf_counter() - started
        if rank == 0:
            line = f"loss {mean.item() / world:.4f}, {len(losses)} batches a rank, {seconds:.2f} s"
            print(f"epoch {epoch + 1}: {line}")

    features.close()
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    digests: list[Any] = [None] * world
    dist.all_gather_object(digests, hashlib.sha256(weights).hexdigest()[:16])
    if rank == 0:  # ranks with different weights would have trained separately
        print("parameters by rank:", *digests)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="async_zero_copy", help="gatherbench list strategies")
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=usual)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=1024, help="seeds a step of all ranks")
    parser.add_argument("--max-batches", type=int, default=0, help="batches of an epoch; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
