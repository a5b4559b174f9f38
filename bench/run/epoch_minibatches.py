"""The minibatches of each epoch of a case: drawn anew, ahead of the loop, or read back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gatherbench.bench.plan.plan import GPU_SAMPLING
from gatherbench.bench.plan.workload import RELATIONAL
from gatherbench.bench.run.job import Job
from gatherbench.bench.sampling.epoch import draws
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.state_sampler import sampler_of
from gatherbench.bench.sampling.trace import InputIds, Sampler, Trace
from gatherbench.bench.sampling.typed import EdgeKinds
from gatherbench.bench.sampling.workers import Pending, begun_ahead, drawn_ahead
from gatherbench.datasets.dataset import GraphDataset


class Epochs:
    """The minibatches of each epoch of a case, the same ones or fresh ones as the plan says.

    Fresh ones are those of epoch 0, 1, … of the workload where they are measured, and of the
    epochs behind them in the warm-up and after the measurement.
    """

    def __init__(self, job: Job, dataset: GraphDataset, trace: Trace) -> None:
        self.plan, self.workload = job.measure, job.case.workload
        self.dataset, self.trace, self.rank = dataset, trace, max(job.rank, 0)
        graph = (dataset.indptr, dataset.indices)
        self.sampler = sampler_of(self.workload, *graph)
        self._drawing: Sampler = self.sampler
        device = torch.device(job.device)
        #: Has a GPU draw a minibatch, where one does.
        self._begin: Callable[..., Pending[MiniBatch]] | None = None
        if self.plan.sampling in GPU_SAMPLING and device.type == "cuda":
            in_place = self.plan.graph if self.plan.sampling == "uva" else None
            self._drawing = sampler_of(self.workload, *graph, device, in_place=in_place)
            # Sampling that remembers is the CPU's.
            self._begin = getattr(self._drawing, "begin", None)
        workers = 0 if self._begin else self.plan.sampler_workers
        self._workers = [self._drawing.clone(threads=1) for _ in range(workers)]
        self._kinds = EdgeKinds(dataset) if self.workload.model in RELATIONAL else None
        self._waits: list[float] = []
        self._last: tuple[int, list[tuple[Any, int]]] | None = None
        self._further = itertools.count(self.plan.epochs + self.plan.warmup_epochs)

    def measured(self, number: int) -> Iterator[MiniBatch]:
        """Those of measured epoch ``number``."""
        if self.plan.sampling == "replay":
            read = [self._replayed] * self.plan.sampler_workers
            numbers = range(len(self.trace))
            return drawn_ahead(read, zip(numbers)) if read else map(self._replayed, numbers)
        return self._drawn(number, self._drawing)

    def typed(self, batch: MiniBatch) -> MiniBatch:
        """The minibatch with the kinds of its edges, if the model asks for them."""
        return batch if self._kinds is None else self._kinds.typed(batch)

    def _replayed(self, number: int) -> MiniBatch:
        return self.typed(self.trace[number])

    def warm_up(self, number: int) -> Iterator[MiniBatch]:
        """Those of warm-up epoch ``number``."""
        return self.measured(self.plan.epochs + number)

    def further(self) -> Iterator[MiniBatch]:
        """Those of one more epoch."""
        return self.measured(next(self._further))

    def measured_ids(self) -> Iterable[Tensor]:
        """Input ids of all that is measured, as often as wanted."""
        if self.plan.minibatches == "same":
            return InputIds(self.trace)
        return _Again(lambda: self._ids(0, self.plan.epochs))

    def warm_up_ids(self) -> Iterator[Iterator[Tensor]]:
        """Input ids of each epoch of the warm-up."""
        return (self._ids(self.plan.epochs + one, 1) for one in range(self.plan.warmup_epochs))

    def _ids(self, first: int, count: int) -> Iterator[Tensor]:
        for epoch in range(first, first + count):
            if self.plan.minibatches == "same":
                yield from InputIds(self.trace)
            else:
                yield from (batch.input_ids for batch in self._drawn(epoch, self.sampler))

    def _drawn(self, epoch: int, sampler: Sampler) -> Iterator[MiniBatch]:
        tasks = self._tasks(epoch if self.plan.minibatches == "fresh" else 0)
        if sampler is self._drawing and self._begin:
            return begun_ahead(self._begin, tasks, waited=self._waits.append)
        if sampler is self._drawing and self._workers:
            return drawn_ahead([self._typed(one.sample) for one in self._workers], tasks)
        return map(self.typed, itertools.starmap(sampler.sample, tasks))

    def waited_s(self) -> float | None:
        """Seconds that the loop waited for what a GPU draws, since this was last asked."""
        told = sum(self._waits)
        self._waits.clear()
        return told if self._begin else None

    def _tasks(self, epoch: int) -> Iterator[tuple[Any, int]]:
        """The seeds of each minibatch; those of the last epoch are kept, as paths take turns.

        To sort a million of them takes longer than an epoch may.
        """
        if self._last is None or self._last[0] != epoch:
            self._last = epoch, list(draws(self.workload, self.dataset, epoch, self.rank))
        return iter(self._last[1])

    def _typed(self, sample: Callable[..., MiniBatch]) -> Callable[..., MiniBatch]:
        return lambda *task: self.typed(sample(*task))


@dataclass(frozen=True, slots=True)
class _Again:
    """An iterable that begins anew each time."""

    begin: Callable[[], Iterator[Tensor]]

    def __iter__(self) -> Iterator[Tensor]:
        return self.begin()
