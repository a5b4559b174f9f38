"""Time the loop's own cost per minibatch, with a fetcher and a trainer that do nothing."""

from __future__ import annotations

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

from gatherbench.bench.run.loop import run_epoch
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.strategies.base import Fetcher, Ticket
from gatherbench.strategies.buffers import TicketRing

MINIBATCHES = 1000


class NoFetch(Fetcher):
    """A fetcher whose tickets fetch nothing; the checks of ``submit`` remain, as a fetch's cost."""

    def __init__(self, lookahead: int) -> None:
        self._rows = torch.zeros(4, 2)
        super().__init__(self._rows, torch.device("cpu"))
        self.lookahead = lookahead
        self._ring = TicketRing(lookahead + 1)

    def _submit(self, ids: Tensor) -> Ticket:
        self._ring.claim()
        return self._ring.issue(lambda: self._rows)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_run_epoch(benchmark: BenchmarkFixture, lookahead: int) -> None:
    batches = [MiniBatch(torch.arange(4), (), (4,))] * MINIBATCHES
    loss = torch.zeros(())
    benchmark.group = f"the loop's own cost for {MINIBATCHES} minibatches"
    with NoFetch(lookahead) as fetcher:
        args = batches, fetcher, lambda x, batch: loss
        times = benchmark.pedantic(run_epoch, args=args, rounds=30, warmup_rounds=3)
    assert len(times.losses) == MINIBATCHES
    assert times.payload_rows == 4 * MINIBATCHES
