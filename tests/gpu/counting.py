"""What a minibatch in steady state asks of a GPU: calls that the stand-in for CUDA counts.

    python tests/gpu/counting.py    prints the table counts.csv

A count is no time, and it is the same on every machine: launches and copies cost the host some
microseconds each on any GPU, a wait on the thread that trains costs what is queued before it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.captured import CapturedTrainer, StepInputs
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.loop import Watch, run_epoch
from gatherbench.bench.run.models import Trainer, build_model
from gatherbench.strategies.conformance import open_known, random_table
from gatherbench.strategies.registry import build

CUDA = torch.device("cuda")
NODES, WIDTH, CLASSES, BATCH = 4000, 32, 8, 40
WORKLOAD = Workload("tiny", fanouts=(4, 3), batch_size=BATCH, hidden=16)
#: Between these minibatches of the second epoch it is counted.
FIRST, LAST = 6, 14
MINIBATCHES = 18
#: Strategy and parameters of each line of the table.
PATHS: tuple[tuple[str, dict[str, str]], ...] = (
    ("cpu_gather", {"mode": "naive"}),
    ("cpu_gather", {"mode": "pinned"}),
    ("cpu_gather", {"mode": "prefetch"}),
    ("unified_zero_copy", {}),
    ("unified_zero_copy", {"memory": "managed"}),
    ("aligned_zero_copy", {}),
    ("aligned_zero_copy", {"order": "sorted"}),
    ("aligned_zero_copy", {"order": "unique"}),
    ("async_zero_copy", {}),
    ("cached_zero_copy", {}),
    ("all_in_gpu", {}),
    ("no_fetch", {}),
)


@dataclass
class Counts:
    """Calls of the runtime, as ``standin/native/gpu.h`` has them, in its order."""

    launches: float = 0
    operators: float = 0
    to_device: float = 0
    to_host: float = 0
    pageable: float = 0
    waits: float = 0
    events: float = 0
    allocations: float = 0

    @classmethod
    def now(cls, *, everywhere: bool = False) -> Counts:
        """Of the calling thread, or of all."""
        found = (ctypes.c_long * len(fields(cls)))()
        ctypes.CDLL("libcudart.so.13").standin_counts(found, int(everywhere))
        return cls(*found)

    def __sub__(self, other: Counts) -> Counts:
        return self._with(other, lambda a, b: a - b)

    def __add__(self, other: Counts) -> Counts:
        return self._with(other, lambda a, b: a + b)

    def each(self, minibatches: int) -> Counts:
        return Counts(*(getattr(self, f.name) / minibatches for f in fields(self)))

    def _with(self, other: Counts, do: Callable[[float, float], float]) -> Counts:
        return Counts(*(do(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))


@dataclass
class Minibatch:
    """Per minibatch: of all threads, of the thread that trains, of the sampler and of the fetch.

    ``fetch`` is what the thread that trains asks of it, as it does of the sampler.
    """

    every: Counts = field(default_factory=Counts)
    training: Counts = field(default_factory=Counts)
    sampler: Counts = field(default_factory=Counts)
    fetch: Counts = field(default_factory=Counts)


class _Taken(Watch):
    """Reads the counters when a minibatch is handed on."""

    def __init__(self, read: Callable[[], Minibatch]) -> None:
        self.read, self.seen = read, dict[int, Minibatch]()

    def handed(self, number: int, ids: torch.Tensor) -> None:
        if number in (FIRST, LAST):
            self.seen[number] = self.read()


def counted(name: str, params: dict[str, str], sampling: str, step: str = "issued") -> Minibatch:
    """What a path asks for while GraphSAGE is trained on minibatches that are drawn so."""
    strategy = build(name, params)
    table = random_table(NODES, WIDTH, torch.uint8).view(torch.uint8).float() / 256
    labels = torch.arange(NODES) % CLASSES
    epochs = _epochs(sampling)
    with open_known(strategy, table, CUDA) as fetcher:
        model = build_model(WORKLOAD, WIDTH, CLASSES)
        trainer = Trainer(model, labels, CUDA)
        if step == "captured":
            drawn = [batch for epoch in (0, 1) for batch in epochs.on_cpu(epoch)]
            num_nodes = np.array([batch.num_nodes for batch in drawn])
            num_edges = np.array([[block.shape[1] for block in batch.edges] for batch in drawn])
            inputs = StepInputs(num_nodes, num_edges, WIDTH, CUDA)
            trainer = CapturedTrainer(model, labels, CUDA, inputs)
        of_sampler, of_fetch = Counts(), Counts()

        def counting(call: Callable[..., Any], total: Counts) -> Callable[..., Any]:
            def counted_call(*given: Any) -> Any:
                before = Counts.now()
                try:
                    return call(*given)
                finally:
                    more = total + (Counts.now() - before)
                    total.__dict__.update(more.__dict__)

            return counted_call

        if (begin := epochs._begin) is not None:

            def begun(*task: Any) -> Any:
                return counting(begin(*task), of_sampler)

            epochs._begin = counting(begun, of_sampler)
        opened: Any = fetcher
        for part in ("taken", "submit"):
            if hasattr(fetcher, part):
                setattr(opened, part, counting(getattr(fetcher, part), of_fetch))

        def read() -> Minibatch:
            here, every = Counts.now(), Counts.now(everywhere=True)
            return Minibatch(every, here, of_sampler + Counts(), of_fetch + Counts())

        run_epoch(epochs.measured(0), fetcher, trainer.step)
        watch = _Taken(read)
        run_epoch(epochs.measured(1), fetcher, trainer.step, watch=watch)
    first, last = watch.seen[FIRST], watch.seen[LAST]
    counts = ((getattr(first, f.name), getattr(last, f.name)) for f in fields(first))
    return Minibatch(*((then - before).each(LAST - FIRST) for before, then in counts))


def _epochs(sampling: str) -> Epochs:
    rng = np.random.default_rng(0)
    indptr = np.arange(0, 10 * NODES + 1, 10)
    indices = rng.integers(0, NODES, 10 * NODES)
    train_ids = np.arange(MINIBATCHES * BATCH)
    dataset: Any = SimpleNamespace(
        indptr=indptr, indices=indices, train_ids=train_ids, spec=SimpleNamespace(num_nodes=NODES)
    )
    job: Any = SimpleNamespace(
        measure=Measure(repeats=1, sampling=sampling),  # type: ignore[arg-type]
        case=SimpleNamespace(workload=WORKLOAD),
        device="cuda",
        rank=0,
    )
    return Epochs(job, dataset)


def columns(found: Minibatch) -> tuple[float, ...]:
    """The numbers of a line: launches of the fetch and, but for the sampler's, of all; copies and
    waits of the thread that trains; events that were made."""
    asked, drawn, fetch = found.every, found.sampler, found.fetch
    every = asked.launches + asked.operators - drawn.launches - drawn.operators
    training = found.training
    launches = fetch.launches + fetch.operators, every
    return (*launches, training.to_device, training.to_host, training.waits, asked.events)


def table() -> list[str]:
    """A line for each path and sampler, as CSV."""
    lines = [
        "path,minibatches,launches_fetch,launches_all,copies_to_gpu,copies_to_host,waits,events_made"
    ]
    for (name, params), sampling in itertools.product(PATHS, ("gpu", "live")):
        words = " ".join((name, *params.values()))
        found = columns(counted(name, params, sampling))
        lines.append(",".join([words, sampling, *(f"{n:g}" for n in found)]))
    return lines


if __name__ == "__main__":
    if not os.environ.get("STANDIN_KERNELS"):
        sys.exit("only the stand-in counts: see tests/gpu/standin/README.md")
    print("\n".join(table()))
