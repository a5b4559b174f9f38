"""The minibatches of each epoch of a case: drawn for it alone, possibly ahead of the loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gatherbench.bench.plan.doors import is_relational
from gatherbench.bench.plan.plan import GPU_SAMPLING
from gatherbench.bench.run.job import Job
from gatherbench.bench.sampling.device_sampler import DeviceSampler
from gatherbench.bench.sampling.epoch import FIRST, draws
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.sampler import sampler_of
from gatherbench.bench.sampling.typed import EdgeKinds
from gatherbench.bench.sampling.workers import begun_ahead, drawn_ahead
from gatherbench.datasets.dataset import GraphDataset

#: Epochs whose seeds are kept in memory, 8 B each: to sort a million of them takes longer than an
#: epoch may.
KEPT_ORDERS = 32


class Epochs:
    """The minibatches of each epoch of a case: each epoch has its own.

    Measured are those of epoch 0, 1, … of the workload, the *sets*. The warm-up has those of the
    epochs after them, and whatever follows the measurement has those after these. Iteration yields
    the input ids of all measured epochs' minibatches, drawn by the CPU, each time anew.
    """

    def __init__(self, job: Job, dataset: GraphDataset) -> None:
        self.plan, self.workload, self.rank = job.measure, job.case.workload, max(job.rank, 0)
        self.dataset = dataset
        graph, device = (dataset.indptr, dataset.indices), torch.device(job.device)
        self.sampler = sampler_of(self.workload, *graph)
        #: Has a GPU draw a minibatch, if a GPU samples.
        self._begin: Callable[..., Callable[[], MiniBatch]] | None = None
        if self.plan.sampling in GPU_SAMPLING and device.type == "cuda":
            in_place, fanouts = self.plan.sampling == "uva", self.workload.fanouts
            self._begin = DeviceSampler(*graph, fanouts, device, in_place=in_place).begin
        workers = 0 if self._begin else self.plan.sampler_workers
        self._workers = [self.sampler.clone(threads=1) for _ in range(workers)]
        #: Adds the kinds of its edges to a minibatch, if the model uses them.
        self.typed: Callable[[MiniBatch], MiniBatch] = lambda batch: batch
        if is_relational(self.workload.model):
            self.typed = EdgeKinds(dataset).typed
        self._waits: list[float] = []
        #: The seeds of each minibatch of an epoch.
        self._order = lru_cache(KEPT_ORDERS)(
            lambda epoch: draws(self.workload, self.sampler, dataset.train_ids, epoch, self.rank)
        )
        self._further = itertools.count(self.plan.epochs + self.plan.warmup_epochs)

    @property
    def batches(self) -> int:
        """Return the number of minibatches of the first epoch."""
        return len(self._order(0))

    @cached_property
    def first(self) -> list[MiniBatch]:
        """Return the first minibatches of epoch 0, drawn by the CPU; fetched again at the end."""
        return list(itertools.islice(self.on_cpu(0), FIRST))

    def measured(self, number: int) -> Iterator[MiniBatch]:
        """Yield the minibatches of set ``number``; an epoch begins that has waited for none yet."""
        tasks = iter(self._order(number))
        self._waits.clear()
        if self._begin:
            return begun_ahead(self._begin, tasks, waited=self._waits.append)
        if self._workers:
            return drawn_ahead([self._typed(worker.sample) for worker in self._workers], tasks)
        return itertools.starmap(self._typed(self.sampler.sample), tasks)

    def warm_up(self, number: int) -> Iterator[MiniBatch]:
        """Yield the minibatches of warm-up epoch ``number``."""
        return self.measured(self.plan.epochs + number)

    def further(self) -> Iterator[MiniBatch]:
        """Yield the minibatches of one more epoch."""
        return self.measured(next(self._further))

    def on_cpu(self, epoch: int, numbers: Iterable[int] | None = None) -> Iterator[MiniBatch]:
        """Yield an epoch's minibatches, drawn by the CPU; several epochs may be drawn in parallel.

        Args:
            numbers: the wanted ones, if each can be drawn without the others.
        """
        sampler, order = self.sampler.clone(torch.get_num_threads()), self._order(epoch)
        tasks = order if numbers is None else [order[number] for number in numbers]
        return itertools.starmap(self._typed(sampler.sample), tasks)

    def ids(self, epoch: int) -> Iterator[Tensor]:
        """Yield the input ids of an epoch's minibatches, drawn by the CPU."""
        return (batch.input_ids for batch in self.on_cpu(epoch))

    def __iter__(self) -> Iterator[Tensor]:
        return itertools.chain.from_iterable(map(self.ids, range(self.plan.epochs)))

    def waited_s(self) -> float | None:
        """Return how long the loop has waited for a GPU's draws in this epoch, in seconds."""
        return sum(self._waits) if self._begin else None

    def _typed(self, sample: Callable[..., MiniBatch]) -> Callable[..., MiniBatch]:
        return lambda *task: self.typed(sample(*task))
