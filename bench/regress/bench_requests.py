"""Time the request counter over a trace's ids; the goal is 20 million rows/s on two cores."""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from gatherbench.kernels.policies import policy
from gatherbench.kernels.requests import request_row, uniform_ids

ROWS = 500_000


@pytest.mark.parametrize("name", ["aligned", "unaligned", "pytorch-direct", "dgl"])
@pytest.mark.parametrize("width", [25, 602])
def test_count_requests(benchmark: BenchmarkFixture, name: str, width: int) -> None:
    benchmark.group = f"count the requests of {ROWS:,} rows of {width} floats"
    args = policy(name), 4 * width, 4, uniform_ids(ROWS)
    counts = benchmark.pedantic(request_row, args=args, rounds=15, warmup_rounds=1)
    assert counts.rows == ROWS
    assert counts.requests_per_row >= np.ceil(4 * width / 128)
