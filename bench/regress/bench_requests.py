"""Time the request counter over a whole trace; the goal is 20 million rows/s on two cores.

Each benchmark counts a trace's worth of ids; ``extra_info`` holds rows and requests.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from gatherbench.kernels.policies import policy
from gatherbench.kernels.requests import request_row, uniform_ids

#: ``make regress-against`` sets this: it starts anew in each of many processes.
SMALL = bool(os.environ.get("GATHERBENCH_REGRESS_SMALL"))
ROWS = 500_000 if SMALL else 4_000_000
WIDTHS = (25, 602) if SMALL else (25, 100, 353, 602)
#: The threshold for a few ms of streaming through memory: two runs of one build differed by up to
#: 1.4 on an idle machine that shared its memory with others.
STREAMING = 0.5


@pytest.mark.parametrize("name", ["aligned", "unaligned", "pytorch-direct", "dgl"])
@pytest.mark.parametrize("width", WIDTHS)
def test_count_requests(benchmark: BenchmarkFixture, name: str, width: int) -> None:
    ids = uniform_ids(ROWS)
    benchmark.group = f"count the requests of {ROWS:,} rows of {width} floats"
    pedantic: Any = benchmark.pedantic
    row = pedantic(request_row, args=(policy(name), 4 * width, 4, ids), rounds=15, warmup_rounds=1)
    assert row.counts.rows == ROWS
    assert row.requests_per_row >= np.ceil(4 * width / 128)
    benchmark.extra_info.update(rows=ROWS, requests=row.counts.num_requests, threshold=STREAMING)
