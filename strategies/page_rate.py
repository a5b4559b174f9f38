"""Measure how fast a GPU goes from page to page of a table in host memory, when a path opens.

Random reads of 64 B make the GPU translate an address for nearly each of them. Over the whole table
the cost depends on the page size; over a window of 64 MiB it is small for every page size. So the
comparison of the two shows, on any machine, a driver that fell back to small pages
(``kernels/managed_memory.py``), and a table too large for fast translation.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from gatherbench.kernels.launch import Table, gather_into, policy_point
from gatherbench.strategies.base import SetupStep

#: Bytes of a read, and reads of a gather: 1 to 16 ms on an H200, by its rows of 64 B.
READ_BYTES, READS = 64, 1 << 19
#: Gathers, the first of which warms up. Each reads other rows, which no cache of the GPU holds.
GATHERS = 4
NEAR_BYTES = 64 << 20
_METRICS = {"page_visit_rate": "the whole table", "page_visit_rate_near": "64 MiB of it"}
_SMALL = f"unsupported: the table is below {GATHERS * NEAR_BYTES >> 20} MiB, which caches may hold"


def page_visit_steps(address: int, size_bytes: int, device: torch.device) -> list[SetupStep]:
    """Measure the rates, in reads per second, over ``size_bytes`` at the GPU's ``address``."""
    rates: dict[str, float | None] = dict.fromkeys(_METRICS)
    if size_bytes >= GATHERS * NEAR_BYTES:
        spans = [(0, size_bytes)] * GATHERS, [(k * NEAR_BYTES, NEAR_BYTES) for k in range(GATHERS)]
        for metric, windows in zip(_METRICS, spans, strict=True):
            seconds = [
                _gather_seconds(address + begin, size, device, number)
                for number, (begin, size) in enumerate(windows)
            ]
            rates[metric] = READS / statistics.median(seconds[1:])
    how = f"torch.cuda.Event, {GATHERS - 1} gathers of {READS} random reads of {READ_BYTES} B over"
    return [
        SetupStep(metric, "1/s", rate, f"{how} {_METRICS[metric]}", "" if rate else _SMALL)
        for metric, rate in rates.items()
    ]


def random_reads(reads: int, number: int, device: torch.device) -> torch.Tensor:
    """Draw :data:`READS` distinct ids below ``reads``, int64; ``number`` is the seed."""
    draw = torch.Generator(device).manual_seed(number)
    bounds = torch.arange(READS + 1, device=device) * reads // READS
    within = torch.rand(READS, generator=draw, dtype=torch.float64, device=device)
    ids = bounds[:-1] + (within * bounds.diff()).long()
    return ids[torch.randperm(READS, generator=draw, device=device)]


def _gather_seconds(address: int, size: int, device: torch.device, number: int) -> float:
    table = Table(address, size // READ_BYTES, READ_BYTES, READ_BYTES)
    ids = random_reads(table.num_rows, number, device)
    out = torch.empty((READS, READ_BYTES), dtype=torch.uint8, device=device)
    point = policy_point("aligned", READ_BYTES, 1, address % 16, out.data_ptr() % 16, 8)
    torch.cuda.synchronize(device)
    return event_seconds(lambda: gather_into(out, table, ids, point), device)


def event_seconds(queue: Callable[[], None], device: torch.device) -> float:
    """Measure on the current stream the seconds of the work that ``queue`` puts there."""
    begin, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    with torch.cuda.device(device):
        begin.record()
        queue()
        end.record()
        end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
