"""Epochs for the meters to watch: random rows of a made-up table, fetched and trained on.

No dataset and no sampler: the ids are drawn beforehand, so that all that an epoch does is fetch
and train, and what differs between strategies is the data path.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gatherbench.bench.plan.workload import GRAPHLESS, Workload
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.kernels.host_memory import empty_table

#: Rows of 400 B, as in ogbn-products: no multiple of a line of 128 B.
WIDTH = 100
CLASSES = 47
_CHUNK_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Size:
    """How much an epoch moves."""

    table_bytes: int
    batch_rows: int = 100_000
    batches: int = 200

    @property
    def rows(self) -> int:
        return max(1, self.table_bytes // (4 * WIDTH))

    @property
    def workload(self) -> Workload:
        """Stands in the rows for what was run; it can only be run by this program."""
        return Workload(
            f"uniform-{self.rows}-rows",
            model=GRAPHLESS,
            hidden=256,
            fanouts=(1,),
            batch_size=self.batch_rows,
            max_batches=self.batches,
        )


def make_table(size: Size) -> Tensor:
    """Random float32 features ``[rows, WIDTH]`` in host memory."""
    table = empty_table((size.rows, WIDTH), torch.float32)
    generator = torch.Generator().manual_seed(0)
    for start in range(0, size.rows, _CHUNK_ROWS):
        part = table[start : start + _CHUNK_ROWS]
        torch.rand(part.shape, generator=generator, out=part)
    return table


def make_batches(size: Size) -> list[MiniBatch]:
    """The minibatches of every epoch: uniformly random ids without edges."""
    generator = torch.Generator().manual_seed(1)
    return [
        MiniBatch(
            torch.randint(size.rows, (size.batch_rows,), generator=generator),
            (),
            (size.batch_rows,),
        )
        for _ in range(size.batches)
    ]


class Perceptron:
    """A small network, trained on every fetched row: work for the GPU beside the transfer."""

    def __init__(self, device: torch.device, hidden: int) -> None:
        torch.manual_seed(0)
        self._layers = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, CLASSES),
        ).to(device)
        self._optimiser = torch.optim.Adam(self._layers.parameters(), lr=1e-3)
        self._labels = torch.zeros(0, dtype=torch.int64, device=device)

    def step(self, x: Tensor, batch: MiniBatch) -> Tensor:
        """Forward, backward, update; the loss, left on the device."""
        if self._labels.numel() != x.shape[0]:
            self._labels = torch.arange(x.shape[0], device=x.device) % CLASSES
        loss = cross_entropy(self._layers(x), self._labels)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        return loss.detach()
