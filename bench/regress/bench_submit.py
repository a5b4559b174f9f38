"""Time the fixed cost of a fetch of one row, through every strategy that runs on the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

from gatherbench.strategies.base import Strategy
from gatherbench.strategies.conformance import open_known
from gatherbench.strategies.registry import STRATEGIES
from gatherbench.strategies.unified_tensor import UnifiedTensor

HOST = torch.device("cpu")
#: Every strategy with its default parameters.
RUNNABLE = {cls.name: cls() for cls in STRATEGIES if cls().skip(HOST) is None}
TABLE = torch.arange(4096.0)[:, None].repeat(1, 16)
CALLS = 50


def measure(benchmark: BenchmarkFixture, label: str, fetch: Callable[[Tensor], Tensor]) -> None:
    """Time fetches of one row with nothing else in flight; check the last one."""
    ids = itertools.cycle(torch.split(torch.arange(4096), 1))

    def fetch_next() -> tuple[Tensor, Tensor]:
        row_id = next(ids)
        return row_id, fetch(row_id)

    benchmark.group = f"{label} of one row ({CALLS} calls a round)"
    row_id, rows = benchmark.pedantic(fetch_next, rounds=40, iterations=CALLS, warmup_rounds=3)
    assert float(rows[0, 0]) == float(row_id)


@pytest.mark.parametrize("strategy", RUNNABLE.values(), ids=RUNNABLE)
def test_submit_and_result(benchmark: BenchmarkFixture, strategy: Strategy) -> None:
    with open_known(strategy, TABLE, HOST) as fetcher:
        measure(benchmark, "submit + result", lambda ids: fetcher.submit(ids).result())


@pytest.mark.parametrize("name", ["aligned_zero_copy", "async_zero_copy"])
def test_unified_tensor(benchmark: BenchmarkFixture, name: str) -> None:
    """Time ``features[ids]``, which adds the prefetch's bookkeeping and the copy."""
    with UnifiedTensor(TABLE, RUNNABLE[name], HOST) as features:

        def fetch(ids: Tensor) -> Tensor:
            features.prefetch(ids)
            return features[ids]

        measure(benchmark, "features[ids]", fetch)
