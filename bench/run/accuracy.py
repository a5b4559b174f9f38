"""How well a case's model does on test nodes: whether training works, and strategies agree."""

from __future__ import annotations

from torch import Tensor

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.models import Trainer
from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.kernels.reference import reference_gather


def score(
    workload: Workload,
    dataset: GraphDataset,
    table: Tensor,
    trainer: Trainer,
    sampler: NeighborSampler,
    batches: int,
) -> tuple[int, int]:
    """Test nodes classified rightly, and how many were looked at; drawn from the seed."""
    if not len(dataset.test_ids):  # a split of one's own need not have any
        return 0, 0
    seeds = epoch_seeds(dataset.test_ids, workload.batch_size, workload.seed, 0, batches)
    right = seen = 0
    for i, batch_seeds in enumerate(seeds):
        batch = sampler.sample(batch_seeds, batch_seed(workload.seed, -1, i))
        x = reference_gather(table, batch.input_ids).to(trainer.device)
        right += trainer.correct(x, batch)
        seen += batch_seeds.numel()
    return right, seen
