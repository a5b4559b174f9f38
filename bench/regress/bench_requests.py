"""Time the request counter over a trace's ids; the goal is 20 million rows/s on two cores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from gatherbench.kernels.policies import policy
from gatherbench.kernels.requests import request_row, uniform_ids

ROWS = 500_000


@pytest.mark.parametrize("name", ["aligned", "unaligned", "pytorch-direct", "dgl"])
@pytest.mark.parametrize("width", [25, 602])
def test_count_requests(benchmark: BenchmarkFixture, name: str, width: int) -> None:
    ids = uniform_ids(ROWS)
    benchmark.group = f"count the requests of {ROWS:,} rows of {width} floats"
    pedantic: Any = benchmark.pedantic
    counts = pedantic(
        request_row, args=(policy(name), 4 * width, 4, ids), rounds=15, warmup_rounds=1
    )
    assert counts.rows == ROWS
    assert counts.requests_per_row >= np.ceil(4 * width / 128)
