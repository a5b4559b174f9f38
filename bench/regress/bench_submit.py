"""Time the fixed cost of a fetch of one row, through every strategy that runs on the host."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

from gatherbench.bench.regress.bench_gather import SMALL
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.conformance import open_known
from gatherbench.strategies.registry import STRATEGIES, representatives
from gatherbench.strategies.unified_tensor import UnifiedTensor

HOST = torch.device("cpu")
RUNNABLE = [v for cls in STRATEGIES for v in representatives(cls) if v.skip(HOST) is None]


def fetches_as(variant: Strategy) -> Strategy:
    """Return the variant with defaults for the options that only decide which rows it keeps."""
    default = type(variant)()
    kept = {n: getattr(default, n) for n in ("policy", "share") if hasattr(default, n)}
    return replace(variant, **kept)


if SMALL:
    RUNNABLE = list({fetches_as(variant): variant for variant in RUNNABLE[::-1]}.values())[::-1]
PARAMS = [pytest.param(v, id=f"{v.name}-{v.variant}") for v in RUNNABLE]
TABLE = torch.arange(4096.0)[:, None].repeat(1, 16)
ROUNDS, CALLS = 40, 50


@pytest.mark.parametrize("strategy", PARAMS)
def test_submit_and_result(benchmark: BenchmarkFixture, strategy: Strategy) -> None:
    """Time a round trip with nothing else in flight."""
    ids = itertools.cycle(torch.split(torch.arange(4096), 1))
    with open_known(strategy, TABLE, HOST) as fetcher:

        def fetch() -> tuple[Tensor, Tensor]:
            one = next(ids)
            return one, fetcher.submit(one).result()

        benchmark.group = f"submit + result of one row ({CALLS} calls a round)"
        one, rows = benchmark.pedantic(fetch, rounds=ROUNDS, iterations=CALLS, warmup_rounds=3)  # type: ignore[no-untyped-call]
        assert float(rows[0, 0]) == float(one)


@pytest.mark.parametrize("name", ["aligned_zero_copy", "async_zero_copy"])
def test_unified_tensor(benchmark: BenchmarkFixture, name: str) -> None:
    """Time ``features[ids]``, which adds the prefetch's bookkeeping and the copy."""
    strategy = next(v for v in RUNNABLE if v.name == name)
    ids = itertools.cycle(torch.split(torch.arange(4096), 1))
    with UnifiedTensor(TABLE, strategy, HOST) as features:

        def fetch() -> tuple[Tensor, Tensor]:
            one = next(ids)
            features.prefetch(one)
            return one, features[one]

        benchmark.group = f"features[ids] of one row ({CALLS} calls a round)"
        one, rows = benchmark.pedantic(fetch, rounds=ROUNDS, iterations=CALLS, warmup_rounds=3)  # type: ignore[no-untyped-call]
        assert float(rows[0, 0]) == float(one)
