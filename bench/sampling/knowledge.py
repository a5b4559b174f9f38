"""Give a data path what it may know of a workload in advance.

Earlier minibatches have another seed than the measured ones. They come from whole epochs even
where the measured ones are cut short, as in a training that goes on for days.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import Tensor

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.epoch import draws
from gatherbench.bench.sampling.sampler import sampler_of
from gatherbench.bench.sampling.splitmix import derive
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.strategies.knowledge import Adjacency, Knowledge
from gatherbench.strategies.partition_orders import Partitions

_EARLIER = 5


def knowledge_of(
    workload: Workload,
    dataset: GraphDataset,
    measured: Iterable[Tensor] | None = None,
    partitions: Partitions | None = None,
) -> Knowledge:
    """Return all that may be known; a strategy gets the parts that it requests.

    Args:
        measured: input ids of the measured minibatches.
        partitions: the parts of the nodes, where a minibatch sees some of them.
    """
    seed = derive(workload.seed, _EARLIER)
    other = replace(workload, seed=seed, max_batches=0, gpus=1)
    sampler = sampler_of(other, dataset.indptr, dataset.indices)

    def earlier(epoch: int) -> Iterator[Tensor]:
        return (sampler.sample(*task).input_ids for task in draws(other, dataset, sampler, epoch))

    return Knowledge(
        graph=Adjacency(dataset.indptr, dataset.indices),
        training_ids=dataset.train_ids,
        earlier=earlier,
        measured=measured,
        partitions=partitions,
    )
